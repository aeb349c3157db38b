"""Local: every client trains alone with L = L_ce, without communication.

Deviations: only those of all methods, [C1] to [C4] in `base`.
"""

from __future__ import annotations

from mfedpba_mpi.comm.layout import Message
from mfedpba_mpi.methods.base import Client, Method
from mfedpba_mpi.methods.training import HeadLoss


class LocalClient(Client):
    """Client that minimises cross-entropy."""

    def update(self, t: int, phase: int, inbox: Message) -> Message:
        self.train(t, lambda epoch: HeadLoss(self, epoch))
        return {}


class LocalMethod(Method):
    """No server, no messages."""

    client_class = LocalClient


METHOD = LocalMethod
