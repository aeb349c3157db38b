"""The MPI twin: rank 0 the server, one Gatherv up and one Bcast or Scatterv down a phase."""

from __future__ import annotations

from typing import Any

import numpy as np
from mpi4py import MPI
from torch import Tensor

from mfedpba_mpi.comm.launcher import announced
from mfedpba_mpi.comm.serial import Comm
from mfedpba_mpi.comm.waiting import listen_for_failures, split_off_spares, wait
from mfedpba_mpi.errors import UserError


def _starts(counts: list[int]) -> list[int]:
    return np.cumsum([0, *counts[:-1]]).tolist()


class MPIComm(Comm):
    """One of the ranks 0..K; what is beyond waits (see `waiting.wait_as_spare`)."""

    def __init__(self, clients: int) -> None:
        super().__init__()
        started, seen = announced()[1], MPI.COMM_WORLD.size
        if started != seen:
            raise UserError(
                f"the launcher started {started} ranks, but MPI sees {seen}: mpi4py uses another MPI than the "
                "launcher; under srun add --mpi=pmix (Open MPI) or --mpi=pmi2 (MPICH)"
            )
        self._comm = split_off_spares(clients + 1)
        self.rank, self.size = self._comm.rank, self._comm.size
        self.local_rank = self._comm.Split_type(MPI.COMM_TYPE_SHARED).rank
        self.library = MPI.Get_library_version().split(",")[0].split("\n")[0].strip()

    def environment(self) -> dict[str, object]:
        self.barrier()  # the pickled gather spins, so arrive together
        hosts = self._comm.gather(MPI.Get_processor_name()) or []
        return {"ranks": self.size, "mpi": self.library, "hosts": sorted(set(hosts))}

    def share(self, value: str) -> str:
        self.barrier()
        return self._comm.bcast(value)

    def _wait(self, request: MPI.Request) -> None:
        wait(request, listen_for_failures if self.is_server else None)

    def barrier(self) -> None:
        self._wait(self._comm.Ibarrier())

    def finish(self) -> None:
        self._wait(MPI.COMM_WORLD.Ibarrier())

    def gather_rows(self, rows: np.ndarray) -> list[np.ndarray]:
        width = rows.shape[1]
        heights = [len(clients) + 1 for clients in self.ranks]
        counts = [height * width for height in heights]
        received = np.empty(sum(counts) if self.is_server else 0)
        target = [received, counts, _starts(counts), MPI.DOUBLE] if self.is_server else None
        self._wait(self._comm.Igatherv([np.ascontiguousarray(rows, np.float64), MPI.DOUBLE], target))
        return np.split(received.reshape(-1, width), np.cumsum(heights)[:-1]) if self.is_server else []

    def _gather(self, send: Tensor, counts: list[int]) -> Tensor | None:
        received = self._buffer("gather", sum(counts)) if self.is_server else None
        target: Any = None if received is None else [received.numpy(), counts, _starts(counts), MPI.FLOAT]
        self._wait(self._comm.Igatherv([send.numpy(), MPI.FLOAT], target))
        return received

    def _broadcast(self, buffer: Tensor) -> None:
        self._wait(self._comm.Ibcast([buffer.numpy(), MPI.FLOAT]))

    def _scatter(self, send: Tensor, counts: list[int]) -> Tensor:
        received = self._buffer("scattered", counts[self.rank])
        source: Any = [send.numpy(), counts, _starts(counts), MPI.FLOAT] if self.is_server else None
        self._wait(self._comm.Iscatterv(source, [received.numpy(), MPI.FLOAT]))
        return received
