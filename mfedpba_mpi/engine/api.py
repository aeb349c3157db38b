"""`simulate`: a run from Python, with the bits of the command, in a notebook or under mpirun."""

from __future__ import annotations

import threading
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from mfedpba_mpi.comm.launcher import launcher_rank_and_size, mpi_is_up
from mfedpba_mpi.config.run_config import RunConfig
from mfedpba_mpi.data.catalog import default_data_dir
from mfedpba_mpi.engine.launch import FaultTolerance, abort_all, claim, join_ranks, run_rank
from mfedpba_mpi.engine.signals import Stop
from mfedpba_mpi.errors import Ended, EndedByObserver, SyntheticDataWarning, UserError, describe_error

if TYPE_CHECKING:
    from mfedpba_mpi.data.partition import Partition
    from mfedpba_mpi.engine.observers import Observer
    from mfedpba_mpi.records.run import Run


def simulate(
    config: RunConfig, out: str | Path = "", data_dir: str | Path | None = None, *, overwrite: bool = False,
    resume: bool = False, quiet: bool = False, partition: Partition | None = None, scratch: str | Path = "",
    observers: Sequence[Observer] = (),
) -> Run:  # fmt: skip
    """Run `config` and read its log: the bits of the command with the same settings.

    The same script works alone and under ``mpirun -n 7 python script.py``: rank 0 holds the server and returns the run,
    the others hold clients and return None. One call at a time in a process; torch's settings and random generators
    are left as they were found.

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
    observers : told of every round, on rank 0; one can end the run in good order, which then is to be resumed.
    """
    from mfedpba_mpi.comm.devices import process_settings_restored
    from mfedpba_mpi.config.run_config import fit_to_data
    from mfedpba_mpi.data.sources import describe, is_synthetic
    from mfedpba_mpi.engine.progress import Screen
    from mfedpba_mpi.engine.resume import find_run, find_same, resumed
    from mfedpba_mpi.records.run import load_run

    if getattr(config, "params", None) is None:
        raise UserError("config: make it by RunConfig.of(dataset=..., ...), which fills in what is not given")
    if overwrite and resume:
        raise UserError("overwrite: resume=True continues the run that is there, overwrite=True replaces it; give one")
    rank, _ = launcher_rank_and_size()
    with _alone_in_process(), _ending_together(), process_settings_restored():
        if partition is not None:
            config, out = _with_partition(config, partition, out, overwrite or resume)
        stored = find_run(Path(out)) if resume and out else None
        place = Path(data_dir) if data_dir else stored.data_dir if stored else default_data_dir()
        config = fit_to_data(config, describe(config, place))
        directory = Path(out or Path("runs") / config.run_name)
        complete = False
        if resume:
            config, complete = resumed(find_same(directory, config), config, place)
        if rank == 0 and is_synthetic(config, place) and config.dataset != "synthetic":
            warnings.warn(
                f"{config.dataset}: synthetic data, since there is no {config.dataset}.h5 in {place.resolve()}; "
                "allow_synthetic=False makes this an error",
                SyntheticDataWarning,
                stacklevel=2,
            )
        if not complete:
            claim(directory, overwrite or resume, python=True)
            screen = None if quiet or rank else Screen(directory)
            fault_tolerance = FaultTolerance(scratch=str(scratch))
            comm = join_ranks(config.clients, fault_tolerance, Stop())
            with suppress(EndedByObserver):
                if comm:
                    run_rank(config, place, directory, comm, screen, fault_tolerance, Stop(), resume, observers)
        return load_run(directory) if rank == 0 else None  # type: ignore[return-value]


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


@contextmanager
def _ending_together() -> Iterator[None]:
    """End all ranks where one fails, once MPI has started: the others would wait for it for ever."""
    try:
        yield
    except Exception as error:
        if not isinstance(error, Ended) and launcher_rank_and_size()[1] > 1 and mpi_is_up():
            traceback.print_exc()
            abort_all(describe_error(error), getattr(error, "exit_code", 1))
        raise


def _with_partition(
    config: RunConfig, partition: Partition, out: str | Path, overwrite: bool
) -> tuple[RunConfig, Path]:
    """The configuration with a partition, kept as a file in the run's directory; and that directory."""
    name = f"partition-{partition.digest[:8]}.h5"
    directory = Path(out or Path("runs") / replace(config, partition=name).run_name)
    claim(directory, overwrite, python=True)
    partition.save(directory / name)
    return replace(config, partition=str(directory / name)), directory
