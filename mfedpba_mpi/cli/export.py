"""``mfedpba-mpi export``: runs for other programs, as CSV, Parquet or TensorBoard's event files."""

from __future__ import annotations

import importlib
import os
from pathlib import Path

import click

from mfedpba_mpi.cli.paths import PathType
from mfedpba_mpi.errors import UserError


@click.command(short_help="Write runs as CSV, Parquet or TensorBoard event files.")
@click.argument("paths", metavar="RUN|STUDY...", nargs=-1, required=True, type=PathType)
@click.option("--csv", type=PathType, metavar="DIR", help="write CSV files into DIR")
@click.option("--parquet", type=PathType, metavar="DIR", help="write Parquet files into DIR (needs pyarrow)")
@click.option(
    "--tensorboard", type=PathType, metavar="DIR", help="write event files into DIR/<run> (needs tensorboard)"
)
@click.option("--overwrite", is_flag=True, help="replace files that are there")
def export(
    paths: tuple[Path, ...], csv: Path | None, parquet: Path | None, tensorboard: Path | None, overwrite: bool
) -> None:
    """Write runs, finished or not, for other programs.

    \b
    mfedpba-mpi export runs/youtube-m2-mfedpba-s0 --csv tables
    mfedpba-mpi export runs/*/ --parquet tables --tensorboard events

    Tables are rounds (a row a round), clients_rounds (a row for each round and client), clients and modalities, with
    all runs in them; config.json has the settings. docs/reading.md says what the columns are.
    """
    if not (csv or parquet or tensorboard):
        raise UserError("export: nothing to write; choose --csv DIR, --parquet DIR or --tensorboard DIR")
    for wanted, module in ((parquet, "pyarrow"), (tensorboard, "tensorboard")):
        if wanted:
            _need(module)
    from mfedpba_mpi.records.export import Writer, event_files, named, table_files, write
    from mfedpba_mpi.records.run import load_run

    found = (load_run(os.path.abspath(path)) for given in paths for path in _runs_at(given))
    loaded = {run.path: run for run in found}  # each of them once
    runs = named(list(loaded.values()))
    files: dict[Path, Writer] = {}
    if csv:
        files |= table_files(runs, csv, "csv")
    if parquet:
        files |= table_files(runs, parquet, "parquet")
    if tensorboard:
        files |= event_files(runs, tensorboard)
    write(files, overwrite)
    said = sum(run.synthetic for run in runs.values())
    origin = "" if not said else ", SYNTHETIC data" if said == len(runs) else f", {said} of them on SYNTHETIC data"
    from mfedpba_mpi.cli.console import count

    for directory in dict.fromkeys(place for place in (csv, parquet, tensorboard) if place):
        click.echo(f"wrote {directory} ({count(len(runs), 'run')}{origin})")


def _runs_at(path: Path) -> list[Path]:
    """The run at a path, or those of the study there that have begun."""
    from mfedpba_mpi.records.run import LOG_NAME
    from mfedpba_mpi.studies.study_file import FILE, read_study

    if not (path / FILE).is_file():
        return [path]
    begun = [path / key.path for key in read_study(path / FILE).run_keys() if (path / key.path / LOG_NAME).exists()]
    if not begun:
        raise UserError(f"export: no run of the study in {path} has begun")
    return begun


def _need(module: str) -> None:
    try:
        importlib.import_module(module)
    except ImportError:
        raise UserError(f"export: {module} is not installed; pip install 'mfedpba-mpi[export]'") from None
