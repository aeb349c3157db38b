"""FedProto: clients are pulled towards the mean of all clients' class prototypes (Tan et al., AAAI 2022).

Up go the local prototypes p_k,c = mean of z_i over class c, down come the global Pbar_c and which classes have one.

* client: L = L_ce + lambda MSE(z_i, Pbar_{y_i}), the mean over all elements of the batch; a sample whose class has no
  global prototype adds 0 to it. Before the first reply L = L_ce;
* server: Pbar_c = 1/|K_c| sum_{k in K_c} p_k,c over the clients that have class c, or weighted by their n_k,c;
* inference: argmin_c MSE(z, Pbar_c) over the classes that have a prototype, or argmax h_k(z); both are logged. A client
  that has been sent none yet has only its classifier.

Adaptations:

* z_i is the fused feature, with fusion ``separate`` each item's. ``proto_scope=modality`` keeps p_k,c^m and Pbar_c^m,
  means over the clients that have both m and c. Its loss is the mean of the modalities' losses; inference adds up their
  distances, so a class needs a prototype in each of the client's modalities (with ``separate``: in the item's). Each
  client is sent those of its own modalities only, so one that sat rounds out goes on from what it was last sent;
* prototypes come from one clean pass after training, as in the other prototype methods, which then do not differ in how
  fresh these are. ``proto_source=train`` takes the features that the steps of all local epochs saw, each before its
  update (the original: of the last epoch); a class that none of them saw is absent.

No defect of the published code had to be avoided.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from mfedpba_mpi.comm.layout import Layout, Message
from mfedpba_mpi.data.shards import ClientData
from mfedpba_mpi.methods.base import Client, Method, Problem, Server
from mfedpba_mpi.methods.params import FedProto as Params
from mfedpba_mpi.methods.training import Epoch, HeadLoss

EXACT = "donot_use_mm_for_euclid_dist"  # torch.cdist by differences: no cancellation between points that are close


class SeenFeatures:
    """Sums E (|M_k|, C, d) of the features that training saw, by class, and their numbers n (C,)."""

    def __init__(self, modalities: int, C: int, d: int, device: torch.device):
        self.E, self.n = torch.zeros(modalities, C, d, device=device), torch.zeros(C, device=device)

    def note(self, epoch: Epoch) -> Callable[[slice, Tensor], None]:
        """A function of (rows of the epoch, Z (|M_k|, b, d)), to be called once for each batch."""
        members = F.one_hot(epoch.y, len(self.n)).to(self.E.dtype).T  # (C, n)
        self.n += members[:, : epoch.cuts[-1][1]].sum(1)

        def add(rows: slice, Z: Tensor) -> None:
            self.E += members[:, rows] @ Z.detach()

        return add

    def means(self) -> Tensor:
        """(|M_k|, C, d); rows of classes that were not seen mean nothing."""
        return self.E / self.n.clamp(min=1)[:, None]


class FedProtoClient(Client):
    """A client that pulls every sample's feature towards the global prototype of its class."""

    params: Params
    terms = ("ce", "proto")

    def __init__(self, k: int, problem: Problem, data: ClientData, device: torch.device):
        super().__init__(k, problem, data, device)
        self.by_modality = self.params.proto_scope == "modality"
        self.shared = self.shares()

    def update(self, t: int, phase: int, inbox: Message) -> Message:
        shape = len(self.spec.modalities), self.problem.C, self.problem.d
        seen = SeenFeatures(*shape, self.device) if self.params.proto_source == "train" else None
        self.train(t, lambda epoch: FedProtoLoss(self, epoch, inbox, seen))
        E = seen.means() if seen else self.prototypes()["E"]
        P = E if self.by_modality else self.model.fuse(E).mean(0)  # a mean of sums is the sum of means
        P = P.where(self.shared[:, None], 0)
        return {"P": P, "seen": seen.n > 0} if seen else {"P": P}

    def received(self, inbox: Message) -> tuple[Tensor, Tensor]:
        """(Pbar (1 or |M_k|, C, d), which of them exist (1 or |M_k|, C))."""
        C, d = self.problem.C, self.problem.d
        return inbox["P_G"].view(-1, C, d), inbox["P_present"].view(-1, C) > 0

    def predict(self, t: int, Z: Tensor, inbox: Message) -> Sequence[Tensor]:
        """Classes (items, b) by the nearest global prototype and by h_k, the one that counts first."""
        fused = self.model.fuse(Z)
        by_classifier = self.model.classifier(fused).argmax(-1)
        by_prototype = by_classifier
        if inbox and inbox["P_present"].any():
            by_prototype = self._nearest(Z if self.by_modality else fused, inbox)
        return (by_prototype, by_classifier) if self.params.predict == "prototype" else (by_classifier, by_prototype)

    def _nearest(self, z: Tensor, inbox: Message) -> Tensor:
        """argmin_c ||z - Pbar_c||^2 of z (items, b, d), absent classes infinitely far."""
        P_G, present = self.received(inbox)
        distance = torch.cdist(z, P_G, compute_mode=EXACT).square().masked_fill(~present[:, None], torch.inf)
        if self.by_modality and self.model.fusion == "sum":
            distance = distance.sum(0, keepdim=True)
        return distance.argmin(-1)


