"""Gromov-Wasserstein alignment: plans and values compared with POT, gradients with finite differences, warm starts."""

from __future__ import annotations

import math

import numpy as np
import ot
import pytest
import torch
from scipy.special import logsumexp
from torch import Tensor

from mfedpba_mpi.errors import RunError
from mfedpba_mpi.methods.mfedpba import gromov
from mfedpba_mpi.methods.mfedpba.gromov import (
    StructureAlignment,
    annealed_sinkhorn,
    entropic_gromov_wasserstein,
    gromov_wasserstein_value,
    pot_gromov_wasserstein,
    sinkhorn,
    squared_distances,
)

M, C, D = 3, 6, 4


def points(n: int, d: int = 20, seed: int = 0, batch: int = 1) -> Tensor:
    return torch.randn(batch, n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def cost(X: Tensor) -> Tensor:
    distances = squared_distances(X)
    return distances / distances.mean((1, 2), keepdim=True)


def identity(n: int, batch: int = 1) -> Tensor:
    return (torch.eye(n, dtype=torch.float64) / n).expand(batch, n, n)


def solve(C1: Tensor, C2: Tensor, epsilon: float, T: Tensor, tol: float = 1e-9, **options: int):
    return entropic_gromov_wasserstein(C1, C2, epsilon, T, torch.zeros_like(T[..., 0]), tol, **options)


def pot_plan(C1: Tensor, C2: Tensor, epsilon: float, T: Tensor) -> np.ndarray:
    """POT's plan of one problem from the same initial plan; its marginals are checked."""
    n = len(C1)
    p = np.full(n, 1 / n)
    plan = ot.gromov.entropic_gromov_wasserstein(
        C1.numpy(), C2.numpy(), p, p, "square_loss", epsilon=epsilon, G0=T.numpy(), solver="PGD",
        tol=1e-9, max_iter=1000, numItermax=20_000, stopThr=1e-11,
    )  # fmt: skip
    assert_uniform(plan)
    return plan


def log_domain_plan(C1: Tensor, C2: Tensor, epsilon: float, T: Tensor) -> np.ndarray:
    """The same iteration by Sinkhorn in the log domain, for a small epsilon at which POT's kernel underflows."""
    C1, C2, plan, n = C1.numpy(), C2.numpy(), T.numpy(), len(C1)
    g, change = np.zeros(n), 1.0
    while change > 1e-6:
        L = -2 / epsilon * ((C1**2).mean(1)[:, None] + (C2**2).mean(1) - 2 * C1 @ plan @ C2)
        last, error = plan, 1.0
        while error > 1e-8:
            f = -logsumexp(L + g, axis=1) - math.log(n)
            g = -logsumexp(L + f[:, None], axis=0) - math.log(n)
            kernel, v = np.exp(L + f[:, None] + g), np.ones(n)
            for _ in range(50):  # scaling iterations between log-domain updates, few enough to avoid overflow
                u = 1 / (n * (kernel @ v))
                v = 1 / (n * (u @ kernel))
            g = g + np.log(v)
            plan = u[:, None] * kernel * v
            error = np.abs(plan.sum(1) - 1 / n).sum()
        change = np.abs(plan - last).sum()
    assert_uniform(plan, atol=1e-7)
    return plan


def full_value(C1: Tensor, C2: Tensor, epsilon: float, T: np.ndarray) -> float:
    """sum (C1_ik - C2_jl)^2 T_ij T_kl + epsilon sum T log T, by definition."""
    difference = (C1.numpy()[:, None, :, None] - C2.numpy()[None, :, None, :]) ** 2
    return np.einsum("ijkl,ij,kl", difference, T, T) + epsilon * (T * np.log(T)).sum()


def assert_uniform(T: np.ndarray | Tensor, atol: float = 1e-9) -> None:
    for axis in (0, 1):
        np.testing.assert_allclose(np.asarray(T).sum(axis), 1 / len(T), rtol=0, atol=atol)


def problems(n: int) -> tuple[Tensor, Tensor]:
    """C1, C2 (3, n, n) of unrelated points, a noisy copy, and a permuted noisy copy."""
    X = points(n, seed=1, batch=3)
    Y = torch.cat([points(n, seed=2), X[1:] + 0.3 * points(n, seed=3, batch=2)])
    Y[2] = Y[2].roll(1, 0)
    return cost(X), cost(Y)


@pytest.mark.filterwarnings("ignore:Sinkhorn did not converge")  # in early iterations; the final plan is checked
@pytest.mark.parametrize(("n", "e_0", "first"), [(2, 6.0, 0), (3, 3.0, 0), (10, 2.0, 0), (10, 1.2, 1)])
def test_plans_and_values_equal_those_of_pot(n: int, e_0: float, first: int) -> None:
    """At the smallest epsilon POT is too slow for unrelated points, so these are left out."""
    C1, C2 = (costs[first:] for costs in problems(n))
    epsilon = e_0 / n
    T = solve(C1, C2, epsilon, identity(n, len(C1))).T
    values = gromov_wasserstein_value(C1, C2, epsilon, T)
    for b in range(len(C1)):
        expected = pot_plan(C1[b], C2[b], epsilon, identity(n)[0])
        assert_uniform(T[b])
        np.testing.assert_allclose(T[b], expected, rtol=0, atol=1e-7)
        np.testing.assert_allclose(values[b], full_value(C1[b], C2[b], epsilon, expected), rtol=0, atol=1e-7)


def test_pots_solver_gives_the_same_plans_and_names_the_fix_where_its_kernel_underflows() -> None:
    C1, C2 = problems(10)
    ours, pots = solve(C1, C2, 0.2, identity(10, 3)).T, pot_gromov_wasserstein(C1, C2, 0.2, identity(10, 3), 1e-8)
    torch.testing.assert_close(pots, ours, rtol=0, atol=1e-7)
    with pytest.raises(RunError, match=r"wrong marginals .* use --gw-solver newton"):
        pot_gromov_wasserstein(C1, C2, 1e-4, identity(10, 3))


def test_plans_of_102_classes_equal_a_log_domain_loop() -> None:
    n, epsilon = 102, 2 / 102
    X = points(n, seed=1)
    C1, C2 = cost(X), cost(X + 0.6 * points(n, seed=2))
    T = solve(C1, C2, epsilon, identity(n)).T
    expected = log_domain_plan(C1[0], C2[0], epsilon, identity(n)[0])
    np.testing.assert_allclose(T[0], expected, rtol=0, atol=1e-6)
    value = gromov_wasserstein_value(C1, C2, epsilon, torch.tensor(expected)[None])
    torch.testing.assert_close(gromov_wasserstein_value(C1, C2, epsilon, T), value, rtol=0, atol=1e-6)
    assert 0.5 < T[0].trace() < 0.7


@pytest.mark.parametrize("e_0", [0.1, 0.5])
@pytest.mark.parametrize("n", [10, 102])
def test_sharp_plans_are_stationary(n: int, e_0: float) -> None:
    """T is the Sinkhorn scaling of its own gradient; half a million plain Sinkhorn iterations do not suffice here."""
    C1, C2 = problems(n)
    epsilon = e_0 / n
    T, f, residual, _ = solve(C1, C2, epsilon, identity(n, 3))
    gradient = 2 * (C1.square().mean(2, keepdim=True) + C2.square().mean(1, keepdim=True) - 2 * C1 @ T @ C2)
    torch.testing.assert_close((f[..., None] - gradient / epsilon).softmax(1) / n, T, rtol=0, atol=1e-8)
    for b in range(3):
        assert_uniform(T[b])
    assert residual.max() <= 1e-9
    assert T[1].trace() > 0.9


def test_permuted_isometric_spaces_are_matched() -> None:
    """From the correct permutation the plan does not change, and the value is the entropy term - epsilon log n."""
    n, epsilon = 10, 0.001
    order = torch.randperm(n, generator=torch.Generator().manual_seed(0))
    C1 = cost(points(n))
    C2 = C1[:, order][:, :, order]
    T = solve(C1, C2, epsilon, identity(n)[:, :, order]).T
    torch.testing.assert_close(T, identity(n)[:, :, order], rtol=0, atol=1e-6)
    assert gromov_wasserstein_value(C1, C2, epsilon, T).item() == pytest.approx(-epsilon * math.log(n), abs=1e-6)


def test_two_points_by_hand() -> None:
    """C1 = C2 = [[0, 2], [2, 0]] and T = [[a, b], [b, a]]: log(a / b) = 16 (a - b) / epsilon."""
    C1, epsilon = cost(torch.tensor([[[0.0], [1.0]]], dtype=torch.float64)), 6.0
    torch.testing.assert_close(C1, torch.tensor([[[0.0, 2.0], [2.0, 0.0]]], dtype=torch.float64))
    a, b = solve(C1, C1, epsilon, identity(2)).T[0, 0].tolist()
    assert a > b
    assert math.log(a / b) == pytest.approx(16 * (a - b) / epsilon, abs=1e-6)


@pytest.mark.parametrize(("n", "e_0"), [(10, 0.5), (102, 0.2), (102, 1.0)])
def test_the_returned_plan_meets_the_default_tolerance(n: int, e_0: float) -> None:
    """Unrelated geometries from the identity coupling, the hardest case: residual and marginals of the final plan."""
    C1, C2 = cost(points(n, seed=1).exp()), cost(points(n, seed=2).exp())
    T, f, residual, _ = solve(C1, C2, e_0 / n, identity(n), tol=1e-4)
    assert residual.item() <= 1e-4
    assert_uniform(T[0], atol=1e-6)
    again = entropic_gromov_wasserstein(C1, C2, e_0 / n, T, f, max_iterations=1)
    assert (again.T - T).abs().sum() <= 1e-4
    assert again.iterations == 1


@pytest.mark.parametrize("n", [10, 102])
def test_diverging_newton_steps_are_restarted(n: int) -> None:
    """The initial potentials are so large that damped steps do not recover."""
    C1, C2 = problems(n)
    diverged = 1e6 * points(3, n, seed=5)[0]
    result = entropic_gromov_wasserstein(C1, C2, 0.5 / n, identity(n, 3), diverged, tol=1e-9)
    torch.testing.assert_close(result.T, solve(C1, C2, 0.5 / n, identity(n, 3)).T, rtol=0, atol=1e-8)
    assert result.residual.max() <= 1e-9


def test_annealing_solves_kernels_on_which_newton_steps_fail() -> None:
    """Points on a line with e^L as small as e^-200000: from zero potentials most of these fail."""
    x, y = points(102, 1, seed=1, batch=6).exp(), points(102, 1, seed=2, batch=6).exp()
    distances = (x - y.mT).square()
    L = -2e5 * distances / distances.amax((1, 2), keepdim=True)
    assert sinkhorn(L, torch.zeros_like(L[..., 0]), 1e-5)[2] > 1e-5
    W, f, error = annealed_sinkhorn(L, 1e-5)
    assert error <= 1e-5
    torch.testing.assert_close(W.sum(2), torch.ones_like(f), rtol=0, atol=1e-3)
    torch.testing.assert_close(W, (L + f[..., None]).softmax(1))


def test_an_unconverged_plan_has_a_large_residual() -> None:
    C1, C2 = problems(10)
    result = solve(C1, C2, 0.05, identity(10, 3), tol=1e-6, max_iterations=2)
    assert result.iterations == 2
    assert result.residual.max() > 1e-6


def test_distances_and_their_gradient_at_distance_zero() -> None:
    X = points(5)[0]
    X[1] = X[0]
    X.requires_grad_()
    by_difference = (X[:, None] - X).square().sum(-1)
    torch.testing.assert_close(squared_distances(X), by_difference)
    weighted = [(points(5, 5, seed=1)[0] * D).sum() for D in (squared_distances(X), by_difference)]
    torch.testing.assert_close(*(torch.autograd.grad(value, X)[0] for value in weighted))


def inputs(seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """P_G (M, C, D), present (M, C) with all classes in two modalities and fewer in the third, I_G (C, C)."""
    present = torch.ones(M, C, dtype=torch.bool)
    present[2, [1, 4]] = False
    return points(C, D, seed, M).to(dtype), present, points(C, C, seed + 1)[0].to(dtype)


def test_the_gradient_equals_finite_differences_of_the_optimal_value() -> None:
    P_G, present, I_G = inputs()
    alignment = StructureAlignment(e_0=1.0, tol=1e-12)
    alignment(P_G, present, I_G)
    state = alignment.state_dict()
    P_G.requires_grad_()
    (gradient,) = torch.autograd.grad(alignment(P_G, present, I_G), P_G)
    P_G = P_G.detach()

    def value(shift: Tensor) -> float:
        alignment.load_state_dict(state)
        return alignment(P_G + shift, present, I_G).item()

    h = 1e-4
    for at in [(0, 0, 0), (0, 3, 2), (1, 5, 1), (2, 0, 3), (2, 5, 0)]:
        shift = torch.zeros_like(P_G)
        shift[at] = h
        slope = (8 * (value(shift) - value(-shift)) - (value(2 * shift) - value(-2 * shift))) / (12 * h)
        assert gradient[at].item() == pytest.approx(slope, rel=1e-6, abs=1e-8)
    assert torch.equal(gradient[~present], torch.zeros_like(gradient[~present]))


def test_modalities_are_independent_and_use_their_present_classes() -> None:
    P_G, present, I_G = inputs()
    together = StructureAlignment(e_0=0.5, tol=1e-10)(P_G, present, I_G)
    alone = 0.0
    for m in range(M):
        X, Y = I_G[present[m]][None], P_G[m, present[m]][None]
        n = X.shape[1]
        T = solve(cost(X), cost(Y), 0.5 / n, identity(n), tol=1e-10).T
        alone += gromov_wasserstein_value(cost(X), cost(Y), 0.5 / n, T).item()
    assert together.item() == pytest.approx(alone, abs=1e-8)


def test_large_problems_are_solved_one_by_one_with_the_same_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    P_G, present, I_G = inputs()
    together, alone = StructureAlignment(e_0=2.0, tol=1e-10), StructureAlignment(e_0=2.0, tol=1e-10)
    expected = together(P_G, present, I_G)
    monkeypatch.setattr(gromov, "MAX_BATCHED_CLASSES", 5)
    torch.testing.assert_close(alone(P_G, present, I_G), expected, rtol=0, atol=1e-9)
    torch.testing.assert_close(alone.state_dict()["plans"], together.state_dict()["plans"], rtol=0, atol=1e-9)
    assert together.iterations[0] == together.iterations[1]
    assert alone.iterations[0] != alone.iterations[1]


def test_the_term_of_a_modality_without_geometry_is_zero() -> None:
    P_G, present, I_G = inputs(dtype=torch.float32)
    P_G[0] = P_G[0, 0]
    present[1, 1:] = False
    P_G.requires_grad_()
    alignment = StructureAlignment()
    loss = alignment(P_G, present, I_G)
    assert loss.dtype == torch.float32
    loss.backward()
    assert P_G.grad[2].abs().max() > 0
    assert torch.equal(P_G.grad[:2], torch.zeros(2, C, D))
    record = alignment.record()
    assert (record.iterations > 0).tolist() == [False, False, True]
    for values in (record.epsilon, record.trace, record.deviation, record.residual):
        assert values.isnan().tolist() == [True, True, False]
    assert alignment(P_G, present, torch.ones(C, C)).item() == 0


def test_the_record_distinguishes_identity_and_uniform_plans() -> None:
    P_G, present, I_G = inputs()
    P_G = I_G.expand(M, C, C)
    sharp, flat = StructureAlignment(e_0=0.01), StructureAlignment(e_0=1000.0)
    sharp(P_G, present, I_G)
    flat(P_G, present, I_G)
    n = torch.tensor([6, 6, 4])
    assert torch.equal(sharp.record().n, n)
    torch.testing.assert_close(sharp.record().epsilon, 0.01 / n.double())
    torch.testing.assert_close(sharp.record().trace, torch.ones(M, dtype=torch.float64))
    torch.testing.assert_close(sharp.record().deviation, n - 1.0, check_dtype=False)
    torch.testing.assert_close(flat.record().trace, 1 / n.double(), rtol=0.01, atol=0)
    assert (flat.record().deviation < 0.01).all()


def test_a_restored_state_gives_bit_identical_results() -> None:
    P_G, present, I_G = inputs()
    alignment = StructureAlignment()
    assert alignment.state_dict() == {}
    for step in range(3):
        alignment(P_G + 0.02 * step, present, I_G)
    state, restored = alignment.state_dict(), StructureAlignment()
    restored.load_state_dict(state)
    perturbed = P_G + 0.1 * points(C, D, 7, M)
    assert torch.equal(alignment(perturbed, present, I_G), restored(perturbed, present, I_G))
    for name, value in alignment.state_dict().items():
        assert torch.equal(value, restored.state_dict()[name])
    assert not torch.equal(state["plans"], alignment.state_dict()["plans"])


def test_plans_are_reset_only_if_the_present_classes_change() -> None:
    P_G, present, I_G = inputs()
    alignment, fresh = StructureAlignment(e_0=2.0), StructureAlignment(e_0=2.0)
    alignment(P_G, present, I_G)
    first = alignment.record().iterations
    alignment(P_G, present, I_G)
    assert (alignment.record().iterations < first).all()
    previous = alignment.state_dict()["plans"][0]
    fewer = present.clone()
    fewer[1, 0] = False
    alignment(P_G, fewer, I_G)
    fresh(P_G, fewer, I_G)
    plans = alignment.state_dict()["plans"]
    assert torch.equal(plans[1], fresh.state_dict()["plans"][1])
    assert (plans[0] - previous).abs().sum() < 1e-4
    assert torch.equal(plans[1, 0], torch.zeros(C, dtype=torch.float64))


def test_non_finite_inputs_end_early_with_nan() -> None:
    P_G, present, I_G = inputs()
    P_G[0, 0, 0] = math.nan
    alignment = StructureAlignment()
    assert alignment(P_G, present, I_G).isnan()
    assert alignment.record().iterations.max() < 100
