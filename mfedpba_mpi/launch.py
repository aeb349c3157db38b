"""Starting a run, on this process whatever its rank or in a notebook, and ending all ranks when one cannot go on."""

from __future__ import annotations

import faulthandler
import os
import sys
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from mfedpba_mpi.comm.launcher import announced, check_slurm, first_on_node, given_gpus, joined, start_mpi
from mfedpba_mpi.config import RunConfig
from mfedpba_mpi.data.catalog import printable
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
from mfedpba_mpi.options import option
from mfedpba_mpi.stopping import Stop

if TYPE_CHECKING:
    from mfedpba_mpi.comm.serial import Comm
    from mfedpba_mpi.observing import Observer
    from mfedpba_mpi.records.run import Run
    from mfedpba_mpi.screen import Screen

SAFETY = "Safety"
MPI_START = 600.0  # seconds that MPI may take to start


@dataclass(frozen=True)
class Safety:
    """How a run looks after itself; none of this changes its numbers."""

    checkpoint_every: int = option(0, "checkpoint every so many rounds  [default: by time]", low=0, group=SAFETY)
    checkpoint_minutes: float | None = option(
        None,
        "checkpoint at the latest after so long  [default: 0.5 to 5, at most 2 % of the time]",
        low=0,
        group=SAFETY,
    )
    timeout: float = option(
        3600.0, "seconds after which a rank that others wait for counts as stuck", above=0, group=SAFETY
    )
    on_failure: str = option(
        "stop", "when a rank dies: end, or go on from the last checkpoint without it (mpirun --with-ft ulfm)",
        choices=("stop", "continue"), group=SAFETY,
    )  # fmt: skip


def claim(directory: Path, overwrite: bool, python: bool = False) -> None:
    """Make the run's directory; a run that is already there is never overwritten unasked.

    `python` is whom the fix is for: who has called `simulate`, not the command.
    """
    from mfedpba_mpi.records.run import status_of

    status = None if overwrite else status_of(directory)
    if status:
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
    config: RunConfig, data_dir: Path, directory: Path, safety: Safety, resume: bool = False, brief: bool = False
) -> None:
    """Take this process's part in the run: server, clients, everything, or nothing.

    Parameters
    ----------
    resume : go on from the last checkpoint, if there is one; otherwise checkpoints that are there are forgotten.
    brief : leave out the table at the end.
    """
    check_slurm(config.clients)
    if given_gpus() and config.device != "cpu":
        from mfedpba_mpi.comm.devices import check_given

        check_given(given_gpus())
    stop = Stop()
    stop.listen()
    rank, size = announced()
    meet(safety.timeout)
    if size > 1 and rank > config.clients:
        from mfedpba_mpi.comm.waiting import leave, wait_as_spare

        code = wait_as_spare(config.clients + 1, stop)
        if code:
            leave(code)
        return
    if size == 1 and safety.on_failure == "continue":
        raise UserError(
            "on-failure: one process has no other to go on; start several with `mpirun --with-ft ulfm -n N`"
        )
    comm = connect(config.clients, safety)
    from mfedpba_mpi.screen import Screen

    _take_part(
        config,
        data_dir,
        directory,
        comm,
        Screen(directory, max(0, size - config.clients - 1), brief),
        safety,
        stop,
        resume,
    )


def meet(timeout: float) -> None:
    """Start MPI where several ranks were started, which waits for ever for one that died before it could begin."""
    if announced()[1] > 1:
        faulthandler.dump_traceback_later(min(timeout, MPI_START), exit=True)
        try:
            start_mpi()
        finally:
            faulthandler.cancel_dump_traceback_later()


def connect(clients: int, safety: Safety) -> Comm:
    """Be one of the ranks 0 to K of a run with so many clients; those that were started have met."""
    if announced()[1] > 1:
        from mfedpba_mpi.comm.mpi import MPIComm

        return MPIComm(clients, safety.timeout, safety.on_failure == "continue")
    from mfedpba_mpi.comm.serial import Comm

    return Comm()


def simulate(
    config: RunConfig, out: str | Path = "", data_dir: str | Path = "data", *,
    overwrite: bool = False, resume: bool = False, quiet: bool = False,
) -> Run:  # fmt: skip
    """Run `config` in this process, without MPI, and read its log: the bits of the command with the same settings.

    Parameters
    ----------
    config : made by `RunConfig.of`.
    out : the run's directory  [default: runs/<dataset>-<partition>-<method>-s<seed>].
    data_dir : where feature stores are kept.
    overwrite : replace a run that is already there.
    resume : go on with the run that is there, if one is; a complete one is read.
    quiet : show nothing.
    """
    import torch

    from mfedpba_mpi.comm.serial import Comm
    from mfedpba_mpi.config import fit_to_data
    from mfedpba_mpi.data.sources import describe
    from mfedpba_mpi.records.run import load_run
    from mfedpba_mpi.resuming import status_of_same
    from mfedpba_mpi.screen import Screen

    if config.params is None:
        raise UserError("config: make it by RunConfig.of(dataset=..., ...), which fills in what is not given")
    config = fit_to_data(config, describe(config, Path(data_dir)))
    directory = Path(out or Path("runs") / config.run_name)
    if not (resume and status_of_same(directory, config) == COMPLETE):
        claim(directory, overwrite or resume, python=True)
        screen, threads = None if quiet else Screen(directory), torch.get_num_threads()
        try:
            _take_part(config, Path(data_dir), directory, Comm(), screen, Safety(), Stop(), resume)
        finally:
            torch.set_num_threads(threads)
    return load_run(directory)


def _take_part(
    config: RunConfig, data_dir: Path, directory: Path, comm: Comm, screen: Screen | None, safety: Safety, stop: Stop,
    resume: bool,
) -> None:  # fmt: skip
    """A rank's part of a run, with its log, its checkpoints and its lock; what ends it early is in the log."""
    from mfedpba_mpi.records.checkpoint import Checkpoints
    from mfedpba_mpi.records.lock import locked
    from mfedpba_mpi.records.runlog import RunLog
    from mfedpba_mpi.simulation import federate

    checkpoints = Checkpoints(directory, safety.checkpoint_every, safety.checkpoint_minutes)
    log = RunLog(directory)
    observers: list[Observer] = [log, screen] if screen else [log]
    with ExitStack() as stack:
        if comm.is_server:
            stack.enter_context(locked(directory))
            if not resume:
                checkpoints.clear()
        try:
            federate(config, data_dir, comm, observers, checkpoints, stop, safety.on_failure == "continue")
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


def end_all(message: str, code: int) -> NoReturn:
    """End this process, and with it all ranks, with one line from one of them (none where `message` is empty).

    Before MPI has started the ranks of a node find the same fault, so one of them says it, and other nodes leave it to
    rank 0 for a while: where it is alive they have met something of their own. A start of MPI that leaves every rank
    alone is found by all, on all nodes.
    """
    rank, size = announced()
    started = joined()
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


def end_together(message: str, code: int) -> NoReturn:
    """End this process like all the others, which do the same; rank 0 says why."""
    Stop.ignore()
    if message and announced()[0] == 0:
        _say(message)
    if "mpi4py.MPI" in sys.modules:
        from mfedpba_mpi.comm.waiting import leave

        leave(code)
    sys.exit(code)
