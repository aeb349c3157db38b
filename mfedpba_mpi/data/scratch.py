"""Scratch directories for shards and synthetic stand-ins: the data directory, or another one if it is read-only."""

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
    """Candidate scratch directories; the first writable one is used.

    Attributes
    ----------
    given : the directory set by the user; it (or $MFEDPBA_SCRATCH) replaces all other candidates.
    run : the run directory, visible to all ranks.
    one_host : whether all ranks run on one host and share its temporary directories.
    """

    data_dir: Path
    given: str = ""
    run: Path | None = None
    one_host: bool = True

    def find(self, name: str, is_good: Callable[[Path], bool]) -> tuple[Path, bool]:
        """Return the path of the file `name` (e.g. ``shards/a.h5``) and whether a valid one (`is_good`) exists there.

        Without a valid file, the path is where to write it.
        """
        if self.data_dir.exists() and not self.data_dir.is_dir():
            raise UserError(f"data-dir: {self.data_dir} is not a directory; give the directory of the stores")
        path = self.data_dir / name
        if is_good(path):
            return path, True
        tried = []
        for directory in self._candidates():
            path = directory / name
            if error := _write_error(path.parent):
                tried.append(f"{directory} ({error})")
            else:
                return path, is_good(path)
        raise UserError(f"scratch: cannot write in {', '.join(tried)}; give another directory with --scratch")

    def _candidates(self) -> Iterator[Path]:
        if given := self.given or os.environ.get(VARIABLE):
            yield Path(given)
            return
        yield self.data_dir
        if self.one_host:
            bases = (os.environ.get("SLURM_TMPDIR"), os.environ.get("TMPDIR"), "/tmp")
            yield from filter(None, map(_private_directory, bases))
        if self.run:
            yield self.run


def _write_error(directory: Path) -> str:
    """Create a directory and a temporary file in it; return the error message, or an empty string on success."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            return ""
    except OSError as error:
        return error.strerror or str(error)


def _private_directory(base: str | None) -> Path | None:
    """Create a directory in `base` that only this user can read and write; return None if that is impossible."""
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
