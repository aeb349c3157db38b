"""Harmony: unimodal classifiers, then fusion in clusters of clients with similar modality bias.

Classifiers are matrices here, h = [W b] (C, d + 1), P_h = C d + C floats. All clients start from one classifier,
initialised on the server.

Stage 1 (rounds 1..T1): unimodal classifiers h^m_k on the features z^m, without fusion::

    client:  h^m_k <- hbar^m;  L = sum_m CE(h^m_k(z^m), y);  upload {h^m_k}
    server:  hbar^m = mean of h^m_k over the participants that own m;  reply to k: {hbar^m : m in M_k}
    predict: argmax mean_m softmax(h^m_k(z^m))

Stage 2 (rounds T1+1..T): classifier h_k on the fused feature z, starting with h_k <- mean_m hbar^m and
theta_init^m <- theta^m::

    client:  L = CE(h_k(z), y), extractors at encoder_lr_factor * lr;  upload delta_k = h_k(after) - h_k(before)
             and the modality bias b^m_k = 1 - cos(theta^m_k, theta_init^m_k)
    server:  K-means on b (clients, M), columns divided by their maximum, 0 for modalities not owned;
             Delta_g = mean of delta_k over cluster g;  reply to k: Delta_g(k)
    client:  h_k <- h_k(before) + Delta_g(k)
    predict: argmax h_k(z)

A client applies the reply to its last training when it next trains or is evaluated in a later round. In the round of
that training it is evaluated with its own trained weights. Applying a reply is idempotent, so results do not depend on
how often clients are evaluated.

Deviations from the published method ([A] adaptation to this setting, [F] defect that is not copied; [C] in `base`):

* [A1] extractors are not communicated, only classifiers are averaged;
* [A2] features are summed, not concatenated, so that the classifiers of clients with different modalities have the same
  shape;
* [A3] clients with one modality take part in stage 2 as well; otherwise the method would equal Local where each
  modality has one owner. With ``stage2_clients = multimodal`` they continue to train h^m_k locally and upload nothing;
* [A4] the fusion classifier starts from the unimodal ones, or with ``fusion_init = random`` from the common initial one
  (original: a new one);
* [A5] with fusion ``separate`` each item is classified on its own, by h^m_k in stage 1 and by h_k in stage 2;
* [A6] the number of clusters G grows with K (original: fixed for each dataset), and k-means starts from the seed of the
  run and the round;
* [A7] update and modality bias are sent after the E epochs of a round (original: after every epoch);
* [F1] a softmax before the cross-entropy;
* [F2] adding the cluster's update to weights that already include the client's own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mfedpba_mpi.comm.layout import NOTHING, Layout, Message
from mfedpba_mpi.config.run_config import RunConfig
from mfedpba_mpi.data.shards import ClientData
from mfedpba_mpi.methods.base import Client, Method, Problem, Server
from mfedpba_mpi.methods.clustering import kmeans
from mfedpba_mpi.methods.heads import draw_head
from mfedpba_mpi.methods.params import HarmonyParameters
from mfedpba_mpi.methods.training import AutogradLoss, Epoch, Loss, cross_entropy
from mfedpba_mpi.rng import generator

UNIMODAL, FUSION, ALONE = "unimodal", "fusion", "alone"


def stage1_rounds_of(config: RunConfig) -> int:
    """Number of rounds T1 of stage 1."""
    return config.params.resolve(config.rounds).stage1_rounds


def client_stage(problem: Problem, t: int, k: int) -> str:
    """Stage of client k in round t: UNIMODAL, FUSION, or ALONE if it does not take part in stage 2."""
    if t <= stage1_rounds_of(problem.config):
        return UNIMODAL
    takes_part = problem.config.params.stage2_clients == "all" or len(problem.clients[k].modalities) > 1
    return FUSION if takes_part else ALONE


class UnimodalHeads(nn.Module):
    """Batched classifiers h^m_k of a client's modalities: weight (|M_k|, C, d), bias (|M_k|, C)."""

    def __init__(self, modalities: int, classes: int, d: int):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(modalities, classes, d))
        self.bias = nn.Parameter(torch.zeros(modalities, classes))

    def forward(self, Z: Tensor) -> Tensor:
        """Compute the logits (|M_k|, b, C) of the features Z (|M_k|, b, d)."""
        return torch.baddbmm(self.bias[:, None], Z, self.weight.transpose(1, 2))


