r"""Entropic Gromov-Wasserstein alignment of global feature prototypes with global logit prototypes.

The solver iterates the projected gradient T <- Sinkhorn(2 L(C1, C2) (x) T, epsilon) of Peyre, Cuturi and Solomon (2016)
to its fixed point. At a small epsilon plans are almost permutations, and plain Sinkhorn iterations converge slowly. Two
techniques make the solver fast there: damped Newton steps on one dual potential enforce the marginals (with annealed
kernels as a fallback), and the outer iteration extrapolates along its last step once it is close to the fixed point.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from mfedpba_mpi.errors import RunError

MAX_FAILURES = 3  # of the marginal solver in one call; after these the current plans are returned
# Up to this number of classes all modalities are solved in one batch. Larger problems are solved one by one, because in
# a batch all wait for the slowest.
MAX_BATCHED_CLASSES = 64


class Coupling(NamedTuple):
    """Solution of a batch of B problems of size n."""

    T: Tensor  #: (B, n, n) plans
    f: Tensor  #: (B, n) dual potentials of the rows, in units of epsilon
    residual: Tensor  #: (B,) final ||T - Sinkhorn(T)||_1, or the error of the marginals if that is larger
    iterations: int  #: outer iterations of the batch


def squared_distances(X: Tensor) -> Tensor:
    r"""Squared distances D_ij = \|\|x_i - x_j\|\|^2: (..., n, d) -> (..., n, n).

    Computed from the Gram matrix of the centred points; its gradient 2 (x_i - x_j) is exact at distance 0 too.
    """
    X = X - X.mean(-2, keepdim=True)
    squares = X.square().sum(-1)
    return squares[..., :, None] + squares[..., None, :] - 2 * X @ X.mT


def sinkhorn(L: Tensor, f: Tensor, tol: float, max_steps: int = 100) -> tuple[Tensor, Tensor, float]:
    r"""Scale the kernel e^L to uniform marginals 1/n: T = diag(e^f) e^L diag(e^g), returned as W = n T.

    Column marginals are exact by construction, W = softmax(L + f) over rows, so g is not needed and nothing overflows.
    Row marginals are enforced by the damped Newton step (I - mu D^-1 W W^T) df = -log w on the dual in f, with w = W 1
    and D = diag(w). mu = 0 is a Sinkhorn iteration; mu -> 1 is a Newton step, which near-permutations need.

    Parameters
    ----------
    L : Tensor, shape (B, n, n)
        Logarithms of the kernels.
    f : Tensor, shape (B, n)
        Initial potentials.
    tol : float
        Stop if \|\|T 1 - 1/n\|\|_1 <= tol in all problems.

    Returns
    -------
    W : Tensor, shape (B, n, n)
    f : Tensor, shape (B, n)
    error : float
        Largest \|\|T 1 - 1/n\|\|_1 at the end.
    """
    eye = torch.eye(L.shape[-1], dtype=L.dtype, device=L.device)
    damping, last = 0.5, math.inf
    for _ in range(max_steps):
        W = (L + f[..., None]).softmax(1)
        w = W.sum(2).clamp_min(1e-300)
        error = (w - 1).abs().mean(1).max().item()
        if not error > tol:
            break
        if error > last:
            damping = min(10 * damping, 0.5)
        elif error > 0.9 * last:
            damping /= 3
        last = error
        H = torch.baddbmm(eye, W / w[..., None], W.mT, alpha=max(damping * error, 1e-10) - 1)
        f = f - torch.linalg.solve_ex(H, w.log())[0]
    return W, f, error


def annealed_sinkhorn(L: Tensor, tol: float) -> tuple[Tensor, Tensor, float]:
    """`sinkhorn` for kernels on which its Newton steps diverge: solve for e^{L/64}, e^{L/16}, e^{L/4}, then e^L."""
    f = torch.zeros_like(L[..., 0])
    for blur in (64, 16, 4):
        f = 4 * sinkhorn(L / blur, f, max(tol, 1e-3))[1]
    return sinkhorn(L, f, tol)


@torch.no_grad()
def entropic_gromov_wasserstein(
    C1: Tensor, C2: Tensor, epsilon: float, T: Tensor, f: Tensor, tol: float = 1e-4, max_iterations: int = 1000
) -> Coupling:
    r"""Solve for the fixed point T = Sinkhorn(2 L(C1, C2) (x) T, epsilon), a stationary point over uniform couplings of

    sum_{i,j,k,l} (C1_ik - C2_jl)^2 T_ij T_kl + epsilon sum_ij T_ij log T_ij.

    Parameters
    ----------
    C1, C2 : Tensor, shape (B, n, n), float64
        Symmetric cost matrices.
    epsilon : float
        Weight of the entropy.
    T, f : Tensor, shapes (B, n, n) and (B, n), float64
        Initial plans (with uniform marginals) and row potentials; f may be zero.
    tol : float
        Stop if \|\|T - Sinkhorn(T)\|\|_1 <= tol in all problems, with marginals exact to tol / 100.
    """
    n = T.shape[-1]
    marginal_tol = max(1e-2 * tol, 1e-13)
    # -2 L (x) T / epsilon = K W C2 + c, up to terms that are constant in each column, which the scaling absorbs.
    K = C1 * (4 / (n * epsilon))
    c = C1.square().mean(2, keepdim=True) * (-2 / epsilon)
    W, worst = n * T, 10 * tol
    last: tuple[Tensor, Tensor] | None = None
    iterations = failures = 0
    while iterations < max_iterations:
        iterations += 1
        L, inner_tol = torch.baddbmm(c, torch.bmm(K, W), C2), max(1e-2 * worst, marginal_tol)
        S, f, error = sinkhorn(L, f, inner_tol)
        if error > inner_tol:
            S, f, error = annealed_sinkhorn(L, inner_tol)
            failures += error > inner_tol
        F = S - W
        residual = F.abs().sum((1, 2)) / n
        worst = residual.max().item()
        if not (worst > tol or error > marginal_tol) or failures == MAX_FAILURES:
            break
        W = S
        if last and worst < 0.1:
            # Anderson acceleration of depth one. The step is not negative: a negative one could stay at a saddle point.
            dS, dF = S - last[0], F - last[1]
            step = -(F * dF).sum((1, 2), keepdim=True) / dF.square().sum((1, 2), keepdim=True).clamp_min(1e-300)
            W = S + step.clamp(0, 5) * dS
        last = S, F
    return Coupling(S / n, f, residual.clamp_min(error) if error > marginal_tol else residual, iterations)


def pot_gromov_wasserstein(C1: Tensor, C2: Tensor, epsilon: float, T: Tensor, tol: float = 1e-4) -> Tensor:
    """Plans (B, n, n) of POT's solver, from the initial plans T; arguments as in `entropic_gromov_wasserstein`.

    POT scales in the plain domain: where epsilon is so small that its kernels underflow it returns a plan with wrong
    marginals, which is an error here.
    """
    import ot

    plans = []
    for cost_1, cost_2, plan in zip(C1, C2, T, strict=True):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the marginals are checked below
            plan = ot.gromov.entropic_gromov_wasserstein(
                cost_1, cost_2, loss_fun="square_loss", epsilon=epsilon, symmetric=True, G0=plan, solver="PGD",
                tol=tol / len(cost_1), max_iter=1000, numItermax=20_000, stopThr=1e-2 * tol / len(cost_1),
            )  # fmt: skip
        error = max((plan.sum(axis) - 1 / len(plan)).abs().sum().item() for axis in (0, 1))
        if not error <= tol:
            raise RunError(
                f"POT's Gromov-Wasserstein plan has wrong marginals (error {error:.1e}) at epsilon = {epsilon:.2g}; "
                "use --gw-solver newton, or raise --gw-epsilon"
            )
        plans.append(plan)
    return torch.stack(plans)


def gromov_wasserstein_value(C1: Tensor, C2: Tensor, epsilon: float, T: Tensor) -> Tensor:
    r"""E(T) + epsilon sum_ij T_ij log T_ij, with E(T) = sum_{i,j,k,l} (C1_ik - C2_jl)^2 T_ij T_kl: shape (B,).

    T must have uniform marginals. If T is a fixed point and treated as constant, the gradient in C1 and C2 equals that
    of the optimal value (envelope theorem).
    """
    # C1 is symmetric, so <C1 T C2, T> = <T^T C1 T, C2>.
    cross = torch.bmm(torch.bmm(T.mT, C1), T) * C2
    E = C1.square().mean((1, 2)) + C2.square().mean((1, 2)) - 2 * cross.sum((1, 2))
    return E + epsilon * torch.xlogy(T, T).sum((1, 2))


@dataclass(frozen=True)
class PlanRecord:
    """Summary of the plans of the last call, per modality; NaN and 0 iterations where L_align is 0 by definition."""

    n: Tensor  #: (M,) classes present
    epsilon: Tensor  #: (M,) e_0 / n
    trace: Tensor  #: (M,) sum_i T_ii, 1 for the identity coupling and 1/n for the uniform one
    deviation: Tensor  #: (M,) max |T - p q^T| n^2, 0 for the uniform coupling
    residual: Tensor  #: (M,) ||T - Sinkhorn(T)||_1
    iterations: Tensor  #: (M,)


class StructureAlignment:
    r"""L_align = sum_m min_T E(T) + epsilon sum T log T between the class geometries of I_G and P_G^m.

    The cost matrices C_I and C_P are squared Euclidean distances between the n classes present in P_G^m, each divided
    by its mean, and epsilon = e_0 / n. Plans start at the identity coupling, are warm-started from the last call, and
    are reset for a modality if its present classes change. The term of a modality is 0 if n < 2 or if a mean is 0.

    Parameters
    ----------
    e_0 : float
        Entropy weight times the number of classes.
    tol, max_iterations
        See `entropic_gromov_wasserstein`.
    solver : str
        ``newton``, or ``pot`` for `pot_gromov_wasserstein`.

    Attributes
    ----------
    residual, iterations : Tensor, shape (M,)
        Of the last call; NaN and 0 for modalities with term 0.
    """

    def __init__(
        self, e_0: float = 0.25, tol: float = 1e-4, max_iterations: int = 1000, solver: str = "newton"
    ) -> None:
        if not e_0 > 0:
            raise ValueError(f"e_0 = {e_0}: the entropy weight must be positive")
        self.e_0, self.tol, self.max_iterations, self.solver = e_0, tol, max_iterations, solver
        self._state: dict[str, Tensor] = {}
        self._groups: list[tuple[Tensor, Tensor]] = []

    def __call__(self, P_G: Tensor, present: Tensor, I_G: Tensor, mean: bool = False) -> Tensor:
        """Compute L_align from P_G (M, C, d), present (M, C) bool and I_G (C, C); differentiable in P_G.

        With `mean`, it is the mean over the modalities whose term is not 0 by definition.
        """
        self._set_present(present)
        self.residual = torch.full(present.shape[:1], math.nan, dtype=torch.float64, device=present.device)
        self.iterations = torch.zeros_like(self.residual, dtype=torch.int64)
        loss = P_G.new_zeros((), dtype=torch.float64)
        for modalities, classes in self._groups:
            D1 = squared_distances(I_G[classes].double()).detach()
            D2 = squared_distances(P_G[modalities[:, None], classes].double())
            means = D2.mean((1, 2), keepdim=True)
            usable = (means.detach().flatten() != 0) & (D1.mean() != 0)
            if not usable.all():
                modalities, D2, means = modalities[usable], D2[usable], means[usable]
            if len(modalities):
                loss = loss + self._align(modalities, classes, D1 / D1.mean(), D2 / means)
        if mean:
            loss = loss / (self.iterations > 0).sum().clamp(min=1)
        return loss.to(P_G.dtype)

    def _align(self, modalities: Tensor, classes: Tensor, C1: Tensor, C2: Tensor) -> Tensor:
        """Solve for modalities with the same classes from the stored plans, store the new ones, and return the loss."""
        epsilon = self.e_0 / len(classes)
        C1 = C1.expand_as(C2).contiguous()
        T_at = modalities[:, None, None], classes[:, None], classes
        f_at = modalities[:, None], classes
        plans, potentials = self._state["plans"], self._state["potentials"]
        T, f, max_iterations = plans[T_at], potentials[f_at], self.max_iterations
        if self.solver == "pot":  # then one iteration of ours measures the residual
            T, max_iterations = pot_gromov_wasserstein(C1, C2.detach(), epsilon, T, self.tol), 1
        T, f, residual, iterations = entropic_gromov_wasserstein(
            C1, C2.detach(), epsilon, T, f, self.tol, max_iterations
        )
        plans[T_at], potentials[f_at] = T, f
        self.residual[modalities], self.iterations[modalities] = residual, iterations
        return gromov_wasserstein_value(C1, C2, epsilon, T).sum()

    def _set_present(self, present: Tensor) -> None:
        """Reset the plans of modalities with changed classes, and group modalities that have the same classes."""
        previous = self._state.get("present")
        if previous is not None and torch.equal(previous, present):
            return
        plans = torch.diag_embed(present / present.sum(1, keepdim=True).clamp_min(1).double())
        potentials = torch.zeros_like(present, dtype=torch.float64)
        if previous is not None and previous.shape == present.shape:
            same = (previous == present).all(1)
            plans[same], potentials[same] = self._state["plans"][same], self._state["potentials"][same]
        self.load_state_dict({"plans": plans, "potentials": potentials, "present": present})

    def record(self) -> PlanRecord:
        """Summarise the plans of the last call."""
        plans, present = self._state["plans"], self._state["present"]
        n = present.sum(1)
        inactive = self.iterations == 0
        p = present / n[:, None].double()
        deviation = (plans - p[:, :, None] * p[:, None]).abs().amax((1, 2)) * n**2
        trace = plans.diagonal(dim1=1, dim2=2).sum(1)
        return PlanRecord(
            n=n,
            epsilon=(self.e_0 / n.double()).masked_fill(inactive, math.nan),
            trace=trace.masked_fill(inactive, math.nan),
            deviation=deviation.masked_fill(inactive, math.nan),
            residual=self.residual,
            iterations=self.iterations,
        )

    def state_dict(self) -> dict[str, Tensor]:
        """Copy the state: plans (M, C, C) and potentials (M, C), float64, 0 for absent classes; present (M, C) bool.

        Empty before the first call.
        """
        return {name: value.clone() for name, value in self._state.items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore a `state_dict`."""
        self._state = {name: value.clone() for name, value in state.items()}
        groups: dict[tuple[bool, ...], list[int]] = {}
        for m, row in enumerate(state["present"].tolist() if state else []):
            if sum(row) >= 2:
                groups.setdefault(tuple(row), []).append(m)
        device = state["present"].device if state else None
        self._groups = [
            (part, torch.tensor(row, device=device).nonzero().flatten())
            for row, modalities in groups.items()
            for part in torch.tensor(modalities, device=device).split(
                len(modalities) if sum(row) <= MAX_BATCHED_CLASSES else 1
            )
        ]
