"""Where a process of a run is: a small file that it keeps up to date and that outlives it, with room for orders."""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path

# Who can be there: s the server's process, c the clients', m all of them, but only under MPI
POINTS = {
    "start": "sc",  # before the signals are listened to
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
    """The file of one process, seen from inside (`create`) or from outside."""

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
        """Where the process is, or was when it ended."""
        return NAMES[self["point"]]

    @property
    def failed(self) -> str:
        """Where an error of the operating system was first met, if one was."""
        return NAMES[self["failed"]] if self["failed"] else ""
