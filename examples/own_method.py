"""A method of your own: clients train alone, and share their classifiers, of which everybody gets the mean.

python examples/own_method.py --dataset mfeat --method headavg --rounds 20 --set headavg.weighted=true
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from mfedpba_mpi.cli import main
from mfedpba_mpi.comm.wire import Layout, Message
from mfedpba_mpi.methods.base import Method, Server
from mfedpba_mpi.methods.catalog import Parameters, register
from mfedpba_mpi.methods.heads import HeadClient, average_heads, draw_head, head_message, head_shapes, set_head
from mfedpba_mpi.methods.training import HeadLoss
from mfedpba_mpi.options import option


@dataclass(frozen=True)
class HeadAvg(Parameters):
    """Clients share nothing but their classifiers, and all go on with the mean."""

    label = "HeadAvg"

    weighted: bool = option(False, "clients count by their training samples")


class HeadAvgClient(HeadClient):
    """Takes the mean classifier, trains with cross-entropy, and sends its own back."""

    def update(self, t: int, phase: int, inbox: Message) -> Message:
        set_head(self.model.classifier, inbox)
        self.train(t, lambda epoch: HeadLoss(self, epoch))
        return head_message(self.model.classifier)


class HeadAvgServer(Server):
    """h = sum_k w_k h_k over those who took part."""

    def first_message(self) -> Message:
        return head_message(draw_head(self.problem, self.device))

    def step(self, t: int, phase: int, uploads: Mapping[int, Message]) -> Message:
        samples = [self.problem.clients[k].n_train if self.params.weighted else 1 for k in uploads]
        weights = torch.tensor(samples, dtype=torch.float32, device=self.device)
        return average_heads(uploads, weights / weights.sum())


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


register(HeadAvg, HeadAvgMethod)

if __name__ == "__main__":
    main()
