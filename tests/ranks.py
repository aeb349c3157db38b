"""Settings of runs on several ranks, and the process of a rank."""

import os
from contextlib import suppress
from pathlib import Path

import pytest

TINY = (
    "--dataset", "synthetic", "--samples", 160, "--classes", 4, "--dims", "6,40,9,12", "--feature-dim", 8, "--rounds", 3
)  # fmt: skip
LONG = (*TINY[:-1], 100000)


def process_of(rank: int, directory: Path) -> int:
    """Return the process id of a rank of the run that was started in `directory`."""
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (path / "environ").read_bytes().split(b"\0")
            here = os.readlink(path / "cwd") == str(directory) and b"mfedpba_mpi" in (path / "cmdline").read_bytes()
            if here and {b"OMPI_COMM_WORLD_RANK=%d" % rank, b"PMI_RANK=%d" % rank} & set(words):
                return int(path.name)
    return pytest.fail(f"no process of rank {rank}")
