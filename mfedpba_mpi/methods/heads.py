"""Methods that exchange classifiers ("heads"): W (C, d) and b (C,), P_h = C d + C floats in each direction.

`HeadMethod` with `HeadClient` and `HeadServer` is the basic case: cross-entropy, and the weighted mean over clients. A
method of this kind overrides `HeadClient.loss` or `HeadServer.aggregate` (see `fedmvp.py` and
`examples/own_method.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from mfedpba_mpi.comm.layout import Layout, Message
from mfedpba_mpi.methods.base import Client, Method, Problem, Server
from mfedpba_mpi.methods.training import Epoch, HeadLoss, Loss
from mfedpba_mpi.rng import seeded


def head_shapes(problem: Problem) -> dict[str, tuple[int, ...]]:
    """Shapes of the tensors in a classifier message."""
    return {"W": (problem.C, problem.d), "b": (problem.C,)}


def head_message(classifier: nn.Linear) -> dict[str, Tensor]:
    """Copy a classifier's parameters to a message."""
    return {"W": classifier.weight.detach().clone(), "b": classifier.bias.detach().clone()}


@torch.no_grad()
def set_head(classifier: nn.Linear, message: Message) -> None:
    """Set a classifier's parameters from a message."""
    classifier.weight.copy_(message["W"])
    classifier.bias.copy_(message["b"])


def draw_head(problem: Problem, device: torch.device) -> nn.Linear:
    """Create the initial global classifier of a run, with PyTorch's default initialisation."""
    with seeded(problem.config.seed, "head"):
        return nn.Linear(problem.d, problem.C).to(device)


def average_heads(heads: Mapping[int, Message], weights: Tensor) -> dict[str, Tensor]:
    """Compute the weighted mean sum_k w_k h_k of classifiers, in ascending order of clients.

    Parameters
    ----------
    heads : mapping of int to Message
        The classifiers by client.
    weights : Tensor
        Weights (len(heads),) that sum to one.

    Returns
    -------
    dict of str to Tensor
        The mean classifier.
    """
    return {
        name: torch.einsum("k,k...->...", weights, torch.stack([heads[k][name] for k in heads])) for name in ("W", "b")
    }


class HeadClient(Client):
    """Client that starts every round from the global classifier, trains, and uploads its classifier."""

    def begin(self, inbox: Message) -> None:
        set_head(self.model.classifier, inbox)

    def update(self, t: int, phase: int, inbox: Message) -> Message:
        set_head(self.model.classifier, inbox)
        self.train(t, lambda epoch: self.loss(epoch, inbox))
        return head_message(self.model.classifier)

    def loss(self, epoch: Epoch, inbox: Message) -> Loss:
        """Create the loss of an epoch; cross-entropy unless overridden."""
        return HeadLoss(self, epoch)


class HeadServer(Server):
    """Server that broadcasts the initial classifier before round 1, and the aggregated classifier in every round."""

    def first_message(self) -> Message:
        return head_message(draw_head(self.problem, self.device))

    def step(self, t: int, phase: int, uploads: Mapping[int, Message]) -> Message:
        return self.aggregate(t, uploads)

    def aggregate(self, t: int, uploads: Mapping[int, Message]) -> Message:
        """Aggregate the uploads of round t: h_G = sum_k w_k h_k, w_k ~ n_k (training samples) unless overridden."""
        n = torch.tensor([self.problem.clients[k].n_train for k in uploads], dtype=torch.float32, device=self.device)
        return average_heads(uploads, n / n.sum())


class HeadMethod(Method):
    """Upload and reply are one classifier each, P_h = C d + C floats."""

    client_class: ClassVar[type[Client]] = HeadClient
    server_class: ClassVar[type[Server] | None] = HeadServer

    def first(self) -> Layout:
        return Layout(head_shapes(self.problem))

    def upload(self, t: int, phase: int, k: int) -> Layout:
        return self.first()

    def reply(self, t: int, phase: int, k: int) -> Layout:
        return self.first()
