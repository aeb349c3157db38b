"""The communicator: what clients and server say to each other, here with both in one process.

`Comm` packs, counts and unpacks; its transport methods (`_gather`, `_broadcast`, `_scatter`) are the identity. The MPI
twin replaces nothing but those.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from mfedpba_mpi.comm.placement import place
from mfedpba_mpi.comm.wire import Layout, Message

Layouts = Mapping[int, Layout]


class Comm:
    """One process that is the server and every client."""

    rank = 0
    size = 1
    local_rank = 0
    library = "no MPI"

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self.ranks: list[list[int]] = [[]]
        self._buffers: dict[tuple[str, int], Tensor] = {}

    @property
    def is_server(self) -> bool:
        return self.rank == 0

    @property
    def mine(self) -> list[int]:
        """The clients of this rank."""
        return self.ranks[self.rank]

    def place(self, costs: Sequence[float]) -> None:
        """Spread the clients over the ranks."""
        self.ranks = place(costs, self.size)

    def gather(self, messages: Mapping[int, Message], layouts: Layouts) -> dict[int, dict[str, Tensor]]:
        """Bring each client's message to the server, in client order; {} on the other ranks.

        Parameters
        ----------
        messages : by client, those of this rank's clients that send.
        layouts : by client, of everyone who sends, the same on every rank.
        """
        send = self._buffer("send", sum(layouts[k].size for k in messages))
        self._pack(messages, layouts, send)
        senders = [[k for k in clients if k in layouts] for clients in self.ranks]
        received = self._gather(send, [sum(layouts[k].size for k in clients) for clients in senders])
        if received is None:
            return {}
        found = self._unpack(received, [k for clients in senders for k in clients], layouts)
        return {k: found[k] for k in sorted(found)}

    def broadcast(self, message: Message | None, layout: Layout) -> dict[str, Tensor]:
        """The server's `message`, on every rank."""
        buffer = self._buffer("broadcast", layout.size)
        if message is not None:
            layout.pack(message, buffer)
        self._broadcast(buffer)
        return layout.unpack(buffer, self.device)

    def scatter(self, messages: Mapping[int, Message], layouts: Layouts) -> dict[int, dict[str, Tensor]]:
        """A message of its own from the server to each client; every rank gets those of its clients."""
        receivers = [[k for k in clients if k in layouts] for clients in self.ranks]
        counts = [sum(layouts[k].size for k in clients) for clients in receivers]
        send = self._buffer("scatter", sum(counts) if self.is_server else 0)
        if self.is_server:
            self._pack({k: messages[k] for clients in receivers for k in clients}, layouts, send)
        return self._unpack(self._scatter(send, counts), receivers[self.rank], layouts)

    def gather_rows(self, rows: np.ndarray) -> list[np.ndarray]:
        """Each rank's float64 array (n_r, w), n_r = clients of the rank + 1, on the server; [] elsewhere."""
        return [rows]

    def environment(self) -> dict[str, object]:
        """Where this run happens, for the log."""
        return {"ranks": self.size, "mpi": self.library, "hosts": [socket.gethostname()]}

    def share(self, value: str) -> str:
        """The server's string, on every rank; for set-up only."""
        return value

    def barrier(self) -> None:
        """Wait until every rank has come this far."""

    def finish(self) -> None:
        """Wait for all ranks at the end of the run, and let the spare ones go."""

    def _buffer(self, purpose: str, size: int) -> Tensor:
        """A staging buffer, kept for the next round; pinned where messages come from a GPU."""
        key = (purpose, size)
        if key not in self._buffers:
            self._buffers[key] = torch.empty(size, pin_memory=self.device.type == "cuda")
        return self._buffers[key]

    @staticmethod
    def _pack(messages: Mapping[int, Message], layouts: Layouts, flat: Tensor) -> None:
        start = 0
        for k, message in messages.items():
            stop = start + layouts[k].size
            layouts[k].pack(message, flat[start:stop])
            start = stop

    def _unpack(self, flat: Tensor, clients: Sequence[int], layouts: Layouts) -> dict[int, dict[str, Tensor]]:
        found, start = {}, 0
        for k in clients:
            stop = start + layouts[k].size
            found[k] = layouts[k].unpack(flat[start:stop], self.device)
            start = stop
        return found

    def _gather(self, send: Tensor, counts: list[int]) -> Tensor | None:
        return send

    def _broadcast(self, buffer: Tensor) -> None:
        pass

    def _scatter(self, send: Tensor, counts: list[int]) -> Tensor:
        return send
