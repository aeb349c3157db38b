"""MFedPBA: prototype-guided bilateral alignment.

Up go the feature prototypes E_k^m and the logit prototypes I_k, down come the global P_G^m of every modality and I_G.

* client: L_client = L_ce + lambda_1 L_fea + lambda_2 L_logit, the prototypes inside it those of the mini-batch;
* server: I_G by entropy weights; P_G^m by the autoencoder that S steps of L_rec + L_con + L_align train.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from mfedpba_mpi.alignment.autoencoder import PrototypeAutoencoder, PrototypeBatch
from mfedpba_mpi.alignment.gromov import StructureAlignment
from mfedpba_mpi.alignment.losses import aggregate_logits, contrastive_loss, reconstruction_loss
from mfedpba_mpi.comm.wire import Layout, Message
from mfedpba_mpi.console import count
from mfedpba_mpi.data.shards import ClientData
from mfedpba_mpi.errors import RunError
from mfedpba_mpi.methods.base import Client, Method, Problem, Server
from mfedpba_mpi.methods.catalog import MFedPBA as Params
from mfedpba_mpi.methods.training import Epoch, HeadLoss, sgd_step
from mfedpba_mpi.rng import torch_seed

ALONE, OFTEN = 0.99, 0.1  # of the weight of I_G in a class, in so many of a client's classes: worth a warning


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

    params: Params
    terms = ("ce", "fea", "logit")

    def __init__(self, k: int, problem: Problem, data: ClientData, device: torch.device):
        super().__init__(k, problem, data, device)
        self.lambda_1 = 0.0 if "fea" in self.params.without else self.params.lambda_1
        self.lambda_2 = 0.0 if "logit" in self.params.without else self.params.lambda_2
        self.shared = self.shares()

    def update(self, t: int, phase: int, inbox: Message) -> Message:
        self.train(t, lambda epoch: MFedPBALoss(self, epoch, inbox))
        return {name: value.where(self.shared[:, None], 0) for name, value in self.prototypes().items()}

    def own(self, inbox: Message) -> tuple[Tensor, Tensor]:
        """(P_G, present) of the client's own modalities."""
        own = list(self.spec.modalities)
        return inbox["P_G"][own], inbox["P_present"][own] > 0


class MFedPBALoss(HeadLoss):
    """L_ce + lambda_1 L_fea + lambda_2 L_logit; L_ce alone before the first broadcast."""

    def __init__(self, client: MFedPBAClient, epoch: Epoch, inbox: Message):
        super().__init__(client, epoch)
        self.feature = self.logit = None
        if inbox and (client.lambda_1 or client.lambda_2):
            classes = BatchClasses(epoch, client.config.batch_size)
            if client.lambda_1:
                self.feature = FeatureTerm(classes, *client.own(inbox), client.lambda_1)
            if client.lambda_2:
                self.logit = LogitTerm(classes, inbox["I_G"], inbox["I_present"] > 0, client.lambda_2)

    def on_logits(self, number: int, rows: slice, logits: Tensor, g: Tensor) -> Tensor:
        return self.logit.add_gradient(number, logits, g) if self.logit else g

    def on_features(self, number: int, rows: slice, Z: Tensor, g: Tensor) -> Tensor:
        return self.feature.add_gradient(number, Z, g) if self.feature else g

    def means(self) -> Tensor:
        (ce,) = super().means()
        fea = self.feature.mean(torch.cat(self.Z, 1)) if self.feature else torch.zeros_like(ce)
        kl = self.logit.mean(torch.cat(self.logits, 1)) if self.logit else torch.zeros_like(ce)
        return torch.stack([ce, fea, kl])


