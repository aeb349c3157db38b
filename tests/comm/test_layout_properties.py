"""Packed messages, whatever their shapes and bits: what goes in comes out, where it belongs and nowhere else."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mfedpba_mpi.comm.layout import Layout
from mfedpba_mpi.comm.serial import SerialComm
from tests.properties import examples

CPU = torch.device("cpu")
# -0.0, the least and the largest denormal, both infinities, quiet and signalling NaNs with and without a payload
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
    """Messages of any bits; arrays lie in memory as laid out, or with their axes the other way round."""
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
def test_packing_fills_its_slice_in_order_and_touches_nothing_else(laid_out, before, after, word):
    layout, message = laid_out
    whole = torch.from_numpy(np.full(before + layout.size + after, word, np.uint32).view(np.float32))
    layout.pack(message, whole[before : before + layout.size])
    inside = [own for name in layout.shapes for own in bits(message[name])]
    assert bits(whole) == [word] * before + inside + [word] * after


@examples(100)
@given(st.dictionaries(st.sampled_from("EIP"), SHAPES), st.dictionaries(st.sampled_from("abc"), SHAPES))
def test_bytes_are_those_of_the_arrays(payload, extra):
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


class Rank(SerialComm):
    """One of several ranks in this process, which take turns; `post` has a place for the buffer of each."""

    def __init__(self, rank: int, ranks: list[list[int]], post: list[torch.Tensor]) -> None:
        super().__init__()
        self.rank, self.size, self.ranks, self.post = rank, len(ranks), ranks, post

    def _gather(self, send: torch.Tensor, counts: list[int]) -> torch.Tensor | None:
        assert len(send) == counts[self.rank]
        self.post[self.rank] = send.clone()
        return torch.cat(self.post) if self.is_server else None

    def _scatter(self, send: torch.Tensor, counts: list[int]) -> torch.Tensor:
        if self.is_server:
            self.post[:] = send.clone().split(counts)
        assert len(self.post[self.rank]) == counts[self.rank]
        return self.post[self.rank]


@st.composite
def exchanges(draw) -> tuple[list[Rank], dict[int, Layout], dict[int, dict[str, torch.Tensor]]]:
    """Ranks with clients anywhere, and the layouts and messages of those clients that take part."""
    size = draw(st.integers(1, 4))
    homes = draw(st.lists(st.integers(0, size - 1), max_size=6))
    ranks = [[k for k, home in enumerate(homes) if home == rank] for rank in range(size)]
    taking_part = [k for k in range(len(homes)) if draw(st.booleans())]
    laid_out = {k: draw(LAID_OUT) for k in taking_part}
    post = [torch.empty(0)] * size
    comms = [Rank(rank, ranks, post) for rank in range(size)]
    return comms, {k: pair[0] for k, pair in laid_out.items()}, {k: pair[1] for k, pair in laid_out.items()}


@examples(100)
@given(exchanges())
def test_gathering_brings_the_server_every_message_in_client_order(exchange):
    comms, layouts, messages = exchange
    for comm in reversed(comms):  # the server last
        found = comm.gather({k: messages[k] for k in comm.own_clients if k in messages}, layouts)
        assert comm.is_server or found == {}
    assert list(found) == sorted(messages)
    assert all(same(found[k], messages[k]) for k in messages)


@examples(100)
@given(exchanges())
def test_scattering_brings_every_client_its_own_message(exchange):
    comms, layouts, messages = exchange
    for comm in comms:  # the server first
        found = comm.scatter(messages if comm.is_server else {}, layouts)
        assert list(found) == [k for k in comm.own_clients if k in messages]
        assert all(same(found[k], messages[k]) for k in found)


@examples(100)
@given(LAID_OUT, LAID_OUT)
def test_what_was_received_outlives_the_next_message_in_the_same_buffer(one, two):
    comm = SerialComm()
    comm.place([1.0])
    first = [comm.gather({0: one[1]}, {0: one[0]})[0], comm.broadcast(one[1], one[0])]
    comm.gather({0: two[1]}, {0: two[0]})
    comm.broadcast(two[1], two[0])
    assert all(same(found, one[1]) for found in first)
