"""Whether an installation works: who the ranks are, what they see, how long messages take, and that bits are the same.

Every rank calls `check`; rank 0 has something to say.
"""

from __future__ import annotations

import json
import platform
import shutil
import socket
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any

import h5py
import torch
from rich.table import Table

from mfedpba_mpi import __version__
from mfedpba_mpi.cli.console import bytes_of, count, ranges, table
from mfedpba_mpi.comm.base import Comm
from mfedpba_mpi.comm.devices import set_up
from mfedpba_mpi.comm.launcher import available_cores, launcher_rank_and_size
from mfedpba_mpi.comm.layout import Layout
from mfedpba_mpi.comm.serial import SerialComm
from mfedpba_mpi.config.run_config import RunConfig, fit_to_data
from mfedpba_mpi.data.sources import describe
from mfedpba_mpi.engine.launch import FaultTolerance, init_mpi, make_comm
from mfedpba_mpi.engine.loop import run_rounds
from mfedpba_mpi.engine.observers import End, Observer
from mfedpba_mpi.errors import PROGRAM, RunError, UserError
from mfedpba_mpi.methods.params import METHODS

FEWEST = 4  # clients
FLOATS, REPEATS = 30_000, 50  # of a message, and how often it goes to and fro
Facts = Mapping[str, Any]  # of a rank


class Digests(Observer):
    """An observer that keeps the digests of all clients and of the server at the end of a run."""

    found: tuple[str, ...] = ()

    def end(self, end: End) -> None:
        self.found = (*end.sha256, end.server_sha256)


def check(directory: Path, device: str = "auto") -> Iterator[str | Table]:
    """Look at everything in turn; what to print, and an error where something would not work.

    Parameters
    ----------
    directory : where all ranks have to see the same files.
    device : as in `RunConfig`.
    """
    fault_tolerance = FaultTolerance(timeout=120.0)
    init_mpi(fault_tolerance.timeout)
    clients = max(FEWEST, launcher_rank_and_size()[1] - 1)
    comm = make_comm(clients, fault_tolerance)
    yield (
        f"{PROGRAM} {__version__}, Python {platform.python_version()}, torch {torch.__version__}, "
        f"HDF5 {h5py.version.hdf5_version}, {comm.library}"
    )
    with _scratch(directory, comm) as place:
        ranks = [json.loads(text) for text in comm.collect(json.dumps(facts(comm, device, place)))]
        if comm.is_server:
            yield table(["ranks", "host", "cores", "device"], rows(ranks))
            refuse(ranks, place.parent)
            yield from remarks(ranks)
        if comm.size > 1:
            milliseconds = 1000 * messages(comm, clients)
            yield f"messages: {bytes_of(4 * FLOATS)} to each rank and back in {milliseconds:.2f} ms (median)"
        apart = [method for method in METHODS if not same_bits(method, clients, device, place, comm)]
    where = f"on {comm.size} ranks and in one process" if comm.size > 1 else "twice in one process"
    if apart and comm.is_server:
        raise RunError(f"bits: not the same {where}: {', '.join(apart)}; please report this")
    yield f"bits: {count(len(METHODS), 'method')} with {count(clients, 'client')} {where}: the same"
    yield "all is well" if comm.size > 1 else f"all is well; `mpirun -n 3 {PROGRAM} check` looks at MPI too"


@contextmanager
def _scratch(directory: Path, comm: Comm) -> Iterator[Path]:
    """A directory that rank 0 makes for as long as this takes; of all ranks."""
    name = ""
    if comm.is_server:
        try:
            name = tempfile.mkdtemp(prefix="mfedpba-check-", dir=directory.resolve())
        except OSError as error:
            raise UserError(f"dir: cannot write in {directory}: {error.strerror}; name another with --dir") from None
    place = Path(comm.share(name))
    try:
        yield place
        comm.barrier()
    finally:
        if comm.is_server:
            shutil.rmtree(place, ignore_errors=True)


def facts(comm: Comm, device: str, place: Path) -> Facts:
    """What is to be known of this rank."""
    return {
        "host": socket.gethostname(),
        "cores": available_cores(),
        "device": str(set_up(device, comm.local_rank, threads=1)),
        "torch": torch.__version__,
        "sees": place.is_dir(),
    }


def rows(ranks: Sequence[Facts]) -> Iterator[tuple[str, ...]]:
    """A row for each block of ranks that have everything in common."""
    places = [(rank["host"], ranges(rank["cores"]), rank["device"]) for rank in ranks]
    for place, block in groupby(range(len(ranks)), places.__getitem__):
        yield ranges(list(block)), *place


def refuse(ranks: Sequence[Facts], directory: Path) -> None:
    """An error where the ranks cannot work together."""
    blind = [f"{i} ({rank['host']})" for i, rank in enumerate(ranks) if not rank["sees"]]
    if blind:
        raise UserError(
            f"dir: rank {', '.join(blind)} does not see what rank 0 ({ranks[0]['host']}) writes in {directory}; data "
            "and runs belong in a directory that all nodes share, check it with --dir"
        )
    versions = {rank["torch"]: i for i, rank in reversed(list(enumerate(ranks)))}
    if len(versions) > 1:
        said = ", ".join(f"{version} on rank {i}" for version, i in versions.items())
        raise UserError(f"torch: {said}; bits may differ between versions, use one environment on all nodes")


def remarks(ranks: Sequence[Facts]) -> Iterator[str]:
    """What works, but not as well as it could."""
    hosts: dict[str, list[int]] = defaultdict(list)
    for i, rank in enumerate(ranks):
        hosts[rank["host"]].append(i)
    for host, own in hosts.items():
        cores = {core for i in own for core in ranks[i]["cores"]}
        if len(cores) < len(own):
            bound = any(len(ranks[i]["cores"]) == 1 for i in own)
            fix = "; if it has more, use `mpirun --bind-to none` or `srun --cpu-bind=none`" if bound else ""
            yield f"{host}: {len(own)} ranks share {count(len(cores), 'core')}{fix}"


def messages(comm: Comm, clients: int) -> float:
    """Seconds of a broadcast and a gather, of a message for each rank; the median."""
    comm.place([1.0] * clients)
    layout, x = Layout({"x": (FLOATS,)}), {"x": torch.zeros(FLOATS)}
    senders = {own[0]: layout for own in comm.ranks if own}
    seconds = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        comm.broadcast(x if comm.is_server else None, layout)
        comm.gather({k: x for k in comm.own_clients if k in senders}, senders)
        seconds.append(time.perf_counter() - began)
    return median(seconds)


def same_bits(method: str, clients: int, device: str, place: Path, comm: Comm) -> bool:
    """Whether two rounds of a small problem give the same bits on these ranks and in one process; known on rank 0."""
    config = RunConfig.of(
        dataset="synthetic", samples=40 * clients, classes=4, dims=(16, 24, 32), feature_dim=16, clients=clients,
        rounds=2, method=method, device=device,
    )  # fmt: skip
    config = fit_to_data(config, describe(config, place))
    together, alone = Digests(), Digests()
    run_rounds(config, place, comm, [together])
    if comm.is_server:
        run_rounds(config, place, SerialComm(), [alone])
    comm.barrier()
    return together.found == alone.found
