"""Rounds on several ranks, compared with one process and with a lower bound for the available cores.

Runs are started with ``mpirun -n N``. Every time is the median over all rounds but the first, read from the log.

* ours: seconds per round, including training, evaluation, server, messages and log.
* one process: the same run without mpirun, with one thread.
* bound: a lower bound for the run's own work, spread over the cores without gaps. With w_k the CPU seconds of client k
  (training and evaluation, /rounds/seconds_client) and s the seconds of the server, it is
  max(max_k w_k, sum_k w_k / min(cores, ranks - 1)) + s: a client is never split, and the server works alone. The w_k
  come from the run itself, so they include the slowdown of busy cores that share caches; "CPU / one process" is that
  slowdown.
* comm %: messages, packing and logging after the last rank has arrived (/rounds/seconds_comm), as a share of the round.

`ranks33` and `ranks65` run 32 and 64 clients with one rank each: waiting ranks must leave the cores to working ones.
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
WARM_UP = 1  # rounds left out of the medians
RANK_MEMORY = 250e6  # bytes that a rank needs


@dataclass
class Measured:
    """A finished run; `memory` is the peak resident size in bytes of each rank, 0 where it was not observed."""

    run: Run
    memory: list[int]

    def median(self, name: str) -> float:
        """Return the median of /rounds/seconds_<name> without the warm-up."""
        return float(np.median(self.run.rounds[f"seconds_{name}"][WARM_UP:]))

    @property
    def clients(self) -> np.ndarray:
        """Median CPU seconds per round of each client (K,)."""
        return np.median(self.run.rounds["seconds_client"][WARM_UP:], axis=0)

    @property
    def bound(self) -> float:
        """Lower bound for the seconds of a round; see the module docstring."""
        workers = max(1, int(self.run.attributes["ranks"]) - 1)
        work = self.clients
        return max(work.max(), work.sum() / min(CORES, workers)) + self.median("server")


def mpirun(ranks: int, data_dir: Path, *options: object) -> Measured:
    """Run `mfedpba-mpi run` with these options on `ranks` ranks (1: without mpirun) in a temporary directory."""
    with tempfile.TemporaryDirectory() as out:
        launcher = ["mpirun", "-n", str(ranks)] if ranks > 1 else []
        given = [*map(str, options), "--data-dir", str(data_dir), "--out", f"{out}/run"]
        command = [*launcher, sys.executable, "-m", "mfedpba_mpi", "run", *given]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            peaks: dict[int, int] = {}
            while True:
                try:
                    process.wait(0.5)
                    break
                except subprocess.TimeoutExpired:
                    peaks |= _peaks(out)
        if process.returncode:
            raise SystemExit(f"{' '.join(command)} exited with code {process.returncode}")
        return Measured(load_run(f"{out}/run"), [peaks.get(rank, 0) for rank in range(ranks)])


def _peaks(marker: str) -> dict[int, int]:
    """Return VmHWM in bytes by rank, of Python processes with `marker` in their command line."""
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
        except (OSError, KeyError):  # the process has just ended
            continue
    return found


def compare(case: str, rank_counts: tuple[int, ...], data_dir: Path, *options: object) -> Iterator[Case]:
    """Yield a case for each number of ranks, compared with the same run in one process."""
    alone = mpirun(1, data_dir, *options)
    for ranks in rank_counts:
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
    """The default youtube and caltech101 runs, with one rank per client and with three ranks."""
    with tempfile.TemporaryDirectory() as directory:
        data_dir = Path(directory)
        yield from compare("youtube", (7, 3), data_dir, "--dataset", "youtube", "--rounds", 7)
        name = "caltech101-stand-in"
        if CALTECH.is_file():
            name = "caltech101"
            command = [sys.executable, "-m", "mfedpba_mpi", "data", "import", name, "--from", CALTECH, "--data-dir"]
            subprocess.run([*command, data_dir], check=True, stdout=subprocess.DEVNULL)
        yield from compare(name, (4, 3), data_dir, "--dataset", "caltech101", "--rounds", 2)


def ranks33() -> Iterator[Case]:
    """32 clients with one rank each, and on three ranks."""
    yield from _one_rank_per_client(32)


def ranks65() -> Iterator[Case]:
    """64 clients with one rank each, and on three ranks."""
    yield from _one_rank_per_client(64)


def _one_rank_per_client(K: int) -> Iterator[Case]:
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    free = 1024 * int(lines["MemAvailable"].split()[0])
    if free < (K + 1) * RANK_MEMORY:
        print(f"skipped: {K + 1} ranks need {(K + 1) * RANK_MEMORY / 1e9:.0f} GB, {free / 1e9:.0f} GB are free")
        return
    with tempfile.TemporaryDirectory() as directory:
        options = ("--dataset", "youtube", "--clients", K, "--rounds", 6)
        yield from compare(f"youtube-k{K}", (K + 1, 3), Path(directory), *options)
