"""FedMVP (Che et al., ECML-PKDD 2024): completed tokens, contrast, and classifiers averaged by their likeness.

Up goes the classifier h_k, down comes h_G, from which every client starts its round.

* forward, for a sample i with features z^m_i, m in M_k, and ztilde_i their sum (gradient stopped):

      r_i  = ||ztilde_i|| / |M_k| normalize(sum_c pi_{i,c} a_c)   pi_i = softmax(h_G(ztilde_i)), a_c = normalize(W_G[c])
      s_i  = sum of the tokens                                    tokens z^m_i, and r_i if M_k lacks a modality
      zJ_i = s_i + P2 relu(P1 s_i),  o_i = h_k(zJ_i)

* client: L = CE(o, y) + alpha L_MCM + beta L_RAM, where over a batch of B samples

      L_MCM = sum_tokens NT-Xent_tau(qJ, q)                       qJ = normalize(A zJ), q = normalize(A token)
      L_RAM = 1/B sum_m [CE(h_k(z^m), y) < CE(o, y)] ||zJ - z^m||_F        bracket and z^m without gradient

* server: CKA_kl between the classifiers' outputs on Q Gaussian probes, w_k = sum_l CKA_kl / sum_kl CKA_kl,
  h_G = sum_k w_k h_k.

Adaptations:

* a class bank (the rows a_c of the frozen h_G) takes the place of frozen generative models; it needs no label, so that
  completion is the same in training and at test time. One r stands for all missing modalities. The bank has every class
  of h_G, like cross-entropy; what a client has not seen reaches it that way;
* a residual MLP on the sum of the tokens takes the place of the joint transformer. P1, P2 and A have biases, as
  published, and stay with the client;
* z^m is constant in L_RAM, so that the joint feature follows the better modality and not the other way round;
* Gaussian probes, the same in all rounds, take the place of generated data;
* fusion ``separate``: an item (i, m) is a sample whose only modality is m. Its tokens are z^m_i and, if M_k lacks a
  modality, r_i of ztilde_i = z^m_i with 1 for |M_k|; P1, P2, A and h_k serve all items. The loss is the mean over m in
  M_k of L on the items of modality m: contrast and bracket never mix modalities. Prediction is by item, too.

Published defects not copied: ||.||_F has no gradient at 0 (here sqrt(. + 1e-12)); L_RAM was divided by the configured
batch size, not by B; the server's part did not run.
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
from mfedpba_mpi.methods.params import FedMVP as Params
from mfedpba_mpi.methods.training import AutogradLoss, Epoch, Loss, cross_entropy
from mfedpba_mpi.rng import seeded, torch_seed

Completion = Callable[[Tensor], Tensor]


class Joint(nn.Module):
    """zJ = s + P2 relu(P1 s)."""

    def __init__(self, d: int):
        super().__init__()
        self.P1, self.P2 = nn.Linear(d, d), nn.Linear(d, d)

    def forward(self, s: Tensor) -> Tensor:
        return s + self.P2(F.relu(self.P1(s)))


class Forward(NamedTuple):
    """A batch on its way to the classifier: items are samples, or pairs (modality, sample) for ``separate``."""

    own: Tensor  # z (|M_k|, 1, b, d), or (1, |M_k|, b, d) for separate
    tokens: Tensor  # (tokens, items, b, d): own, and r where there is one
    zJ: Tensor  # (items, b, d)


class FedMVPClient(HeadClient):
    """A client that completes its tokens from the global class bank and joins them by a network of its own."""

    params: Params
    terms = ("ce", "mcm", "ram")

    def __init__(self, k: int, problem: Problem, data: ClientData, device: torch.device):
        super().__init__(k, problem, data, device)
        self.completes = self.params.completion and len(self.spec.modalities) < problem.M
        with seeded(self.config.seed, "joint", k):
            self.joint, self.A = Joint(problem.d).to(device), nn.Linear(problem.d, problem.d).to(device)
        self.model.joint = self.joint
        if self.params.alpha:  # only L_MCM trains A
            self.model.A = self.A

    def predict(self, t: int, Z: Tensor, inbox: Message) -> Sequence[Tensor]:
        return [self.model.classifier(self._forward(Z, self._completion(inbox)).zJ).argmax(-1)]

    def _completion(self, h_G: Message) -> Completion | None:
        separate = self.model.fusion == "separate"
        return completion(h_G, 1 if separate else len(self.spec.modalities)) if self.completes else None

    def _forward(self, Z: Tensor, complete: Completion | None) -> Forward:
        """From the features Z (|M_k|, b, d) to zJ."""
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


def completion(h_G: Message, modalities: int) -> Completion:
    """The stand-in r = ||ztilde|| / modalities normalize(sum_c pi_c a_c) as a function of ztilde (..., d)."""
    W, b = h_G["W"], h_G["b"]
    a = F.normalize(W, dim=-1)

    @torch.no_grad()
    def complete(z: Tensor) -> Tensor:
        r = F.linear(z, W, b).softmax(-1) @ a
        return F.normalize(r, dim=-1) * (torch.linalg.vector_norm(z, dim=-1, keepdim=True) / modalities)

    return complete


def contrastive_term(A: nn.Linear, tau: float, size: int) -> Callable[[Tensor, Tensor], Tensor]:
    """L_MCM = sum over tokens, mean over the 2b anchors u of -log exp(u . u+ / tau) / sum_{v != u} exp(u . v / tau).

    This is the cross-entropy of finding an anchor's partner u+ among the others. The anchors qJ_0, q_0, qJ_1, q_1, ...
    take turns, so that partners do not depend on b.

    Returns
    -------
    A function of zJ (items, b, d) and tokens (tokens, items, b, d), b at most `size`; the mean over items.
    """
    device = A.weight.device
    partner = torch.arange(2 * size, device=device) ^ 1
    others = torch.zeros(2 * size, 2 * size, device=device).fill_diagonal_(-torch.inf)

    def term(zJ: Tensor, tokens: Tensor) -> Tensor:
        n = 2 * tokens.shape[2]
        pairs = torch.stack([zJ.expand_as(tokens), tokens], 3).view(-1, n, tokens.shape[3])
        q = F.normalize(A(pairs), dim=-1)
        alike = torch.baddbmm(others[:n, :n], q, q.mT, alpha=1 / tau)  # (tokens x items, 2b, 2b)
        return len(tokens) * cross_entropy(alike, partner[:n])

    return term


def log_likelihood(logits: Tensor, targets: Tensor) -> Tensor:
    """-b CE of each batch (...) of logits (..., b, C), with one-hot targets (b, C)."""
    return (F.log_softmax(logits, -1) * targets).sum((-2, -1))


def alignment_loss(zJ: Tensor, own: Tensor, better: Tensor) -> Tensor:
    """L_RAM = 1/b sum_m better^m ||zJ - z^m||_F, the mean over items.

    Parameters
    ----------
    zJ : (items, b, d), own (., items, b, d), and better (., items), where own predicts better than zJ.
    """
    distance = ((zJ - own).square().sum((-2, -1)) + 1e-12).sqrt()
    return (better * distance).sum() / (zJ.shape[0] * zJ.shape[1])


def cka(H: Tensor) -> Tensor:
    """CKA (K, K) of outputs H (K, Q, C): tr(G_k G_l) / (||G_k||_F ||G_l||_F), G = H H^T of normalised, centred H."""
    H = F.normalize(H, dim=-1)
    H = H - H.mean(1, keepdim=True)
    G = F.normalize((H @ H.mT).flatten(1), dim=-1)
    return (G @ G.T).fill_diagonal_(1)


class FedMVPServer(HeadServer):
    """Averages classifiers, those most like the others with the most weight; keeps no state over rounds."""

    params: Params

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
    """A classifier up and one down, P_h floats each."""

    client_class = FedMVPClient
    server_class = FedMVPServer


METHOD = FedMVPMethod
