"""A client's network: fusion of features, logits, and the gradient of the fusion."""

from __future__ import annotations

import pytest
import torch

from mfedpba_mpi.data.catalog import Modality
from mfedpba_mpi.models.architecture import Architecture
from mfedpba_mpi.models.client_model import ClientModel

B, C, D = 7, 3, 4


def model_of(fusion: str, modalities: int, family: str = "DNN") -> ClientModel:
    torch.manual_seed(0)
    views = [Modality(f"M{m}", "A", 5 + m) for m in range(modalities)]
    return ClientModel(views, [Architecture(family, (32, 32))] * modalities, D, C, fusion)


@pytest.mark.parametrize("modalities", [1, 3])
@pytest.mark.parametrize("fusion", ["sum", "concat", "separate"])
def test_shapes_of_features_and_logits(fusion: str, modalities: int) -> None:
    model = model_of(fusion, modalities)
    Z = model.features([torch.randn(B, 5 + m) for m in range(modalities)])
    assert Z.shape == (modalities, B, D)
    assert model.logits(Z).shape == (modalities if fusion == "separate" else 1, B, C)


def test_fusion_by_hand() -> None:
    Z = torch.tensor([[[1.0, 2, 3, 4]], [[10, 20, 30, 40]]])  # two modalities, one sample
    assert model_of("sum", 2).fuse(Z).tolist() == [[[11, 22, 33, 44]]]
    assert model_of("concat", 2).fuse(Z).tolist() == [[[1, 2, 3, 4, 10, 20, 30, 40]]]
    assert model_of("separate", 2).fuse(Z).tolist() == Z.tolist()


@pytest.mark.parametrize("modalities", [1, 3])
@pytest.mark.parametrize("fusion", ["sum", "concat", "separate"])
def test_unfuse_is_the_gradient_of_fuse(fusion: str, modalities: int) -> None:
    model = model_of(fusion, modalities)
    Z = torch.randn(modalities, B, D, requires_grad=True)
    fused = model.fuse(Z)
    g = torch.randn_like(fused)
    (expected,) = torch.autograd.grad(fused, Z, g)
    assert torch.equal(model.unfuse(g, modalities), expected)


def test_batchnorm_is_found_in_the_extractors() -> None:
    assert model_of("sum", 2, "Resmodel").has_batchnorm
    assert not model_of("sum", 2).has_batchnorm
