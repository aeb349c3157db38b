"""`simulate`: run a configuration from Python, in a notebook or under mpirun, with the same bits as the command."""

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
from mfedpba_mpi.config.fault_tolerance import FaultTolerance
from mfedpba_mpi.config.run_config import RunConfig
from mfedpba_mpi.data.catalog import default_data_dir
from mfedpba_mpi.engine.launch import abort_all, claim, join_ranks, run_rank
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
    """Run `config` and return its log. The bits are those of the command with the same settings.

    The same script works in one process and under ``mpirun -n 7 python -m mpi4py script.py``: rank 0 holds the server
    and returns the run, the other ranks hold clients and return None. A process can run one simulation at a time.
    torch's settings and all random generators are restored at the end. Warnings go to the logger ``mfedpba_mpi`` and
    into the log (`Run.warnings`).

    Parameters
    ----------
    config : RunConfig
        Made by `RunConfig.of`.
    out : str or Path
        The run's directory  [default: runs/<dataset>-<partition>-<method>-s<seed>].
    data_dir : str or Path
        Directory of the datasets  [default: a resumed run's own, else $MFEDPBA_DATA_DIR, else data].
    overwrite : bool
        Replace an existing run.
    resume : bool
        Continue an existing run up to the rounds of `config`; a complete one is only read.
    quiet : bool
        Print no progress. Synthetic data still cause a `SyntheticDataWarning`.
    partition : Partition
        Replaces the configuration's partition; saved in OUT.
    scratch : str or Path
        Directory for shards and stand-ins  [default: the data directory, else a temporary one].
    observers : sequence of Observer
        Called on rank 0 after every round; one can end the run in good order, and it can be resumed.

    Returns
    -------
    Run
        The log of the run (None on ranks other than 0).
    """
    from mfedpba_mpi.comm.devices import process_settings_restored
    from mfedpba_mpi.data.sources import is_synthetic, resolve
    from mfedpba_mpi.engine.progress import Screen
    from mfedpba_mpi.engine.resume import find_run, find_same, resumed
    from mfedpba_mpi.records.run import load_run

    if getattr(config, "params", None) is None:
        raise UserError("config: use RunConfig.of(dataset=..., ...), which fills in the defaults")
    if overwrite and resume:
        raise UserError("overwrite: resume=True continues an existing run, overwrite=True replaces it; use one of them")
    rank, _ = launcher_rank_and_size()
    with _one_at_a_time(), _aborting_all_ranks(), process_settings_restored():
        if partition is not None:
            config, out = _with_partition(config, partition, out, overwrite or resume)
        stored = find_run(Path(out)) if resume and out else None
        place = Path(data_dir) if data_dir else stored.data_dir if stored else default_data_dir()
        config = resolve(config, place)
        directory = Path(out or Path("runs") / config.run_name)
        complete = False
        if resume:
            config, complete = resumed(find_same(directory, config), config, place)
        if rank == 0 and is_synthetic(config, place) and config.dataset != "synthetic":
            warnings.warn(
                f"{config.dataset}: using synthetic data, no {config.dataset}.h5 in {place.resolve()}; "
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
def _one_at_a_time() -> Iterator[None]:
    """Refuse a second `simulate` in another thread: random generators and torch's settings belong to the process."""
    if not _SIMULATING.acquire(blocking=False):
        raise RuntimeError(
            "simulate: another call is running in this process, and the two would share random generators; wait for "
            "it, or use one process for each (multiprocessing, or `mfedpba-mpi study run --jobs N`)"
        )
    try:
        yield
    finally:
        _SIMULATING.release()


@contextmanager
def _aborting_all_ranks() -> Iterator[None]:
    """Abort all ranks if this one fails after MPI has started: the others would wait for it forever."""
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
    """The configuration with `partition`, which is saved in the run's directory, and that directory."""
    name = f"partition-{partition.digest[:8]}.h5"
    directory = Path(out or Path("runs") / replace(config, partition=name).run_name)
    claim(directory, overwrite, python=True)
    partition.save(directory / name)
    return replace(config, partition=str(directory / name)), directory
