"""Local: every client trains alone. L = L_ce; nothing is uploaded, nothing is sent back."""

from __future__ import annotations

from mfedpba_mpi.comm.layout import Message
from mfedpba_mpi.methods.base import Client, Method
from mfedpba_mpi.methods.training import HeadLoss


class LocalClient(Client):
    """A client that minimises cross-entropy."""

    def update(self, t: int, phase: int, inbox: Message) -> Message:
        self.train(t, lambda epoch: HeadLoss(self, epoch))
        return {}


class LocalMethod(Method):
    """No federation at all."""

    client_class = LocalClient


METHOD = LocalMethod
