"""Starting a run on this process, whatever its rank, and ending all ranks when one of them cannot go on."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from mfedpba_mpi.comm.launcher import announced, first_on_node
from mfedpba_mpi.config import RunConfig
from mfedpba_mpi.errors import RankFailed, RunError, UserError


def claim(directory: Path, overwrite: bool) -> None:
    """Make the run's directory; a run that is already there is never overwritten unasked."""
    from mfedpba_mpi.records.run import status_of

    status = None if overwrite else status_of(directory)
    if status:
        raise UserError(
            f"out: {directory} holds a run already (status {status}); use --overwrite to replace it, or another --out"
        )
    try:
        directory.mkdir(parents=True, exist_ok=True)
        writable = os.access(directory, os.W_OK)
    except OSError as error:
        raise UserError(f"out: cannot make the directory {directory}: {error.strerror}; choose another --out") from None
    if not writable:
        raise UserError(f"out: the directory {directory} is not writable; choose another --out")


def launch(config: RunConfig, data_dir: Path, directory: Path, brief: bool = False) -> None:
    """Take this process's part in the run: server, clients, everything, or nothing.

    `brief` leaves out the table at the end.
    """
    rank, size = announced()
    if size > 1 and rank > config.clients:
        from mfedpba_mpi.comm.waiting import wait_as_spare

        wait_as_spare(config.clients + 1)
        return
    from mfedpba_mpi.comm.serial import Comm

    comm = Comm()
    if size > 1:
        from mfedpba_mpi.comm.mpi import MPIComm

        comm = MPIComm(config.clients)
    from mfedpba_mpi.records.runlog import RunLog
    from mfedpba_mpi.screen import Screen
    from mfedpba_mpi.simulation import simulate

    log, screen = RunLog(directory), Screen(directory, max(0, size - config.clients - 1), brief)
    try:
        simulate(config, data_dir, comm, [log, screen])
    except BaseException as error:
        screen.stop()
        status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
        with suppress(RunError):  # the disk may be full, and `error` says so
            log.abandon(status, describe_error(error))
        raise


def describe_error(error: BaseException) -> str:
    """One line: where (innermost first on the error, outermost first here), what."""
    if isinstance(error, (RankFailed, RunError)):
        return str(error)  # says where itself
    where = ", ".join(reversed(getattr(error, "__notes__", [])))
    kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
    return f"{where + ': ' if where else ''}{kind}{error}"


def end_all(message: str, code: int) -> NoReturn:
    """End this process, and with it all ranks, with one line from one of them (none where `message` is empty).

    Before MPI has started the ranks of a node find the same fault, so one of them says it, and other nodes leave it to
    rank 0 for a while: where it is alive they have met something of their own.
    """
    rank, size = announced()
    started = "mpi4py.MPI" in sys.modules
    if started and size > 1 and message:
        message = f"rank {rank}, {message}"
    elif rank > 0:
        time.sleep(5)
        message = message if first_on_node() else ""
    if message:
        print(f"mfedpba-mpi: {message}", file=sys.stderr, flush=True)
    if started:
        from mfedpba_mpi.comm.waiting import abort

        abort(code, message)
    sys.exit(code)
