"""The MPI twin: rank 0 the server, one Gatherv up and one Bcast or Scatterv down a phase."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI
from torch import Tensor

from mfedpba_mpi.comm.serial import Comm
from mfedpba_mpi.comm.waiting import (
    PATIENCE,
    Spares,
    answer,
    ask,
    listen_for_failures,
    note_death,
    split_off_spares,
    wait,
)
from mfedpba_mpi.errors import RankLost, RunError, UserError

EAR = 0.05  # seconds between two looks for what others say
MITIGATION = "OMPI_MCA_mpi_ft_enable"  # set by mpirun --with-ft ulfm


def _mitigated() -> bool:
    """Whether the launcher lets ranks outlive each other."""
    return os.environ.get(MITIGATION, "0").lower() not in ("0", "false")


def _starts(counts: list[int]) -> list[int]:
    return np.cumsum([0, *counts[:-1]]).tolist()


class MPIComm(Comm):
    """One of the ranks 0..K; what is beyond waits (see `waiting.wait_as_spare`).

    Parameters
    ----------
    clients : K.
    timeout : seconds after which a rank that others wait for counts as stuck.
    recovers : whether the run is to go on without ranks that die.
    """

    def __init__(self, clients: int, timeout: float = 3600.0, recovers: bool = False) -> None:
        super().__init__()
        self.library = MPI.Get_library_version().split(",")[0].split("\n")[0].strip()
        if recovers and not _mitigated():
            raise UserError(
                f"on-failure: {self.library} was started without user-level failure mitigation, so no rank can outlive "
                "another; use `mpirun --with-ft ulfm` of Open MPI 5, or leave --on-failure out and resume after a death"
            )
        self._comm = split_off_spares(clients + 1)
        self._timeout, self._spares = timeout, Spares(self._comm.size)
        self._failure: tuple[float, Exception] | None = None
        self._ear = 0.0
        self.rank, self.size = self._comm.rank, self._comm.size
        self._world_rank = list(range(self.size))
        self.local_rank = self._comm.Split_type(MPI.COMM_TYPE_SHARED).rank

    def share(self, value: str) -> str:
        self.barrier()  # what is pickled spins, so arrive together
        with self._deaths_noticed():
            return self._comm.bcast(value)

    def collect(self, value: str) -> list[str]:
        self.barrier()
        with self._deaths_noticed():
            return self._comm.gather(value) or []

    def agree(self, round_status: int) -> int:
        word = np.array([round_status])
        self._wait(self._comm.Ibcast([word, MPI.INT64_T]))
        self._failure = None  # if there was one, all have heard of it
        return int(word[0])

    def recover(self) -> list[int]:
        """Shrink to the living ranks; rank 0 must be among them."""
        self._comm.Revoke()
        living = self._comm.Shrink()
        if living.bcast(self.rank) != 0:
            raise RunError("rank 0, which holds the server and the log, has died; go on with `mfedpba-mpi resume`")
        before, self._world_rank = self._world_rank, [self._world_rank[rank] for rank in living.allgather(self.rank)]
        MPI.COMM_WORLD.Ack_failed()
        self._comm, self.rank, self.size = living, living.rank, living.size
        return sorted(set(before) - set(self._world_rank))

    def fail_soon(self, error: Exception) -> None:
        self._failure = time.monotonic() + PATIENCE, error

    def _wait(self, request: MPI.Request) -> None:
        with self._deaths_noticed():
            wait(request, partial(self._listen, time.monotonic()))

    @contextmanager
    def _deaths_noticed(self) -> Iterator[None]:
        """With failure mitigation a rank's death is an MPI error on the others; without, the launcher ends them.

        It is not always the error that the standard says, so any will do: `recover` finds out who has died.
        """
        try:
            yield
        except MPI.Exception:
            if not _mitigated():
                raise
            note_death()
            raise RankLost(f"{self.where}: another rank has died") from None

    def _listen(self, began: float) -> None:
        """While waiting since `began`: hear of failures, say where this rank is, and do not wait for ever."""
        now = time.monotonic()
        if now < self._ear:
            return
        self._ear = now + EAR
        if self._failure and now > self._failure[0]:
            raise self._failure[1]
        if self.is_server:
            listen_for_failures()
            self.asked = self.asked or self._spares.heard()
            if now - began > self._timeout:
                raise RunError(self._missing())
        else:
            answer(self.where)
            if now - began > self._timeout + 2 * PATIENCE + (self.rank > 1) * PATIENCE:  # rank 0 would have said it
                raise RunError(f"rank 0 has been stuck for {self._timeout:.0f} s (--timeout) while this rank waits")

    def _missing(self) -> str:
        """Where every rank is, of which one does not come."""
        heard = ask(self._world_rank[1:])
        lines = [f"{self.where}: somebody has been waited for longer than {self._timeout:.0f} s (--timeout)"]
        for number, rank in enumerate(self._world_rank[1:], 1):
            clients = self.ranks[number] if len(self.ranks) > number else []
            silent = f"does not answer, so it is stuck before the end of {self.where}"
            noun = "client" if len(clients) == 1 else "clients"
            lines.append(f"rank {rank} with {len(clients)} {noun} {clients[:8]}: {heard.get(rank, silent)}")
        return "\n  ".join(lines)

    def barrier(self) -> None:
        self._wait(self._comm.Ibarrier())

    def finish(self, code: int) -> None:
        self.barrier()
        if self.is_server:
            self._spares.release(code)

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
