"""Gradients of a client's loss: manual for the classifier, by autograd for any function."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
import torch
from torch import Tensor

from mfedpba_mpi.data.catalog import Modality
from mfedpba_mpi.methods.base import Client
from mfedpba_mpi.methods.training import AutogradLoss, Epoch, HeadLoss, Loss, cross_entropy
from mfedpba_mpi.models.architecture import Architecture
from mfedpba_mpi.models.client_model import ClientModel

C, D, LR = 3, 4, 0.1
CUTS = [(0, 4), (4, 8), (8, 11)]  # the last batch is short


def client_of(fusion: str, modalities: int) -> Client:
    """A stub with the attributes of a client that losses use."""
    torch.manual_seed(0)
    views = [Modality(f"M{m}", "I", 5) for m in range(modalities)]
    model = ClientModel(views, [Architecture("DNN", (32, 32))] * modalities, D, C, fusion)
    groups = [(list(model.classifier.parameters()), LR)]
    return cast(
        Client,
        SimpleNamespace(
            model=model, device=torch.device("cpu"), config=SimpleNamespace(lr=LR),
            rates=lambda: (LR, groups),
            spec=SimpleNamespace(modalities=range(modalities)), problem=SimpleNamespace(C=C, d=D),
        ),
    )  # fmt: skip


def run(loss: Loss, Z: Tensor) -> tuple[list[Tensor], Tensor]:
    """Run an epoch; return dL/dZ of each batch and the mean loss terms."""
    with torch.no_grad():
        return [step(loss, i, slice(a, b), Z[:, a:b].clone()) for i, (a, b) in enumerate(CUTS)], loss.means()


def step(loss: Loss, number: int, rows: slice, Z: Tensor) -> Tensor:
    """One SGD step of all parameters except the extractors'; return dL/dZ."""
    gradient = loss.gradient(number, rows, Z)
    for leaf, lr in loss.leaves():
        leaf.step(lr)
    return gradient


@pytest.mark.parametrize("modalities", [1, 2])
@pytest.mark.parametrize("fusion", ["sum", "concat", "separate"])
def test_head_loss_equals_autograd_loss(fusion: str, modalities: int) -> None:
    epoch = Epoch([], torch.tensor([0, 1, 2, 0, 1, 1, 1, 2, 0, 2, 0]), CUTS, torch.arange(11))
    Z = torch.randn(modalities, 11, D, generator=torch.Generator().manual_seed(1))
    manual, auto = client_of(fusion, modalities), client_of(fusion, modalities)

    def ce(number: int, rows: slice, Z: Tensor) -> tuple[Tensor, list[Tensor]]:
        value = cross_entropy(auto.model.logits(Z), epoch.y[rows])
        return value, [value]

    found, means = run(HeadLoss(manual, epoch), Z)
    expected, expected_means = run(AutogradLoss(auto, ce), Z)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)
    torch.testing.assert_close(means, expected_means)
    for p, q in zip(manual.model.parameters(), auto.model.parameters(), strict=True):
        torch.testing.assert_close(p, q)
    assert not torch.equal(manual.model.classifier.weight, client_of(fusion, modalities).model.classifier.weight)


def test_parameter_groups_use_their_learning_rates() -> None:
    a, b = (torch.nn.Parameter(torch.tensor([value])) for value in (1.0, 2.0))
    client = cast(Client, SimpleNamespace(rates=lambda: (0.0, [([a], 0.1), ([b], 0.01)])))
    loss = AutogradLoss(client, lambda number, rows, Z: ((3 * a + 5 * b + 7 * Z).sum(), [a.sum(), b.sum()]))
    with torch.no_grad():
        assert step(loss, 0, slice(0, 1), torch.ones(1)).tolist() == [7.0]
    assert (a.item(), b.item()) == (pytest.approx(0.7), pytest.approx(1.95))
    assert loss.means().tolist() == [1.0, 2.0]
