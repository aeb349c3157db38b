"""Local: every client trains alone. L = L_ce; nothing is uploaded, nothing is sent back."""

from __future__ import annotations

import torch
from torch import Tensor

from mfedpba_mpi.comm.wire import Message
from mfedpba_mpi.data.shards import ClientData
from mfedpba_mpi.methods.base import BatchLoss, Client, Epoch, Method, cross_entropy


class LocalClient(Client):
    """A client that minimises cross-entropy."""

    def update(self, t: int, phase: int, inbox: Message) -> Message:
        self.train(t, Local.client_terms, self._loss)
        return {}

    def _loss(self, epoch: Epoch) -> BatchLoss:
        def loss(number: int, rows: slice, Z: Tensor) -> tuple[Tensor, list[Tensor]]:
            ce = cross_entropy(self.model.logits(Z), epoch.y[rows])
            return ce, [ce]

        return loss


class Local(Method):
    """No federation at all."""

    def client(self, k: int, data: ClientData, device: torch.device) -> LocalClient:
        return LocalClient(k, self.problem, data, device)


METHOD = Local
