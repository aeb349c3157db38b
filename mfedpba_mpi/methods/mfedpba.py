"""MFedPBA: prototype-guided bilateral alignment.

Up go the feature prototypes E_k^m and the logit prototypes I_k, down come the global P_G^m of every modality and I_G.

* client: L_client = L_ce + lambda_1 L_fea + lambda_2 L_logit, the prototypes inside it those of the mini-batch;
* server: I_G by entropy weights; P_G^m by the autoencoder that S steps of L_rec + L_con + L_align train.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from mfedpba_mpi.alignment.autoencoder import PrototypeAutoencoder, PrototypeBatch
from mfedpba_mpi.alignment.gromov import StructureAlignment
from mfedpba_mpi.alignment.losses import aggregate_logits, contrastive_loss, reconstruction_loss
from mfedpba_mpi.comm.wire import NOTHING, Layout, Message
from mfedpba_mpi.data.shards import ClientData
from mfedpba_mpi.errors import RunError
from mfedpba_mpi.methods.base import BatchLoss, Client, Epoch, Method, Problem, Server, cross_entropy, sgd_step
from mfedpba_mpi.methods.catalog import MFedPBA as Params
from mfedpba_mpi.rng import torch_seed


class BatchClasses:
    """The classes of every batch of an epoch, arranged so that a step needs few operations.

    A mean over the classes of a batch, of a distance between class means, is a weighted sum over its samples: with
    (S Z)_i the mean of sample i's class in the batch, and v_i = 1 / (samples of that class x classes counted),
    mean_c dist(P_c, E_c) = sum_i v_i dist(P_{y_i}, (S Z)_i). Short last batches are padded with class 0 and weight 0.

    Attributes
    ----------
    y : (batches, B) classes.
    S : (batches, B, B) averaging matrices.
    """

    def __init__(self, epoch: Epoch, size: int):
        batches, used = len(epoch.cuts), epoch.cuts[-1][1]
        y = torch.full((batches * size,), -1, device=epoch.y.device)
        y[:used] = epoch.y[:used]
        y = y.view(batches, size)
        self._real = y >= 0
        same = (y[:, :, None] == y[:, None, :]) & self._real[:, :, None]
        self._members = same.sum(-1).clamp(min=1)
        self.S = same / self._members[:, :, None]
        self.y = y.clamp(min=0)

    def weights(self, present: Tensor) -> Tensor:
        """v (batches, B); 0 for samples of classes that are not `present` (C,) among the global prototypes."""
        v = (self._real & present[self.y]) / self._members
        return v / v.sum(-1, keepdim=True).clamp(min=1)


class MFedPBAClient(Client):
    """A client that pulls its batch prototypes towards the global ones."""

    def __init__(self, k: int, problem: Problem, data: ClientData, device: torch.device, params: Params):
        super().__init__(k, problem, data, device)
        self.lambda_1 = 0.0 if "fea" in params.without else params.lambda_1
        self.lambda_2 = 0.0 if "logit" in params.without else params.lambda_2

    def update(self, t: int, phase: int, inbox: Message) -> Message:
        self.train(t, MFedPBA.client_terms, lambda epoch: self._client_loss(epoch, inbox))
        uploads = self.prototypes()
        for name, value in uploads.items():
            if not value.isfinite().all():
                raise RunError(f"client {self.k}, round {t}: prototypes {name} are not finite; lower --lr")
        return uploads

    def _client_loss(self, epoch: Epoch, inbox: Message) -> BatchLoss:
        """L_ce + lambda_1 L_fea + lambda_2 L_logit; L_ce alone before the first broadcast."""
        classes = BatchClasses(epoch, self.config.batch_size)
        feature = feature_term(classes, *self._own(inbox)) if inbox and self.lambda_1 else None
        logit = logit_term(classes, inbox["I_G"], inbox["I_present"] > 0) if inbox and self.lambda_2 else None
        zero = torch.zeros((), device=self.device)

        def loss(number: int, rows: slice, Z: Tensor) -> tuple[Tensor, list[Tensor]]:
            logits = self.model.logits(Z)
            total = ce = cross_entropy(logits, epoch.y[rows])
            fea = kl = zero
            if feature:
                fea = feature(number, Z)
                total = total + self.lambda_1 * fea
            if logit:
                kl = logit(number, logits)
                total = total + self.lambda_2 * kl
            return total, [ce, fea, kl]

        return loss

    def _own(self, inbox: Message) -> tuple[Tensor, Tensor]:
        """(P_G, present) of the client's own modalities."""
        own = list(self.spec.modalities)
        return inbox["P_G"][own], inbox["P_present"][own] > 0


