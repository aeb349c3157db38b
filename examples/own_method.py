"""A method of your own: clients share their classifiers, and the server moves the common one towards their mean.

mfedpba-mpi --plugin examples/own_method.py --dataset mfeat --method headavg --rounds 20 --set headavg.weighted=true

`python examples/own_method.py`, with the same options, does the same.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from mfedpba_mpi import Layout, Method, Parameters, Server, option, register_method
from mfedpba_mpi.cli.main import main
from mfedpba_mpi.comm.layout import Message
from mfedpba_mpi.methods.base import Problem
from mfedpba_mpi.methods.heads import HeadClient, average_heads, draw_head, head_message, head_shapes, set_head
from mfedpba_mpi.methods.training import HeadLoss


@dataclass(frozen=True)
class HeadAvg(Parameters):
    """Clients share nothing but their classifiers; the common one moves towards the mean, with momentum."""

    label = "HeadAvg"

    weighted: bool = option(False, "clients count by their training samples")
    momentum: float = option(0.5, "momentum of the server's steps towards the mean", low=0, high=1)


class HeadAvgClient(HeadClient):
    """Takes the common classifier, trains with cross-entropy, and sends its own back."""

    def update(self, t: int, phase: int, inbox: Message) -> Message:
        set_head(self.model.classifier, inbox)
        self.train(t, lambda epoch: HeadLoss(self, epoch))
        return head_message(self.model.classifier)


class HeadAvgServer(Server):
    """v <- momentum v + (sum_k w_k h_k - h), h <- h + v, over those who took part."""

    persistent = ("head", "velocity")  # what later rounds depend on: checkpoints hold it, a resumed run gets it back

    def __init__(self, problem: Problem, device: torch.device):
        super().__init__(problem, device)
        self.head = head_message(draw_head(problem, device))
        self.velocity = {name: torch.zeros_like(value) for name, value in self.head.items()}

    def first_message(self) -> Message:
        return self.head

    def step(self, t: int, phase: int, uploads: Mapping[int, Message]) -> Message:
        samples = [self.problem.clients[k].n_train if self.params.weighted else 1 for k in uploads]
        weights = torch.tensor(samples, dtype=torch.float32, device=self.device)
        for name, mean in average_heads(uploads, weights / weights.sum()).items():
            self.velocity[name] = self.params.momentum * self.velocity[name] + mean - self.head[name]
            self.head[name] = self.head[name] + self.velocity[name]
        return self.head


class HeadAvgMethod(Method):
    """A classifier up, one down."""

    client_class = HeadAvgClient
    server_class = HeadAvgServer

    def first(self) -> Layout:
        return Layout(head_shapes(self.problem))

    def upload(self, t: int, phase: int, k: int) -> Layout:
        return Layout(head_shapes(self.problem))

    def reply(self, t: int, phase: int, k: int) -> Layout:
        return Layout(head_shapes(self.problem))


register_method(HeadAvg, HeadAvgMethod)

if __name__ == "__main__":
    main()