class FedProtoLoss(HeadLoss):
    """L_ce + lambda MSE(z_i, t_i) with t_i = Pbar_{y_i}, or z_i itself where there is none."""

    def __init__(self, client: FedProtoClient, epoch: Epoch, inbox: Message, seen: SeenFeatures | None):
        super().__init__(client, epoch)
        self.lam, self.by_modality = client.params.lam if inbox else 0.0, client.by_modality
        self.note = seen.note(epoch) if seen else None
        if self.lam:
            P_G, present = client.received(inbox)
            known = present[:, epoch.y, None]  # (1 or |M_k|, n, 1)
            self.target, self.known = torch.where(known, P_G[:, epoch.y], 0.0), known.to(P_G.dtype)
            self.all_known = bool(present.all())

    def _pull(self, rows: slice, z: Tensor, g: Tensor) -> Tensor:
        """g + lambda dMSE/dz of z (., b, d)."""
        return torch.add(g, self._difference(rows, z), alpha=2 * self.lam / z.numel())

    def _difference(self, rows: slice, z: Tensor) -> Tensor:
        """z - t, 0 where there is no t."""
        return (z if self.all_known else self.known[:, rows] * z) - self.target[:, rows]

    def on_fused(self, number: int, rows: slice, z: Tensor, g: Tensor) -> Tensor:
        return g if self.by_modality or not self.lam else self._pull(rows, z, g)

    def on_features(self, number: int, rows: slice, Z: Tensor, g: Tensor) -> Tensor:
        if self.note:
            self.note(rows, Z)
        return self._pull(rows, Z, g) if self.by_modality and self.lam else g

    def each(self) -> list[Tensor]:
        (ce,) = super().each()
        if not self.lam:
            return [ce, torch.zeros_like(ce)]
        Z = torch.cat(self.Z, 1)
        z = Z if self.by_modality else self.model.fuse(Z)
        return [ce, self._difference(slice(0, z.shape[1]), z).square().mean((0, 2))]


def average_prototypes(P: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Pbar_c = sum_k w_k,c p_k,c / sum_k w_k,c.

    Parameters
    ----------
    P : (clients, ..., C, d) prototypes.
    w : (clients, ..., C) weights, 0 where a prototype is absent, else at least 1.

    Returns
    -------
    Pbar (..., C, d), zeros where nobody has the class, and where somebody has it (..., C).
    """
    total = w.sum(0)
    q = w / total.clamp(min=1)
    return (q[..., None] * P).sum(0), total > 0


class FedProtoServer(Server):
    """The mean of each class's prototypes; nothing persists."""

    params: Params

    def __init__(self, problem: Problem, device: torch.device):
        super().__init__(problem, device)
        shared = problem.shared(device)
        weights = shared * problem.counts(device) if self.params.proto_weighting == "samples" else shared
        self.weights = weights.float()  # (K, C)

    def step(self, t: int, phase: int, uploads: Mapping[int, Message]) -> Message | Mapping[int, Message]:
        by_modality = self.params.proto_scope == "modality"
        own = {k: list(self.problem.clients[k].modalities) if by_modality else [0] for k in uploads}
        shape = len(uploads), self.problem.M if by_modality else 1, self.problem.C
        P, w = torch.zeros(*shape, self.problem.d, device=self.device), torch.zeros(shape, device=self.device)
        for i, (k, upload) in enumerate(uploads.items()):
            P[i, own[k]] = upload["P"]
            w[i, own[k]] = self.weights[k] * upload["seen"] if "seen" in upload else self.weights[k]
        P_G, present = average_prototypes(P, w)
        if by_modality:
            return {k: {"P_G": P_G[m], "P_present": present[m]} for k, m in own.items()}
        return {"P_G": P_G[0], "P_present": present[0]}


class FedProtoMethod(Method):
    """Up and down C d floats, or |M_k| C d with prototypes of each modality; presence travels along."""

    client_class = FedProtoClient
    server_class: ClassVar[type[Server]] = FedProtoServer
    predicts_from_reply = True

    @property
    def predictors(self) -> tuple[str, ...]:
        both = ("prototype", "classifier")
        return both if self.params.predict == "prototype" else both[::-1]

    def upload(self, t: int, phase: int, k: int) -> Layout:
        shape = self._shape(k)
        return Layout({"P": shape}, {"seen": shape[-2:-1]} if self.params.proto_source == "train" else None)

    def reply(self, t: int, phase: int, k: int) -> Layout:
        shape = self._shape(k)
        return Layout({"P_G": shape}, {"P_present": shape[:-1]})

    def replies_differ(self, t: int, phase: int) -> bool:
        """Each client is sent the prototypes of its own modalities."""
        return self.params.proto_scope == "modality"

    def _shape(self, k: int) -> tuple[int, ...]:
        p = self.problem
        modalities = len(p.clients[k].modalities)
        return (modalities, p.C, p.d) if self.params.proto_scope == "modality" else (p.C, p.d)


METHOD = FedProtoMethod
