"""Where shards and stand-ins are written: beside the data, or elsewhere where those are read-only."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from mfedpba_mpi.errors import UserError

VARIABLE = "MFEDPBA_SCRATCH"


@dataclass(frozen=True)
class Scratch:
    """The places to write in, the first that can be written is taken.

    Attributes
    ----------
    given : the only place, where the user has named one (or $MFEDPBA_SCRATCH).
    run : a directory that all ranks see, the run's own.
    one_host : whether all ranks see the same temporary directories.
    """

    data_dir: Path
    given: str = ""
    run: Path | None = None
    one_host: bool = True

    def find(self, name: str, is_good: Callable[[Path], bool]) -> tuple[Path, bool]:
        """Where the good file `name`, as ``shards/a.h5``, is (True), or where it is to be made (False)."""
        if self.data_dir.exists() and not self.data_dir.is_dir():
            raise UserError(f"data-dir: {self.data_dir} is not a directory; name the one that holds the stores")
        path = self.data_dir / name
        if is_good(path):
            return path, True
        tried = []
        for place in self._places():
            path = place / name
            if error := _obstacle(path.parent):
                tried.append(f"{place} ({error})")
            else:
                return path, is_good(path)
        raise UserError(f"scratch: cannot write in {', '.join(tried)}; name another directory with --scratch")

    def _places(self) -> Iterator[Path]:
        if given := self.given or os.environ.get(VARIABLE):
            yield Path(given)
            return
        yield self.data_dir
        if self.one_host:
            yield from filter(None, map(_private, (os.environ.get("SLURM_TMPDIR"), os.environ.get("TMPDIR"), "/tmp")))
        if self.run:
            yield self.run


def _obstacle(folder: Path) -> str:
    """Why nothing can be written in a folder, which is made where it is missing; found out by trying."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return ""
    except OSError as error:
        return error.strerror or str(error)


def _private(base: str | None) -> Path | None:
    """A directory in `base` that nobody but this user can write or read; None where there cannot be one."""
    if not base:
        return None
    path = Path(base) / f"mfedpba-mpi-{os.getuid()}"
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
    except OSError:
        return None
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077
    return path if is_ours else None
