"""Methods whose clients exchange classifiers ("heads"): W (C, d) and b (C,), P_h = C d + C floats up and down.

`HeadMethod` with `HeadClient` and `HeadServer` is the plain case, cross-entropy and the mean over clients; a method of
this kind overrides `HeadClient.loss` or `HeadServer.aggregate` (see `fedmvp.py` and `examples/own_method.py`).
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
    """The shapes of a classifier's message."""
    return {"W": (problem.C, problem.d), "b": (problem.C,)}


def head_message(classifier: nn.Linear) -> dict[str, Tensor]:
    """A copy of a classifier's parameters."""
    return {"W": classifier.weight.detach().clone(), "b": classifier.bias.detach().clone()}


@torch.no_grad()
def set_head(classifier: nn.Linear, message: Message) -> None:
    """Set a classifier's parameters from a message."""
    classifier.weight.copy_(message["W"])
    classifier.bias.copy_(message["b"])


def draw_head(problem: Problem, device: torch.device) -> nn.Linear:
    """The initial global classifier of a run, drawn as PyTorch draws a Linear layer."""
    with seeded(problem.config.seed, "head"):
        return nn.Linear(problem.d, problem.C).to(device)


def average_heads(heads: Mapping[int, Message], weights: Tensor) -> dict[str, Tensor]:
    """sum_k w_k h_k over the clients of `heads`, ascending; weights (len(heads),) sum to one."""
    return {
        name: torch.einsum("k,k...->...", weights, torch.stack([heads[k][name] for k in heads])) for name in ("W", "b")
    }


class HeadClient(Client):
    """Starts every round from the global classifier, trains, and uploads its own."""

    def begin(self, inbox: Message) -> None:
        set_head(self.model.classifier, inbox)

    def update(self, t: int, phase: int, inbox: Message) -> Message:
        set_head(self.model.classifier, inbox)
        self.train(t, lambda epoch: self.loss(epoch, inbox))
        return head_message(self.model.classifier)

    def loss(self, epoch: Epoch, inbox: Message) -> Loss:
        """The loss of an epoch; cross-entropy unless overridden."""
        return HeadLoss(self, epoch)


class HeadServer(Server):
    """Sends the initial classifier before round 1, and an aggregate of the clients' classifiers in every round."""

    def first_message(self) -> Message:
        return head_message(draw_head(self.problem, self.device))

    def step(self, t: int, phase: int, uploads: Mapping[int, Message]) -> Message:
        return self.aggregate(t, uploads)

    def aggregate(self, t: int, uploads: Mapping[int, Message]) -> Message:
        """h_G = sum_k w_k h_k, w_k ~ n_k (training samples) unless overridden; `uploads` are those of round t."""
        n = torch.tensor([self.problem.clients[k].n_train for k in uploads], dtype=torch.float32, device=self.device)
        return average_heads(uploads, n / n.sum())


class HeadMethod(Method):
    """A classifier up and one down, P_h = C d + C floats each."""

    client_class: ClassVar[type[Client]] = HeadClient
    server_class: ClassVar[type[Server] | None] = HeadServer

    def first(self) -> Layout:
        return Layout(head_shapes(self.problem))

    def upload(self, t: int, phase: int, k: int) -> Layout:
        return self.first()

    def reply(self, t: int, phase: int, k: int) -> Layout:
        return self.first()
