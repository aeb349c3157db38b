"""FedMVP (Che et al., ECML-PKDD 2024): completion tokens, contrast, and aggregation weighted by similarity (CKA).

Clients upload their classifiers h_k. The server broadcasts h_G, from which every client starts its round.

* forward, for a sample i with features z^m_i, m in M_k, and ztilde_i their sum (without gradient):

      r_i  = ||ztilde_i|| / |M_k| normalize(sum_c pi_{i,c} a_c)   pi_i = softmax(h_G(ztilde_i)), a_c = normalize(W_G[c])
      s_i  = sum of the tokens                                    tokens z^m_i, and r_i if M_k lacks a modality
      zJ_i = s_i + P2 relu(P1 s_i),  o_i = h_k(zJ_i)

* client: L = CE(o, y) + alpha L_MCM + beta L_RAM, where over a batch of B samples

      L_MCM = sum_tokens NT-Xent_tau(qJ, q)                       qJ = normalize(A zJ), q = normalize(A token)
      L_RAM = 1/B sum_m [CE(h_k(z^m), y) < CE(o, y)] ||normalize(zJ) - normalize(z^m)||_F   only zJ with gradient

* server: CKA_kl between the classifiers' outputs on Q Gaussian probes, w_k = sum_l CKA_kl / sum_kl CKA_kl,
  h_G = sum_k w_k h_k.

Deviations from the published method ([A] adaptation to this setting, [F] defect that is not copied; [C] in `base`):

* [A1] a class bank (the rows a_c of the frozen h_G) replaces the frozen generative models. It needs no labels, so
  completion is the same in training and in evaluation. One token r represents all missing modalities. Like
  cross-entropy, the bank covers every class of h_G, and so transfers knowledge of classes that a client does not have;
* [A2] a residual MLP on the sum of the tokens replaces the joint transformer. P1, P2 and A have biases, as published,
  and are not communicated;
* [A3] z^m has no gradient in L_RAM, so that the joint feature follows the better modality and not vice versa;
* [A4] Gaussian probes, the same in all rounds, replace generated data;
* [A5] only classifiers are averaged, not whole models;
* [A6] features have unit length in L_MCM and L_RAM only (original: z^m has it everywhere);
* [A7] with fusion ``separate`` an item (i, m) is a sample with the single modality m. Its tokens are z^m_i and, if M_k
  lacks a modality, r_i of ztilde_i = z^m_i with 1 instead of |M_k|; all items share P1, P2, A and h_k. The loss is the
  mean over m in M_k of L on the items of modality m: contrast and bracket never mix modalities. Prediction is per item;
* [F1] ||.||_F has no gradient at 0 (here sqrt(. + 1e-12));
* [F2] L_RAM is divided by the configured batch size instead of B;
* [F3] the server part does not run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mfedpba_mpi.comm.layout import Message
from mfedpba_mpi.data.shards import ClientData
from mfedpba_mpi.errors import check_finite
from mfedpba_mpi.methods.base import Problem
from mfedpba_mpi.methods.heads import HeadClient, HeadMethod, HeadServer, average_heads
from mfedpba_mpi.methods.params import FedMVPParameters
from mfedpba_mpi.methods.training import AutogradLoss, Epoch, Loss, cross_entropy
from mfedpba_mpi.rng import seeded, torch_seed

Completion = Callable[[Tensor], Tensor]


class Joint(nn.Module):
    """Joint network zJ = s + P2 relu(P1 s)."""

    def __init__(self, d: int):
        super().__init__()
        self.P1, self.P2 = nn.Linear(d, d), nn.Linear(d, d)

    def forward(self, s: Tensor) -> Tensor:
        return s + self.P2(F.relu(self.P1(s)))


class Forward(NamedTuple):
    """Intermediate features of a batch; items are samples, or pairs (modality, sample) with ``separate``."""

    own: Tensor  # z (|M_k|, 1, b, d), or (1, |M_k|, b, d) for separate
    tokens: Tensor  # (tokens, items, b, d): own, and r if the client completes
    zJ: Tensor  # (items, b, d)


class FedMVPClient(HeadClient):
    """Client that adds a completion token from the global class bank and fuses tokens by its joint network."""

    params: FedMVPParameters
    terms = ("ce", "mcm", "ram")

    def __init__(self, k: int, problem: Problem, data: ClientData, device: torch.device):
        super().__init__(k, problem, data, device)
        self.completes = self.params.completion and len(self.spec.modalities) < problem.M
        with seeded(self.config.seed, "joint", k):
            self.joint, self.A = Joint(problem.d).to(device), nn.Linear(problem.d, problem.d).to(device)
        self.model.joint = self.joint
        if self.params.alpha:  # A is trained by L_MCM only
            self.model.A = self.A

    def predict(self, t: int, Z: Tensor, inbox: Message) -> Sequence[Tensor]:
        return [self.model.classifier(self._forward(Z, self._completion(inbox)).zJ).argmax(-1)]

    def _completion(self, h_G: Message) -> Completion | None:
        separate = self.model.fusion == "separate"
        return completion_function(h_G, 1 if separate else len(self.spec.modalities)) if self.completes else None

    def _forward(self, Z: Tensor, complete: Completion | None) -> Forward:
        """Compute tokens and zJ from the features Z (|M_k|, b, d)."""
        tokens = own = Z[None] if self.model.fusion == "separate" else Z[:, None]
        if complete:
            tokens = torch.cat([own, complete(own.sum(0))[None]])
        return Forward(own, tokens, self.joint(tokens.sum(0)))

    def loss(self, epoch: Epoch, inbox: Message) -> Loss:
        """CE + alpha L_MCM + beta L_RAM."""
        alpha, beta = self.params.alpha, self.params.beta
        complete = self._completion(inbox)
        mcm_term = contrastive_term(self.A, self.params.temperature, min(self.config.batch_size, len(epoch.y)))
        targets = F.one_hot(epoch.y, self.problem.C).float()
        zero = torch.zeros((), device=self.device)

        def batch_loss(number: int, rows: slice, Z: Tensor) -> tuple[Tensor, list[Tensor]]:
            own, tokens, zJ = self._forward(Z, complete)
            logits = self.model.classifier(zJ)
            total = ce = cross_entropy(logits, epoch.y[rows])
            mcm = ram = zero
            if alpha:
                mcm = mcm_term(zJ, tokens)
                total = total + alpha * mcm
            if beta:
                own = own.detach()
                with torch.no_grad():
                    y = targets[rows]
                    better = log_likelihood(self.model.classifier(own), y) > log_likelihood(logits, y)
                ram = alignment_loss(zJ, own, better)
                total = total + beta * ram
            return total, [ce, mcm, ram]

        return AutogradLoss(self, batch_loss)


def completion_function(h_G: Message, modalities: int) -> Completion:
    """Return the function that maps ztilde (..., d) to r = ||ztilde|| / modalities normalize(sum_c pi_c a_c)."""
    W, b = h_G["W"], h_G["b"]
    a = F.normalize(W, dim=-1)

    @torch.no_grad()
    def complete(z: Tensor) -> Tensor:
        r = F.linear(z, W, b).softmax(-1) @ a
        return F.normalize(r, dim=-1) * (torch.linalg.vector_norm(z, dim=-1, keepdim=True) / modalities)

    return complete


def contrastive_term(A: nn.Linear, tau: float, size: int) -> Callable[[Tensor, Tensor], Tensor]:
    """L_MCM = sum over tokens, mean over the 2b anchors u of -log exp(u . u+ / tau) / sum_{v != u} exp(u . v / tau).

    This is the cross-entropy of identifying the positive u+ of each anchor. Anchors are interleaved, qJ_0, q_0, qJ_1,
    q_1, ..., so that the index of the positive does not depend on b.

    Returns
    -------
    A function of zJ (items, b, d) and tokens (tokens, items, b, d) with b <= `size`, averaged over items.
    """
    device = A.weight.device
    positive = torch.arange(2 * size, device=device) ^ 1
    mask = torch.zeros(2 * size, 2 * size, device=device).fill_diagonal_(-torch.inf)

    def term(zJ: Tensor, tokens: Tensor) -> Tensor:
        n = 2 * tokens.shape[2]
        pairs = torch.stack([zJ.expand_as(tokens), tokens], 3).view(-1, n, tokens.shape[3])
        q = F.normalize(A(pairs), dim=-1)
        similarity = torch.baddbmm(mask[:n, :n], q, q.mT, alpha=1 / tau)  # (tokens x items, 2b, 2b)
        return len(tokens) * cross_entropy(similarity, positive[:n])

    return term


def log_likelihood(logits: Tensor, targets: Tensor) -> Tensor:
    """Log-likelihood, -b CE, of each batch (...) of logits (..., b, C) for one-hot targets (b, C)."""
    return (F.log_softmax(logits, -1) * targets).sum((-2, -1))


def alignment_loss(zJ: Tensor, own: Tensor, better: Tensor) -> Tensor:
    """L_RAM = 1/b sum_m better^m ||normalize(zJ) - normalize(z^m)||_F, averaged over items.

    Parameters
    ----------
    zJ : (items, b, d) joint features, normalised along d.
    own : (., items, b, d) features z^m, normalised along d.
    better : (., items) bool, whether z^m predicts better than zJ.
    """
    distance = ((F.normalize(zJ, dim=-1) - F.normalize(own, dim=-1)).square().sum((-2, -1)) + 1e-12).sqrt()
    return (better * distance).sum() / (zJ.shape[0] * zJ.shape[1])


def cka(H: Tensor) -> Tensor:
    """CKA (K, K) of outputs H (K, Q, C): tr(G_k G_l) / (||G_k||_F ||G_l||_F), G = H H^T with normalised, centred H."""
    H = F.normalize(H, dim=-1)
    H = H - H.mean(1, keepdim=True)
    G = F.normalize((H @ H.mT).flatten(1), dim=-1)
    return (G @ G.T).fill_diagonal_(1)


class FedMVPServer(HeadServer):
    """Server that weights each classifier by its mean CKA similarity to the others; it has no state."""

    params: FedMVPParameters

    def __init__(self, problem: Problem, device: torch.device):
        super().__init__(problem, device)
        draw = torch.Generator().manual_seed(torch_seed(problem.config.seed, "probes"))
        self.X = torch.randn(self.params.probes, problem.d, generator=draw).to(device)

    def aggregate(self, t: int, uploads: Mapping[int, Message]) -> Message:
        W, b = (torch.stack([h_k[name] for h_k in uploads.values()]) for name in ("W", "b"))
        CKA = cka(self.X @ W.mT + b[:, None])
        self.record = {"server_cka": CKA.mean().item()}
        check_finite(f"server, round {t}: CKA of the classifiers", CKA, "lower --lr")
        return average_heads(uploads, CKA.sum(1) / CKA.sum())


class FedMVPMethod(HeadMethod):
    """Upload and reply are one classifier each, P_h floats."""

    client_class = FedMVPClient
    server_class = FedMVPServer


METHOD = FedMVPMethod
