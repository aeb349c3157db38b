"""Waiting for others without burning the core, and being a rank that has nothing else to do.

Neither Open MPI nor MPICH blocks in a collective: both spin. So every collective of this program is nonblocking,
tested, and slept on in between, at most a millisecond at a time (longer only by ranks that nobody waits for).
"""

from __future__ import annotations

import time
from collections.abc import Callable

from mpi4py import MPI

from mfedpba_mpi.errors import RankFailed

LONGEST_SLEEP = 1e-3
SPARE_SLEEP = 5e-2  # nobody waits for a spare rank, and under MPICH every Test costs tens of microseconds
FAILURE = 75  # the tag of a failing rank's last words to rank 0
PATIENCE = 5.0  # seconds that it leaves rank 0 to close the log


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


def wait_as_spare(active: int) -> None:
    """The whole life of a rank without clients: no torch, no data, asleep until the run has ended."""
    split_off_spares(active)
    wait(MPI.COMM_WORLD.Ibarrier(), longest=SPARE_SLEEP)


def listen_for_failures() -> None:
    """On rank 0, while it waits: take a failing rank's last words as an error of its own."""
    status = MPI.Status()
    if MPI.COMM_WORLD.Iprobe(tag=FAILURE, status=status):
        words = bytearray(status.Get_count(MPI.BYTE))
        MPI.COMM_WORLD.Recv([words, MPI.BYTE], source=status.Get_source(), tag=FAILURE)
        raise RankFailed(words[1:].decode(errors="replace"), exit_code=words[0])


def abort(code: int, reason: str) -> None:
    """End every rank; an error on one rank, for which the others would wait for ever.

    Rank 0 is told first and given the time to close the log: an MPI abort could hit it while it writes.
    """
    world = MPI.COMM_WORLD
    if world.rank > 0:
        words = bytearray([code]) + reason.encode()[:1000]
        request = world.Isend([words, MPI.BYTE], dest=0, tag=FAILURE)
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            request.Test()  # lets the message go on its way
            time.sleep(0.01)
    world.Abort(code)
