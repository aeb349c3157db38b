"""Starting a run, on this process whatever its rank or in a notebook, and ending all ranks when one cannot go on."""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from mfedpba_mpi.comm.launcher import (
    announced,
    by_mpirun,
    check_slurm,
    first_on_node,
    given_gpus,
    joined,
    on_terminal,
    start_mpi,
)
from mfedpba_mpi.config import RunConfig
from mfedpba_mpi.data.catalog import default_data_dir, printable
from mfedpba_mpi.errors import (
    COMPLETE,
    FAILED,
    INTERRUPTED,
    PROGRAM,
    Ended,
    RankLost,
    RunError,
    SyntheticDataWarning,
    UserError,
    describe_error,
)
from mfedpba_mpi.options import option
from mfedpba_mpi.stopping import Stop

if TYPE_CHECKING:
    from mfedpba_mpi.comm.serial import Comm
    from mfedpba_mpi.data.partition import Partition
    from mfedpba_mpi.observing import Observer
    from mfedpba_mpi.records.run import Run
    from mfedpba_mpi.screen import Screen

SAFETY = "Safety"
MPI_START = 600.0  # seconds that MPI may take to start


@dataclass(frozen=True)
class Safety:
    """How a run looks after itself; none of this changes its numbers."""

    checkpoint_every: int = option(0, "write a checkpoint every N rounds  [default: by time]", low=1, group=SAFETY)
    checkpoint_minutes: float | None = option(
        None,
        "checkpoint at the latest after so long  [default: 0.5 to 5, at most 2 % of the time]",
        low=0,
        group=SAFETY,
    )
    keep_checkpoints: str = option(
        "last", "of a complete run: the last one, to extend it from; both (all); or none, it cannot be extended then",
        choices=("last", "all", "none"), group=SAFETY,
    )  # fmt: skip
    timeout: float = option(
        3600.0, "seconds after which a rank that others wait for counts as stuck", above=0, group=SAFETY
    )
    on_failure: str = option(
        "stop", "when a rank dies: end, or go on from the last checkpoint without it (mpirun --with-ft ulfm)",
        choices=("stop", "continue"), group=SAFETY,
    )  # fmt: skip
    scratch: str = option(
        "", "directory for shards and stand-ins (or $MFEDPBA_SCRATCH)  [default: the data directory if it can be "
        "written, else a temporary one, or OUT on several hosts]", group=SAFETY,
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
    rank, size = announced()
    words = ""
    if rank == 0 and by_mpirun() and on_terminal():
        from mfedpba_mpi.resuming import resume_command

        words = f"{PROGRAM}: told to stop; go on with `mpirun -n {size} {resume_command(directory, data_dir)}`"
    stop = Stop(words)
    stop.listen()
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
    config: RunConfig, out: str | Path = "", data_dir: str | Path | None = None, *, overwrite: bool = False,
    resume: bool = False, quiet: bool = False, partition: Partition | None = None, scratch: str | Path = "",
) -> Run:  # fmt: skip
    """Run `config` in this process, without MPI, and read its log: the bits of the command with the same settings.

    One call at a time in a process; torch's settings and random generators are left as they were found.

    Parameters
    ----------
    config : made by `RunConfig.of`.
    out : the run's directory  [default: runs/<dataset>-<partition>-<method>-s<seed>].
    data_dir : where feature stores are kept  [default: a resumed run's own, else $MFEDPBA_DATA_DIR, else data].
    overwrite : replace a run that is already there.
    resume : go on with the run that is there, if one is, to the rounds that `config` asks for; a complete one is read.
    quiet : show nothing. That data are synthetic is said by a Python warning all the same.
    partition : who owns what, instead of the configuration's; kept in OUT as a file.
    scratch : where shards and stand-ins are written  [default: the data directory, else a temporary one].
    """
    from mfedpba_mpi.comm.devices import process_settings_restored
    from mfedpba_mpi.comm.serial import Comm
    from mfedpba_mpi.config import fit_to_data
    from mfedpba_mpi.data.sources import describe, is_synthetic
    from mfedpba_mpi.records.run import load_run
    from mfedpba_mpi.resuming import find_run, find_same, resumed
    from mfedpba_mpi.screen import Screen

    if getattr(config, "params", None) is None:
        raise UserError("config: make it by RunConfig.of(dataset=..., ...), which fills in what is not given")
    if overwrite and resume:
        raise UserError("overwrite: resume=True continues the run that is there, overwrite=True replaces it; give one")
    with _alone_in_process(), process_settings_restored():
        if partition is not None:
            config, out = _with_partition(config, partition, out, overwrite or resume)
        stored = find_run(Path(out)) if resume and out else None
        place = Path(data_dir) if data_dir else stored.data_dir if stored else default_data_dir()
        config = fit_to_data(config, describe(config, place))
        directory = Path(out or Path("runs") / config.run_name)
        complete = False
        if resume:
            config, complete = resumed(find_same(directory, config), config, place)
        if is_synthetic(config, place) and config.dataset != "synthetic":
            warnings.warn(
                f"{config.dataset}: synthetic data, since there is no {config.dataset}.h5 in {place.resolve()}; "
                "allow_synthetic=False makes this an error",
                SyntheticDataWarning,
                stacklevel=2,
            )
        if not complete:
            claim(directory, overwrite or resume, python=True)
            screen = None if quiet else Screen(directory)
            _take_part(config, place, directory, Comm(), screen, Safety(scratch=str(scratch)), Stop(), resume)
        return load_run(directory)


_SIMULATING = threading.Lock()


@contextmanager
def _alone_in_process() -> Iterator[None]:
    """Refuse a second `simulate` while one is going on: random generators and torch's settings are the process's."""
    if not _SIMULATING.acquire(blocking=False):
        raise RuntimeError(
            "simulate: another call is running in this process, and the two would mix their random numbers; wait for "
            "it, or use a process for each (multiprocessing, or `mfedpba-mpi study run --jobs N`)"
        )
    try:
        yield
    finally:
        _SIMULATING.release()


def _with_partition(
    config: RunConfig, partition: Partition, out: str | Path, overwrite: bool
) -> tuple[RunConfig, Path]:
    """The configuration with a partition, kept as a file in the run's directory; and that directory."""
    name = f"partition-{partition.digest[:8]}.h5"
    directory = Path(out or Path("runs") / replace(config, partition=name).run_name)
    claim(directory, overwrite, python=True)
    partition.save(directory / name)
    return replace(config, partition=str(directory / name)), directory


def _take_part(
    config: RunConfig, data_dir: Path, directory: Path, comm: Comm, screen: Screen | None, safety: Safety, stop: Stop,
    resume: bool,
) -> None:  # fmt: skip
    """A rank's part of a run, with its log, its checkpoints and its lock; what ends it early is in the log."""
    from mfedpba_mpi.records.checkpoint import Checkpoints
    from mfedpba_mpi.records.lock import locked
    from mfedpba_mpi.records.runlog import RunLog
    from mfedpba_mpi.simulation import federate

    checkpoints = Checkpoints(
        directory, safety.checkpoint_every, safety.checkpoint_minutes, safety.keep_checkpoints, resume
    )
    log = RunLog(directory)
    observers: list[Observer] = [log, screen] if screen else [log]
    with ExitStack() as stack:
        if comm.is_server:
            stack.enter_context(locked(directory))
        try:
            recovers = safety.on_failure == "continue"
            federate(config, data_dir, comm, observers, checkpoints, stop, recovers, safety.scratch)
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
