"""The communicator: how clients and the server exchange messages, on one process or on many.

`Comm` packs, unpacks and counts. A subclass adds the transport: `serial.SerialComm` runs everything in one process,
`mpi.MPIComm` uses MPI collectives.

Each rank's part of a message starts with a status word that says whether the round is void. A rank that cannot finish
its part of a round keeps sending (blank) messages: no rank waits for it, and every rank learns that the round is void.
"""

from __future__ import annotations

import json
import socket
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from mfedpba_mpi.comm.devices import cpu_kind, device_kind
from mfedpba_mpi.comm.layout import Layout, Message
from mfedpba_mpi.comm.placement import place

Layouts = Mapping[int, Layout]


class Comm(ABC):
    """One rank's end of the communicator. Rank 0 holds the server; a client lives on exactly one rank.

    Attributes
    ----------
    ranks : the clients of every rank, see `place`.
    void : True if this rank, or one it has received from, has given up the current round.
    stop_signal : on rank 0, the name of a signal received by a spare rank; "" if none.
    activity : what this rank is doing, for the error message if another rank times out waiting for it.
    """

    rank = 0
    size = 1
    local_rank = 0
    library = "no MPI"

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self.ranks: list[list[int]] = [[]]
        self.void = False
        self.stop_signal = ""
        self.activity = "setting up"
        self._buffers: dict[str, Tensor] = {}

    @property
    def is_server(self) -> bool:
        return self.rank == 0

    @property
    def own_clients(self) -> list[int]:
        """The clients of this rank, ascending."""
        return self.ranks[self.rank]

    def place(self, costs: Sequence[float]) -> None:
        """Assign the clients to ranks, balancing their costs."""
        self.ranks = place(costs, self.size)

    def environment(self) -> dict[str, object]:
        """Ranks, MPI library, hosts, CPU kinds and the device of every rank; complete on rank 0 only."""
        facts = map(json.loads, self.collect(json.dumps([socket.gethostname(), cpu_kind(), device_kind(self.device)])))
        hosts, cpus, devices = map(list, zip(*facts, strict=True)) if self.is_server else ([], [], [])
        return {
            "ranks": self.size, "mpi": self.library, "hosts": sorted(set(hosts)),
            "cpu": " and ".join(sorted(set(cpus))), "devices": devices,
        }  # fmt: skip

    # Messages of a round

    def gather(self, messages: Mapping[int, Message], layouts: Layouts) -> dict[int, dict[str, Tensor]]:
        """Send the clients' messages to the server. Returns them in client order on rank 0, {} elsewhere.

        Parameters
        ----------
        messages : by client, for the sending clients of this rank.
        layouts : by client, for all sending clients; the same on every rank.
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
        """Send the server's `message` (None elsewhere) to every rank."""
        buffer = self._buffer("broadcast", 1 + layout.size)
        if message is not None:
            self._pack({0: message}, {0: layout}, buffer)
        self._broadcast(buffer)
        return self._unpack(buffer, [0], {0: layout})[0]

    def scatter(self, messages: Mapping[int, Message], layouts: Layouts) -> dict[int, dict[str, Tensor]]:
        """Send an individual message from the server to each client. Returns those for this rank's clients."""
        receivers, counts = self._shares(layouts)
        send = self._buffer("scatter", sum(counts) if self.is_server else 0)
        if self.is_server:
            for part, clients in zip(send.split(counts), receivers, strict=True):
                self._pack({k: messages[k] for k in clients}, layouts, part)
        return self._unpack(self._scatter(send, counts), receivers[self.rank], layouts)

    @abstractmethod
    def gather_rows(self, rows: np.ndarray) -> list[np.ndarray]:
        """Gather each rank's float64 array (clients of the rank + 1, w) on rank 0; [] elsewhere."""

    @abstractmethod
    def share_status(self, round_status: int) -> int:
        """Broadcast rank 0's round status."""

    # Set-up, checkpoints and the end of a run

    @abstractmethod
    def share(self, value: str) -> str:
        """Broadcast rank 0's string. Too slow for use in every round."""

    @abstractmethod
    def collect(self, value: str) -> list[str]:
        """Gather each rank's string on rank 0; [] elsewhere. Too slow for use in every round."""

    @abstractmethod
    def barrier(self) -> None:
        """Wait until every rank has reached this point."""

    @abstractmethod
    def recover(self) -> list[int]:
        """Continue without the ranks that have died. Returns their numbers."""

    @abstractmethod
    def raise_if_stuck(self, error: Exception) -> None:
        """Raise `error` while waiting, unless the other ranks reach the end of the round within a few seconds."""

    @abstractmethod
    def finish(self, code: int) -> None:
        """Wait for all ranks at the end of the run, and release the spare ranks with this exit code."""

    # Transport

    @abstractmethod
    def _gather(self, send: Tensor, counts: list[int]) -> Tensor | None:
        """Concatenate the ranks' buffers on rank 0; None elsewhere."""

    @abstractmethod
    def _broadcast(self, buffer: Tensor) -> None:
        """Fill `buffer` with rank 0's."""

    @abstractmethod
    def _scatter(self, send: Tensor, counts: list[int]) -> Tensor:
        """Split rank 0's buffer by `counts`. Returns this rank's part."""

    # Packing

    def _shares(self, layouts: Layouts) -> tuple[list[list[int]], list[int]]:
        """For every rank: its clients among those of `layouts`, and the size of its part of the message."""
        clients = [[k for k in own if k in layouts] for own in self.ranks]
        return clients, [1 + sum(layouts[k].size for k in own) for own in clients]

    def _buffer(self, purpose: str, size: int) -> Tensor:
        """A staging buffer: one per purpose, as large as the largest message so far; pinned for a GPU."""
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
