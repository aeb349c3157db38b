"""Inspect and damage the files of a run, without the package's own checkpoint code."""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from mfedpba_mpi.records.run import Run


def checkpoints(run: Path) -> list[Path]:
    """Return the checkpoint directories of a run, newest first."""
    return sorted((run / "checkpoints").glob("round-*"), reverse=True)


def is_valid(checkpoint: Path) -> bool:
    """Whether all checksums of a checkpoint are right."""
    try:
        outer = json.loads((checkpoint / "manifest.json").read_bytes())
        if hashlib.sha256(outer["body"].encode()).hexdigest() != outer["sha256"]:
            return False
        for name, entry in json.loads(outer["body"])["files"].items():
            data = (checkpoint / name).read_bytes()
            if len(data) != entry["bytes"] or hashlib.sha256(data).hexdigest() != entry["sha256"]:
                return False
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return True


def newest_valid(run: Path) -> int:
    """Return the round of the newest valid checkpoint, 0 if there is none."""
    return next((int(path.name.removeprefix("round-")) for path in checkpoints(run) if is_valid(path)), 0)


def damage(path: Path, rng: random.Random) -> str:
    """Flip a bit of a file or truncate it, in place; return a description."""
    size = path.stat().st_size
    with open(path, "r+b") as file:
        if rng.random() < 0.3 or not size:
            length = rng.randrange(size) if size else 0
            file.truncate(length)
            return f"{path.name} truncated to {length} of {size} bytes"
        position, bit = rng.randrange(size), rng.randrange(8)
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 1 << bit]))
        return f"{path.name} bit {bit} of byte {position} flipped"


def differences(run: Run, reference: Run, whole: bool) -> list[str]:
    """List where a run differs from the reference, or unless `whole` from its first rounds; times are ignored."""
    found = []
    names = {name for name in run.rounds | reference.rounds if not name.startswith("seconds_")}
    lengths = {len(values) for values in run.rounds.values()}
    if len(lengths) > 1:
        found.append(f"/rounds has columns of {sorted(lengths)} rows")
    length = max(lengths, default=0)
    if whole and length != len(reference.rounds["accuracy"]):
        found.append(f"{length} rounds instead of {len(reference.rounds['accuracy'])}")
    for name in sorted(names if length else ()):
        if name not in run.rounds or name not in reference.rounds:
            found.append(f"/rounds/{name} is in only one of the two")
        elif not _same(run.rounds[name], reference.rounds[name][:length]):
            found.append(f"/rounds/{name}")
    parts = {"partition": (run.partition, reference.partition)}
    if whole:
        parts["final"] = (run.final, reference.final)
    ignored = {"rank"}  # the rank of a client is not a result
    return found + [
        f"/{part}/{name}"
        for part, (one, other) in parts.items()
        for name in sorted({*one, *other} - ignored)
        if not _same(one.get(name), other.get(name))
    ]


def _same(one: object, other: object) -> bool:
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    return type(one) is type(other) and one == other


class SmallDisk:
    """A separate small file system, which can be filled up."""

    def __init__(self, path: Path):
        self._filler = path / ".filler"

    def fill(self) -> None:
        """Use all free space."""
        with suppress(OSError), open(self._filler, "ab", buffering=0) as file:
            for size in (2**20, 2**12):
                with suppress(OSError):
                    while True:
                        file.write(bytes(size))

    def clear(self) -> None:
        """Free the space again."""
        self._filler.unlink(missing_ok=True)


@contextmanager
def small_disk(path: Path, megabytes: int) -> Iterator[SmallDisk | None]:
    """Mount a tmpfs at `path` and always unmount it at the end; yield None if mounting is not permitted."""
    path.mkdir(parents=True)
    line = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "chaos", str(path)]
    mounted = os.geteuid() == 0 and subprocess.run(line, capture_output=True).returncode == 0
    try:
        yield SmallDisk(path) if mounted else None
    finally:
        for _ in range(50 if mounted else 0):
            if subprocess.run(["umount", str(path)], capture_output=True).returncode == 0:
                break
            time.sleep(0.1)