class FeatureTerm:
    """L_fea = 1/|M_k| sum_m mean_c ||P_G,c^m - E_c^m||^2 over the classes of a batch that P_G^m has.

    As a sum over samples it is ||R (S Z^m - P_y)||^2 / |M_k| with R_ii^2 = v_i, so lambda_1 dL/dZ^m = A Z^m - B, where
    A and B are known before the epoch.

    Parameters
    ----------
    P_G : (|M_k|, C, d) global prototypes of the client's modalities, `present` (|M_k|, C).
    """

    def __init__(self, classes: BatchClasses, P_G: Tensor, present: Tensor, lambda_1: float = 1.0):
        R = torch.stack([classes.weights(p) for p in present], 1).sqrt()[..., None]  # (batches, |M_k|, b, 1)
        self.S = R * classes.S[:, None]
        self.target = R * P_G[:, classes.y].transpose(0, 1)
        back = 2 * lambda_1 / len(P_G) * self.S.mT
        self.A, self.B = back @ self.S, back @ self.target

    def add_gradient(self, number: int, Z: Tensor, g: Tensor) -> Tensor:
        """g + lambda_1 dL/dZ of a batch with features Z (|M_k|, b, d)."""
        b = Z.shape[1]
        return torch.baddbmm(g - self.B[number, :, :b], self.A[number, :, :b, :b], Z)

    def mean(self, Z: Tensor) -> Tensor:
        """The mean over batches, of the features Z (|M_k|, n, d) of an epoch."""
        batches, M, size, _ = self.S.shape
        Z = F.pad(Z, (0, 0, 0, batches * size - Z.shape[1])).view(M, batches, size, -1).transpose(0, 1)
        return (self.S @ Z - self.target).square().sum() / (M * batches)


class LogitTerm:
    """L_logit = mean_c KL(softmax(I_G,c) || softmax(I_c)) over the classes of a batch that I_G (C, C) has.

    With I = S logits and p the softmax of I_G it is sum_i v_i KL(p_{y_i} || softmax(I_i)), dL/dI = v (softmax(I) - p).
    """

    def __init__(self, classes: BatchClasses, I_G: Tensor, present: Tensor, lambda_2: float = 1.0):
        self.S, self.v, self.lambda_2 = classes.S, classes.weights(present)[..., None], lambda_2
        log_p = F.log_softmax(I_G, -1)[classes.y]
        self.vp = self.v * log_p.exp()  # (batches, B, C)
        self.negative_entropy = (self.vp * log_p).sum()

    def add_gradient(self, number: int, logits: Tensor, g: Tensor) -> Tensor:
        """g + lambda_2 dL/dlogits of a batch with logits (items, b, C)."""
        items, b, _ = logits.shape
        S = self.S[number, :b, :b]
        I = S @ (logits[0] if items == 1 else logits.mean(0))
        dI = I.softmax(-1).mul_(self.v[number, :b]).sub_(self.vp[number, :b])
        if items == 1:
            return torch.addmm(g[0], S.T, dI, alpha=self.lambda_2)[None]
        return torch.add(g, S.T @ dI, alpha=self.lambda_2 / items)

    def mean(self, logits: Tensor) -> Tensor:
        """The mean over batches, of the logits (items, n, C) of an epoch."""
        batches, size, _ = self.S.shape
        I = self.S @ F.pad(logits.mean(0), (0, 0, 0, batches * size - logits.shape[1])).view(batches, size, -1)
        return (self.negative_entropy - (self.vp * F.log_softmax(I, -1)).sum()) / len(self.S)


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
        if not P_G.isfinite().all():
            raise RunError(f"server, round {t}: global prototypes P_G are not finite; lower server_lr")
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
            if not math.isfinite(value):
                raise RunError(f"server, round {t}, step {s + 1}: L_{name} is not finite ({value}); lower server_lr")
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


class MFedPBA(Method):
    """Up C (|M_k| d + C) floats, down C (M d + C); class counts are known from the start, presence travels along."""

    client_class = MFedPBAClient
    server_class = MFedPBAServer

    def upload(self, t: int, phase: int, k: int) -> Layout:
        p = self.problem
        return Layout({"E": (len(p.clients[k].modalities), p.C, p.d), "I": (p.C, p.C)})

    def reply(self, t: int, phase: int, k: int) -> Layout:
        M, C, d = self.problem.M, self.problem.C, self.problem.d
        return Layout({"P_G": (M, C, d), "I_G": (C, C)}, {"P_present": (M, C), "I_present": (C,)})


METHOD = MFedPBA
