"""The MPI communicator: rank 0 is the server. A phase of a round is one Gatherv up and one Bcast or Scatterv down."""

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

from mfedpba_mpi.comm.base import Comm
from mfedpba_mpi.comm.waiting import (
    ABORT_DELAY,
    SpareRanks,
    answer_activity_request,
    note_dead_rank,
    raise_reported_failure,
    request_activities,
    split_off_spares,
    wait,
)
from mfedpba_mpi.errors import RankLost, RunError, UserError

POLL_SECONDS = 0.05  # between two checks for messages outside of collectives
ULFM_VARIABLE = "OMPI_MCA_mpi_ft_enable"  # set by mpirun --with-ft ulfm


def _has_ulfm() -> bool:
    """Whether the launcher has enabled user-level failure mitigation: a rank's death does not end the others."""
    return os.environ.get(ULFM_VARIABLE, "0").lower() not in ("0", "false")


def _starts(counts: list[int]) -> list[int]:
    return np.cumsum([0, *counts[:-1]]).tolist()


class MPIComm(Comm):
    """The communicator of ranks 0..K. Ranks beyond K are spare, see `waiting.wait_as_spare`.

    Parameters
    ----------
    clients : K.
    timeout : seconds to wait for another rank before the run is aborted.
    recovers : whether the run continues without ranks that die; needs ULFM.
    """

    def __init__(self, clients: int, timeout: float = 3600.0, recovers: bool = False) -> None:
        super().__init__()
        self.library = MPI.Get_library_version().split(",")[0].split("\n")[0].strip()
        if recovers and not _has_ulfm():
            raise UserError(
                f"on-failure: {self.library} was started without user-level failure mitigation, so the death of a rank "
                "ends all ranks; use `mpirun --with-ft ulfm` of Open MPI 5, or drop --on-failure and resume afterwards"
            )
        self._comm = split_off_spares(clients + 1)
        self._timeout, self._spares = timeout, SpareRanks(self._comm.size)
        self._failure: tuple[float, Exception] | None = None  # when to raise it, and the error
        self._next_poll = 0.0
        self.rank, self.size = self._comm.rank, self._comm.size
        self._world_ranks = list(range(self.size))
        self.local_rank = self._comm.Split_type(MPI.COMM_TYPE_SHARED).rank

    def share(self, value: str) -> str:
        self.barrier()  # pickled collectives spin, so all ranks arrive together
        with self._deaths_detected():
            return self._comm.bcast(value)

    def collect(self, value: str) -> list[str]:
        self.barrier()
        with self._deaths_detected():
            return self._comm.gather(value) or []

    def share_status(self, round_status: int) -> int:
        word = np.array([round_status])
        self._wait(self._comm.Ibcast([word, MPI.INT64_T]))
        self._failure = None  # every rank has received it with the status
        return int(word[0])

    def recover(self) -> list[int]:
        """Shrink the communicator to the living ranks; rank 0 must be one of them."""
        self._comm.Revoke()
        living = self._comm.Shrink()
        if living.bcast(self.rank) != 0:
            raise RunError("rank 0, which holds the server and the log, has died; resume with `mfedpba-mpi resume`")
        before, self._world_ranks = self._world_ranks, [self._world_ranks[rank] for rank in living.allgather(self.rank)]
        MPI.COMM_WORLD.Ack_failed()
        self._comm, self.rank, self.size = living, living.rank, living.size
        return sorted(set(before) - set(self._world_ranks))

    def raise_if_stuck(self, error: Exception) -> None:
        self._failure = time.monotonic() + ABORT_DELAY, error

    def _wait(self, request: MPI.Request) -> None:
        with self._deaths_detected():
            wait(request, partial(self._poll, time.monotonic()))

    @contextmanager
    def _deaths_detected(self) -> Iterator[None]:
        """Turn MPI errors into `RankLost` under ULFM; without ULFM the launcher ends all ranks.

        Not every implementation raises the error class of the standard, so any MPI error counts. `recover` finds out
        which ranks have died.
        """
        try:
            yield
        except MPI.Exception:
            if not _has_ulfm():
                raise
            note_dead_rank()
            raise RankLost(f"{self.activity}: another rank has died") from None

    def _poll(self, began: float) -> None:
        """While waiting since `began`: handle failures, answer rank 0's activity requests, and check the timeout."""
        now = time.monotonic()
        if now < self._next_poll:
            return
        self._next_poll = now + POLL_SECONDS
        if self._failure and now > self._failure[0]:
            raise self._failure[1]
        if self.is_server:
            raise_reported_failure()
            self.stop_signal = self.stop_signal or self._spares.reported_signal()
            if now - began > self._timeout:
                raise RunError(self._timeout_message())
        else:
            answer_activity_request(self.activity)
            # rank 0 should report it first, with the activity of every rank
            if now - began > self._timeout + 2 * ABORT_DELAY + (self.rank > 1) * ABORT_DELAY:
                raise RunError(f"timed out waiting for rank 0 after {self._timeout:.0f} s (--timeout)")

    def _timeout_message(self) -> str:
        """One line for each rank, with its activity; a rank that does not answer is the one that is stuck."""
        activities = request_activities(self._world_ranks[1:])
        lines = [f"{self.activity}: timed out waiting for a rank after {self._timeout:.0f} s (--timeout)"]
        for number, rank in enumerate(self._world_ranks[1:], 1):
            clients = self.ranks[number] if len(self.ranks) > number else []
            silent = f"no answer, stuck in {self.activity}"
            noun = "client" if len(clients) == 1 else "clients"
            lines.append(f"rank {rank} with {len(clients)} {noun} {clients[:8]}: {activities.get(rank, silent)}")
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
