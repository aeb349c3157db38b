"""Manual SGD steps, compared with autograd through the same modules."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from mfedpba_mpi.data.catalog import Modality
from mfedpba_mpi.methods.training import Clipping
from mfedpba_mpi.models.architecture import FAMILIES, SHIPPED, sample_architecture
from mfedpba_mpi.models.extractors import build_extractor
from mfedpba_mpi.models.inputs import SparseRows
from mfedpba_mpi.models.manual_sgd import AutogradPass, JointNorm, Pass, training_pass
from tests.models.test_extractors import example, sparse_rows

D, LR = 6, 0.05


def step(manual: Pass, g: Tensor) -> None:
    manual.gradient(g, False)
    for leaf in manual.leaves():
        leaf.step(LR)


def step_by_autograd(model: nn.Module, x: Tensor | SparseRows, g: Tensor) -> Tensor:
    y = model(x)
    gradients = torch.autograd.grad(y, list(model.parameters()), g)
    with torch.no_grad():
        for p, gradient in zip(model.parameters(), gradients, strict=True):
            p.sub_(gradient.to_dense(), alpha=LR)
    return y.detach()


def assert_same_steps(model: nn.Module, batches: list[Tensor | SparseRows], tolerance: float = 1e-3) -> None:
    """Manual and autograd steps give the same outputs, weights and running statistics."""
    reference = copy.deepcopy(model)
    manual = training_pass(model)
    for x in batches:
        g = torch.randn(len(x), D, dtype=next(model.parameters()).dtype)
        expected = step_by_autograd(reference, x, g)
        with torch.no_grad():
            torch.testing.assert_close(manual.forward(x), expected, rtol=tolerance, atol=tolerance / 10)
            step(manual, g)
    for (name, found), expected in zip(model.state_dict().items(), reference.state_dict().values(), strict=True):
        if not name.endswith("num_batches_tracked"):
            torch.testing.assert_close(
                found,
                expected,
                rtol=tolerance,
                atol=tolerance / 10,
                msg=lambda message, name=name: f"{name}: {message}",
            )


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-3)])
@pytest.mark.parametrize("width", [6, 64, 240, 2000])
@pytest.mark.parametrize("draw", range(3))
@pytest.mark.parametrize("family", FAMILIES)
def test_manual_steps_of_every_family_equal_autograd(
    family: str, draw: int, width: int, dtype: torch.dtype, tolerance: float
) -> None:
    torch.manual_seed(draw)
    modality = Modality("x", FAMILIES[family][0], width)
    model = build_extractor(sample_architecture(np.random.default_rng(draw), modality, [family]), modality, D).to(dtype)
    assert_same_steps(model, [torch.randn(size, width, dtype=dtype) for size in (12, 12, 5)], tolerance)


@pytest.mark.parametrize("family", ["DNN", "CNN1D", "TextCNN"])
def test_manual_steps_on_sparse_rows_equal_autograd(family: str) -> None:
    torch.manual_seed(0)
    modality = Modality("x", "L", 300, sparse=True)
    model = build_extractor(sample_architecture(np.random.default_rng(0), modality, [family]), modality, D)
    assert_same_steps(model, [sparse_rows(size, 300) for size in (12, 12, 5)])


@pytest.mark.parametrize("family", ["DNN", "Resmodel"])
def test_sparse_and_dense_first_layer_give_the_same_steps(family: str) -> None:
    """From the same weights: same features, and same weights after steps in which rows share words."""
    torch.manual_seed(0)
    sparse, dense = (build_extractor(*example(family, 2, 60, kind), D).double() for kind in (True, False))
    weights = sparse.state_dict()
    weights["0.weight"] = weights["0.weight"].T
    dense.load_state_dict(weights)
    rows = sparse_rows(12, 60)
    rows.values = rows.values.double()
    passes = [(training_pass(sparse), rows), (training_pass(dense), rows.dense())]
    g = torch.randn(12, D, dtype=torch.float64)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(*(one.forward(x) for one, x in passes))
            for one, _ in passes:
                step(one, g)
    for (name, a), (_, b) in zip(sparse.named_parameters(), dense.named_parameters(), strict=True):
        torch.testing.assert_close(a.T if name == "0.weight" else a, b)


def test_a_sparse_step_changes_only_the_weights_of_nonzero_inputs() -> None:
    model = build_extractor(*example("DNN", 2, 500, sparse=True), D)
    rows, before = sparse_rows(4, 500), model[0].weight.detach().clone()
    manual = training_pass(model)
    with torch.no_grad():
        manual.forward(rows)
        step(manual, torch.randn(4, D))
    changed = (model[0].weight != before).any(1).nonzero().flatten()
    assert set(changed.tolist()) == set(rows.indices.tolist())


def assert_same_clipped_steps(model: nn.Module, batches: list[Tensor | SparseRows], max_norm: float) -> None:
    """Manual clipped steps equal `clip_grad_norm_` of torch and plain SGD."""
    reference = copy.deepcopy(model)
    optimiser = torch.optim.SGD(reference.parameters(), LR)
    manual = training_pass(model)
    clipping = Clipping(manual.leaves(), max_norm)
    for x in batches:
        g = torch.randn(len(x), D, dtype=torch.float64)
        optimiser.zero_grad()
        reference(x).backward(g)
        for p in reference.parameters():
            p.grad = p.grad.to_dense()
        norm = nn.utils.clip_grad_norm_(reference.parameters(), max_norm)
        optimiser.step()
        with torch.no_grad():
            manual.forward(x)
            manual.gradient(g, False)
            torch.testing.assert_close(JointNorm(manual.leaves()).norm2(), norm**2)
            factor = clipping.factor()
            for leaf in manual.leaves():
                leaf.step(factor * LR)
    for found, expected in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("max_norm", [0.1, 1e6])
@pytest.mark.parametrize("width", [6, 240])
@pytest.mark.parametrize("family", FAMILIES)
def test_clipped_steps_of_every_family_equal_clip_grad_norm(family: str, width: int, max_norm: float) -> None:
    torch.manual_seed(1)
    modality = Modality("x", FAMILIES[family][0], width)
    model = build_extractor(sample_architecture(np.random.default_rng(1), modality, [family]), modality, D).double()
    batches = [torch.randn(size, width, dtype=torch.float64) for size in (12, 12, 5)]
    assert_same_clipped_steps(model, batches, max_norm)


@pytest.mark.parametrize("family", ["DNN", "CNN1D"])
def test_clipped_steps_on_sparse_rows_equal_clip_grad_norm(family: str) -> None:
    torch.manual_seed(0)
    modality = Modality("x", "L", 300, sparse=True)
    model = build_extractor(sample_architecture(np.random.default_rng(0), modality, [family]), modality, D).double()
    batches = [sparse_rows(size, 300) for size in (12, 12, 5)]
    for rows in batches:
        rows.values = rows.values.double()
    assert_same_clipped_steps(model, batches, 0.1)


@pytest.mark.parametrize("family", FAMILIES)
def test_scaled_gradients_give_a_scaled_step(family: str) -> None:
    """On a GPU gradients are scaled by a tensor instead of the step by a number."""
    torch.manual_seed(0)
    modality = Modality("x", FAMILIES[family][0], 64)
    model = build_extractor(sample_architecture(np.random.default_rng(0), modality, [family]), modality, D).double()
    other, x, g = copy.deepcopy(model), torch.randn(12, 64, dtype=torch.float64), torch.randn(12, D).double()
    with torch.no_grad():
        for network, scaled in ((model, True), (other, False)):
            manual = training_pass(network)
            manual.forward(x)
            manual.gradient(g, False)
            for leaf in manual.leaves():
                if scaled:
                    leaf.scale(torch.tensor(0.25, dtype=torch.float64))
                leaf.step(LR if scaled else 0.25 * LR)
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_clipped_steps_of_other_modules_equal_clip_grad_norm() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(9, 8, bias=False), nn.Tanh(), nn.Linear(8, D)).double()
    assert_same_clipped_steps(model, [torch.randn(4, 9, dtype=torch.float64) for _ in range(3)], 0.1)


def test_other_modules_are_trained_by_autograd() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(9, 8, bias=False), nn.Tanh(), nn.Linear(8, D))
    assert training_pass(model).uses_autograd
    assert_same_steps(model, [torch.randn(4, 9) for _ in range(3)])


@pytest.mark.parametrize("family", SHIPPED)
def test_shipped_extractors_are_trained_by_autograd_on_demand(family: str) -> None:
    modality = Modality("x", FAMILIES[family][0], 64)
    model = build_extractor(sample_architecture(np.random.default_rng(0), modality, [family]), modality, D)
    assert isinstance(training_pass(model, autograd=True), AutogradPass)
    assert not training_pass(model).uses_autograd


def test_a_module_without_weights_is_not_trainable() -> None:
    assert not training_pass(nn.Identity()).trainable
