"""FedProto: features are pulled towards global class prototypes (Tan et al., AAAI 2022).

Clients upload local prototypes p_k,c, the mean of z_i over class c. The server broadcasts global prototypes Pbar_c and
a mask of the classes that have one.

* client: L = L_ce + lambda MSE(z_i, Pbar_{y_i}), averaged over all elements of the batch; a sample of a class without a
  global prototype contributes 0. Before the first reply L = L_ce;
* server: Pbar_c = 1/|K_c| sum_{k in K_c} p_k,c over the clients with class c, or weighted by n_k,c;
* inference: argmin_c MSE(z, Pbar_c) over the classes with a prototype, or argmax h_k(z); both are logged. Before its
  first reply a client predicts by the classifier only.

Deviations from the published method ([A] adaptation to this setting, [F] defect that is not copied; [C] in `base`):

* [A1] z_i is the fused feature, or the feature of an item with fusion ``separate``. With ``proto_scope=modality`` there
  are prototypes p_k,c^m and Pbar_c^m, averaged over the clients with both m and c. This is the default with
  ``separate``, as the MFedPBA paper's cost of FedProto, K 2 C |M_k| d, has them. The loss is the mean over modalities.
  Inference sums the distances over modalities, so a class needs a prototype in each of the client's modalities (with
  ``separate``: in the item's modality). A client receives the prototypes of its own modalities only; a client that did
  not participate for some rounds uses the last ones it received;
* [A2] prototypes are computed in one evaluation pass after training, as in the other prototype methods; otherwise
  methods would differ in how up-to-date their prototypes are. With ``proto_source=train`` they are means of the
  features computed during all local epochs, each before its update (original: during the last epoch); a class without
  such features is absent;
* [A3] clients count equally in Pbar_c, as in the published code; the paper's weights n_k,c are an option.
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
from mfedpba_mpi.methods.params import FedProtoParameters
from mfedpba_mpi.methods.training import Epoch, HeadLoss

EXACT_CDIST = "donot_use_mm_for_euclid_dist"  # torch.cdist by differences: no cancellation for close points


class FeatureSums:
    """Class-wise sums E (|M_k|, C, d) of the features computed during training, and sample counts n (C,)."""

    def __init__(self, modalities: int, C: int, d: int, device: torch.device):
        self.E, self.n = torch.zeros(modalities, C, d, device=device), torch.zeros(C, device=device)

    def accumulator(self, epoch: Epoch) -> Callable[[slice, Tensor], None]:
        """Return a function add(rows of the epoch, Z (|M_k|, b, d)), to be called once per batch."""
        members = F.one_hot(epoch.y, len(self.n)).to(self.E.dtype).T  # (C, n)
        self.n += members[:, : epoch.cuts[-1][1]].sum(1)

        def add(rows: slice, Z: Tensor) -> None:
            self.E += members[:, rows] @ Z

        return add

    def means(self) -> Tensor:
        """Class means (|M_k|, C, d); 0 for classes without samples."""
        return self.E / self.n.clamp(min=1)[:, None]


class FedProtoClient(Client):
    """Client that pulls the feature of every sample towards the global prototype of its class."""

    params: FedProtoParameters
    terms = ("ce", "proto")

    def __init__(self, k: int, problem: Problem, data: ClientData, device: torch.device):
        super().__init__(k, problem, data, device)
        self.by_modality = self.params.proto_scope == "modality"
        self.uploaded = self.uploaded_classes()

    def update(self, t: int, phase: int, inbox: Message) -> Message:
        shape = len(self.spec.modalities), self.problem.C, self.problem.d
        sums = FeatureSums(*shape, self.device) if self.params.proto_source == "train" else None
        self.train(t, lambda epoch: FedProtoLoss(self, epoch, inbox, sums))
        E = sums.means() if sums else self.prototypes()["E"]
        P = E if self.by_modality else self.model.fuse(E).mean(0)  # a mean of sums is the sum of means
        P = P.where(self.uploaded[:, None], 0)
        return {"P": P, "seen": sums.n > 0} if sums else {"P": P}

    def global_prototypes(self, inbox: Message) -> tuple[Tensor, Tensor]:
        """Return Pbar (1 or |M_k|, C, d) and the mask of existing ones (1 or |M_k|, C)."""
        C, d = self.problem.C, self.problem.d
        return inbox["P_G"].view(-1, C, d), inbox["P_present"].view(-1, C) > 0

    def predict(self, t: int, Z: Tensor, inbox: Message) -> Sequence[Tensor]:
        """Predict classes (items, b) by the nearest global prototype and by h_k, the configured predictor first."""
        fused = self.model.fuse(Z)
        by_classifier = self.model.classifier(fused).argmax(-1)
        by_prototype = by_classifier
        if inbox and inbox["P_present"].any():
            by_prototype = self._nearest(Z if self.by_modality else fused, inbox)
        return (by_prototype, by_classifier) if self.params.predict == "prototype" else (by_classifier, by_prototype)

    def _nearest(self, z: Tensor, inbox: Message) -> Tensor:
        """argmin_c ||z - Pbar_c||^2 of z (items, b, d), with infinite distance to absent classes."""
        P_G, present = self.global_prototypes(inbox)
        distance = torch.cdist(z, P_G, compute_mode=EXACT_CDIST).square().masked_fill(~present[:, None], torch.inf)
        if self.by_modality and self.model.fusion == "sum":
            distance = distance.sum(0, keepdim=True)
        return distance.argmin(-1)


class FedProtoLoss(HeadLoss):
    """L_ce + lambda MSE(z_i, t_i) with the target t_i = Pbar_{y_i}, or t_i = z_i if the class has no prototype."""

    def __init__(self, client: FedProtoClient, epoch: Epoch, inbox: Message, sums: FeatureSums | None):
        super().__init__(client, epoch)
        self.lam, self.by_modality = client.params.lam if inbox else 0.0, client.by_modality
        self.weights = (self.lam,)
        self.accumulate = sums.accumulator(epoch) if sums else None
        if self.lam:
            P_G, present = client.global_prototypes(inbox)
            has_target = present[:, epoch.y, None]  # (1 or |M_k|, n, 1)
            self.target = torch.where(has_target, P_G[:, epoch.y], 0.0)
            self.has_target = has_target.to(P_G.dtype)
            self.all_present = bool(present.all())

    def _add_gradient(self, rows: slice, z: Tensor, g: Tensor) -> Tensor:
        """g + lambda dMSE/dz for z (., b, d)."""
        return torch.add(g, self._difference(rows, z), alpha=2 * self.lam / z.numel())

    def _difference(self, rows: slice, z: Tensor) -> Tensor:
        """z - t; 0 for samples without a target."""
        return (z if self.all_present else self.has_target[:, rows] * z) - self.target[:, rows]

    def on_batch(self, rows: slice, Z: Tensor) -> None:
        if self.accumulate:
            self.accumulate(rows, Z)

    def on_fused(self, number: int, rows: slice, z: Tensor, g: Tensor) -> Tensor:
        return g if self.by_modality or not self.lam else self._add_gradient(rows, z, g)

    def on_features(self, number: int, rows: slice, Z: Tensor, g: Tensor) -> Tensor:
        return self._add_gradient(rows, Z, g) if self.by_modality and self.lam else g

    def batch_terms(self, number: int, rows: slice, Z: Tensor, z: Tensor, logits: Tensor) -> list[Tensor]:
        (ce,) = super().batch_terms(number, rows, Z, z, logits)
        if not self.lam:
            return [ce, torch.zeros_like(ce)]
        return [ce, self._difference(rows, Z if self.by_modality else z).square().mean()]

    def per_sample(self) -> list[Tensor]:
        (ce,) = super().per_sample()
        if not self.lam:
            return [ce, torch.zeros_like(ce)]
        Z = torch.cat(self.Z, 1)
        z = Z if self.by_modality else self.model.fuse(Z)
        return [ce, self._difference(slice(0, z.shape[1]), z).square().mean((0, 2))]


def average_prototypes(P: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Weighted mean of prototypes, Pbar_c = sum_k w_k,c p_k,c / sum_k w_k,c.

    Parameters
    ----------
    P : (clients, ..., C, d) prototypes.
    w : (clients, ..., C) weights, 0 for an absent prototype, else at least 1.

    Returns
    -------
    Pbar (..., C, d), 0 for classes absent in all clients, and the mask (..., C) of present classes.
    """
    total = w.sum(0)
    q = w / total.clamp(min=1)
    return (q[..., None] * P).sum(0), total > 0


class FedProtoServer(Server):
    """Server that averages prototypes by class; it has no state between rounds."""

    params: FedProtoParameters

    def __init__(self, problem: Problem, device: torch.device):
        super().__init__(problem, device)
        uploaded = problem.uploaded_classes(device)
        weights = uploaded * problem.counts(device) if self.params.proto_weighting == "samples" else uploaded
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
    """C d floats in each direction, or |M_k| C d with prototypes per modality, and masks of present classes."""

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
        """With prototypes per modality, each client receives those of its own modalities."""
        return self.params.proto_scope == "modality"

    def _shape(self, k: int) -> tuple[int, ...]:
        p = self.problem
        modalities = len(p.clients[k].modalities)
        return (modalities, p.C, p.d) if self.params.proto_scope == "modality" else (p.C, p.d)


METHOD = FedProtoMethod
