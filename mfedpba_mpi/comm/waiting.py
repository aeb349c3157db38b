"""Waiting for others without burning the core, and being a rank that has nothing else to do.

Neither Open MPI nor MPICH blocks in a collective: both spin. So every collective of this program is nonblocking,
tested, and slept on in between, at most a millisecond at a time (longer only by ranks that nobody waits for). In
between a rank listens to what is said outside of collectives: a failing rank's last words, and where another one is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
from mpi4py import MPI

from mfedpba_mpi.errors import RankFailed

LONGEST_SLEEP = 1e-3
SPARE_SLEEP = 5e-2  # nobody waits for a spare rank, and under MPICH every Test costs tens of microseconds
FAILURE, WHERE, END = 75, 76, 77  # tags: last words to rank 0, where a rank is, a spare rank's exit code
PATIENCE = 5.0  # seconds that a failing rank leaves the others to end in order, and rank 0 to close the log


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


def wait_as_spare(active: int) -> int:
    """The whole life of a rank without clients: no torch, no data, asleep until the run has ended; its exit code."""
    split_off_spares(active)
    code = np.zeros(1, np.int64)
    wait(MPI.COMM_WORLD.Irecv([code, MPI.INT64_T], source=0, tag=END), longest=SPARE_SLEEP)
    return int(code[0])


def release_spares(active: int, code: int) -> None:
    """On rank 0: let them go."""
    world = MPI.COMM_WORLD
    for spare in range(active, world.size):
        wait(world.Isend([np.array([code]), MPI.INT64_T], dest=spare, tag=END))


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


def abort(code: int, reason: str) -> None:
    """End every rank; an error on one rank, for which the others would wait for ever.

    Rank 0 is told first and given the time to close the log: an MPI abort could hit it while it writes.
    """
    world = MPI.COMM_WORLD
    if world.rank > 0:
        request = _send(bytes([code]) + reason.encode()[:1000], 0, FAILURE)
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            request.Test()  # lets the message go on its way
            time.sleep(0.01)
    world.Abort(code)


def leave(code: int) -> None:
    """End this process in order, where all ranks do so with the same code."""
    import sys

    MPI.Finalize()
    sys.exit(code)
