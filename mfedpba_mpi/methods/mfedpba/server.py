"""MFedPBA's server: I_G by entropy weights; P_G by the autoencoder that S steps of L_rec + L_con + L_align train."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from mfedpba_mpi.cli.console import count
from mfedpba_mpi.comm.layout import Message
from mfedpba_mpi.errors import check_finite
from mfedpba_mpi.methods.base import Problem, Server
from mfedpba_mpi.methods.mfedpba.autoencoder import PrototypeAutoencoder, PrototypeBatch
from mfedpba_mpi.methods.mfedpba.gromov import StructureAlignment
from mfedpba_mpi.methods.mfedpba.losses import aggregate_logits, contrastive_loss, reconstruction_loss
from mfedpba_mpi.methods.params import MFedPBA as Params
from mfedpba_mpi.methods.training import sgd_step
from mfedpba_mpi.rng import torch_seed

ALONE, OFTEN = 0.99, 0.1  # of the weight of I_G in a class, in so many of a client's classes: worth a warning


class MFedPBAServer(Server):
    """The prototype optimiser: autoencoder, its optimisation, and the warm transport plans."""

    params: Params
    persistent = ("autoencoder", "alignment")
    transient = ("_warned",)

    def __init__(self, problem: Problem, device: torch.device):
        super().__init__(problem, device)
        start = torch.Generator().manual_seed(torch_seed(problem.config.seed, "server"))
        self.autoencoder = PrototypeAutoencoder(problem.M, problem.d, start).to(device)
        self.alignment = StructureAlignment(self.params.gw_epsilon)
        self.shared = problem.shared(device)  # (K, C)
        self._warned: set[tuple[str, int]] = set()

    def step(self, t: int, phase: int, uploads: Mapping[int, Message]) -> Message:
        clients = list(uploads)
        I = torch.stack([uploads[k]["I"] for k in clients])
        I_G, I_present, q = aggregate_logits(I, self.shared[clients], equal=self.params.equal_average)
        self._note_weights(clients, q)
        batch = PrototypeBatch.from_uploads(
            [
                (m, E_km, self.shared[k])
                for k in clients
                for m, E_km in zip(self.problem.clients[k].modalities, uploads[k]["E"], strict=True)
            ],
            self.problem.M,
        )
        self.record = {"gw_residual": 0.0, "gw_iterations": 0}
        solves = [self._optimise(t, s, batch, len(clients), I_G) for s in range(self.params.server_epochs)]
        if solves and "align" not in self.params.without:
            self._note_plans(*map(torch.stack, zip(*solves, strict=True)))
        with torch.no_grad():
            P_G = batch.average(self.autoencoder(batch.E))
        check_finite(f"server, round {t}: P_G", P_G, "lower server_lr")
        return {"P_G": P_G, "I_G": I_G, "P_present": batch.present, "I_present": I_present}

    def _optimise(self, t: int, s: int, batch: PrototypeBatch, uploads: int, I_G: Tensor) -> tuple[Tensor, ...]:
        """One SGD step of L_server = L_rec + L_con + L_align on the autoencoder, gradient norm clipped.

        Returns the residuals and iterations of L_align's plans, if it counts.
        """
        P = self.autoencoder(batch.E)
        P_G = batch.average(P)
        terms: dict[str, Callable[[], Tensor]] = {
            "rec": lambda: reconstruction_loss(P, batch.E, batch.rows, uploads),
            "con": lambda: contrastive_loss(P_G, batch.present, self.params.tau),
            "align": lambda: self.alignment(P_G, batch.present, I_G),
        }
        losses = {name: term() for name, term in terms.items() if name not in self.params.without}
        for name in terms:
            value = losses[name].item() if name in losses else 0.0
            self.record[f"server_{name}"] = value
            check_finite(f"server, round {t}, step {s + 1}: L_{name}", value, "lower server_lr")
        solve = (self.alignment.residual, self.alignment.iterations) if "align" in losses else ()
        total = sum(losses.values())
        if not isinstance(total, Tensor) or not total.requires_grad:
            return solve
        parameters = list(self.autoencoder.parameters())
        if self.problem.config.track_gradients and s == self.params.server_epochs - 1:
            for name, loss in losses.items():
                if loss.requires_grad:  # it counts
                    own = torch.autograd.grad(loss, parameters, retain_graph=True, materialize_grads=True)
                    self.record[f"gradient_{name}"] = _norm(own)
        gradients = torch.autograd.grad(total, parameters)
        clip = self.params.server_clip
        scale = min(1.0, clip / max(_norm(gradients), 1e-12)) if clip else 1.0
        sgd_step(parameters, gradients, self.params.server_lr * scale)
        return solve

    def _note_weights(self, clients: Sequence[int], q: Tensor) -> None:
        """Warn of a client that makes I_G alone, by weights q (K, C), in many classes that others have as well."""
        shared = self.shared[clients]
        alone = ((q > ALONE) & (shared.sum(0) > 1)).sum(1)
        for i in (alone > OFTEN * shared.sum(1)).nonzero().flatten().tolist():
            self._warn(
                ("weights", clients[i]),
                f"client {clients[i]} alone makes I_G in {alone[i]} of its "
                f"{count(int(shared[i].sum()), 'class', 'classes')}: weights by entropy trust the surest, also one "
                "that has diverged; --equal-average trusts all alike",
            )

    def _note_plans(self, residuals: Tensor, iterations: Tensor) -> None:
        """Record a round's transport plans, (S, M) values; warn of one that says nothing, or was not there yet."""
        plans = self.alignment.record()
        names = [self.problem.info.modalities[m].name for m in range(self.problem.M)]
        self.record["gw_trace"], self.record["gw_epsilon"] = plans.trace.cpu().numpy(), plans.epsilon.cpu().numpy()
        residual = residuals.nan_to_num(0).amax(0)
        self.record["gw_residual"] = residual.max().item()
        self.record["gw_iterations"] = int(iterations.amax(1).sum())
        for m in (plans.deviation < 0.01).nonzero().flatten().tolist():
            self._warn(
                ("uniform", m),
                f"the transport plan of {names[m]} is uniform within 1 %, so L_align says nothing: lower gw_epsilon",
            )
        for m in (residual > self.alignment.tol).nonzero().flatten().tolist():
            self._warn(
                ("residual", m), f"the transport plan of {names[m]} has not converged (residual {residual[m]:.1e})"
            )

    def _warn(self, about: tuple[str, int], words: str) -> None:
        """Say it once."""
        if about not in self._warned:
            self._warned.add(about)
            self.warnings.append(words)

    def final(self) -> Mapping[str, Tensor]:
        """L_align's plans (M, C, C), from the classes of I_G to those of P_G^m; NaN at absent ones."""
        state = self.alignment.state_dict()
        if not state:  # L_align was left out
            return {}
        present = state["present"]
        return {"plan": state["plans"].where(present[:, :, None] & present[:, None], math.nan)}


def _norm(gradients: tuple[Tensor, ...]) -> float:
    """The joint norm ||g||."""
    return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients))).item()
