"""FedTGP: FedProto with prototypes that the server trains, kept apart by an adaptive margin (Zhang et al., AAAI 2024).

The client is FedProto's, with the trained Phat_c in the place of the mean Pbar_c. The server keeps

    Phat_c = TGP(c) = A2 relu(A1 e_c + a1) + a2,    e (C, d), A1 (d_h, d), A2 (d, d_h),

and every round, with {(p_j, y_j)} the uploaded prototypes and avg_c their means over the clients:

* delta = min(max_c min_{c' != c} ||avg_c - avg_c'||, tau_m) over the round's classes; tau_m where there is but one;
* S epochs of SGD over the p_j, shuffled: mean_j cross_entropy(-D_j, y_j), D_jc = ||p_j - Phat_c|| + delta [c = y_j];
* reply: Phat_c of all classes, and which of them anybody has ever uploaded.

Adaptations:

* a class that nobody has ever uploaded has a Phat_c that is still a random point: clients are not pulled towards it and
  do not predict it, and the server leaves it out of D;
* lambda is 1 and tau_m is 100 sqrt(d / 512), where the authors have 10 and 100 at 512 features: the loss is a mean over
  features, so 10 / 512 pulls each as hard as 1 / 51, and distances grow with the root of their number. With the
  authors' values at d = 48 margin and features drive each other up until plain SGD at the paper's rates diverges.

Not copied:

* distances as sqrt(|p|^2 - 2 p.c + |c|^2): with Phat_c close to p_j rounding makes that the root of a negative number,
  and everything NaN. Here they are norms of differences.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mfedpba_mpi.comm.layout import Message
from mfedpba_mpi.errors import check_finite
from mfedpba_mpi.methods.base import Problem, Server
from mfedpba_mpi.methods.fedproto import EXACT, FedProtoMethod, average_prototypes
from mfedpba_mpi.methods.params import FedTGP as Params
from mfedpba_mpi.rng import generator, seeded


class TrainablePrototypes(nn.Module):
    """TGP: e, A1, a1, A2, a2 as PyTorch starts them, and which classes were ever `uploaded` (C,).

    Its gradient is written out, since the server's steps are many and tiny.
    """

    uploaded: Tensor

    def __init__(self, C: int, d: int, hidden: int):
        super().__init__()
        self.embedding, self.inner, self.outer = nn.Embedding(C, d), nn.Linear(d, hidden), nn.Linear(hidden, d)
        self.register_buffer("uploaded", torch.zeros(C, dtype=torch.bool))
        self.requires_grad_(False)

    def forward(self) -> Tensor:
        """Phat (C, d)."""
        return self.outer(self.inner(self.embedding.weight).relu())

    def step(self, p: Tensor, hot: Tensor, margin: Tensor, lr: float) -> None:
        """One SGD step of mean_j cross_entropy(-D_j, y_j), D_jc = ||p_j - Phat_c|| + margin_jc.

        With s = softmax(-D): dL/dPhat_c = 1/b sum_j ([c = y_j] - s_jc) (Phat_c - p_j) / ||Phat_c - p_j||.

        Parameters
        ----------
        p : (b, d) prototypes; hot (b, C) their classes [c = y_j].
        margin : (b, C), infinite for a class that is left out.
        """
        e, A1, a1 = self.embedding.weight, self.inner.weight, self.inner.bias
        A2, a2 = self.outer.weight, self.outer.bias
        R = torch.addmm(a1, e, A1.T).relu_()
        difference = torch.addmm(a2, R, A2.T) - p[:, None]  # (b, C, d)
        distance = torch.linalg.vector_norm(difference, dim=-1).clamp_(min=1e-6)
        pull = (hot - (-(distance + margin)).softmax(-1)).div_(distance).mul_(lr / len(p))
        g = difference.mul_(pull[..., None]).sum(0)  # lr dL/dPhat
        g_hidden = (g @ A2).mul_(R > 0)
        g_e = g_hidden @ A1
        A2.addmm_(g.T, R, alpha=-1)
        a2.sub_(g.sum(0))
        A1.addmm_(g_hidden.T, e, alpha=-1)
        a1.sub_(g_hidden.sum(0))
        e.sub_(g_e)


def adaptive_margin(average: Tensor, present: Tensor, tau_m: float) -> float:
    """delta = min(max_c min_{c' != c} ||avg_c - avg_c'||, tau_m) of avg (C, d) over the classes `present` (C,).

    The original gives the other classes the smallest gap of all, which changes no maximum.
    """
    there = average[present]
    return min(torch.cdist(there, there, compute_mode=EXACT).fill_diagonal_(torch.inf).amin(1).max().item(), tau_m)


class FedTGPServer(Server):
    """The trainable prototypes and their training."""

    params: Params
    persistent = ("network",)

    def __init__(self, problem: Problem, device: torch.device):
        super().__init__(problem, device)
        config = problem.config
        with seeded(config.seed, "server"):
            self.network = TrainablePrototypes(problem.C, problem.d, self.params.hidden or problem.d).to(device)
        self.shared = problem.shared(device)  # (K, C)
        self.lr = config.lr if self.params.server_lr is None else self.params.server_lr
        self.batch = self.params.server_batch or config.batch_size
        self.tau_m = 100 * math.sqrt(problem.d / 512) if self.params.margin is None else self.params.margin

    def step(self, t: int, phase: int, uploads: Mapping[int, Message]) -> Message:
        P, present = torch.stack([upload["P"] for upload in uploads.values()]), self.shared[list(uploads)]
        average, here = average_prototypes(P, present.to(P.dtype))
        if here.any():  # else all who took part keep theirs to themselves
            delta = adaptive_margin(average, here, self.tau_m)
            self.network.uploaded |= here
            margin = delta * torch.eye(self.problem.C, device=self.device)  # (C, C), of a class y_j its row margin_j
            margin[:, ~self.network.uploaded] = torch.inf
            loss = self._train(t, P[present], present.nonzero()[:, 1], margin)
            self.record = {"server_tgp": loss, "server_margin": delta}
        return {"P_G": self.network(), "P_present": self.network.uploaded.clone()}

    def _train(self, t: int, p: Tensor, y: Tensor, margin: Tensor) -> float:
        """S epochs over the prototypes p (n, d) of the classes y (n,); returns the loss over all of them afterwards."""
        rng = generator(self.problem.config.seed, "server shuffle", t)
        hot, margin = F.one_hot(y, self.problem.C).to(p.dtype), margin[y]
        for _ in range(self.params.server_epochs):
            order = torch.from_numpy(rng.permutation(len(y))).to(self.device)
            batches = (x[order].split(self.batch) for x in (p, hot, margin))
            for p_j, hot_j, margin_j in zip(*batches, strict=True):
                self.network.step(p_j, hot_j, margin_j, self.lr)
        D = torch.cdist(p, self.network(), compute_mode=EXACT) + margin
        loss = F.cross_entropy(-D, y).item()
        check_finite(f"server, round {t}: L_tgp", loss, "lower server_lr")
        return loss


class FedTGPMethod(FedProtoMethod):
    """Up and down C d floats; the client is FedProto's."""

    params: Params

    server_class = FedTGPServer


METHOD = FedTGPMethod
