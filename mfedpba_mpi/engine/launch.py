"""Starting a run on this process, whatever its rank, and ending all ranks when one cannot go on."""

from __future__ import annotations

import faulthandler
import os
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from mfedpba_mpi.comm.launcher import (
    check_slurm,
    first_on_node,
    launcher_rank_and_size,
    mpi_is_up,
    on_terminal,
    slurm_gpus,
    start_mpi,
    started_by_mpirun,
)
from mfedpba_mpi.config.fields import option
from mfedpba_mpi.config.run_config import RunConfig
from mfedpba_mpi.data.catalog import printable
from mfedpba_mpi.engine.signals import Stop
from mfedpba_mpi.errors import (
    COMPLETE,
    FAILED,
    INTERRUPTED,
    PROGRAM,
    Ended,
    RankLost,
    RunError,
    UserError,
    describe_error,
)

if TYPE_CHECKING:
    from mfedpba_mpi.comm.serial import Comm
    from mfedpba_mpi.engine.observers import Observer
    from mfedpba_mpi.engine.progress import Screen

FAULT_TOLERANCE = "Fault tolerance"
MPI_START = 600.0  # seconds that MPI may take to start


@dataclass(frozen=True)
class FaultTolerance:
    """How a run looks after itself; none of this changes its numbers."""

    checkpoint_every: int = option(
        0, "write a checkpoint every N rounds  [default: by time]", low=1, group=FAULT_TOLERANCE
    )
    checkpoint_minutes: float | None = option(
        None,
        "checkpoint at the latest after so long  [default: 0.5 to 5, at most 2 % of the time]",
        low=0,
        group=FAULT_TOLERANCE,
    )
    keep_checkpoints: str = option(
        "last", "of a complete run: the last one, to extend it from; both (all); or none, it cannot be extended then",
        choices=("last", "all", "none"), group=FAULT_TOLERANCE,
    )  # fmt: skip
    timeout: float = option(
        3600.0, "seconds after which a rank that others wait for counts as stuck", above=0, group=FAULT_TOLERANCE
    )
    on_failure: str = option(
        "stop", "when a rank dies: end, or go on from the last checkpoint without it (mpirun --with-ft ulfm)",
        choices=("stop", "continue"), group=FAULT_TOLERANCE,
    )  # fmt: skip
    scratch: str = option(
        "", "directory for shards and stand-ins (or $MFEDPBA_SCRATCH)  [default: the data directory if it can be "
        "written, else a temporary one, or OUT on several hosts]", group=FAULT_TOLERANCE,
    )  # fmt: skip


def claim(directory: Path, overwrite: bool, python: bool = False) -> None:
    """Make the run's directory; a run that is already there is never overwritten unasked.

    `python` is whom the fix is for: who has called `simulate`, not the command.
    """
    from mfedpba_mpi.records.lock import refuse_held
    from mfedpba_mpi.records.run import status_of

    status = None if overwrite else status_of(directory)
    if status:
        refuse_held(directory)
        verb, more = ("extend it", " --rounds N") if status == COMPLETE else ("go on", "")
        command = f"mfedpba-mpi resume {directory}{more}"
        fix = f"{verb} with `{command}`, replace it with --overwrite, or choose another --out"
        if python:
            fix = "resume=True goes on with it, or reads it, overwrite=True replaces it; or choose another out"
        raise UserError(f"out: {directory} holds a run already (status {status}); {fix}")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        writable = os.access(directory, os.W_OK)
    except OSError as error:
        raise UserError(f"out: cannot make the directory {directory}: {error.strerror}; choose another --out") from None
    if not writable:
        raise UserError(f"out: the directory {directory} is not writable; choose another --out")


def launch(
    config: RunConfig,
    data_dir: Path,
    directory: Path,
    fault_tolerance: FaultTolerance,
    resume: bool = False,
    brief: bool = False,
) -> None:
    """Take this process's part in the run: server, clients, everything, or nothing.

    Parameters
    ----------
    resume : go on from the last checkpoint, if there is one; otherwise checkpoints that are there are forgotten.
    brief : leave out the table at the end.
    """
    check_slurm(config.clients)
    if slurm_gpus() and config.device != "cpu":
        from mfedpba_mpi.comm.devices import check_given

        check_given(slurm_gpus())
    rank, size = launcher_rank_and_size()
    words = ""
    if rank == 0 and started_by_mpirun() and on_terminal():
        from mfedpba_mpi.engine.resume import resume_command

        words = f"{PROGRAM}: told to stop; go on with `mpirun -n {size} {resume_command(directory, data_dir)}`"
    stop = Stop(words)
    stop.listen()
    if size == 1 and fault_tolerance.on_failure == "continue":
        raise UserError(
            "on-failure: one process has no other to go on; start several with `mpirun --with-ft ulfm -n N`"
        )
    comm = join_ranks(config.clients, fault_tolerance, stop)
    if comm is None:
        return
    from mfedpba_mpi.engine.progress import Screen

    run_rank(
        config,
        data_dir,
        directory,
        comm,
        Screen(directory, max(0, size - config.clients - 1), brief),
        fault_tolerance,
        stop,
        resume,
    )


