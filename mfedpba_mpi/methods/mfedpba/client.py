"""MFedPBA client: L_client = L_ce + lambda_1 L_fea + lambda_2 L_logit, with the prototypes of each mini-batch."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from mfedpba_mpi.comm.layout import Message
from mfedpba_mpi.data.shards import ClientData
from mfedpba_mpi.methods.base import Client, Problem
from mfedpba_mpi.methods.mfedpba.arrival import NAMES, common_classes, feature_loss, logit_loss
from mfedpba_mpi.methods.params import MFedPBAParameters
from mfedpba_mpi.methods.training import Epoch, HeadLoss, cross_entropy
from mfedpba_mpi.rng import seeded

ALL = slice(None)  # batches of an epoch


class BatchClasses:
    """Class membership of every batch of an epoch, precomputed so that a step needs few operations.

    The mean over the classes of a batch of a distance to the class mean equals a weighted sum over its samples: with
    (S Z)_i the batch mean of sample i's class, and v_i = 1 / (samples of that class x classes counted),
    mean_c dist(P_c, E_c) = sum_i v_i dist(P_{y_i}, (S Z)_i). A short last batch is padded with class 0 and weight 0.

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
        """Weights v (batches, B); 0 for samples of classes that are not `present` (C,) in the global prototypes."""
        v = (self._real & present[self.y]) / self._members
        return v / v.sum(-1, keepdim=True).clamp(min=1)


class MFedPBAClient(Client):
    """Client that pulls its batch prototypes towards the global ones."""

    params: MFedPBAParameters
    terms = ("ce", "fea", "logit")
    tracked = ("gradient_norm2", "arrival_old", "arrival_new")
    persistent = ("tracking",)
    transient = ("arrival_old", "arrival_new")

    def __init__(self, k: int, problem: Problem, data: ClientData, device: torch.device):
        super().__init__(k, problem, data, device)
        self.lambda_1, self.lambda_2 = self.params.lambdas
        self.uploaded = self.uploaded_classes()
        self.tracking: Message = {}  # with --track-gradients: the prototypes of the last round
        self.arrival_old = self.arrival_new = math.nan

    def update(self, t: int, phase: int, inbox: Message) -> Message:
        if self.config.track_gradients:
            self._track_arrival(t, inbox)
        self.train(t, lambda epoch: MFedPBALoss(self, epoch, inbox))
        return {name: value.where(self.uploaded[:, None], 0) for name, value in self.prototypes().items()}

    def _track_arrival(self, t: int, inbox: Message) -> None:
        """Set `arrival_old` and `arrival_new`: L_client under the prototypes of its last round and the new ones.

        The model is that of the end of its last round. L_ce is the mean over its training rows in evaluation mode;
        L_fea and L_logit are of the class means over all of them, see `arrival`. NaN until there are two of them.
        """
        old, self.tracking = self.tracking, {name: inbox[name] for name in NAMES if inbox}
        self.arrival_old = self.arrival_new = math.nan
        if not old:
            return
        with seeded(self.config.seed, "arrival", self.k, t):
            means, ce, n = self.prototypes(), torch.zeros((), device=self.device), len(self.train_labels)
            for rows, Z in self.clean_pass(self.train_rows, n):
                y = self.train_labels[rows]
                ce += cross_entropy(self.model.logits(Z), y) * (len(y) / n)
        own = list(self.spec.modalities)
        of_features, of_logits = common_classes(old, inbox, self.uploaded)
        self.arrival_old, self.arrival_new = (
            (
                ce
                + self.lambda_1 * feature_loss(means["E"], prototypes["P_G"][own], of_features[own])
                + self.lambda_2 * logit_loss(means["I"], prototypes["I_G"], of_logits)
            ).item()
            for prototypes in (old, inbox)
        )

    def own_prototypes(self, inbox: Message) -> tuple[Tensor, Tensor]:
        """Return (P_G, present) of the client's modalities."""
        own = list(self.spec.modalities)
        return inbox["P_G"][own], inbox["P_present"][own] > 0


