"""Local training of a client: epochs, batches, and losses with manual or autograd gradients."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from mfedpba_mpi.models.client_model import Rows
from mfedpba_mpi.models.inputs import DenseRows, SparseRows
from mfedpba_mpi.models.manual_sgd import BuiltGradient, JointNorm, Leaf, LinearLeaf, LinearPass

if TYPE_CHECKING:
    from mfedpba_mpi.methods.base import Client

ModalityRows = DenseRows | SparseRows
Batch = tuple[int, slice, list[Rows]]  # batch number, its rows within the epoch, inputs by modality


@dataclass(frozen=True)
class Epoch:
    """One shuffled pass over the training rows, split into batches.

    Attributes
    ----------
    xs : the rows of each modality, in the order of the epoch.
    y : (n,) their classes.
    cuts : (start, stop) of each batch.
    order : (n,) the rows' numbers among the client's training rows.
    """

    xs: Sequence[ModalityRows]
    y: Tensor
    cuts: Sequence[tuple[int, int]]
    order: Tensor

    def batches(self) -> Iterator[Batch]:
        """Yield (batch number, rows, inputs) of each batch."""
        for number, (start, stop) in enumerate(self.cuts):
            yield number, slice(start, stop), [x.batch(start, stop) for x in self.xs]


class GradientNorm:
    """Mean over SGD steps of ||g||^2, with g the stochastic gradient in all trainable parameters of a client.

    Steps are plain SGD, so g = (theta_before - theta_after) / lr, with the learning rate of each parameter group.
    Groups with learning rate 0 are left out. Rounding of theta in float32 adds noise of (ulp(theta) / lr)^2 / 12 per
    parameter, 1e-9 to 1e-8 for a whole network at lr = 0.01: values of that size are not significant.
    """

    def __init__(self, client: Client):
        lr, others = client.rates()
        groups = [([p for p in client.model.extractors.parameters() if p.requires_grad], lr), *others]
        self.groups = [(list(parameters), rate) for parameters, rate in groups if rate]
        self.total, self.steps = torch.zeros((), dtype=torch.float64, device=client.device), 0

    def watch(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Yield the batches unchanged, and measure the parameter change after each as one step."""
        for batch in batches:
            before = [[theta.clone() for theta in parameters] for parameters, _ in self.groups]
            yield batch
            for (parameters, lr), old in zip(self.groups, before, strict=True):
                for theta, old_theta in zip(parameters, old, strict=True):
                    self.total += (torch.linalg.vector_norm(old_theta.sub_(theta), dtype=torch.float64) / lr) ** 2
            self.steps += 1

    def mean(self) -> float:
        return self.total.item() / self.steps


class Loss(ABC):
    """A client's loss during one epoch."""

    uses_autograd: ClassVar[bool] = False

    @abstractmethod
    def gradient(self, number: int, rows: slice, Z: Tensor) -> Tensor:
        """Store the gradients of all trainable parameters except the extractors', and return the gradient dL/dZ.

        Parameters
        ----------
        number : batch number within the epoch.
        rows : rows of the batch within the epoch.
        Z : (|M_k|, b, d) features of the batch.
        """

    @abstractmethod
    def leaves(self) -> list[tuple[Leaf, float]]:
        """The trained parameters except the extractors', with their learning rates."""

    @abstractmethod
    def means(self) -> Tensor:
        """Return the loss terms, each averaged over the epoch's batches."""


BatchLoss = Callable[[int, slice, Tensor], tuple[Tensor, Sequence[Tensor]]]
"""``loss(number, rows, Z) -> (loss, terms)`` of a batch; parameters as in `Loss.gradient`."""


class Group(BuiltGradient):
    """Parameters of one learning rate."""

    def __init__(self, parameters: Sequence[Tensor]):
        self.weights = parameters

    def step(self, lr: float) -> None:
        sgd_step(self.weights, self.gradients, lr)


class AutogradLoss(Loss):
    """A loss given as a function of the features and differentiated by autograd."""

    uses_autograd = True

    def __init__(self, client: Client, function: BatchLoss):
        self.function = function
        self.groups = [(Group(parameters), lr) for parameters, lr in client.rates()[1] if parameters]
        self.parameters = [p for group, _ in self.groups for p in group.weights]
        self.terms: list[Tensor] = []

    def gradient(self, number: int, rows: slice, Z: Tensor) -> Tensor:
        with torch.enable_grad():
            loss, terms = self.function(number, rows, Z.requires_grad_())
            gZ, *gradients = torch.autograd.grad(loss, [Z, *self.parameters], materialize_grads=True)
        for group, _ in self.groups:
            group.gradients = gradients[: len(group.weights)]
            del gradients[: len(group.weights)]
        self.terms.append(torch.stack(tuple(terms)).detach())
        return gZ

    def leaves(self) -> list[tuple[Leaf, float]]:
        return list(self.groups)

    def means(self) -> Tensor:
        return torch.stack(self.terms).mean(0)


