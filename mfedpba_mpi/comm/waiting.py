"""Waiting for other ranks without occupying a core, spare ranks, and aborting all ranks.

Open MPI and MPICH both spin in blocking collectives. So every collective of this program is nonblocking: the rank tests
it, and sleeps at most a millisecond between two tests (spare ranks, for which no rank waits, sleep longer). Between two
tests a rank also checks for messages outside of collectives: failure reports and activity requests.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import NoReturn

import numpy as np
from mpi4py import MPI

from mfedpba_mpi.comm.launcher import started_by_mpirun
from mfedpba_mpi.engine.signals import Stop
from mfedpba_mpi.errors import RankFailed

LONGEST_SLEEP = 1e-3
SPARE_SLEEP = 5e-2  # no rank waits for a spare one, and under MPICH every Test costs tens of microseconds
FAILURE, ACTIVITY, EXIT_CODE, SIGNAL = 75, 76, 77, 78  # message tags
ABORT_DELAY = 5.0  # seconds that a failing rank gives the others to end in order, and rank 0 to close the log
SRUN_DELAY = 0.5  # seconds for srun to forward our output; it drops the rest at an abort (mpirun does not)


def wait(request: MPI.Request, poll: Callable[[], None] | None = None, longest: float = LONGEST_SLEEP) -> None:
    """Wait for `request` with sleeps that grow up to `longest` seconds; call `poll` before each sleep."""
    pause = 0.0
    while not request.Test():
        if poll:
            poll()
        time.sleep(pause)
        pause = min(longest, pause + 2e-5)


def split_off_spares(active: int) -> MPI.Comm:
    """Split the world into ranks 0..active-1 and the spare ranks. Returns the part of this rank."""
    world = MPI.COMM_WORLD
    wait(world.Ibarrier())  # Split spins, so all ranks arrive together
    return world.Split(color=int(world.rank >= active), key=world.rank)


def wait_as_spare(active: int, stop: Stop) -> int:
    """Sleep until the run has ended, without loading torch or data. Returns the exit code that rank 0 sends.

    A spare rank sends rank 0 exactly one message: the name of a signal as soon as it receives one, or "" at the end.
    """
    split_off_spares(active)
    code, reported = np.zeros(1, np.int64), False

    def report() -> None:
        nonlocal reported
        reported = True
        wait(_send(stop.signal.encode(), 0, SIGNAL))

    def report_signal() -> None:
        if stop.signal and not reported:
            report()

    wait(MPI.COMM_WORLD.Irecv([code, MPI.INT64_T], source=0, tag=EXIT_CODE), report_signal, SPARE_SLEEP)
    if not reported:
        report()
    return int(code[0])


class SpareRanks:
    """The ranks from `active` on, as seen by rank 0."""

    def __init__(self, active: int):
        self._all = range(active, MPI.COMM_WORLD.size)
        self._unreported = set(self._all)

    def reported_signal(self) -> str:
        """The name of a signal that a spare rank has received since the last call; "" if none."""
        message = _receive(SIGNAL)
        if not message:
            return ""
        self._unreported.discard(message[0])
        return message[1].decode(errors="replace")

    def release(self, code: int) -> None:
        """End the spare ranks with this exit code."""
        world = MPI.COMM_WORLD
        for spare in self._all:
            wait(world.Isend([np.array([code]), MPI.INT64_T], dest=spare, tag=EXIT_CODE))
        for spare in self._unreported:
            wait(world.Irecv([bytearray(100), MPI.BYTE], source=spare, tag=SIGNAL))


def _send(content: bytes, rank: int, tag: int) -> MPI.Request:
    return MPI.COMM_WORLD.Isend([bytearray(content), MPI.BYTE], dest=rank, tag=tag)


def _receive(tag: int) -> tuple[int, bytes] | None:
    """(rank, content) of a message with this tag; None if there is none."""
    status = MPI.Status()
    if not MPI.COMM_WORLD.Iprobe(tag=tag, status=status):
        return None
    content = bytearray(status.Get_count(MPI.BYTE))
    MPI.COMM_WORLD.Recv([content, MPI.BYTE], source=status.Get_source(), tag=tag)
    return status.Get_source(), bytes(content)


def raise_reported_failure() -> None:
    """On rank 0: raise the error that a failing rank has reported before its abort, if there is one."""
    message = _receive(FAILURE)
    if message:
        raise RankFailed(message[1][1:].decode(errors="replace"), exit_code=message[1][0])


def answer_activity_request(activity: str) -> None:
    """On the other ranks: send this rank's activity to rank 0 if it has asked for it."""
    if _receive(ACTIVITY):
        wait(_send(activity.encode()[:1000], 0, ACTIVITY))


def request_activities(ranks: Sequence[int], seconds: float = 3.0) -> dict[int, str]:
    """On rank 0: the activities of the ranks that answer. A rank that computes, or is stuck, does not."""
    requests = [_send(b"", rank, ACTIVITY) for rank in ranks]
    answers: dict[int, str] = {}
    until = time.monotonic() + seconds
    while time.monotonic() < until and len(answers) < len(ranks):
        for request in requests:
            request.Test()
        message = _receive(ACTIVITY)
        if message:
            answers[message[0]] = message[1].decode(errors="replace")
        else:
            time.sleep(LONGEST_SLEEP)
    return answers


_a_rank_has_died = False


def note_dead_rank() -> None:
    """Make `abort` and `leave` end this process without MPI_Finalize, which would wait for the dead rank."""
    global _a_rank_has_died
    _a_rank_has_died = True


def abort(code: int, reason: str) -> None:
    """End every rank after an error on this one, for which the others would wait forever.

    Rank 0 is told first and gets time to close the log: MPI_Abort could interrupt it while it writes.
    """
    world = MPI.COMM_WORLD
    if _a_rank_has_died:
        _exit(code)  # the other survivors detect it
    if world.rank > 0:
        request = _send(bytes([code]) + reason.encode()[:1000], 0, FAILURE)
        until = time.monotonic() + ABORT_DELAY
        while time.monotonic() < until:
            request.Test()  # makes progress on sending
            time.sleep(0.01)
    elif not started_by_mpirun():
        time.sleep(SRUN_DELAY)
    world.Abort(code)


def leave(code: int) -> NoReturn:
    """End this process in order; all ranks do so with the same code.

    It ends at once, because Python and torch can take seconds to shut down: soon after the first rank has ended, or
    has ended with a code other than 0, launchers kill the remaining ranks.
    """
    if not _a_rank_has_died:
        MPI.Finalize()
    _exit(code)


def _exit(code: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
