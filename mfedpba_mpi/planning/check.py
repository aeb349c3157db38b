"""`mfedpba-mpi check`: test an installation.

It lists the ranks with their cores and devices, tests the shared directory, times messages, and compares results on all
ranks with results in one process bit by bit. All ranks call `check`; only the output of rank 0 is complete.
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
from mfedpba_mpi.config.fault_tolerance import FaultTolerance
from mfedpba_mpi.config.run_config import RunConfig
from mfedpba_mpi.data.sources import resolve
from mfedpba_mpi.engine.launch import init_mpi, make_comm
from mfedpba_mpi.engine.loop import run_rounds
from mfedpba_mpi.engine.observers import End, Observer
from mfedpba_mpi.errors import PROGRAM, RunError, UserError
from mfedpba_mpi.methods.params import METHODS
from mfedpba_mpi.rng import generator

MIN_CLIENTS = 4  # of the test runs; with more than five ranks each worker has a client
MESSAGE_FLOATS = 30_000  # size of a timed message
MESSAGE_REPEATS = 50
SOLVER_TOLERANCE = 1e-6  # of the plans of L_align
RankInfo = Mapping[str, Any]  # what `rank_info` returns


class DigestObserver(Observer):
    """Keeps the SHA-256 of all clients and of the server at the end of a run."""

    digests: tuple[str, ...] = ()

    def end(self, end: End) -> None:
        self.digests = (*end.sha256, end.server_sha256)


def check(directory: Path, device: str = "auto") -> Iterator[str | Table]:
    """Run all tests and yield lines and tables to print; raise `UserError` or `RunError` where a test fails.

    Parameters
    ----------
    directory : directory that all ranks must share.
    device : as in `RunConfig`.
    """
    fault_tolerance = FaultTolerance(timeout=120.0)
    init_mpi(fault_tolerance.timeout)
    clients = max(MIN_CLIENTS, launcher_rank_and_size()[1] - 1)
    comm = make_comm(clients, fault_tolerance)
    yield (
        f"{PROGRAM} {__version__}, Python {platform.python_version()}, torch {torch.__version__}, "
        f"HDF5 {h5py.version.hdf5_version}, {comm.library}"
    )
    with _temporary_directory(directory, comm) as temporary:
        ranks = [json.loads(text) for text in comm.collect(json.dumps(rank_info(comm, device, temporary)))]
        if comm.is_server:
            yield table(["ranks", "host", "cores", "device"], rank_rows(ranks))
            check_ranks(ranks, temporary.parent)
            yield from core_warnings(ranks)
        if comm.size > 1:
            milliseconds = 1000 * message_seconds(comm, clients)
            yield f"messages: {bytes_of(4 * MESSAGE_FLOATS)} to each rank and back in {milliseconds:.2f} ms (median)"
        differing = [method for method in METHODS if not same_bits(method, clients, device, temporary, comm)]
    if comm.is_server:
        difference = solver_difference()
        if not difference <= SOLVER_TOLERANCE:
            raise RunError(f"Gromov-Wasserstein: our plans and POT's differ by {difference:.1e}; please report this")
        yield f"Gromov-Wasserstein: our plans equal POT's to {difference:.0e}"
    runs = f"{comm.size} ranks and one process" if comm.size > 1 else "two runs in one process"
    if differing and comm.is_server:
        raise RunError(f"bits: results differ between {runs}: {', '.join(differing)}; please report this")
    yield f"bits: {count(len(METHODS), 'method')} with {count(clients, 'client')}: identical for {runs}"
    yield "check passed" if comm.size > 1 else f"check passed; to test MPI as well, run `mpirun -n 3 {PROGRAM} check`"


def solver_difference() -> float:
    """Largest difference between the plans of the two solvers of L_align, on a fixed problem of 10 classes."""
    from mfedpba_mpi.methods.mfedpba import gromov

    X = torch.from_numpy(generator(0, "check solvers").standard_normal((1, 10, 8)))
    C1, C2 = (D / D.mean() for D in map(gromov.squared_distances, (X, X + 0.3 * X.roll(1, 1))))
    identity, epsilon, tol = torch.eye(10, dtype=X.dtype)[None] / 10, 0.2, 1e-9
    ours = gromov.entropic_gromov_wasserstein(C1, C2, epsilon, identity, torch.zeros_like(X[..., 0]), tol).T
    return (ours - gromov.pot_gromov_wasserstein(C1, C2, epsilon, identity, tol)).abs().max().item()


@contextmanager
def _temporary_directory(directory: Path, comm: Comm) -> Iterator[Path]:
    """Create a temporary directory on rank 0 and share its path with all ranks."""
    name = ""
    if comm.is_server:
        try:
            name = tempfile.mkdtemp(prefix="mfedpba-check-", dir=directory.resolve())
        except OSError as error:
            raise UserError(f"dir: cannot write in {directory}: {error.strerror}; name another with --dir") from None
    path = Path(comm.share(name))
    try:
        yield path
        comm.barrier()
    finally:
        if comm.is_server:
            shutil.rmtree(path, ignore_errors=True)


def rank_info(comm: Comm, device: str, shared: Path) -> RankInfo:
    """Return this rank's host, cores, device and torch version, and whether it sees the directory `shared`."""
    return {
        "host": socket.gethostname(),
        "cores": available_cores(),
        "device": str(set_up(device, comm.local_rank, threads=1)),
        "torch": torch.__version__,
        "sees_directory": shared.is_dir(),
    }


