"""Waiting for others without burning the core, and being a rank that has nothing else to do.

Neither Open MPI nor MPICH blocks in a collective: both spin. So every collective of this program is nonblocking,
tested, and slept on in between, at most a millisecond at a time (longer only by ranks that nobody waits for). In
between a rank listens to what is said outside of collectives: a failing rank's last words, and where another one is.
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
SPARE_SLEEP = 5e-2  # nobody waits for a spare rank, and under MPICH every Test costs tens of microseconds
FAILURE, WHERE, END, STOP = 75, 76, 77, 78  # tags: last words, where a rank is, a spare's exit code and its signal
PATIENCE = 5.0  # seconds that a failing rank leaves the others to end in order, and rank 0 to close the log
LAST_WORDS = 0.5  # seconds that srun is left to pass on what was said; an abort drops the rest (mpirun's does not)


def wait(request: MPI.Request, listen: Callable[[], None] | None = None, longest: float = LONGEST_SLEEP) -> None:
    """Wait for `request`: yield a few times, then sleep longer and longer, up to a millisecond; `listen` in between."""
    pause = 0.0
    while not request.Test():
        if listen:
            listen()
        time.sleep(pause)
        pause = min(longest, pause + 2e-5)


def split_off_spares(active: int) -> MPI.Comm:
    """The communicator of ranks 0..active-1 (of the others, among themselves)."""
    world = MPI.COMM_WORLD
    wait(world.Ibarrier())  # Split spins: arrive together
    return world.Split(color=int(world.rank >= active), key=world.rank)


def wait_as_spare(active: int, stop: Stop) -> int:
    """The whole life of a rank without clients: no torch, no data, asleep until the run has ended; its exit code.

    It tells rank 0 of a signal at once, or at the end that there was none: one message, which rank 0 waits for.
    """
    split_off_spares(active)
    code, told = np.zeros(1, np.int64), False

    def tell() -> None:
        nonlocal told
        told = True
        wait(_send(stop.asked.encode(), 0, STOP))

    def pass_on() -> None:
        if stop.asked and not told:
            tell()

    wait(MPI.COMM_WORLD.Irecv([code, MPI.INT64_T], source=0, tag=END), pass_on, SPARE_SLEEP)
    if not told:
        tell()
    return int(code[0])


class Spares:
    """The ranks from `active` on, as rank 0 sees them."""

    def __init__(self, active: int):
        self._all = range(active, MPI.COMM_WORLD.size)
        self._silent = set(self._all)

    def heard(self) -> str:
        """The name of a signal that one of them has got since the last time, if any."""
        heard = _heard(STOP)
        if not heard:
            return ""
        self._silent.discard(heard[0])
        return heard[1].decode(errors="replace")

    def release(self, code: int) -> None:
        """Let them go, with this exit code."""
        world = MPI.COMM_WORLD
        for spare in self._all:
            wait(world.Isend([np.array([code]), MPI.INT64_T], dest=spare, tag=END))
        for spare in self._silent:
            wait(world.Irecv([bytearray(100), MPI.BYTE], source=spare, tag=STOP))


def _send(words: bytes, to: int, tag: int) -> MPI.Request:
    return MPI.COMM_WORLD.Isend([bytearray(words), MPI.BYTE], dest=to, tag=tag)


def _heard(tag: int) -> tuple[int, bytes] | None:
    """(rank, words) of a message with this tag, if there is one."""
    status = MPI.Status()
    if not MPI.COMM_WORLD.Iprobe(tag=tag, status=status):
        return None
    words = bytearray(status.Get_count(MPI.BYTE))
    MPI.COMM_WORLD.Recv([words, MPI.BYTE], source=status.Get_source(), tag=tag)
    return status.Get_source(), bytes(words)


def listen_for_failures() -> None:
    """On rank 0, while it waits: take a failing rank's last words as an error of its own."""
    heard = _heard(FAILURE)
    if heard:
        raise RankFailed(heard[1][1:].decode(errors="replace"), exit_code=heard[1][0])


def answer(where: str) -> None:
    """On the other ranks, while they wait: tell rank 0 where this rank is, should it ask."""
    if _heard(WHERE):
        wait(_send(where.encode()[:1000], 0, WHERE))


def ask(ranks: Sequence[int], seconds: float = 3.0) -> dict[int, str]:
    """On rank 0: where these ranks are, of those that answer (a rank that computes, or is stuck, does not)."""
    requests = [_send(b"", rank, WHERE) for rank in ranks]
    answers: dict[int, str] = {}
    until = time.monotonic() + seconds
    while time.monotonic() < until and len(answers) < len(ranks):
        for request in requests:
            request.Test()
        heard = _heard(WHERE)
        if heard:
            answers[heard[0]] = heard[1].decode(errors="replace")
        else:
            time.sleep(LONGEST_SLEEP)
    return answers


_deaths = False


def note_death() -> None:
    """From now on this process ends without MPI, which would wait for the dead."""
    global _deaths
    _deaths = True


def abort(code: int, reason: str) -> None:
    """End every rank; an error on one rank, for which the others would wait for ever.

    Rank 0 is told first and given the time to close the log: an MPI abort could hit it while it writes.
    """
    world = MPI.COMM_WORLD
    if _deaths:
        _exit(code)  # the other survivors have noticed, or notice this one
    if world.rank > 0:
        request = _send(bytes([code]) + reason.encode()[:1000], 0, FAILURE)
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            request.Test()  # lets the message go on its way
            time.sleep(0.01)
    elif not started_by_mpirun():
        time.sleep(LAST_WORDS)
    world.Abort(code)


def leave(code: int) -> NoReturn:
    """End this process in order, where all ranks do so with the same code.

    At once, since Python and torch can take seconds to take themselves down: after the first code that is not 0, or a
    while after the first rank has ended, launchers kill whom they still find.
    """
    if not _deaths:
        MPI.Finalize()
    _exit(code)


def _exit(code: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
