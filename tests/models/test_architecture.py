"""Sampling of architectures and the cost of one sample."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import nn

from mfedpba_mpi.data.catalog import Modality
from mfedpba_mpi.errors import UserError
from mfedpba_mpi.models.architecture import (
    FAMILIES,
    MAX_SIGNAL_LENGTH,
    NONZEROS,
    Architecture,
    convolutions,
    macs,
    sample_architecture,
)
from mfedpba_mpi.models.extractors import SparseLinear, build_extractor
from mfedpba_mpi.models.inputs import modality_rows


def draws(kind: str, count: int = 300, families: tuple[str, ...] = ()) -> list[Architecture]:
    rng = np.random.default_rng(0)
    return [sample_architecture(rng, Modality("x", kind, 100, False), families) for _ in range(count)]


@pytest.mark.parametrize("kind", "ILAT")
def test_draws_cover_the_table(kind: str) -> None:
    drawn = draws(kind)
    assert {a.family for a in drawn} == {family for family, types in FAMILIES.items() if kind in types}
    assert {len(a.widths) for a in drawn} == {2, 3, 4, 5}
    assert {width for a in drawn for width in a.widths} == set(range(32, 257, 32))
    assert all(a >= b for architecture in drawn for a, b in pairwise(architecture.widths))
    assert any(len(set(a.widths)) == 1 for a in drawn)
    for a in drawn:
        assert len(a.channels) == {"CNN1D": len(a.widths), "CNN2D": len(a.widths), "TextCNN": 1}.get(a.family, 0)
        assert set(a.channels) <= {8, 16, 24, 32}


def test_draws_respect_families_and_are_reproducible() -> None:
    assert {a.family for a in draws("L", families=("TextCNN", "CNN2D", "CNN1D"))} == {"TextCNN", "CNN1D"}
    assert draws("A") == draws("A")
    assert draws("L", families=("CNN1D", "DNN")) == draws("L", families=("DNN", "CNN1D"))


def test_a_registered_family_is_drawn_only_if_families_lists_it(own_family: Callable[..., None]) -> None:
    before, named = draws("A"), draws("A", families=("DNN", "Resmodel"))
    own_family("Own", "A", nn.Identity)
    assert draws("A") == before
    assert draws("A", families=("DNN", "Resmodel")) == named
    assert {a.family for a in draws("A", families=("DNN", "Own"))} == {"DNN", "Own"}


def test_draws_do_not_depend_on_the_order_of_registration(own_family: Callable[..., None]) -> None:
    own_family("Beta", "A", nn.Identity)
    own_family("Alpha", "A", nn.Identity)
    drawn = draws("A", families=("Alpha", "Beta"))
    del FAMILIES["Beta"]
    own_family("Beta", "A", nn.Identity)
    assert draws("A", families=("Alpha", "Beta")) == drawn


def test_errors_name_the_cause() -> None:
    with pytest.raises(UserError, match=r"families: none of TextCNN supports .* of type I; add one of DNN, CNN2D"):
        draws("I", families=("TextCNN",))
    with pytest.raises(UserError, match="none of RNN supports"):
        draws("I", families=("RNN",))
    with pytest.raises(UserError, match="type 'X'"):
        draws("X")


def test_architectures_as_text_and_json() -> None:
    drawn = Architecture("CNN2D", (128, 64), (16, 32))
    assert str(drawn) == "CNN2D 16-32 + 128-64"
    assert str(Architecture("DNN", (256, 128, 64))) == "DNN 256-128-64"
    assert Architecture.from_dict(json.loads(json.dumps(drawn.as_dict()))) == drawn
    for a in draws("L", 20):
        assert Architecture.from_dict(json.loads(json.dumps(a.as_dict()))) == a


@pytest.mark.parametrize("width", [6, 240, 1024, 1025, 2000, 34251])
@pytest.mark.parametrize("family", ["CNN1D", "TextCNN"])
def test_convolutions_cover_the_signal_and_limit_its_length(family: str, width: int) -> None:
    layers = convolutions(Architecture(family, (32,) * 5, (8,) * 5), width)
    first = layers[0]
    covered = (first.size[1] - 1) * first.stride[1] + first.kernel[1] - first.padding[1]
    assert first.stride[1] <= first.kernel[1]
    assert covered >= width
    assert max(layer.size[1] for layer in layers) <= MAX_SIGNAL_LENGTH + 1  # one more for an even kernel
    limits = (128, 64, 32, 16, 8) if family == "CNN1D" else (64,) * 3
    assert all(layer.breadth <= min(limit, width + 1) for layer, limit in zip(layers, limits, strict=True))


def count_by_hooks(model: nn.Module, x: object) -> int:
    """Count the multiply-accumulate operations of one sample by hooks, while the batch `x` runs through the model."""
    total = 0

    def hook(module: nn.Module, inputs: tuple, output: torch.Tensor) -> None:
        nonlocal total
        if isinstance(module, nn.Conv2d):
            total += module.weight.numel() * output.shape[2] * output.shape[3]
        elif isinstance(module, nn.Linear):
            total += module.weight.numel()
        elif isinstance(module, SparseLinear):
            total += len(inputs[0].indices) // len(inputs[0]) * output.shape[1]

    for module in model.modules():
        module.register_forward_hook(hook)
    model(x)
    return total


@pytest.mark.parametrize("family", FAMILIES)
def test_macs_match_the_operations_of_a_forward_pass(family: str) -> None:
    rng = np.random.default_rng(1)
    for width in (6, 47, 240, 2000):
        modality = Modality("x", FAMILIES[family][0], width, False)
        for _ in range(4):
            drawn = sample_architecture(rng, modality, (family,))
            counted = count_by_hooks(build_extractor(drawn, modality, 24), torch.zeros(3, width))
            assert macs(drawn, modality, 24) == counted


def test_macs_of_sparse_rows() -> None:
    modality = Modality("x", "L", 5000, True)
    dense = np.zeros((3, 5000), np.float32)
    dense[:, :NONZEROS] = 1
    rows = modality_rows(sp.csr_array(dense), 2).batch(0, 3)
    for drawn in (Architecture("DNN", (64, 32)), Architecture("TextCNN", (64, 32), (8,))):
        assert macs(drawn, modality, 24) == count_by_hooks(build_extractor(drawn, modality, 24), rows)
