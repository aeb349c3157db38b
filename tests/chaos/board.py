"""Boards: a small shared-memory file per process with its current point and round, which outlives the process."""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path

# Processes that pass the point: s the server's (rank 0), c the clients', m all, but only under MPI
POINTS = {
    "start": "sc",  # before the signal handlers are installed
    "importing": "sc",
    "set-up": "sc",
    "find checkpoint": "s",
    "restore": "sc",
    "training": "c",
    "server step": "s",
    "evaluation": "c",
    "waiting": "m",
    "snapshot": "sc",
    "log half written": "s",
    "log not yet moved": "s",
    "log moved": "s",
    "file half written": "c",  # the rank's part of a checkpoint
    "file to disk": "sc",
    "server file half written": "s",
    "log half copied": "s",
    "manifest half written": "s",
    "checkpoint not yet moved": "s",
    "checkpoint moved": "s",
    "pruning": "s",
    "end": "sc",
    "leaving": "sc",
}
NAMES = ("elsewhere", *POINTS)
_FIELDS = {name: 8 * i for i, name in enumerate(("pid", "point", "round", "held", "release", "failed"))}


class Board:
    """The board of one process, opened by itself (`create`) or by the observer."""

    def __init__(self, path: Path, create: bool = False):
        if create:
            aside = path.with_suffix(".new")
            aside.write_bytes(bytes(mmap.PAGESIZE))
            with open(aside, "r+b") as file:
                self._map = mmap.mmap(file.fileno(), mmap.PAGESIZE)
            self["pid"] = os.getpid()
            os.rename(aside, path)
        else:
            with open(path, "r+b") as file:
                self._map = mmap.mmap(file.fileno(), mmap.PAGESIZE)

    def __getitem__(self, name: str) -> int:
        return struct.unpack_from("<q", self._map, _FIELDS[name])[0]

    def __setitem__(self, name: str, value: int) -> None:
        struct.pack_into("<q", self._map, _FIELDS[name], value)

    @property
    def point(self) -> str:
        """The current point of the process, or the last one before it ended."""
        return NAMES[self["point"]]

    @property
    def failed(self) -> str:
        """The point of the first OSError, or an empty string."""
        return NAMES[self["failed"]] if self["failed"] else ""
