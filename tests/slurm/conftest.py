"""A real SLURM for tests; without root on Debian they are skipped."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mfedpba_mpi import Run, load_run
from tests.slurm.cluster import Cluster, unavailable


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """The nodes n1 and n2, see `Cluster` for what can be done with them."""
    if reason := unavailable():
        pytest.skip(reason)
    with Cluster() as running:
        yield running


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the stores of all these tests are."""
    return tmp_path_factory.mktemp("stores")


@pytest.fixture(scope="session")
def unbatched(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Run]:
    """A function that runs ``mfedpba-mpi ARGS`` in one process, once for the same ARGS, and returns the log."""
    done: dict[tuple[object, ...], Run] = {}

    def run(*args: object) -> Run:
        if args not in done:
            out = tmp_path_factory.mktemp("unbatched") / "out"
            line = (sys.executable, "-m", "mfedpba_mpi", *args, "--data-dir", data_dir, "--out", out)
            subprocess.run([*map(str, line)], check=True, capture_output=True, timeout=120)
            done[args] = load_run(out)
        return done[args]

    return run