class MFedPBALoss(HeadLoss):
    """L_ce + lambda_1 L_fea + lambda_2 L_logit; only L_ce before the first broadcast."""

    def __init__(self, client: MFedPBAClient, epoch: Epoch, inbox: Message):
        super().__init__(client, epoch)
        self.feature = self.logit = None
        self.weights = client.lambda_1, client.lambda_2
        if inbox and (client.lambda_1 or client.lambda_2):
            classes = BatchClasses(epoch, client.config.batch_size)
            if client.lambda_1:
                self.feature = FeatureTerm(classes, *client.own_prototypes(inbox), client.lambda_1)
            if client.lambda_2:
                self.logit = LogitTerm(classes, inbox["I_G"], inbox["I_present"] > 0, client.lambda_2)

    def on_logits(self, number: int, rows: slice, logits: Tensor, g: Tensor) -> Tensor:
        return self.logit.add_gradient(number, logits, g) if self.logit else g

    def on_features(self, number: int, rows: slice, Z: Tensor, g: Tensor) -> Tensor:
        return self.feature.add_gradient(number, Z, g) if self.feature else g

    def batch_terms(self, number: int, rows: slice, Z: Tensor, z: Tensor, logits: Tensor) -> list[Tensor]:
        (ce,) = super().batch_terms(number, rows, Z, z, logits)
        batch = slice(number, number + 1)
        fea = self.feature.mean(Z, batch) if self.feature else torch.zeros_like(ce)
        kl = self.logit.mean(logits, batch) if self.logit else torch.zeros_like(ce)
        return [ce, fea, kl]

    def means(self) -> Tensor:
        (ce,) = super().means()
        fea = self.feature.mean(torch.cat(self.Z, 1)) if self.feature else torch.zeros_like(ce)
        kl = self.logit.mean(torch.cat(self.logits, 1)) if self.logit else torch.zeros_like(ce)
        return torch.stack([ce, fea, kl])


class FeatureTerm:
    """L_fea = 1/|M_k| sum_m mean_c ||P_G,c^m - E_c^m||^2 over the classes of a batch that are present in P_G^m.

    As a sum over samples this is ||R (S Z^m - P_y)||^2 / |M_k| with R_ii^2 = v_i, so lambda_1 dL/dZ^m = A Z^m - B, with
    A and B computed once before the epoch.

    Parameters
    ----------
    P_G : (|M_k|, C, d) global prototypes of the client's modalities.
    present : (|M_k|, C) bool, the classes with a global prototype.
    """

    def __init__(self, classes: BatchClasses, P_G: Tensor, present: Tensor, lambda_1: float = 1.0):
        R = torch.stack([classes.weights(p) for p in present], 1).sqrt()[..., None]  # (batches, |M_k|, b, 1)
        self.S = R * classes.S[:, None]
        self.target = R * P_G[:, classes.y].transpose(0, 1)
        back = 2 * lambda_1 / len(P_G) * self.S.mT
        self.A, self.B = back @ self.S, back @ self.target

    def add_gradient(self, number: int, Z: Tensor, g: Tensor) -> Tensor:
        """Return g + lambda_1 dL/dZ for a batch with features Z (|M_k|, b, d)."""
        b = Z.shape[1]
        return torch.baddbmm(g - self.B[number, :, :b], self.A[number, :, :b, :b], Z)

    def mean(self, Z: Tensor, batches: slice = ALL) -> Tensor:
        """Mean of the term over consecutive batches with features Z (|M_k|, n, d)."""
        S, target = self.S[batches], self.target[batches]
        number, M, size, _ = S.shape
        Z = F.pad(Z, (0, 0, 0, number * size - Z.shape[1])).view(M, number, size, -1).transpose(0, 1)
        return (S @ Z - target).square().sum() / (M * number)


class LogitTerm:
    """L_logit = mean_c KL(softmax(I_G,c) || softmax(I_c)) over the classes of a batch that are present in I_G (C, C).

    With I = S logits and p = softmax(I_G) this is sum_i v_i KL(p_{y_i} || softmax(I_i)); dL/dI = v (softmax(I) - p).
    """

    def __init__(self, classes: BatchClasses, I_G: Tensor, present: Tensor, lambda_2: float = 1.0):
        self.S, self.v, self.lambda_2 = classes.S, classes.weights(present)[..., None], lambda_2
        log_p = F.log_softmax(I_G, -1)[classes.y]
        self.vp = self.v * log_p.exp()  # (batches, B, C)
        self.negative_entropy = self.vp * log_p

    def add_gradient(self, number: int, logits: Tensor, g: Tensor) -> Tensor:
        """Return g + lambda_2 dL/dlogits for a batch with logits (items, b, C)."""
        items, b, _ = logits.shape
        S = self.S[number, :b, :b]
        I = S @ (logits[0] if items == 1 else logits.mean(0))
        dI = I.softmax(-1).mul_(self.v[number, :b]).sub_(self.vp[number, :b])
        if items == 1:
            return torch.addmm(g[0], S.T, dI, alpha=self.lambda_2)[None]
        return torch.add(g, S.T @ dI, alpha=self.lambda_2 / items)

    def mean(self, logits: Tensor, batches: slice = ALL) -> Tensor:
        """Mean of the term over consecutive batches with logits (items, n, C)."""
        S, vp, negative_entropy = self.S[batches], self.vp[batches], self.negative_entropy[batches].sum()
        number, size, _ = S.shape
        I = S @ F.pad(logits.mean(0), (0, 0, 0, number * size - logits.shape[1])).view(number, size, -1)
        return (negative_entropy - (vp * F.log_softmax(I, -1)).sum()) / number
