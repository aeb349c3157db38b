"""FedTGP: FedProto with global prototypes trained on the server with an adaptive margin (Zhang et al., AAAI 2024).

The client is FedProto's, with the trained prototypes Phat_c instead of the means Pbar_c. The server's model is

    Phat_c = TGP(c) = A2 relu(A1 e_c + a1) + a2,    e (C, d), A1 (d_h, d), A2 (d, d_h).

In every round, with {(p_j, y_j)} the uploaded prototypes and avg_c their means over clients:

* delta = min(max_c min_{c' != c} ||avg_c - avg_c'||, tau_m) over the round's classes; tau_m if there is only one;
* S epochs of SGD over the shuffled p_j on mean_j cross_entropy(-D_j, y_j), D_jc = ||p_j - Phat_c|| + delta [c = y_j];
* reply: Phat_c of all classes, and a mask of the classes uploaded so far.

Deviations from the published method ([A] adaptation to this setting, [F] defect that is not copied; [C] in `base`):

* [A1] the Phat_c of a class that was never uploaded is still random. Clients are not pulled towards it and do not
  predict it, and the server excludes it from D;
* [A2] lambda is 1 and tau_m is 100 sqrt(d / 512). The authors use 10 and 100 with 512 features. The loss is a mean over
  features, so 10 / 512 per feature corresponds to 1 / 51, and distances grow with the square root of d. With the
  authors' values at d = 48, margin and features grow together until plain SGD at the paper's learning rates diverges;
* [A3] z_i and p_k,c are FedProto's, with its [A1] and [A2];
* [F1] distances as sqrt(|p|^2 - 2 p.c + |c|^2): if Phat_c is close to p_j, rounding makes the radicand negative and all
  values NaN. Here distances are norms of differences.
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
from mfedpba_mpi.methods.fedproto import EXACT_CDIST, FedProtoMethod, average_prototypes
from mfedpba_mpi.methods.params import FedTGPParameters
from mfedpba_mpi.rng import generator, seeded


class TrainablePrototypes(nn.Module):
    """TGP: e, A1, a1, A2, a2 with PyTorch's default initialisation, and the mask `uploaded` (C,) of uploaded classes.

    The gradient is computed manually, because the server does many small steps.
    """

    uploaded: Tensor

    def __init__(self, C: int, d: int, hidden: int):
        super().__init__()
        self.embedding, self.inner, self.outer = nn.Embedding(C, d), nn.Linear(d, hidden), nn.Linear(hidden, d)
        self.register_buffer("uploaded", torch.zeros(C, dtype=torch.bool))
        self.requires_grad_(False)

    def forward(self) -> Tensor:
        """Compute Phat (C, d)."""
        return self.outer(self.inner(self.embedding.weight).relu())

    def step(self, p: Tensor, one_hot: Tensor, margin: Tensor, lr: float) -> None:
        """One SGD step of mean_j cross_entropy(-D_j, y_j), D_jc = ||p_j - Phat_c|| + margin_jc.

        With s = softmax(-D): dL/dPhat_c = 1/b sum_j ([c = y_j] - s_jc) (Phat_c - p_j) / ||Phat_c - p_j||.

        Parameters
        ----------
        p : (b, d) uploaded prototypes.
        one_hot : (b, C) their classes [c = y_j].
        margin : (b, C), infinite for excluded classes.
        """
        e, A1, a1 = self.embedding.weight, self.inner.weight, self.inner.bias
        A2, a2 = self.outer.weight, self.outer.bias
        R = torch.addmm(a1, e, A1.T).relu_()
        difference = torch.addmm(a2, R, A2.T) - p[:, None]  # (b, C, d)
        distance = torch.linalg.vector_norm(difference, dim=-1).clamp_(min=1e-6)
        factor = (one_hot - (-(distance + margin)).softmax(-1)).div_(distance).mul_(lr / len(p))
        g = difference.mul_(factor[..., None]).sum(0)  # lr dL/dPhat
        g_hidden = (g @ A2).mul_(R > 0)
        g_e = g_hidden @ A1
        A2.addmm_(g.T, R, alpha=-1)
        a2.sub_(g.sum(0))
        A1.addmm_(g_hidden.T, e, alpha=-1)
        a1.sub_(g_hidden.sum(0))
        e.sub_(g_e)


def adaptive_margin(average: Tensor, present: Tensor, tau_m: float) -> float:
    """delta = min(max_c min_{c' != c} ||avg_c - avg_c'||, tau_m) of avg (C, d) over the classes `present` (C,).

    The original assigns the smallest of these distances to absent classes, which does not change the maximum.
    """
    avg = average[present]
    nearest = torch.cdist(avg, avg, compute_mode=EXACT_CDIST).fill_diagonal_(torch.inf).amin(1)
    return min(nearest.max().item(), tau_m)


class FedTGPServer(Server):
    """Server that trains the global prototypes."""

    params: FedTGPParameters
    persistent = ("network",)

    def __init__(self, problem: Problem, device: torch.device):
        super().__init__(problem, device)
        config = problem.config
        with seeded(config.seed, "server"):
            self.network = TrainablePrototypes(problem.C, problem.d, self.params.hidden or problem.d).to(device)
        self.uploaded = problem.uploaded_classes(device)  # (K, C)
        self.lr = config.lr if self.params.server_lr is None else self.params.server_lr
        self.batch = self.params.server_batch or config.batch_size
        self.tau_m = 100 * math.sqrt(problem.d / 512) if self.params.margin is None else self.params.margin

    def step(self, t: int, phase: int, uploads: Mapping[int, Message]) -> Message:
        P, present = torch.stack([upload["P"] for upload in uploads.values()]), self.uploaded[list(uploads)]
        average, any_present = average_prototypes(P, present.to(P.dtype))
        if any_present.any():  # false if all participants withhold their prototypes
            delta = adaptive_margin(average, any_present, self.tau_m)
            self.network.uploaded |= any_present
            margin = delta * torch.eye(self.problem.C, device=self.device)  # (C, C), row y_j is the margin of p_j
            margin[:, ~self.network.uploaded] = torch.inf
            loss = self._train(t, P[present], present.nonzero()[:, 1], margin)
            self.record = {"server_tgp": loss, "server_margin": delta}
        return {"P_G": self.network(), "P_present": self.network.uploaded.clone()}

    def _train(self, t: int, p: Tensor, y: Tensor, margin: Tensor) -> float:
        """Train for S epochs on prototypes p (n, d) of classes y (n,); return the final loss over all of them."""
        rng = generator(self.problem.config.seed, "server shuffle", t)
        one_hot, margin = F.one_hot(y, self.problem.C).to(p.dtype), margin[y]
        for _ in range(self.params.server_epochs):
            order = torch.from_numpy(rng.permutation(len(y))).to(self.device)
            batches = (x[order].split(self.batch) for x in (p, one_hot, margin))
            for p_j, one_hot_j, margin_j in zip(*batches, strict=True):
                self.network.step(p_j, one_hot_j, margin_j, self.lr)
        D = torch.cdist(p, self.network(), compute_mode=EXACT_CDIST) + margin
        loss = F.cross_entropy(-D, y).item()
        check_finite(f"server, round {t}: L_tgp", loss, "lower server_lr")
        return loss


class FedTGPMethod(FedProtoMethod):
    """C d floats in each direction; the client is FedProto's."""

    params: FedTGPParameters

    server_class = FedTGPServer


METHOD = FedTGPMethod
