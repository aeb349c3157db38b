"""``mfedpba-mpi study``: many runs from one file."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from mfedpba_mpi.cli.paths import PathType
from mfedpba_mpi.cli.study_options import (
    default_keep,
    keep_option,
    launcher_option,
    prepare_data,
    select_study,
    store_study,
    study_options,
)
from mfedpba_mpi.cli.submit import submit
from mfedpba_mpi.comm.launcher import launcher_rank_and_size
from mfedpba_mpi.engine.signals import EXIT_INTERRUPTED
from mfedpba_mpi.errors import COMPLETE, FAILED, INTERRUPTED, WAITING, Ended, UserError
from mfedpba_mpi.studies.study import Study, StudyRun
from mfedpba_mpi.studies.study_file import FILE, find_study, read_study, shipped_studies


@click.group(short_help="Define and run many runs by one file.")
def study() -> None:
    """Run studies: the table of a paper, a grid search, a scaling test. One file describes all runs of a study.

    \b
    mfedpba-mpi study list                             the experiments of the paper
    mfedpba-mpi study run main-table --quick           one of them in small, a minute or two
    mfedpba-mpi study show fusion > mine.toml          a file to start from
    mfedpba-mpi study run mine.toml --dry-run          list the runs, and estimate their time
    mfedpba-mpi study run mine.toml --jobs 4           run, or continue after an interruption
    mfedpba-mpi study submit mine.toml --time 02:00:00 the same as a SLURM job array
    """
    if launcher_rank_and_size()[1] > 1:
        raise UserError("study: starts the ranks of its runs itself; start it without mpirun, and give --ranks N")


@study.command("list", short_help="List the shipped studies.")
def list_studies() -> None:
    """List the studies that come with the program: all experiments of the paper."""
    from mfedpba_mpi.cli.console import console, table

    rows = []
    for shipped in shipped_studies():
        sizes = " x ".join(f"{len(values)} {axis.rpartition('.')[2]}" for axis, values in shipped.axes.items())
        rows.append((shipped.name, shipped.title, sizes))
    console().print(table(["study", "", "runs"], rows))


@study.command()
@click.argument("source", metavar="FILE")
def show(source: str) -> None:
    """Print the file of a study, to start from. FILE may be the name of a shipped study."""
    click.echo(find_study(source).to_toml(named=False), nl=False)


@study.command(short_help="Run or continue a study.")
@study_options
@click.option("--jobs", type=click.IntRange(1), default=1, metavar="N", help="number of parallel runs  [default: 1]")
@click.option("--dry-run", is_flag=True, help="list the runs, and estimate their time; start nothing")
@click.option("--commands", is_flag=True, help="print the command of each run; start nothing")
@click.option("--part", metavar="I/N", help="only every N-th run, starting with the I-th, I from 0 (for job arrays)")
@launcher_option
@keep_option
def run(
    jobs: int, dry_run: bool, commands: bool, part: str | None, launcher: str, keep: str | None, data_dir: Path,
    **options: Any,
) -> None:  # fmt: skip
    """Run or continue a study. FILE is a study file, the name of a shipped study, or the directory of a study.

    \b
    mfedpba-mpi study run main-table --quick --jobs 2
    mfedpba-mpi study run mine.toml --set rounds=50 --set seed=0,1      other settings, or only some runs
    mfedpba-mpi study run runs/mine                                     continue

    Complete runs are skipped; interrupted and failed ones continue from their last checkpoint. A failed run does not
    stop the others. Exit code 0: all complete, 1: some failed, 75: interrupted; repeat the command to continue.
    """
    selection = select_study(data_dir=data_dir, **options)
    directory, stored = selection.directory, selection.stored
    runs = selection.runs[_part_slice(part)]
    from mfedpba_mpi.studies.formats import save, show_table
    from mfedpba_mpi.studies.runner import Runner
    from mfedpba_mpi.studies.tables import tabulate

    if selection.study.alone and jobs > 1:
        click.echo("jobs: 1, because the runs of this study measure time")
        jobs = 1
    runner = Runner(directory, data_dir, jobs, launcher, default_keep(keep, options["quick"]))
    if commands:
        for study_run in runs:
            click.echo(shlex.join(runner.command(study_run)))
        return
    if dry_run:
        _show_estimates(selection.study, directory, runs, data_dir, jobs)
        return
    store_study(stored, directory)
    code = runner.run(runs, prepare_data(runs, data_dir, directory))
    if part is None and code != EXIT_INTERRUPTED:
        tables = tabulate(stored, directory)
        show_table(*tables)
        save(stored, tables, directory)
    if code:
        raise Ended(INTERRUPTED if code == EXIT_INTERRUPTED else FAILED, "", code)


def _part_slice(text: str | None) -> slice:
    """The slice of the runs in a part I/N."""
    if text is None:
        return slice(None)
    try:
        index, count = map(int, text.split("/"))
        if not 0 <= index < count:
            raise ValueError
    except ValueError:
        raise UserError(f"part: {text!r} is not of the form I/N with I from 0 to N - 1") from None
    return slice(index, None, count)


def _show_estimates(study: Study, directory: Path, runs: Sequence[StudyRun], data_dir: Path, jobs: int) -> None:
    """Print the estimated minutes of each run, the time for all that are not complete, and the disk space."""
    from mfedpba_mpi.cli.console import bytes_of, console, count, duration
    from mfedpba_mpi.planning.disk import Disk
    from mfedpba_mpi.records.status import overview, read_state
    from mfedpba_mpi.studies.estimates import estimate, shard_key
    from mfedpba_mpi.studies.formats import show_table
    from mfedpba_mpi.studies.measures import Measure
    from mfedpba_mpi.studies.tables import RunValue, lay_out

    screen = console()
    states = {run.path: read_state(directory / run.path) for run in runs}
    seconds: dict[Path, float] = {}
    disk: dict[Path, Disk] = {}
    with screen.status("calibrating") as status:
        for run, run_seconds, run_disk in estimate(runs, data_dir):
            seconds[run.path], disk[run.path] = run_seconds, run_disk
            status.update(f"calibrating, {len(seconds)} of {len(runs)}")
    minutes = [RunValue(run, seconds[run.path] / 60) for run in runs]
    show_table(lay_out(study, minutes, Measure("estimated minutes per run on this machine", digits=1, plain=True)))
    screen.print(f"{count(len(runs), 'run')} in {directory}: {overview(states.values())}", markup=False)
    todo = [run for run in runs if states[run.path].status != COMPLETE]
    total = sum(seconds[run.path] * (1 - states[run.path].rounds / run.config.rounds) for run in todo)
    parallel = f", {duration(total / jobs)} with {jobs} parallel runs on as many cores" if jobs > 1 else ""
    screen.print(f"time to completion: {duration(total)} with one run at a time{parallel}")
    shards = {shard_key(run.config): disk[run.path].shards for run in runs}
    screen.print(
        f"disk space of all runs: logs {bytes_of(sum(d.log for d in disk.values()))}, checkpoints "
        f"{bytes_of(sum(d.checkpoint for d in disk.values()))} (none with --keep-checkpoints none), shards "
        f"{bytes_of(sum(shards.values()))} in {data_dir / 'shards'}",
        markup=False,
    )


@study.command(short_help="Show the progress of a study.")
@click.argument("directory", metavar="DIR", type=PathType)
def status(directory: Path) -> None:
    """Show the progress of the study in DIR, with all runs that have started and are not complete."""
    from mfedpba_mpi.cli.console import console, count, table
    from mfedpba_mpi.records.run import in_full
    from mfedpba_mpi.records.status import overview, read_state

    stored = _stored_study(directory)
    states = {key.path: read_state(directory / key.path) for key in stored.run_keys()}
    rows = [(p, s.status, s.progress, s.reason) for p, s in states.items() if s.status not in (COMPLETE, WAITING)]
    if rows:
        console().print(table(["run", "status", "rounds", ""], rows))
    click.echo(f"{stored.title}: {count(len(states), 'run')} in {in_full(directory)}: {overview(states.values())}")


def _stored_study(directory: Path) -> Study:
    if not (directory / FILE).is_file():
        raise UserError(f"no study in {directory}; the directory of a study contains {FILE}")
    return read_study(directory / FILE)


@study.command("table", short_help="Print the table of a study.")
@click.argument("directory", metavar="DIR", type=PathType)
@click.option(
    "--format", "format_name", default="text", metavar="NAME", help="text, markdown, latex or csv  [default: text]"
)
@click.option(
    "--measure", default="", metavar="NAME[,NAME]",
    help="numbers in each cell  [default: the study's, or last_five,best]",
)  # fmt: skip
@click.option(
    "--against",
    default="",
    metavar="COLUMN",
    help="subtract this column, seed by seed, e.g. Local or 'FedProto, classifier'",
)
@click.option("--save", "saving", is_flag=True, help="also write DIR/table.txt, .md, .tex, .csv and DIR/runs.csv")
def show_study_table(directory: Path, format_name: str, measure: str, against: str, saving: bool) -> None:
    """Print the table of the study in DIR: mean and standard deviation over seeds, best bold, second best underlined.

    Several measures are rows below each other, or columns if the study has only one.

    \b
    mfedpba-mpi study table runs/main-table --format latex
    mfedpba-mpi study table runs/main-table --measure last_five --against Local

    \b
    Measures:
    last_five        mean accuracy of the last five rounds, for each predictor of a method
    last, best       accuracy of the last round, of the best round
    client_mean      unweighted mean over clients (last five rounds)
    seconds          time per round
    client_seconds   CPU time of a client per round
    kilobytes        payload per round
    diverged         clients that lose two fifths of their accuracy from one round to the next, after round 10
    largest_fall     largest fall of the average accuracy from one round to the next, after round 10, in points
    plan_trace       trace of MFedPBA's transport plans (1: every class is matched with itself)
    from_one, from_two, from_few   share of prototypes that are means of one, two, fewer than five samples
    """
    from mfedpba_mpi.config.fields import unknown
    from mfedpba_mpi.studies.formats import FORMATS, save, show_table
    from mfedpba_mpi.studies.tables import tabulate

    if format_name not in FORMATS:
        raise unknown("format", format_name, FORMATS)
    stored = _stored_study(directory)
    tables = tabulate(stored, directory, [name.strip() for name in measure.split(",") if name.strip()], against)
    if format_name == "text":
        show_table(*tables)
    else:
        click.echo(FORMATS[format_name][1](*tables), nl=False)
    if saving:
        save(stored, tables, directory)


study.add_command(submit)
