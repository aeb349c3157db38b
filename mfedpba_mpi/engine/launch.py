"""Starting a run on this rank, and ending all ranks when one fails."""

from __future__ import annotations

import faulthandler
import os
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
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
from mfedpba_mpi.config.fault_tolerance import FaultTolerance
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
    from mfedpba_mpi.comm.base import Comm
    from mfedpba_mpi.engine.observers import Observer
    from mfedpba_mpi.engine.progress import Screen

MPI_START = 600.0  # seconds within which MPI must start


def claim(directory: Path, overwrite: bool, python: bool = False) -> None:
    """Create the run's directory. An existing run is replaced only if `overwrite` is set.

    `python` selects the wording of the fix: for callers of `simulate`, or for users of the command.
    """
    from mfedpba_mpi.records.lock import refuse_held
    from mfedpba_mpi.records.run import CHECKPOINTS, LOG_NAME
    from mfedpba_mpi.records.status import read_state

    if not overwrite and any((directory / name).exists() for name in (LOG_NAME, CHECKPOINTS)):
        refuse_held(directory)
        status = read_state(directory).status
        verb, more = ("extend it", " --rounds N") if status == COMPLETE else ("resume it", "")
        command = f"mfedpba-mpi resume {directory}{more}"
        fix = f"{verb} with `{command}`, replace it with --overwrite, or choose another --out"
        if python:
            fix = "use resume=True to continue or read it, overwrite=True to replace it, or choose another out"
        raise UserError(f"out: {directory} already holds a run (status {status}); {fix}")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        writable = os.access(directory, os.W_OK)
    except OSError as error:
        raise UserError(f"out: cannot create {directory}: {error.strerror}; choose another --out") from None
    if not writable:
        raise UserError(f"out: {directory} is not writable; choose another --out")


def launch(
    config: RunConfig,
    data_dir: Path,
    directory: Path,
    fault_tolerance: FaultTolerance,
    resume: bool = False,
) -> None:
    """Run `config` from the command line, on this rank.

    Parameters
    ----------
    resume : resume from the last checkpoint, if there is one; if False, existing checkpoints are removed.
    """
    check_slurm(config.clients)
    if slurm_gpus() and config.device != "cpu":
        from mfedpba_mpi.comm.devices import check_slurm_gpus

        check_slurm_gpus(slurm_gpus())
    rank, size = launcher_rank_and_size()
    farewell = ""
    if rank == 0 and started_by_mpirun() and on_terminal():
        from mfedpba_mpi.engine.resume import resume_command

        farewell = f"{PROGRAM}: stopped; resume with `mpirun -n {size} {resume_command(directory, data_dir)}`"
    stop = Stop(farewell)
    stop.listen()
    if size == 1 and fault_tolerance.on_failure == "continue":
        raise UserError("on-failure: continue needs several ranks; start them with `mpirun --with-ft ulfm -n N`")
    comm = join_ranks(config.clients, fault_tolerance, stop)
    if comm is None:
        return
    from mfedpba_mpi.engine.progress import Screen

    screen = Screen(directory, max(0, size - config.clients - 1))
    run_rank(config, data_dir, directory, comm, screen, fault_tolerance, stop, resume)


def join_ranks(clients: int, fault_tolerance: FaultTolerance, stop: Stop) -> Comm | None:
    """Initialise MPI and return the communicator of a run with K = `clients`; None on a spare rank, after the run."""
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
    """Initialise MPI if there are several ranks, with a timeout: it would wait forever for a rank that died before."""
    if launcher_rank_and_size()[1] > 1:
        faulthandler.dump_traceback_later(min(timeout, MPI_START), exit=True)
        try:
            start_mpi()
        finally:
            faulthandler.cancel_dump_traceback_later()


def make_comm(clients: int, fault_tolerance: FaultTolerance) -> Comm:
    """The communicator of ranks 0 to K, K = `clients`, after `init_mpi`."""
    if launcher_rank_and_size()[1] > 1:
        from mfedpba_mpi.comm.mpi import MPIComm

        return MPIComm(clients, fault_tolerance.timeout, fault_tolerance.on_failure == "continue")
    from mfedpba_mpi.comm.serial import SerialComm

    return SerialComm()


def run_rank(
    config: RunConfig, data_dir: Path, directory: Path, comm: Comm, screen: Screen | None,
    fault_tolerance: FaultTolerance, stop: Stop, resume: bool, others: Sequence[Observer] = (),
) -> None:  # fmt: skip
    """Run this rank's part, with the log, the checkpoints and the lock. If the run ends early, the log says why.

    `others` are observers besides the log and the screen.
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
            with suppress(RunError):  # the disk may be full, which `error` reports
                log.abandon(getattr(error, "status", status), describe_error(error))
            if isinstance(error, Ended):
                with suppress(RankLost):
                    comm.finish(error.exit_code)
            raise


def abort_all(message: str, code: int) -> NoReturn:
    """End all ranks after an error on this one; one rank prints `message` (none if it is empty).

    Before MPI is initialised, all ranks usually find the same error. So rank 0 prints it, and one rank per other node
    prints it five seconds later, if it has not been killed by then: its error is another one.
    """
    rank, size = launcher_rank_and_size()
    started = mpi_is_up()
    if started and size > 1 and message:
        message = f"rank {rank}, {message}"
    elif rank > 0:
        time.sleep(5)
        message = message if first_on_node() and "mpi4py.MPI" not in sys.modules else ""
    if message:
        _print_error(message)
    if started:
        from mfedpba_mpi.comm.waiting import abort

        abort(code, message)
    sys.exit(code)


def _print_error(message: str) -> None:
    """Print a message on stderr, without control characters."""
    lines = map(printable, message.split("\n"))
    print(f"{PROGRAM}: " + "\n".join(lines), file=sys.stderr, flush=True)


def exit_all(message: str, code: int) -> NoReturn:
    """End this rank in order; all ranks do so. Rank 0 prints `message`."""
    Stop.ignore()
    if message and launcher_rank_and_size()[0] == 0:
        _print_error(message)
    if "mpi4py.MPI" in sys.modules:
        from mfedpba_mpi.comm.waiting import leave

        leave(code)
    sys.exit(code)
