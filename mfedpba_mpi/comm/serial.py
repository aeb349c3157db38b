"""The communicator: what clients and server say to each other, here with both in one process.

`Comm` packs, counts and unpacks; its transport methods (`_gather`, `_broadcast`, `_scatter`) are the identity. The MPI
twin replaces nothing but those and what waits.

Every rank's part of a message begins with a status word, by which ranks tell each other that a round is void: a rank
that cannot finish its part goes on sending, so that nobody waits for it, and everybody knows that nothing of it counts.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from mfedpba_mpi.comm.devices import cpu_kind
from mfedpba_mpi.comm.layout import Layout, Message
from mfedpba_mpi.comm.placement import place

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
        self.void = False  # whether this rank, or one it has heard of, has given the round up
        self.asked = ""  # on rank 0: the signal that a rank without clients has got
        self.where = "setting up"  # what this rank does, for others who wait for it
        self._buffers: dict[str, Tensor] = {}

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
        senders, counts = self._shares(layouts)
        send = self._buffer("send", counts[self.rank])
        self._pack({k: messages[k] for k in senders[self.rank]}, layouts, send)
        received = self._gather(send, counts)
        if received is None:
            return {}
        parts = zip(received.split(counts), senders, strict=True)
        found = {k: message for part, clients in parts for k, message in self._unpack(part, clients, layouts).items()}
        return {k: found[k] for k in sorted(found)}

    def broadcast(self, message: Message | None, layout: Layout) -> dict[str, Tensor]:
        """The server's `message`, on every rank."""
        buffer = self._buffer("broadcast", 1 + layout.size)
        if message is not None:
            self._pack({0: message}, {0: layout}, buffer)
        self._broadcast(buffer)
        return self._unpack(buffer, [0], {0: layout})[0]

    def scatter(self, messages: Mapping[int, Message], layouts: Layouts) -> dict[int, dict[str, Tensor]]:
        """A message of its own from the server to each client; every rank gets those of its clients."""
        receivers, counts = self._shares(layouts)
        send = self._buffer("scatter", sum(counts) if self.is_server else 0)
        if self.is_server:
            for part, clients in zip(send.split(counts), receivers, strict=True):
                self._pack({k: messages[k] for k in clients}, layouts, part)
        return self._unpack(self._scatter(send, counts), receivers[self.rank], layouts)

    def _shares(self, layouts: Layouts) -> tuple[list[list[int]], list[int]]:
        """Of every rank: its clients among those of `layouts`, and the size of its part of the message."""
        clients = [[k for k in own if k in layouts] for own in self.ranks]
        return clients, [1 + sum(layouts[k].size for k in own) for own in clients]

    def gather_rows(self, rows: np.ndarray) -> list[np.ndarray]:
        """Each rank's float64 array (n_r, w), n_r = clients of the rank + 1, on the server; [] elsewhere."""
        return [rows]

    def environment(self) -> dict[str, object]:
        """Where this run happens, for the log; complete on rank 0."""
        hosts, kinds = self.collect(socket.gethostname()), self.collect(cpu_kind())
        cpu = " and ".join(sorted(set(kinds)))
        return {"ranks": self.size, "mpi": self.library, "hosts": sorted(set(hosts)), "cpu": cpu}

    def share(self, value: str) -> str:
        """The server's string, on every rank; not for rounds."""
        return value

    def collect(self, value: str) -> list[str]:
        """Each rank's string, on the server; [] elsewhere; not for rounds."""
        return [value]

    def agree(self, round_status: int) -> int:
        """The server's number, on every rank."""
        return round_status

    def recover(self) -> list[int]:
        """Go on without the ranks that have died; which they are."""
        return []

    def barrier(self) -> None:
        """Wait until every rank has come this far."""

    def fail_soon(self, error: Exception) -> None:
        """Raise `error` while waiting, should the others not come within a few seconds to hear of it in order."""

    def finish(self, code: int) -> None:
        """Wait for all ranks at the end of the run, and let the spare ones go, with this exit code."""

    def _buffer(self, purpose: str, size: int) -> Tensor:
        """A staging buffer, one for each purpose, that grows with the largest message; pinned where there is a GPU."""
        if len(self._buffers.get(purpose, ())) < size:
            self._buffers[purpose] = torch.empty(size, pin_memory=self.device.type == "cuda")
        return self._buffers[purpose][:size] if size else torch.empty(0)

    def _pack(self, messages: Mapping[int, Message], layouts: Layouts, flat: Tensor) -> None:
        flat[0] = self.void
        start = 1
        for k, message in messages.items():
            stop = start + layouts[k].size
            layouts[k].pack(message, flat[start:stop])
            start = stop

    def _unpack(self, flat: Tensor, clients: Sequence[int], layouts: Layouts) -> dict[int, dict[str, Tensor]]:
        self.void |= bool(flat[0])
        found, start = {}, 1
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