def join_ranks(clients: int, fault_tolerance: FaultTolerance, stop: Stop) -> Comm | None:
    """The communicator of a run with so many clients; None on a rank that was not needed, after the run has ended."""
    rank, size = launcher_rank_and_size()
    init_mpi(fault_tolerance.timeout)
    if size > 1 and rank > clients:
        from mfedpba_mpi.comm.waiting import leave, wait_as_spare

        code = wait_as_spare(clients + 1, stop)
        if code:
            leave(code)
        return None
    return make_comm(clients, fault_tolerance)


def init_mpi(timeout: float) -> None:
    """Start MPI where several ranks were started, which waits for ever for one that died before it could begin."""
    if launcher_rank_and_size()[1] > 1:
        faulthandler.dump_traceback_later(min(timeout, MPI_START), exit=True)
        try:
            start_mpi()
        finally:
            faulthandler.cancel_dump_traceback_later()


def make_comm(clients: int, fault_tolerance: FaultTolerance) -> Comm:
    """Be one of the ranks 0 to K of a run with so many clients; those that were started have met."""
    if launcher_rank_and_size()[1] > 1:
        from mfedpba_mpi.comm.mpi import MPIComm

        return MPIComm(clients, fault_tolerance.timeout, fault_tolerance.on_failure == "continue")
    from mfedpba_mpi.comm.serial import Comm

    return Comm()


def run_rank(
    config: RunConfig, data_dir: Path, directory: Path, comm: Comm, screen: Screen | None,
    fault_tolerance: FaultTolerance, stop: Stop, resume: bool, others: Sequence[Observer] = (),
) -> None:  # fmt: skip
    """A rank's part of a run, with its log, its checkpoints and its lock; what ends it early is in the log.

    `others` are observers beside the log and the screen.
    """
    from mfedpba_mpi.engine.loop import run_rounds
    from mfedpba_mpi.records.checkpoint import Checkpoints
    from mfedpba_mpi.records.lock import locked
    from mfedpba_mpi.records.run_log import RunLog

    checkpoints = Checkpoints(
        directory,
        fault_tolerance.checkpoint_every,
        fault_tolerance.checkpoint_minutes,
        fault_tolerance.keep_checkpoints,
        resume,
    )
    log = RunLog(directory)
    observers: list[Observer] = [log, *([screen] if screen else []), *others]
    with ExitStack() as stack:
        if comm.is_server:
            stack.enter_context(locked(directory))
        try:
            recovers = fault_tolerance.on_failure == "continue"
            run_rounds(config, data_dir, comm, observers, checkpoints, stop, recovers, fault_tolerance.scratch)
        except BaseException as error:
            if screen:
                screen.stop()
            status = INTERRUPTED if isinstance(error, KeyboardInterrupt) else FAILED
            with suppress(RunError):  # the disk may be full, and `error` says so
                log.abandon(getattr(error, "status", status), describe_error(error))
            if isinstance(error, Ended):
                with suppress(RankLost):
                    comm.finish(error.exit_code)
            raise


def abort_all(message: str, code: int) -> NoReturn:
    """End this process, and with it all ranks, with one line from one of them (none where `message` is empty).

    Before MPI has started the ranks of a node find the same fault, so one of them says it, and other nodes leave it to
    rank 0 for a while: where it is alive they have met something of their own. A start of MPI that leaves every rank
    alone is found by all, on all nodes.
    """
    rank, size = launcher_rank_and_size()
    started = mpi_is_up()
    if started and size > 1 and message:
        message = f"rank {rank}, {message}"
    elif rank > 0:
        time.sleep(5)
        message = message if first_on_node() and "mpi4py.MPI" not in sys.modules else ""
    if message:
        _say(message)
    if started:
        from mfedpba_mpi.comm.waiting import abort

        abort(code, message)
    sys.exit(code)


def _say(message: str) -> None:
    """The last words, without what would do something to a terminal."""
    lines = map(printable, message.split("\n"))
    print(f"{PROGRAM}: " + "\n".join(lines), file=sys.stderr, flush=True)


def exit_all(message: str, code: int) -> NoReturn:
    """End this process like all the others, which do the same; rank 0 says why."""
    Stop.ignore()
    if message and launcher_rank_and_size()[0] == 0:
        _say(message)
    if "mpi4py.MPI" in sys.modules:
        from mfedpba_mpi.comm.waiting import leave

        leave(code)
    sys.exit(code)
