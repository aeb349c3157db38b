"""Classifiers as messages, for the methods that average them: W (C, d) and b (C,), P_h = C d + C floats."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from mfedpba_mpi.comm.layout import Message
from mfedpba_mpi.methods.base import Client, Problem
from mfedpba_mpi.rng import seeded


def head_shapes(problem: Problem, *leading: int) -> dict[str, tuple[int, ...]]:
    """The layout of a classifier, or of several stacked ones."""
    return {"W": (*leading, problem.C, problem.d), "b": (*leading, problem.C)}


def head_message(classifier: nn.Linear) -> dict[str, Tensor]:
    """A copy of a classifier's parameters."""
    return {"W": classifier.weight.detach().clone(), "b": classifier.bias.detach().clone()}


@torch.no_grad()
def set_head(classifier: nn.Linear, message: Message) -> None:
    """Take over the parameters of a message."""
    classifier.weight.copy_(message["W"])
    classifier.bias.copy_(message["b"])


class HeadClient(Client):
    """A client whose classifier is the common one from the start, also before its first round."""

    def begin(self, inbox: Message) -> None:
        set_head(self.model.classifier, inbox)


def draw_head(problem: Problem, device: torch.device) -> nn.Linear:
    """The common start of a run, drawn as PyTorch draws a Linear layer."""
    with seeded(problem.config.seed, "head"):
        return nn.Linear(problem.d, problem.C).to(device)


def average_heads(heads: Mapping[int, Message], weights: Tensor) -> dict[str, Tensor]:
    """sum_k w_k h_k over the clients of `heads`, ascending; weights (len(heads),) sum to one."""
    return {
        name: torch.einsum("k,k...->...", weights, torch.stack([heads[k][name] for k in heads])) for name in ("W", "b")
    }