def rank_rows(ranks: Sequence[RankInfo]) -> Iterator[tuple[str, ...]]:
    """Yield a table row for each block of consecutive ranks with the same host, cores and device."""
    places = [(rank["host"], ranges(rank["cores"]), rank["device"]) for rank in ranks]
    for place, block in groupby(range(len(ranks)), places.__getitem__):
        yield ranges(list(block)), *place


def check_ranks(ranks: Sequence[RankInfo], directory: Path) -> None:
    """Raise `UserError` if the ranks do not share `directory` or have different versions of torch."""
    blind = [f"{i} ({rank['host']})" for i, rank in enumerate(ranks) if not rank["sees_directory"]]
    if blind:
        raise UserError(
            f"dir: rank {', '.join(blind)} cannot see files that rank 0 ({ranks[0]['host']}) writes in {directory}; "
            "keep data and runs in a directory that all nodes share, and check it with --dir"
        )
    first_rank = {rank["torch"]: i for i, rank in reversed(list(enumerate(ranks)))}  # with each version
    if len(first_rank) > 1:
        versions = ", ".join(f"{version} on rank {i}" for version, i in first_rank.items())
        raise UserError(f"torch: {versions}; results may differ between versions, use one environment on all nodes")


def core_warnings(ranks: Sequence[RankInfo]) -> Iterator[str]:
    """Yield a warning for each host with fewer cores than ranks."""
    hosts: dict[str, list[int]] = defaultdict(list)
    for i, rank in enumerate(ranks):
        hosts[rank["host"]].append(i)
    for host, own in hosts.items():
        cores = {core for i in own for core in ranks[i]["cores"]}
        if len(cores) < len(own):
            bound = any(len(ranks[i]["cores"]) == 1 for i in own)
            fix = "; if the host has more, use `mpirun --bind-to none` or `srun --cpu-bind=none`" if bound else ""
            yield f"{host}: {len(own)} ranks share {count(len(cores), 'core')}{fix}"


def message_seconds(comm: Comm, clients: int) -> float:
    """Return the median seconds of a broadcast and a gather with one message per rank."""
    comm.place([1.0] * clients)
    layout, x = Layout({"x": (MESSAGE_FLOATS,)}), {"x": torch.zeros(MESSAGE_FLOATS)}
    senders = {own[0]: layout for own in comm.ranks if own}
    seconds = []
    for _ in range(MESSAGE_REPEATS):
        began = time.perf_counter()
        comm.broadcast(x if comm.is_server else None, layout)
        comm.gather({k: x for k in comm.own_clients if k in senders}, senders)
        seconds.append(time.perf_counter() - began)
    return median(seconds)


def same_bits(method: str, clients: int, device: str, directory: Path, comm: Comm) -> bool:
    """Return whether two rounds of a small problem end in the same bits on these ranks and in one process.

    The result is valid on rank 0 only.
    """
    config = RunConfig.of(
        dataset="synthetic", samples=40 * clients, classes=4, dims=(16, 24, 32), feature_dim=16, clients=clients,
        rounds=2, method=method, device=device,
    )  # fmt: skip
    config = resolve(config, directory)
    on_ranks, in_one_process = DigestObserver(), DigestObserver()
    run_rounds(config, directory, comm, [on_ranks])
    if comm.is_server:
        run_rounds(config, directory, SerialComm(), [in_one_process])
    comm.barrier()
    return on_ranks.digests == in_one_process.digests