def head_matrix(head: nn.Linear | UnimodalHeads) -> Tensor:
    """Copy h = [W b] of one classifier (C, d + 1) or of several (|M_k|, C, d + 1)."""
    return torch.cat([head.weight.detach(), head.bias.detach()[..., None]], -1)


@torch.no_grad()
def set_head_matrix(head: nn.Linear | UnimodalHeads, h: Tensor) -> None:
    """Set the classifier(s) to h; one matrix is broadcast to several classifiers."""
    head.weight.copy_(h[..., :-1])
    head.bias.copy_(h[..., -1])


class HarmonyClient(Client):
    """Client with one classifier per modality and one for the fused feature.

    Buffers of `model`: `last_round`, the last round of training (0: none); `reference` (C, d + 1), h_k before that
    training (0 if weights are averaged instead of updates); `theta_init`, the extractors at the start of stage 2.
    """

    params: HarmonyParameters
    transient = ("stage",)

    def __init__(self, k: int, problem: Problem, data: ClientData, device: torch.device):
        super().__init__(k, problem, data, device)
        self.stage = UNIMODAL
        self.unimodal = UnimodalHeads(len(self.spec.modalities), problem.C, problem.d).to(device)
        self.model.unimodal = self.unimodal
        self.model.register_buffer("last_round", torch.zeros((), dtype=torch.int64, device=device))
        self.model.register_buffer("reference", torch.zeros(problem.C, problem.d + 1, device=device))
        self.model.register_buffer("theta_init", torch.cat(self._theta()))

    def update(self, t: int, phase: int, inbox: Message) -> Message:
        self._apply_reply(t, inbox)
        self.stage = client_stage(self.problem, t, self.k)
        reference = self.model.get_buffer("reference")
        if self.stage == FUSION and self.params.average == "updates":
            reference.copy_(head_matrix(self.model.classifier))
        self.train(t, self._loss)
        self.model.get_buffer("last_round").fill_(t)
        if self.stage == UNIMODAL:
            return {"heads": head_matrix(self.unimodal)}
        if self.stage == FUSION:
            return {"delta": head_matrix(self.model.classifier) - reference, "bias": self._bias()}
        return {}

    def _apply_reply(self, t: int, inbox: Message) -> None:
        """Apply the reply to the last training if that was in an earlier round, and enter stage 2 if it begins."""
        last = int(self.model.get_buffer("last_round"))
        if last == t:
            return
        before, now = (client_stage(self.problem, s, self.k) for s in (last, t))
        if last == 0:
            set_head_matrix(self.unimodal, inbox["start"])
            set_head_matrix(self.model.classifier, inbox["start"])
        elif before == UNIMODAL:
            set_head_matrix(self.unimodal, inbox["mean"])
        elif before == FUSION:
            set_head_matrix(self.model.classifier, self.model.get_buffer("reference") + inbox["delta"])
        if (before, now) == (UNIMODAL, FUSION):
            if self.params.fusion_init == "mean":
                set_head_matrix(self.model.classifier, head_matrix(self.unimodal).mean(0))
            self.model.theta_init = torch.cat(self._theta())

    def rates(self) -> tuple[float, Sequence[tuple[Sequence[nn.Parameter], float]]]:
        lr = self.config.lr
        if self.stage == FUSION:
            return self.params.encoder_lr_factor * lr, [(list(self.model.classifier.parameters()), lr)]
        return lr, [(list(self.unimodal.parameters()), lr)]

    def _loss(self, epoch: Epoch) -> Loss:
        """Stage 1: sum_m CE(h^m_k(z^m), y), logged as the mean over m. Stage 2: CE(h_k(z), y)."""
        fusing = self.stage == FUSION
        logits, weight = (self.model.logits, 1) if fusing else (self.unimodal, len(self.spec.modalities))

        def loss(number: int, rows: slice, Z: Tensor) -> tuple[Tensor, list[Tensor]]:
            ce = cross_entropy(logits(Z), epoch.y[rows])
            return weight * ce, [ce]

        return AutogradLoss(self, loss)

    @torch.no_grad()
    def _theta(self) -> list[Tensor]:
        """theta^m_k of each owned modality: the extractor's parameters as one vector, empty if it has none."""
        empty = torch.zeros(0, device=self.device)
        return [torch.cat([empty, *(p.flatten() for p in f.parameters())]) for f in self.model.extractors]

    def _bias(self) -> Tensor:
        """Modality bias b^m_k = 1 - cos(theta, theta_init) = |u - u_init|^2 / 2 with unit vectors u, (|M_k|,).

        The second form is exactly 0 for an unchanged extractor, and has no cancellation for small changes.
        """
        now = self._theta()
        start = self.model.get_buffer("theta_init").split([len(theta) for theta in now])
        u, u_init = ([F.normalize(theta.double(), dim=0) for theta in thetas] for thetas in (now, start))
        return torch.stack([(a - b).square().sum() / 2 for a, b in zip(u, u_init, strict=True)]).float()

    @torch.no_grad()
    def predict(self, t: int, Z: Tensor, inbox: Message) -> list[Tensor]:
        self._apply_reply(t, inbox)
        if client_stage(self.problem, t, self.k) == FUSION:
            return [self.model.logits(Z).argmax(-1)]
        p = self.unimodal(Z).softmax(-1)
        return [(p if self.config.fusion == "separate" else p.mean(0, keepdim=True)).argmax(-1)]


