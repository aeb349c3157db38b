"""Options that `study run` and `study submit` share, and the study that they select."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from mfedpba_mpi.cli.paths import PathType, check_data_dir, data_dir_option
from mfedpba_mpi.config.assignments import combine, parse_assignment
from mfedpba_mpi.errors import UserError
from mfedpba_mpi.files import write_text
from mfedpba_mpi.plugins import load_defaults
from mfedpba_mpi.studies.study import RANKS, Study, StudyRun
from mfedpba_mpi.studies.study_file import FILE, find_study, read_study

Function = Callable[..., Any]


def study_options(function: Function) -> Function:
    """Add FILE and the options that select and change a study."""
    for decorate in reversed(
        (
            click.argument("source", metavar="FILE"),
            click.option("--quick", is_flag=True, help="run the study's quick form, which takes a minute or two"),
            click.option(
                "--set", "assignments", multiple=True, metavar="NAME=VALUE[,VALUE]",
                help="change a setting, or the values of a list in [cross]: --set rounds=50 --set seed=0,1",
            ),
            click.option("--ranks", type=int, metavar="N", help="ranks of each run, at most K + 1  [default: 1]"),
            click.option(
                "--out", type=PathType, metavar="DIR",
                help="directory of the study  [default: runs/<study>; with --quick runs/<study>-quick]",
            ),
            data_dir_option,
        )
    ):  # fmt: skip
        function = decorate(function)
    return function


def _check_launcher(ctx: click.Context, param: click.Parameter, text: str) -> str:
    """Refuse a launcher without the name of a program."""
    try:
        words = shlex.split(text)
    except ValueError:
        words = []
    if not words:
        raise click.BadParameter(f"{text!r} is not a command; use for example mpirun")
    return text


launcher_option = click.option(
    "--launcher", default="mpirun", metavar="CMD", callback=_check_launcher,
    help="command that starts several ranks, e.g. 'srun --mpi=pmix'  [default: mpirun]",
)  # fmt: skip
keep_option = click.option(
    "--keep-checkpoints", "keep", type=click.Choice(["last", "all", "none"]),
    help="checkpoints that a complete run keeps; without one it cannot be extended  [default: last; none with --quick]",
)  # fmt: skip


def default_keep(keep: str | None, quick: bool) -> str:
    """The value of --keep-checkpoints."""
    return keep or ("none" if quick else "last")


@dataclass(frozen=True)
class Selection:
    """What the options select.

    Attributes
    ----------
    study : the study with all changes.
    stored : the study of the directory: `study` with the values of earlier calls added to its axes.
    directory : where its runs are.
    runs : all runs of `study`.
    """

    study: Study
    stored: Study
    directory: Path
    runs: list[StudyRun]


def select_study(
    source: str, quick: bool, assignments: Sequence[str], ranks: int | None, out: Path | None, data_dir: Path
) -> Selection:
    """The study that the options of `study_options` select."""
    check_data_dir(data_dir)
    load_defaults()  # the names of settings depend on the methods
    study = find_study(source)
    if quick:
        study = study.quick_form()
    changes = [*map(parse_assignment, assignments), *([] if ranks is None else [(RANKS, ranks)])]
    study = study.with_changes(combine(changes))
    directory = out or (Path(source) if Path(source, FILE).is_file() else Path("runs") / study.name)
    runs = study.plan(data_dir)
    return Selection(study, _add_stored_values(study, directory), directory, runs)


def _add_stored_values(study: Study, directory: Path) -> Study:
    """The study with the values of the study in `directory` added; refuses one with other settings or axes."""
    if not (directory / FILE).is_file():
        return study
    stored = read_study(directory / FILE)
    names = [name for name in {**stored.settings, **study.settings} if name != RANKS]
    differences = [
        f"{name} is {stored.settings.get(name, 'the default')} there, {study.settings.get(name, 'the default')} here"
        for name in names
        if stored.settings.get(name) != study.settings.get(name)
    ]
    if list(stored.axes) != list(study.axes):
        differences.append(f"[cross] has {', '.join(stored.axes)} there, {', '.join(study.axes)} here")
    if differences:
        raise UserError(
            f"out: {directory} contains a study with other settings: {'; '.join(differences)}; choose another --out, "
            f"or continue that study with `mfedpba-mpi study run {directory}`"
        )
    return study.with_values_of(stored)


def store_study(study: Study, directory: Path) -> None:
    """Write the study to its directory."""
    path = directory / FILE
    if path.is_file() and path.read_text(encoding="utf-8") == study.to_toml():
        return  # several elements of a job array may do this at the same time
    try:
        directory.mkdir(parents=True, exist_ok=True)
        write_text(path, study.to_toml())
    except OSError as error:
        raise UserError(f"out: cannot write {path}: {error.strerror}; choose another --out") from None


def prepare_data(runs: Sequence[StudyRun], data_dir: Path, directory: Path) -> dict[Path, str]:
    """Open every dataset once, so that parallel runs do not all make the same stand-in; fingerprints by path of run."""
    from mfedpba_mpi.data.scratch import Scratch
    from mfedpba_mpi.data.sources import open_dataset

    fingerprints: dict[object, str] = {}
    by_path = {}
    for run in runs:
        config = run.config
        key = config.dataset, config.samples, config.classes, config.dims
        if key not in fingerprints:
            fingerprints[key] = open_dataset(config, data_dir, Scratch(data_dir, run=directory)).fingerprint
        by_path[run.path] = fingerprints[key]
    return by_path
