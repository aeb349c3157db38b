"""``mfedpba-mpi clean``: remove checkpoints of complete runs and temporary files of killed ones."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path

import click

from mfedpba_mpi.cli.paths import PathType
from mfedpba_mpi.errors import COMPLETE, INTERRUPTED, RUNNING, UserError


@click.command(short_help="Remove the checkpoints of complete runs.")
@click.argument("paths", metavar="RUN|STUDY...", nargs=-1, required=True, type=PathType)
@click.option("--dry-run", is_flag=True, help="show what would be freed; remove nothing")
def clean(paths: tuple[Path, ...], dry_run: bool) -> None:
    """Remove the checkpoints of complete runs, and temporary files of killed runs.

    \b
    mfedpba-mpi clean runs/main-table --dry-run
    mfedpba-mpi clean runs                             all runs in runs/

    Logs are never removed. A complete run without checkpoints can still be read, but no longer extended (`resume
    --rounds N`). Active runs are skipped, and incomplete runs keep their checkpoints. `mfedpba-mpi data clean` removes
    the shards of datasets.
    """
    from mfedpba_mpi.cli.console import bytes_of, count

    total = not_extendable = 0
    for directory in runs_in(paths):
        status, freed = clean_run(directory, dry_run)
        total += freed
        not_extendable += status == COMPLETE and freed > 0
        if freed or status != COMPLETE:
            click.echo(f"{directory}: {bytes_of(freed)}{'' if status == COMPLETE else f' ({status})'}")
    verb, can = ("would free", "could") if dry_run else ("freed", "can")
    note = f"; {count(not_extendable, 'run')} {can} no longer be extended" if not_extendable else ""
    click.echo(f"{verb} {bytes_of(total)}{note}")


def runs_in(paths: Sequence[Path]) -> list[Path]:
    """The directories of all runs in `paths`, without duplicates."""
    from mfedpba_mpi.records.run import LOG_NAME

    directories: dict[Path, Path] = {}
    for path in paths:
        in_path = {Path(root).resolve(): Path(root) for root, _, files in os.walk(path) if LOG_NAME in files}
        if not in_path:
            raise UserError(f"clean: no run in {path}; give the directory of a run or of a study")
        directories |= in_path
    return sorted(directories.values())


def clean_run(directory: Path, dry_run: bool = False) -> tuple[str, int]:
    """Clean the run in a directory; return its status and the number of bytes freed."""
    from mfedpba_mpi.records.lock import DirectoryInUse, held, locked
    from mfedpba_mpi.records.run import CHECKPOINTS, LOG_NAME, load_run
    from mfedpba_mpi.records.status import UNREADABLE

    if held(directory):
        return RUNNING, 0
    checkpoints = directory / CHECKPOINTS
    try:
        with nullcontext() if dry_run else locked(directory):
            try:
                status = load_run(directory).status
            except UserError:
                status = UNREADABLE
            status = INTERRUPTED if status == RUNNING else status  # no process holds the lock, so it was killed
            removable = [*checkpoints.glob(".round-*.part"), *directory.glob(f".{LOG_NAME}.part")]
            removable += checkpoints.glob("round-*") if status == COMPLETE else ()
            freed = sum(map(disk_of, removable))
            if not dry_run:
                remove(removable)
                with suppress(OSError):
                    checkpoints.rmdir()  # if it is empty
            return status, freed
    except DirectoryInUse:  # it has just been started
        return RUNNING, 0


def disk_of(path: Path) -> int:
    """Size of a file, or of all files in a directory, in bytes."""
    return sum(file.lstat().st_size for file in (path.rglob("*") if path.is_dir() else [path]) if not file.is_dir())


def remove(paths: Iterable[Path]) -> None:
    """Remove files and directories."""
    for path in paths:
        try:
            (shutil.rmtree if path.is_dir() else os.unlink)(path)
        except FileNotFoundError:
            pass  # another process has removed it
        except OSError as error:
            raise UserError(f"cannot remove {path}: {error.strerror}; check permissions") from None