class HarmonyServer(Server):
    """Server that averages over the owners of a modality (stage 1) or over clusters (stage 2); it has no state.

    It records `cluster` (K,), -1 for clients without a cluster, and `modality_bias` (K, M), NaN for missing values.
    """

    params: HarmonyParameters

    def first_message(self) -> Message:
        return {"start": head_matrix(draw_head(self.problem, self.device))}

    def step(self, t: int, phase: int, uploads: Mapping[int, Message]) -> Mapping[int, Message]:
        own = {k: list(self.problem.clients[k].modalities) for k in uploads}
        cluster, bias = np.full(self.problem.K, -1), np.full((self.problem.K, self.problem.M), np.nan)
        self.record = {"cluster": cluster, "modality_bias": bias}
        if t <= stage1_rounds_of(self.problem.config):
            heads = torch.cat([upload["heads"] for upload in uploads.values()])
            means = group_means(heads, np.concatenate(list(own.values()))).split([len(m) for m in own.values()])
            return {k: {"mean": part} for k, part in zip(uploads, means, strict=True)}
        senders = [k for k in uploads if uploads[k]]
        if not senders:
            return {k: {} for k in uploads}
        for k in senders:
            bias[k, own[k]] = uploads[k]["bias"].cpu().numpy()
        b = np.nan_to_num(bias[senders])
        G = min(self.params.clusters or default_clusters(self.problem.K), len(senders))
        top = b.max(axis=0)
        labels = kmeans(b / np.where(top > 0, top, 1), G, generator(self.problem.config.seed, "clusters", t))
        cluster[senders] = labels
        Delta = group_means(torch.stack([uploads[k]["delta"] for k in senders]), labels)
        sent = dict(zip(senders, Delta, strict=True))
        return {k: {"delta": sent[k]} if k in sent else {} for k in uploads}


def default_clusters(K: int) -> int:
    """Default number of clusters G for K clients."""
    return 2 if K <= 10 else 3 if K <= 20 else round(math.sqrt(K / 2))


def group_means(values: Tensor, groups: np.ndarray) -> Tensor:
    """Replace each row of `values` (n, ...) by the mean over the rows of its group; `groups` (n,) are group labels."""
    _, index = np.unique(groups, return_inverse=True)
    group = torch.from_numpy(index).to(values.device)
    members = F.one_hot(group).to(values.dtype).T
    means = members @ values.flatten(1) / members.sum(1, keepdim=True)
    return means[group].view_as(values)


class HarmonyMethod(Method):
    """Floats per round: |M_k| P_h in each direction (stage 1); P_h + |M_k| up, P_h down (stage 2).

    Before round 1 the server broadcasts P_h floats.
    """

    client_class = HarmonyClient
    server_class = HarmonyServer

    def first(self) -> Layout:
        return Layout({"start": (self.problem.C, self.problem.d + 1)})

    def upload(self, t: int, phase: int, k: int) -> Layout:
        own, head = len(self.problem.clients[k].modalities), (self.problem.C, self.problem.d + 1)
        layouts = {UNIMODAL: Layout({"heads": (own, *head)}), FUSION: Layout({"delta": head, "bias": (own,)})}
        return layouts.get(client_stage(self.problem, t, k), NOTHING)

    def reply(self, t: int, phase: int, k: int) -> Layout:
        own, head = len(self.problem.clients[k].modalities), (self.problem.C, self.problem.d + 1)
        layouts = {UNIMODAL: Layout({"mean": (own, *head)}), FUSION: Layout({"delta": head})}
        return layouts.get(client_stage(self.problem, t, k), NOTHING)

    def replies_differ(self, t: int, phase: int) -> bool:
        return True


METHOD = HarmonyMethod