def feature_term(classes: BatchClasses, P_G: Tensor, present: Tensor) -> Callable[[int, Tensor], Tensor]:
    """L_fea = 1/|M_k| sum_m mean_c ||P_G,c^m - E_c^m||^2 over the classes of a batch that P_G^m has.

    Parameters
    ----------
    P_G : (|M_k|, C, d) global prototypes of the client's modalities, `present` (|M_k|, C).

    Returns
    -------
    A function of (batch number, Z (|M_k|, b, d)).
    """
    root = torch.stack([classes.weights(p) for p in present], 1).sqrt()[..., None]  # (batches, |M_k|, B, 1)
    S = root * classes.S[:, None]
    target = root * P_G[:, classes.y].transpose(0, 1)

    def term(number: int, Z: Tensor) -> Tensor:
        b = Z.shape[1]
        return F.mse_loss(S[number, :, :b, :b] @ Z, target[number, :, :b], reduction="sum") / len(Z)

    return term


def logit_term(classes: BatchClasses, I_G: Tensor, present: Tensor) -> Callable[[int, Tensor], Tensor]:
    """L_logit = mean_c KL(softmax(I_G,c) || softmax(I_c)) over the classes of a batch that I_G (C, C) has.

    Returns
    -------
    A function of (batch number, logits (items, b, C)).
    """
    v = classes.weights(present)[..., None]
    log_p = F.log_softmax(I_G, -1)[classes.y]
    vp = v * log_p.exp()  # (batches, B, C)
    negative_entropy = (vp * log_p).sum((1, 2))

    def term(number: int, logits: Tensor) -> Tensor:
        b = logits.shape[1]
        I = classes.S[number, :b, :b] @ (logits[0] if len(logits) == 1 else logits.mean(0))
        return negative_entropy[number] - (vp[number, :b] * F.log_softmax(I, -1)).sum()

    return term


