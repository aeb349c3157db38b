"""What a run has left on the disk, read without the package's own code for checkpoints, and ways to spoil it."""

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


def places(run: Path) -> list[Path]:
    """The directories of a run's checkpoints, the newest first."""
    return sorted((run / "checkpoints").glob("round-*"), reverse=True)


def is_sound(place: Path) -> bool:
    """Whether a checkpoint is as it was written."""
    try:
        outer = json.loads((place / "manifest.json").read_bytes())
        if hashlib.sha256(outer["body"].encode()).hexdigest() != outer["sha256"]:
            return False
        for name, about in json.loads(outer["body"])["files"].items():
            data = (place / name).read_bytes()
            if len(data) != about["bytes"] or hashlib.sha256(data).hexdigest() != about["sha256"]:
                return False
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return True


def newest_sound(run: Path) -> int:
    """The round of the newest checkpoint that is sound, 0 where there is none."""
    return next((int(place.name.removeprefix("round-")) for place in places(run) if is_sound(place)), 0)


def spoil(path: Path, rng: random.Random) -> str:
    """Flip a bit of a file, or cut it short, in place; in words."""
    size = path.stat().st_size
    with open(path, "r+b") as file:
        if rng.random() < 0.3 or not size:
            left = rng.randrange(size) if size else 0
            file.truncate(left)
            return f"{path.name} cut to {left} of {size} bytes"
        where, bit = rng.randrange(size), rng.randrange(8)
        file.seek(where)
        byte = file.read(1)[0]
        file.seek(where)
        file.write(bytes([byte ^ 1 << bit]))
        return f"{path.name} bit {bit} of byte {where} flipped"


def differences(run: Run, reference: Run, whole: bool) -> list[str]:
    """Where a run is not the reference, or, unless `whole`, not its beginning; times aside."""
    found = []
    names = {name for name in run.rounds | reference.rounds if not name.startswith("seconds_")}
    lengths = {len(values) for values in run.rounds.values()}
    if len(lengths) > 1:
        found.append(f"/rounds has columns of {sorted(lengths)} rows")
    length = max(lengths, default=0)
    if whole and length != len(reference.rounds["accuracy"]):
        found.append(f"{length} rounds, not {len(reference.rounds['accuracy'])}")
    for name in sorted(names if length else ()):
        if name not in run.rounds or name not in reference.rounds:
            found.append(f"/rounds/{name} is in one of them only")
        elif not _same(run.rounds[name], reference.rounds[name][:length]):
            found.append(f"/rounds/{name}")
    parts = {"partition": (run.partition, reference.partition)}
    if whole:
        parts["final"] = (run.final, reference.final)
    ignored = {"rank"}  # where a client lives is not a result
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
    """A file system of its own, which can be filled up."""

    def __init__(self, path: Path):
        self._filler = path / ".filler"

    def fill(self) -> None:
        """Take all the space there is."""
        with suppress(OSError), open(self._filler, "ab", buffering=0) as file:
            for size in (2**20, 2**12):
                with suppress(OSError):
                    while True:
                        file.write(bytes(size))

    def clear(self) -> None:
        """Give it back."""
        self._filler.unlink(missing_ok=True)


@contextmanager
def small_disk(path: Path, megabytes: int) -> Iterator[SmallDisk | None]:
    """A tmpfs at `path`, unmounted at the end, however that comes; None where none may be mounted."""
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
