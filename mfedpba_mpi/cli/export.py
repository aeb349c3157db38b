"""``mfedpba-mpi export``: runs as CSV, Parquet or TensorBoard event files."""

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
@click.option("--overwrite", is_flag=True, help="replace existing files")
def export(
    paths: tuple[Path, ...], csv: Path | None, parquet: Path | None, tensorboard: Path | None, overwrite: bool
) -> None:
    """Export runs, finished or not, for other programs.

    \b
    mfedpba-mpi export runs/youtube-m2-mfedpba-s0 --csv tables
    mfedpba-mpi export runs/*/ --parquet tables --tensorboard events

    CSV and Parquet files contain all runs: rounds, clients_rounds (a row per round and client), clients and modalities;
    config.json has the settings. docs/reading.md describes the columns.
    """
    if not (csv or parquet or tensorboard):
        raise UserError("export: no format given; choose --csv DIR, --parquet DIR or --tensorboard DIR")
    for wanted, module in ((parquet, "pyarrow"), (tensorboard, "tensorboard")):
        if wanted:
            _require(module)
    from mfedpba_mpi.records.export import Writer, event_files, named, table_files, write
    from mfedpba_mpi.records.run import load_run

    loaded = (load_run(os.path.abspath(run_path)) for path in paths for run_path in _runs_in(path))
    runs = named(list({run.path: run for run in loaded}.values()))  # without duplicates
    files: dict[Path, Writer] = {}
    if csv:
        files |= table_files(runs, csv, "csv")
    if parquet:
        files |= table_files(runs, parquet, "parquet")
    if tensorboard:
        files |= event_files(runs, tensorboard)
    write(files, overwrite)
    synthetic = sum(run.synthetic for run in runs.values())
    every = synthetic == len(runs)
    origin = "" if not synthetic else ", SYNTHETIC data" if every else f", {synthetic} of them on SYNTHETIC data"
    from mfedpba_mpi.cli.console import count

    for directory in dict.fromkeys(filter(None, (csv, parquet, tensorboard))):
        click.echo(f"wrote {directory} ({count(len(runs), 'run')}{origin})")


def _runs_in(path: Path) -> list[Path]:
    """The path of a run, or of all runs of a study that have started."""
    from mfedpba_mpi.records.run import LOG_NAME
    from mfedpba_mpi.studies.study_file import FILE, read_study

    if not (path / FILE).is_file():
        if path.is_dir() and not (path / LOG_NAME).is_file():
            raise UserError(
                f"export: {path} contains neither {LOG_NAME} nor {FILE}; give the directories of runs, for example "
                f"{path}/*/, or of a study"
            )
        return [path]
    started = [path / key.path for key in read_study(path / FILE).run_keys() if (path / key.path / LOG_NAME).exists()]
    if not started:
        raise UserError(f"export: no run of the study in {path} has started")
    return started


def _require(module: str) -> None:
    try:
        importlib.import_module(module)
    except ImportError:
        raise UserError(f"export: {module} is not installed; pip install 'mfedpba-mpi[export]'") from None
