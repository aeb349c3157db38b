"""Example of a new method: clients upload classifiers, and the server moves the global one towards their mean.

mfedpba-mpi --plugin examples/own_method.py --dataset mfeat --method headavg --rounds 20 --set headavg.weighted=true

`python examples/own_method.py` with the same options (without --plugin) is equivalent.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from mfedpba_mpi import HeadMethod, HeadServer, Message, Parameters, average_heads, main, option, register_method


@dataclass(frozen=True)
class HeadAvgParameters(Parameters):
    """Only classifiers are averaged; the global classifier moves towards the mean with momentum."""

    label = "HeadAvg"

    weighted: bool = option(False, "weight clients by their number of training samples")
    momentum: float = option(0.5, "momentum of the server's steps towards the mean", low=0, high=1)


class HeadAvgServer(HeadServer):
    """v <- momentum v + (sum_k w_k h_k - h), h <- h + v, over the round's participants."""

    persistent = ("head", "velocity")  # state: saved in checkpoints, restored on resume

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.head = dict(self.first_message())
        self.velocity = {name: torch.zeros_like(value) for name, value in self.head.items()}

    def aggregate(self, t: int, uploads: Mapping[int, Message]) -> Message:
        samples = [self.problem.clients[k].n_train if self.params.weighted else 1 for k in uploads]
        weights = torch.tensor(samples, dtype=torch.float32, device=self.device)
        for name, mean in average_heads(uploads, weights / weights.sum()).items():
            self.velocity[name] = self.params.momentum * self.velocity[name] + mean - self.head[name]
            self.head[name] = self.head[name] + self.velocity[name]
        return self.head


class HeadAvgMethod(HeadMethod):
    """Upload and reply are one classifier each; the client is `HeadClient`, with cross-entropy."""

    server_class = HeadAvgServer


register_method(HeadAvgParameters, HeadAvgMethod)

if __name__ == "__main__":
    main()
