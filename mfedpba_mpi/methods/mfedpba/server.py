"""MFedPBA server: I_G as a weighted mean, and P_G from an autoencoder trained by S steps on L_rec + L_con + L_align."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from mfedpba_mpi.cli.console import count
from mfedpba_mpi.comm.layout import Message
from mfedpba_mpi.errors import check_finite
from mfedpba_mpi.methods.base import Problem, Server
from mfedpba_mpi.methods.mfedpba.arrival import TERMS, change_terms
from mfedpba_mpi.methods.mfedpba.autoencoder import PrototypeAutoencoder, PrototypeBatch
from mfedpba_mpi.methods.mfedpba.gromov import StructureAlignment
from mfedpba_mpi.methods.mfedpba.losses import aggregate_logits, contrastive_loss, reconstruction_loss
from mfedpba_mpi.methods.params import MFedPBAParameters
from mfedpba_mpi.methods.training import sgd_step
from mfedpba_mpi.rng import torch_seed

# Warn if a client has more than this weight in I_G, in more than this fraction of its classes.
DOMINANT_WEIGHT, DOMINATED_CLASSES = 0.99, 0.1


class MFedPBAServer(Server):
    """Server that trains the prototype autoencoder; with ``gw_start=last`` the plans of L_align are kept, too."""

    params: MFedPBAParameters
    persistent = ("autoencoder", "alignment", "tracking")
    transient = ("_warned",)

    def __init__(self, problem: Problem, device: torch.device):
        super().__init__(problem, device)
        stream = torch.Generator().manual_seed(torch_seed(problem.config.seed, "server"))
        self.autoencoder = PrototypeAutoencoder(problem.M, problem.d, stream).to(device)
        self.alignment = StructureAlignment(self.params.gw_epsilon, solver=self.params.gw_solver)
        self.steps = self.params.server_epochs if self.params.global_prototypes == "trained" else 0
        self.uploaded = problem.uploaded_classes(device)  # (K, C)
        self.tracking: Message = {}  # with --track-gradients: the last reply, and "A", the mean of the uploads
        self._warned: set[tuple[str, int]] = set()

    def step(self, t: int, phase: int, uploads: Mapping[int, Message]) -> Message:
        clients = list(uploads)
        I = torch.stack([uploads[k]["I"] for k in clients])
        I_G, I_present, q = aggregate_logits(I, self.uploaded[clients], self.params.logit_weights)
        if self.params.logit_weights == "entropy":
            self._warn_dominant_clients(clients, q)
        batch = PrototypeBatch.from_uploads(
            [
                (m, E_km, self.uploaded[k])
                for k in clients
                for m, E_km in zip(self.problem.clients[k].modalities, uploads[k]["E"], strict=True)
            ],
            self.problem.M,
        )
        self.record = {"gw_residual": 0.0, "gw_iterations": 0}
        if self.params.gw_start == "identity":
            self.alignment.load_state_dict({})
        track = self.problem.config.track_gradients
        with torch.no_grad():
            P = self._global_prototypes(batch) if track else None
        plan_statuses = [self._optimise(t, s, batch, len(clients), I_G) for s in range(self.steps)]
        if plan_statuses and "align" not in self.params.without:
            self._record_plans(*map(torch.stack, zip(*plan_statuses, strict=True)))
        with torch.no_grad():
            P_G = self._global_prototypes(batch)
        check_finite(f"server, round {t}: P_G", P_G, "lower server_lr")
        reply = {"P_G": P_G, "I_G": I_G, "P_present": batch.present, "I_present": I_present}
        if P is not None:
            self._track_arrival(uploads, {**reply, "A": batch.average(batch.E), "P": P})
        return reply

    def _track_arrival(self, uploads: Mapping[int, Message], new: Message) -> None:
        """Record what the new prototypes do to the participants' losses, see `arrival`; NaN for all others."""
        terms = np.full((len(TERMS), self.problem.K), np.nan)
        if old := self.tracking:
            for k, upload in uploads.items():
                own = self.problem.clients[k].modalities
                terms[:, k] = change_terms(upload, own, old, new, self.uploaded[k], self.params.lambdas)
        self.record |= dict(zip(TERMS, terms, strict=True))
        self.tracking = {name: x for name, x in new.items() if name != "P"}

    def _global_prototypes(self, batch: PrototypeBatch) -> Tensor:
        """P_G (M, C, d), or what the ablation puts in its place."""
        match self.params.global_prototypes:
            case "mean":
                return batch.average(batch.E)
            case "zero":
                return torch.zeros_like(batch.average(batch.E))
        return batch.average(self.autoencoder(batch.E))

    def _optimise(self, t: int, s: int, batch: PrototypeBatch, uploads: int, I_G: Tensor) -> tuple[Tensor, ...]:
        """One SGD step on L_server = L_rec + L_con + L_align with clipped gradient norm.

        Returns
        -------
        (residuals, iterations) of the transport plans, or () if L_align is omitted.
        """
        P = self.autoencoder(batch.E)
        P_G = batch.average(P)
        mean = self.params.server_loss == "mean"
        terms: dict[str, Callable[[], Tensor]] = {
            "rec": lambda: reconstruction_loss(P, batch.E, batch.rows, None if mean else uploads),
            "con": lambda: contrastive_loss(P_G, batch.present, self.params.tau, mean),
            "align": lambda: self.alignment(P_G, batch.present, I_G, mean),
        }
        losses = {name: term() for name, term in terms.items() if name not in self.params.without}
        for name in terms:
            value = losses[name].item() if name in losses else 0.0
            self.record[f"server_{name}"] = value
            check_finite(f"server, round {t}, step {s + 1}: L_{name}", value, "lower server_lr")
        plan_status = (self.alignment.residual, self.alignment.iterations) if "align" in losses else ()
        total = sum(losses.values())
        if not isinstance(total, Tensor) or not total.requires_grad:
            return plan_status
        parameters = list(self.autoencoder.parameters())
        if self.problem.config.track_gradients and s == self.steps - 1:
            for name, loss in losses.items():
                if loss.requires_grad:  # false for a term that is constantly 0
                    own = torch.autograd.grad(loss, parameters, retain_graph=True, materialize_grads=True)
                    self.record[f"gradient_{name}"] = _norm(own)
        gradients = torch.autograd.grad(total, parameters)
        clip = self.params.server_clip
        scale = min(1.0, clip / max(_norm(gradients), 1e-12)) if clip else 1.0
        sgd_step(parameters, gradients, self.params.server_lr * scale)
        return plan_status

    def _warn_dominant_clients(self, clients: Sequence[int], q: Tensor) -> None:
        """Warn if the weights q (K, C) of one client dominate I_G in many classes that other clients have as well."""
        uploaded = self.uploaded[clients]
        dominated = ((q > DOMINANT_WEIGHT) & (uploaded.sum(0) > 1)).sum(1)
        for i in (dominated > DOMINATED_CLASSES * uploaded.sum(1)).nonzero().flatten().tolist():
            self._warn_once(
                ("weights", clients[i]),
                f"client {clients[i]} dominates I_G in {dominated[i]} of its "
                f"{count(int(uploaded[i].sum()), 'class', 'classes')}: entropy weights favour confident clients, even "
                "diverged ones; --logit-weights bounded limits their weight",
            )

    def _record_plans(self, residuals: Tensor, iterations: Tensor) -> None:
        """Record the transport plans of a round, and warn if one is uniform or has not converged.

        `residuals` and `iterations` have the shape (S, M).
        """
        plans = self.alignment.record()
        names = [self.problem.info.modalities[m].name for m in range(self.problem.M)]
        self.record["gw_trace"], self.record["gw_epsilon"] = plans.trace.cpu().numpy(), plans.epsilon.cpu().numpy()
        residual = residuals.nan_to_num(0).amax(0)
        self.record["gw_residual"] = residual.max().item()
        self.record["gw_iterations"] = int(iterations.amax(1).sum())
        for m in (plans.deviation < 0.01).nonzero().flatten().tolist():
            self._warn_once(
                ("uniform", m),
                f"the transport plan of {names[m]} is uniform within 1 %, so L_align has no effect; lower gw_epsilon",
            )
        for m in (residual > self.alignment.tol).nonzero().flatten().tolist():
            self._warn_once(
                ("residual", m), f"the transport plan of {names[m]} has not converged (residual {residual[m]:.1e})"
            )

    def _warn_once(self, key: tuple[str, int], message: str) -> None:
        """Add a warning, once per key."""
        if key not in self._warned:
            self._warned.add(key)
            self.warnings.append(message)

    def final(self) -> Mapping[str, Tensor]:
        """The autoencoder, if it makes P_G, and the transport plans (M, C, C) of L_align.

        A plan leads from the classes of I_G to those of P_G^m; it is NaN for absent classes.
        """
        found: dict[str, Tensor] = {}
        if self.params.global_prototypes in ("trained", "random"):
            found |= {name: weights.detach() for name, weights in self.autoencoder.named_parameters()}
        if state := self.alignment.state_dict():  # empty if L_align is omitted
            present = state["present"]
            found["plan"] = state["plans"].where(present[:, :, None] & present[:, None], math.nan)
        return found


def _norm(gradients: tuple[Tensor, ...]) -> float:
    """Joint L2 norm of several gradients."""
    return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients))).item()
