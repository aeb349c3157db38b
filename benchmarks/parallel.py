"""Rounds on several ranks against one process, and against what two cores allow.

Runs are started as users start them, ``mpirun -n N``; every time is a median over the later rounds, from the logs.

* ours: seconds a round, of all of it: training, evaluation, the server, messages, the log.
* one process: the same run without mpirun, one thread.
* bound: what this run's own work would take, were it spread over the cores without gaps and nothing else to do. With
  w_k the CPU seconds of client k (training and evaluation, /rounds/seconds_client) and s those of the server,
  max(max_k w_k, sum_k w_k / min(cores, ranks - 1)) + s: a client is never split, the server works alone. The w_k are
  those of the run itself, so the bound knows that two busy cores share caches; "CPU / one process" says how much.
* comm %: share of messages, packing and logging, from the arrival of the last rank on (/rounds/seconds_comm).

`ranks33` and `ranks65` give each of 32 and 64 clients a rank: those that wait must leave the two cores to the others.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.common import Case
from mfedpba_mpi import Run, load_run
from mfedpba_mpi.comm.launcher import available_cores

CORES = len(available_cores())
CALTECH = Path(__file__).parents[2] / "shared" / "data" / "caltech101.h5"
WARM_UP = 1  # rounds that do not count
RANK_MEMORY = 250e6  # bytes


@dataclass
class Measured:
    """A finished run; `memory` is the peak resident size of every rank in bytes, rank 0 first (0 where not seen)."""

    run: Run
    memory: list[int]

    def median(self, name: str) -> float:
        """Median over the later rounds of the seconds of that name."""
        return float(np.median(self.run.rounds[f"seconds_{name}"][WARM_UP:]))

    @property
    def clients(self) -> np.ndarray:
        """(K,) CPU seconds a round."""
        return np.median(self.run.rounds["seconds_client"][WARM_UP:], axis=0)

    @property
    def bound(self) -> float:
        """Seconds a round that the run's own work needs, see above."""
        workers = max(1, int(self.run.attributes["ranks"]) - 1)
        work = self.clients
        return max(work.max(), work.sum() / min(CORES, workers)) + self.median("server")


def mpirun(ranks: int, data_dir: Path, *options: object) -> Measured:
    """Run to the end on that many ranks (1: without mpirun), in a directory that is thrown away."""
    with tempfile.TemporaryDirectory() as out:
        start = ["mpirun", "-n", str(ranks)] if ranks > 1 else []
        given = [*map(str, options), "--data-dir", str(data_dir), "--out", f"{out}/run"]
        line = [*start, sys.executable, "-m", "mfedpba_mpi", "run", *given]
        with subprocess.Popen(line, stdout=subprocess.DEVNULL) as process:
            peaks: dict[int, int] = {}
            while True:
                try:
                    process.wait(0.5)
                    break
                except subprocess.TimeoutExpired:
                    peaks |= _peaks(out)
        if process.returncode:
            raise SystemExit(f"{' '.join(line)} ended with {process.returncode}")
        return Measured(load_run(f"{out}/run"), [peaks.get(rank, 0) for rank in range(ranks)])


def _peaks(marker: str) -> dict[int, int]:
    """VmHWM in bytes by rank, of the Python processes whose command line has `marker`."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            arguments = (process / "cmdline").read_text().split("\0")
            if "python" not in arguments[0] or not any(marker in argument for argument in arguments):
                continue
            variables = dict(part.partition("=")[::2] for part in (process / "environ").read_text().split("\0"))
            status = dict(part.partition(":")[::2] for part in (process / "status").read_text().splitlines())
            rank = variables.get("OMPI_COMM_WORLD_RANK", variables.get("PMI_RANK", "0"))
            found[int(rank)] = 1024 * int(status["VmHWM"].split()[0])
        except (OSError, KeyError):  # it has just ended
            continue
    return found


def compare(case: str, layouts: tuple[int, ...], data_dir: Path, *options: object) -> Iterator[Case]:
    """A case for every layout, each beside the same run in one process."""
    alone = mpirun(1, data_dir, *options)
    for ranks in layouts:
        run = mpirun(ranks, data_dir, *options)
        ours = run.median("total")
        yield Case(
            "parallel",
            f"{case}-n{ranks}",
            {"ours": ours, "one process": alone.median("total"), "bound": run.bound},
            {
                "of bound": run.bound / ours,
                "comm %": 100 * run.median("comm") / ours,
                "CPU / one process": run.clients.sum() / alone.clients.sum(),
            },
        )


def run() -> Iterator[Case]:
    """The paper's youtube and caltech101 layouts."""
    with tempfile.TemporaryDirectory() as directory:
        data_dir = Path(directory)
        yield from compare("youtube", (7, 3), data_dir, "--dataset", "youtube", "--rounds", 7)
        name = "caltech101-stand-in"
        if CALTECH.is_file():
            name = "caltech101"
            line = [sys.executable, "-m", "mfedpba_mpi", "data", "import", name, "--from", CALTECH, "--data-dir"]
            subprocess.run([*line, data_dir], check=True, stdout=subprocess.DEVNULL)
        yield from compare(name, (4, 3), data_dir, "--dataset", "caltech101", "--rounds", 2)


def ranks33() -> Iterator[Case]:
    """32 clients with a rank each, and on three ranks."""
    yield from _a_rank_each(32)


def ranks65() -> Iterator[Case]:
    """64 clients with a rank each, and on three ranks."""
    yield from _a_rank_each(64)


def _a_rank_each(K: int) -> Iterator[Case]:
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    free = 1024 * int(lines["MemAvailable"].split()[0])
    if free < (K + 1) * RANK_MEMORY:
        print(f"skipped: {K + 1} ranks need {(K + 1) * RANK_MEMORY / 1e9:.0f} GB, {free / 1e9:.0f} GB are free")
        return
    with tempfile.TemporaryDirectory() as directory:
        options = ("--dataset", "youtube", "--clients", K, "--rounds", 6)
        yield from compare(f"youtube-k{K}", (K + 1, 3), Path(directory), *options)
