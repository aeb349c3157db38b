"""``mfedpba-mpi clean``: free the disk that complete runs no longer need, which is mostly checkpoints."""

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
@click.option("--dry-run", is_flag=True, help="say what would be freed; remove nothing")
def clean(paths: tuple[Path, ...], dry_run: bool) -> None:
    """Remove the checkpoints of complete runs, and unfinished files that killed runs have left.

    \b
    mfedpba-mpi clean runs/main-table --dry-run
    mfedpba-mpi clean runs                             all runs below runs

    A complete run without checkpoints is read as before, but cannot be extended any more (`resume --rounds N`). Logs
    are never removed. A run that is going is not touched, and one that is not complete keeps all its checkpoints.
    `mfedpba-mpi data clean` removes the shards of datasets.
    """
    from mfedpba_mpi.cli.console import bytes_of, count

    total = shortened = 0
    for directory in runs_in(paths):
        status, freed = clean_run(directory, dry_run)
        total += freed
        shortened += status == COMPLETE and freed > 0
        if freed or status != COMPLETE:
            click.echo(f"{directory}: {bytes_of(freed)}{'' if status == COMPLETE else f' ({status})'}")
    verb, can = ("would free", "could") if dry_run else ("freed", "can")
    price = f"; {count(shortened, 'run')} {can} no longer be extended" if shortened else ""
    click.echo(f"{verb} {bytes_of(total)}{price}")


def runs_in(paths: Sequence[Path]) -> list[Path]:
    """The directories of the runs at the paths and below, each once."""
    from mfedpba_mpi.records.run import LOG_NAME

    found: dict[Path, Path] = {}
    for path in paths:
        below = {Path(at).resolve(): Path(at) for at, _, files in os.walk(path) if LOG_NAME in files}
        if not below:
            raise UserError(f"clean: there is no run in {path}; give the directory of a run or of a study")
        found |= below
    return sorted(found.values())


def clean_run(directory: Path, dry_run: bool = False) -> tuple[str, int]:
    """Clean the run in a directory; its status, and how many bytes that frees."""
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
            status = INTERRUPTED if status == RUNNING else status  # no process holds the lock: it was killed
            spare = [*checkpoints.glob(".round-*.part"), *directory.glob(f".{LOG_NAME}.part")]
            spare += checkpoints.glob("round-*") if status == COMPLETE else ()
            freed = sum(map(disk_of, spare))
            if not dry_run:
                remove(spare)
                with suppress(OSError):
                    checkpoints.rmdir()  # where nothing is left in it
            return status, freed
    except DirectoryInUse:  # since a moment ago
        return RUNNING, 0


def disk_of(path: Path) -> int:
    """Bytes of a file, or of all files in a directory."""
    return sum(file.lstat().st_size for file in (path.rglob("*") if path.is_dir() else [path]) if not file.is_dir())


def remove(paths: Iterable[Path]) -> None:
    """Remove files and directories."""
    for path in paths:
        try:
            (shutil.rmtree if path.is_dir() else os.unlink)(path)
        except FileNotFoundError:
            pass  # somebody else was faster
        except OSError as error:
            raise UserError(f"cannot remove {path}: {error.strerror}; may you write there?") from None