class HeadLoss(Loss):
    """L_ce of the classifier with a manual gradient.

    A subclass adds the gradients of further loss terms in `on_logits`, `on_fused` and `on_features`, and their values
    in `per_sample`. For training by autograd it adds the terms of a batch in `batch_terms`, and `weights`.
    """

    weights: Sequence[float] = ()  # of the terms after L_ce

    def __init__(self, client: Client, epoch: Epoch):
        self.model, self.epoch = client.model, epoch
        ((parameters, self.lr),) = client.rates()[1]
        head = self.model.classifier
        self.trains = bool(parameters)  # False if the classifier is frozen
        if self.trains and {*parameters} != {*head.parameters()}:
            raise TypeError(f"{type(self).__name__} can only train the whole classifier; use AutogradLoss instead")
        self.head = LinearPass(head)
        self.Y = F.one_hot(epoch.y, client.problem.C).to(head.weight.dtype)
        self.Z: list[Tensor] = []  # features and logits of all batches so far
        self.logits: list[Tensor] = []

    def gradient(self, number: int, rows: slice, Z: Tensor) -> Tensor:
        self.on_batch(rows, Z)
        z = self.model.fuse(Z)
        flat = z.flatten(0, 1)
        logits = self.head.forward(flat).view(z.shape[0], z.shape[1], -1)
        self.Z.append(Z)
        self.logits.append(logits)
        g = logits.softmax(-1).sub_(self.Y[rows]).div_(flat.shape[0])
        g = self.on_logits(number, rows, logits, g).flatten(0, 1)
        gz = self.on_fused(number, rows, z, self.head.gradient(g, needs_input_grad=True).view_as(z))
        return self.on_features(number, rows, Z, self.model.unfuse(gz, Z.shape[0]))

    def leaves(self) -> list[tuple[Leaf, float]]:
        return [(self.head, self.lr)] if self.trains else []

    def by_autograd(self, client: Client) -> AutogradLoss:
        """Return the same loss, differentiated by autograd."""
        kind, gradients = type(self), ("on_logits", "on_fused", "on_features")
        if kind.batch_terms is HeadLoss.batch_terms and any(
            getattr(kind, name) is not getattr(HeadLoss, name) for name in gradients
        ):
            raise TypeError(f"{kind.__name__} has no `batch_terms`, which training by autograd needs")

        def loss(number: int, rows: slice, Z: Tensor) -> tuple[Tensor, list[Tensor]]:
            self.on_batch(rows, Z.detach())
            z = self.model.fuse(Z)
            total, *others = terms = self.batch_terms(number, rows, Z, z, self.model.classifier(z))
            for weight, term in zip(self.weights, others, strict=True):
                total = total + weight * term
            return total, terms

        return AutogradLoss(client, loss)

    def on_batch(self, rows: slice, Z: Tensor) -> None:
        """Called with the features Z (|M_k|, b, d) of every batch before its gradients are computed."""

    def on_logits(self, number: int, rows: slice, logits: Tensor, g: Tensor) -> Tensor:
        """Add further terms to the gradient g (items, b, C) of the logits."""
        return g

    def on_fused(self, number: int, rows: slice, z: Tensor, g: Tensor) -> Tensor:
        """Add further terms to the gradient g (items, b, d) of the fused features z."""
        return g

    def on_features(self, number: int, rows: slice, Z: Tensor, g: Tensor) -> Tensor:
        """Add further terms to the gradient g (|M_k|, b, d) of the features Z."""
        return g

    def batch_terms(self, number: int, rows: slice, Z: Tensor, z: Tensor, logits: Tensor) -> list[Tensor]:
        """Return each loss term of a batch as a function of Z, the fused features z (items, b, d) and the logits."""
        return [cross_entropy(logits, self.epoch.y[rows])]

    def per_sample(self) -> list[Tensor]:
        """Return each loss term per sample, (n,)."""
        logits = torch.cat(self.logits, 1)
        items, n, _ = logits.shape
        ce = cross_entropy(logits, self.epoch.y[:n], reduction="none")
        return [ce if items == 1 else ce.view(items, n).mean(0)]

    def means(self) -> Tensor:
        values, batches, start = torch.stack(self.per_sample()), len(self.epoch.cuts), self.epoch.cuts[-1][0]
        last = values[:, start:].mean(1)
        return last if batches == 1 else torch.lerp(values[:, :start].mean(1), last, 1 / batches)


def cross_entropy(logits: Tensor, y: Tensor, reduction: str = "mean") -> Tensor:
    """L_ce: mean cross-entropy over all items, for logits (items, B, C) and classes y (B,).

    With the reduction ``none`` the cross-entropy of each item, (items B,).
    """
    items = logits.shape[0]
    return F.cross_entropy(logits.flatten(0, 1), y if items == 1 else y.repeat(items), reduction=reduction)


class Clipping:
    """Bounds the joint norm of the gradients of some leaves, as `clip_grad_norm_` of torch does.

    Parameters
    ----------
    given : see `JointNorm`.
    """

    def __init__(
        self, leaves: Sequence[Leaf], max_norm: float, given: Mapping[LinearLeaf, Sequence[Tensor]] | None = None
    ):
        self.leaves, self.max_norm, self.norm = leaves, max_norm, JointNorm(leaves, given)

    def factor(self, number: int = 0) -> float:
        """The factor of a batch's step; 1 if it needs no clipping, so that the step keeps its bits.

        On a GPU the gradients are scaled there, without a host synchronisation, and the result is 1. A norm that is
        not finite makes the factor NaN, so that the run fails instead of skipping the step.
        """
        norm2 = self.norm.norm2(number)
        if norm2.device.type == "cpu":
            value = norm2.item()  # rounding may make it negative
            return min(1.0, self.max_norm / (max(value, 0.0) ** 0.5 + 1e-6)) if math.isfinite(value) else math.nan
        factor = (self.max_norm / (norm2.clamp(min=0).sqrt() + 1e-6)).clamp(max=1.0)
        for leaf in self.leaves:
            leaf.scale(torch.where(norm2.isfinite(), factor, math.nan))
        return 1.0


@torch.no_grad()
def sgd_step(parameters: Sequence[Tensor], gradients: Sequence[Tensor], lr: float) -> None:
    """One SGD step, w <- w - lr g."""
    if parameters:
        torch._foreach_add_(list(parameters), list(gradients), alpha=-lr)
