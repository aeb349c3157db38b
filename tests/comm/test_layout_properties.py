"""Property tests of packed messages of any shapes and bits."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mfedpba_mpi.comm.layout import Layout
from tests.properties import examples

CPU = torch.device("cpu")
# -0.0, the smallest and the largest denormal, both infinities, quiet and signalling NaNs with and without a payload
ODD = [0x80000000, 0x00000001, 0x007FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC12345, 0x7F800001, 0xFFBFFFFF]
WORDS = st.sampled_from(ODD) | st.integers(0, 2**32 - 1)
SHAPES = st.lists(st.integers(0, 3), max_size=3).map(tuple)


@st.composite
def layouts(draw) -> Layout:
    names = draw(st.lists(st.sampled_from("EIPVabc"), unique=True, max_size=5))
    shapes = {name: draw(SHAPES) for name in names}
    split = draw(st.integers(0, len(names)))
    return Layout({name: shapes[name] for name in names[:split]}, {name: shapes[name] for name in names[split:]})


def messages(layout: Layout) -> st.SearchStrategy:
    """Messages of any bits, with arrays in row-major or column-major order."""
    return st.fixed_dictionaries({name: _arrays(shape) for name, shape in layout.shapes.items()})


@st.composite
def _arrays(draw, shape: tuple[int, ...]) -> torch.Tensor:
    size = math.prod(shape)
    words = np.array(draw(st.lists(WORDS, min_size=size, max_size=size)), np.uint32)
    array = torch.from_numpy(words.view(np.int32)).view(torch.float32).reshape(shape)
    axes = tuple(reversed(range(len(shape))))
    return array.permute(axes).contiguous().permute(axes) if draw(st.booleans()) else array


LAID_OUT = layouts().flatmap(lambda layout: st.tuples(st.just(layout), messages(layout)))


def bits(array: torch.Tensor) -> list[int]:
    return array.detach().numpy().copy().view(np.uint32).reshape(-1).tolist()


def same(found: dict[str, torch.Tensor], message: dict[str, torch.Tensor]) -> bool:
    """Whether both have the same names, shapes and bits."""
    return found.keys() == message.keys() and all(
        found[name].shape == message[name].shape and bits(found[name]) == bits(message[name]) for name in message
    )


@examples(150)
@given(LAID_OUT)
def test_packing_and_unpacking_keep_every_bit(laid_out):
    layout, message = laid_out
    flat = torch.empty(layout.size)
    layout.pack(message, flat)
    found = layout.unpack(flat, CPU)
    flat.fill_(7.0)
    assert same(found, message)


@examples(150)
@given(LAID_OUT, st.integers(0, 3), st.integers(0, 3), WORDS)
def test_packing_fills_its_slice_in_order_and_changes_nothing_else(laid_out, before, after, word):
    layout, message = laid_out
    whole = torch.from_numpy(np.full(before + layout.size + after, word, np.uint32).view(np.float32))
    layout.pack(message, whole[before : before + layout.size])
    inside = [own for name in layout.shapes for own in bits(message[name])]
    assert bits(whole) == [word] * before + inside + [word] * after


@examples(100)
@given(st.dictionaries(st.sampled_from("EIP"), SHAPES), st.dictionaries(st.sampled_from("abc"), SHAPES))
def test_byte_counts_are_those_of_the_arrays(payload, extra):
    layout = Layout(payload, extra)
    arrays = {name: torch.zeros(shape) for name, shape in {**payload, **extra}.items()}
    assert layout.payload_bytes == sum(arrays[name].nbytes for name in payload)
    assert layout.wire_bytes == sum(array.nbytes for array in arrays.values()) == torch.empty(layout.size).nbytes


@examples(150)
@given(LAID_OUT, SHAPES, st.data())
def test_a_message_with_other_names_or_shapes_is_refused(laid_out, shape, data):
    layout, message = laid_out
    name = data.draw(st.sampled_from([*layout.shapes, "more"]))
    if name == "more" or shape != layout.shapes[name]:
        other = {**message, name: torch.zeros(shape)}
    else:
        other = {key: value for key, value in message.items() if key != name}
    with pytest.raises(ValueError, match="layout"):
        layout.pack(other, torch.empty(layout.size + math.prod(shape)))