class MFedPBAServer(Server):
    """The prototype optimiser: autoencoder, its optimisation, and the warm transport plans."""

    def __init__(self, problem: Problem, params: Params, device: torch.device):
        super().__init__(problem, params, device)
        start = torch.Generator().manual_seed(torch_seed(problem.config.seed, "server"))
        self.autoencoder = PrototypeAutoencoder(problem.M, problem.d, start).to(device)
        self.alignment = StructureAlignment(params.gw_epsilon)
        self.present = torch.tensor(np.stack([c.counts > 0 for c in problem.clients]), device=device)  # (K, C)

    def step(self, t: int, phase: int, uploads: Mapping[int, Message]) -> Message:
        clients = list(uploads)
        I = torch.stack([uploads[k]["I"] for k in clients])
        I_G, I_present = aggregate_logits(I, self.present[clients], equal=self.params.equal_average)
        batch = PrototypeBatch.from_uploads(
            [
                (m, E_km, self.present[k])
                for k in clients
                for m, E_km in zip(self.problem.clients[k].modalities, uploads[k]["E"], strict=True)
            ],
            self.problem.M,
        )
        self.record = {"gw_residual": 0.0, "gw_iterations": 0}
        for s in range(self.params.server_epochs):
            self._optimise(t, s, batch, len(clients), I_G)
        with torch.no_grad():
            P_G = batch.average(self.autoencoder(batch.E))
        if not P_G.isfinite().all():
            raise RunError(f"server, round {t}: global prototypes P_G are not finite; lower server_lr")
        return {"P_G": P_G, "I_G": I_G, "P_present": batch.present, "I_present": I_present}

    def _optimise(self, t: int, s: int, batch: PrototypeBatch, uploads: int, I_G: Tensor) -> None:
        """One SGD step of L_server = L_rec + L_con + L_align on the autoencoder, gradient norm clipped."""
        P = self.autoencoder(batch.E)
        P_G = batch.average(P)
        terms = {
            "rec": lambda: reconstruction_loss(P, batch.E, batch.rows, uploads),
            "con": lambda: contrastive_loss(P_G, batch.present, self.params.tau),
            "align": lambda: self.alignment(P_G, batch.present, I_G),
        }
        losses = {name: term() for name, term in terms.items() if name not in self.params.without}
        for name in terms:
            value = losses[name].item() if name in losses else 0.0
            self.record[f"server_{name}"] = value
            if not math.isfinite(value):
                raise RunError(f"server, round {t}, step {s + 1}: L_{name} is not finite ({value}); lower server_lr")
        if "align" in losses:
            self._note_plans()
        total = sum(losses.values())
        if not isinstance(total, Tensor) or not total.requires_grad:
            return
        parameters = list(self.autoencoder.parameters())
        gradients = torch.autograd.grad(total, parameters)
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
        clip = self.params.server_clip
        scale = min(1.0, clip / max(norm.item(), 1e-12)) if clip else 1.0
        sgd_step(parameters, gradients, self.params.server_lr * scale)

    def _note_plans(self) -> None:
        """Add a step's transport plans to the round's record; warn of one that says nothing, or is not there yet."""
        plans = self.alignment.record()
        names = [self.problem.info.modalities[m].name for m in range(self.problem.M)]
        self.record["gw_trace"], self.record["gw_epsilon"] = plans.trace.cpu().numpy(), plans.epsilon.cpu().numpy()
        self.record["gw_residual"] = max(self.record["gw_residual"], plans.residual.nan_to_num(0).max().item())
        self.record["gw_iterations"] += int(plans.iterations.max())
        for m in (plans.deviation < 0.01).nonzero().flatten().tolist():
            self._warn(
                f"the transport plan of {names[m]} is uniform within 1 %, so L_align says nothing: lower gw_epsilon"
            )
        for m in (plans.residual > self.alignment.tol).nonzero().flatten().tolist():
            self._warn(f"the transport plan of {names[m]} has not converged (residual {plans.residual[m]:.1e})")

    def _warn(self, words: str) -> None:
        if words not in self.warnings:
            self.warnings.append(words)

    def state(self) -> Mapping[str, Tensor]:
        return {**self.autoencoder.state_dict(), **self.alignment.state()}


class MFedPBA(Method):
    """Up C (|M_k| d + C) floats, down C (M d + C); class counts are known from the start, presence travels along."""

    client_terms = ("ce", "fea", "logit")

    def client(self, k: int, data: ClientData, device: torch.device) -> MFedPBAClient:
        return MFedPBAClient(k, self.problem, data, device, self.params)

    def server(self, device: torch.device) -> MFedPBAServer:
        return MFedPBAServer(self.problem, self.params, device)

    def upload(self, t: int, phase: int, k: int) -> Layout:
        p = self.problem
        return Layout({"E": (len(p.clients[k].modalities), p.C, p.d), "I": (p.C, p.C)})

    def reply(self, t: int, phase: int, k: int) -> Layout:
        if t == 0:
            return NOTHING
        M, C, d = self.problem.M, self.problem.C, self.problem.d
        return Layout({"P_G": (M, C, d), "I_G": (C, C)}, {"P_present": (M, C), "I_present": (C,)})


METHOD = MFedPBA
