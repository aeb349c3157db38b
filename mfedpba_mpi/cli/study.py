"""`mfedpba-mpi study ...`: many runs from one file."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from math import ceil
from pathlib import Path
from typing import Any

import click

from mfedpba_mpi.cli.paths import PathType, check_data_dir, data_dir_option
from mfedpba_mpi.comm.launcher import launcher_rank_and_size
from mfedpba_mpi.config.assignments import combine, parse_assignment
from mfedpba_mpi.engine.signals import EXIT_INTERRUPTED
from mfedpba_mpi.errors import COMPLETE, FAILED, INTERRUPTED, WAITING, Ended, UserError
from mfedpba_mpi.files import write_text
from mfedpba_mpi.plugins import load_defaults
from mfedpba_mpi.studies.study import FILE, RANKS, PlannedRun, Study, find_study, read_study, shipped_studies

Function = Callable[..., Any]


@click.group(short_help="Many runs from one file.")
def study() -> None:
    """Many runs from one file: a table of a paper, a grid, a scaling study.

    \b
    mfedpba-mpi study list                             the paper's experiments, ready to run
    mfedpba-mpi study run main-table --quick           a minute or two
    mfedpba-mpi study show fusion > mine.toml          to start from
    mfedpba-mpi study run mine.toml --dry-run          what it would run, and for how long
    mfedpba-mpi study run mine.toml --jobs 4           again to go on, after whatever happened
    mfedpba-mpi study submit mine.toml --time 02:00:00 the same as a SLURM job array
    """
    if launcher_rank_and_size()[1] > 1:
        raise UserError("study: starts the ranks of its runs itself; start it without mpirun (--ranks N says how many)")


def _some_program(ctx: click.Context, param: click.Parameter, text: str) -> str:
    """A launcher, which has to name a program."""
    try:
        words = shlex.split(text)
    except ValueError:
        words = []
    if not words:
        raise click.BadParameter(f"{text!r} names no program; give one, for example mpirun")
    return text


keep_option = click.option(
    "--keep-checkpoints", "keep", type=click.Choice(["last", "all", "none"]),
    help="which ones a complete run keeps; with none it cannot be extended  [default: last, with --quick none]",
)  # fmt: skip


def _study_options(function: Function) -> Function:
    """FILE, and what may be changed of it on the command line."""
    for decorate in reversed(
        (
            click.argument("source", metavar="FILE"),
            click.option("--quick", is_flag=True, help="the study's quick form, of a minute or two"),
            click.option(
                "--set", "assignments", multiple=True, metavar="NAME=VALUE[,VALUE]",
                help="change a setting, or cut a list to these values: --set rounds=50 --set seed=0,1",
            ),
            click.option("--ranks", type=int, metavar="N", help="ranks of each run, at most K + 1  [default: 1]"),
            click.option("--out", type=PathType, metavar="DIR", help="where the runs go  [default: runs/<study>]"),
            data_dir_option,
        )
    ):  # fmt: skip
        function = decorate(function)
    return function


def _selected(
    source: str, quick: bool, assignments: Sequence[str], ranks: int | None, out: Path | None, data_dir: Path
) -> tuple[Study, Study, Path, list[PlannedRun]]:
    """The study that the options describe, the directory's, of which it may be a part, the directory, and its runs."""
    check_data_dir(data_dir)
    load_defaults()  # names of settings depend on the methods there are
    found = find_study(source)
    if quick:
        found = found.shortened()
    changes = [*map(parse_assignment, assignments), *([] if ranks is None else [(RANKS, ranks)])]
    found = found.changed(combine(changes))
    directory = out or (Path(source) if Path(source, FILE).is_file() else Path("runs") / found.name)
    runs = found.plan(data_dir)
    return found, _study_of(found, directory), directory, runs


def _study_of(found: Study, directory: Path) -> Study:
    """The study of the directory with this one: their lists joined; one with other settings or lists is refused."""
    if not (directory / FILE).is_file():
        return found
    there = read_study(directory / FILE)
    old, new = ({**s.settings, "lists to cross": list(s.axes)} for s in (there, found))
    names = [name for name in {**old, **new} if name != RANKS and old.get(name) != new.get(name)]
    if names:
        words = "; ".join(
            f"{name} is {old.get(name, 'the default')} there, {new.get(name, 'the default')} here" for name in names
        )
        raise UserError(
            f"out: {directory} holds a study with other settings: {words}; choose another --out, or go on with "
            f"`study run {directory}`"
        )
    return found.joined(there)


def _claim(found: Study, directory: Path) -> None:
    """Write the study into its directory."""
    path = directory / FILE
    if path.is_file() and path.read_text(encoding="utf-8") == found.to_toml():
        return  # several elements of an array may be here at once
    try:
        directory.mkdir(parents=True, exist_ok=True)
        write_text(path, found.to_toml())
    except OSError as error:
        raise UserError(f"out: cannot write {path}: {error.strerror}; choose another --out") from None


@study.command("list", short_help="List the studies that come with the program.")
def list_studies() -> None:
    """List the studies that come with the program: every experiment of the paper."""
    from mfedpba_mpi.cli.console import console, table

    rows = []
    for found in shipped_studies():
        lists = " x ".join(f"{len(choices)} {axis.rpartition('.')[2]}" for axis, choices in found.axes.items())
        rows.append((found.name, found.title, lists))
    console().print(table(["study", "", "runs"], rows))


@study.command()
@click.argument("source", metavar="FILE")
def show(source: str) -> None:
    """Print a study as a file to start from."""
    click.echo(find_study(source).to_toml(named=False), nl=False)


@study.command(short_help="Run a study, or go on with one.")
@_study_options
@click.option("--jobs", type=click.IntRange(1), default=1, metavar="N", help="runs side by side  [default: 1]")
@click.option("--dry-run", is_flag=True, help="show what would be run, and for how long; start nothing")
@click.option("--commands", is_flag=True, help="print the command of every run; start nothing")
@click.option("--part", metavar="I/N", help="every N-th run from the I-th on, I from 0 (for job arrays)")
@click.option(
    "--launcher", default="mpirun", metavar="CMD", callback=_some_program,
    help="what starts several ranks  [default: mpirun]",
)  # fmt: skip
@keep_option
def run(
    jobs: int, dry_run: bool, commands: bool, part: str | None, launcher: str, keep: str | None, data_dir: Path,
    **options: Any,
) -> None:  # fmt: skip
    """Run a study: FILE, the name of one that comes with the program, or a directory to go on with.

    \b
    mfedpba-mpi study run main-table --quick --jobs 2
    mfedpba-mpi study run mine.toml --set rounds=50 --set seed=0,1      a setting, and a part of a list
    mfedpba-mpi study run runs/mine                                     what is not complete there

    Complete runs are skipped, interrupted and failed ones go on from their last checkpoint, and one that fails does
    not stop the others. Exit codes: 0 all complete, 1 some failed, 75 interrupted: the same command goes on.
    """
    found, whole, directory, runs = _selected(data_dir=data_dir, **options)
    mine = runs[_part(part)]
    from mfedpba_mpi.studies.formats import save, show_table
    from mfedpba_mpi.studies.runner import Runner
    from mfedpba_mpi.studies.tables import tabulate

    if found.alone and jobs > 1:
        click.echo("its runs measure time, so they go one after the other")
        jobs = 1
    runner = Runner(directory, data_dir, jobs, launcher, keep or ("none" if options["quick"] else "last"))
    if commands:
        for planned in mine:
            click.echo(shlex.join(runner.line(planned)))
        return
    if dry_run:
        _show_plan(found, directory, mine, data_dir, jobs)
        return
    _claim(whole, directory)
    code = runner.run(mine, _make_data(mine, data_dir, directory))
    if not part and code != EXIT_INTERRUPTED:
        results = tabulate(whole, directory)
        show_table(results)
        save(whole, results, directory)
    if code:
        raise Ended(INTERRUPTED if code == EXIT_INTERRUPTED else FAILED, "", code)


@study.command(short_help="Submit a study to SLURM.")
@_study_options
@click.option("--account", default="", metavar="NAME", help="SLURM account")
@click.option("--slurm-partition", default="", metavar="NAME", help="SLURM partition")
@click.option("--partition", "old_partition", default="", hidden=True)
@click.option(
    "--time", default="", metavar="HH:MM:SS", help="time limit of an element; it goes on in another if needed"
)
@click.option("--nodes", type=click.IntRange(1), default=1, metavar="N", help="nodes of an element  [default: 1]")
@click.option(
    "--cpus-per-task",
    type=click.IntRange(1),
    default=1,
    metavar="N",
    help="cores of a rank; it has one thread, so more help memory bandwidth, or --set threads=N  [default: 1]",
)
@click.option("--gpus-per-node", default="", metavar="N", help="GPUs of a node; its ranks take them in turn")
@click.option(
    "--mem", metavar="SIZE",
    help="memory of a node; '' leaves it to the site  [default: what `plan` predicts and a quarter more]",
)  # fmt: skip
@click.option(
    "--sbatch", "extra", multiple=True, metavar="OPTION", help="any other option of sbatch, as --sbatch=--qos=x"
)
@click.option("--per-element", type=click.IntRange(1), default=1, metavar="N", help="runs of an element  [default: 1]")
@click.option("--at-once", type=click.IntRange(1), metavar="N", help="elements at a time  [default: all]")
@click.option("--jobs", type=click.IntRange(1), default=1, metavar="N", help="runs side by side in an element")
@click.option(
    "--launcher", default="mpirun", metavar="CMD", callback=_some_program,
    help="what starts several ranks: mpirun, or srun --mpi=pmix",
)  # fmt: skip
@click.option(
    "--setup", multiple=True, metavar="LINE", help="a line before the program, as --setup 'module load openmpi'"
)
@keep_option
@click.option("--dry-run", "--print", "dry_run", is_flag=True, help="show the scripts; write and submit nothing")
def submit(
    per_element: int, at_once: int | None, jobs: int, launcher: str, setup: tuple[str, ...], keep: str | None,
    slurm_partition: str, old_partition: str, dry_run: bool, data_dir: Path, **options: Any,
) -> None:  # fmt: skip
    """Submit a study as a SLURM job array, and a job that makes its table when all elements have ended.

    \b
    mfedpba-mpi study submit mine.toml --account abc --slurm-partition long --time 02:00:00
    mfedpba-mpi study submit mine.toml --ranks 7 --launcher 'srun --mpi=pmix' --dry-run

    Before its time limit an element stops in order and queues itself again; it goes on where it was. Submitted again,
    only what is not complete is run.
    """
    from mfedpba_mpi.cli.console import count
    from mfedpba_mpi.records.status import read_state
    from mfedpba_mpi.studies.slurm import CORES, Resources, Submission

    given = {name: options.pop(name) for name in Resources.__dataclass_fields__ if name in options}
    given["partition"] = _slurm_partition(slurm_partition, old_partition)
    _, whole, directory, _ = _selected(data_dir=data_dir, **options)
    cut = options["assignments"]
    runs = whole.changed(combine(map(parse_assignment, cut))).plan(
        data_dir
    )  # as the elements will find them in the directory
    jobs = 1 if whole.alone else min(jobs, per_element)
    remarks = [CORES]
    if given["mem"] is None:
        given["mem"], remark = _propose_memory(runs, data_dir, jobs, given)
        remarks += [remark] if remark else []
    resources = Resources(tasks=jobs * max(planned.ranks for planned in runs), **given)
    parts = -(-len(runs) // per_element)
    todo = [i for i, planned in enumerate(runs) if read_state(directory / planned.path).status != COMPLETE]
    if not todo:
        done = f"{count(len(runs), 'run')} in {directory}, all complete"
        click.echo(f"{done}; mfedpba-mpi study table {directory} shows them")
        return
    elements = sorted({i % parts for i in todo})
    job = Submission(
        whole.name, directory, data_dir, parts, elements, at_once, resources, setup, launcher, jobs,
        keep or ("none" if options["quick"] else "last"), cut,
        remarks,
    )  # fmt: skip
    if dry_run:
        click.echo(f"{job.array()}\n{job.table()}", nl=False)
        return
    _claim(whole, directory)
    _make_data(runs, data_dir, directory)
    array, table = job.submit()
    what = f"{count(len(elements), 'element')}, {count(len(todo), 'run')} in {directory}"
    click.echo(f"array {array}: {what}; table afterwards: job {table}")
    click.echo(f"how far it is: mfedpba-mpi study status {directory}; what it prints: {directory}/slurm")


def _slurm_partition(name: str, old_name: str) -> str:
    """SLURM's partition; `old_name` comes from --partition, as the option was called in earlier versions."""
    if not old_name:
        return name
    if name not in ("", old_name):
        raise UserError(f"slurm-partition: given as {name!r} and, by --partition, as {old_name!r}; give it once")
    click.echo(f"hint: use --slurm-partition {old_name}; --partition is an option of `run`, for the data", err=True)
    return old_name


def _propose_memory(runs: Sequence[PlannedRun], data_dir: Path, jobs: int, given: Mapping[str, Any]) -> tuple[str, str]:
    """--mem, and where it comes from; nothing with GPUs, whose runtime's memory is not known, or --sbatch=--mem..."""
    if given["gpus_per_node"] or any(option.startswith("--mem") for option in given["extra"]):
        return "", ""
    from mfedpba_mpi.cli.console import bytes_of
    from mfedpba_mpi.studies.estimates import memory

    needed = memory(runs, data_dir, jobs, given["nodes"])
    return (
        f"{ceil(1.25 * needed / 1e8) * 100}M",
        f"--mem: a node needs some {bytes_of(needed)} (see `mfedpba-mpi plan`).",
    )


def _part(text: str | None) -> slice:
    """The runs of a part I/N."""
    try:
        index, count = map(int, ("0/1" if text is None else text).split("/"))
        if not 0 <= index < count:
            raise ValueError
    except ValueError:
        raise UserError(f"part: {text!r} is not of the form I/N with I from 0 to N - 1") from None
    return slice(index, None, count)


def _make_data(runs: Sequence[PlannedRun], data_dir: Path, directory: Path) -> dict[Path, str]:
    """Make synthetic stand-ins once, before many runs want the same; the fingerprint of every run's data."""
    from mfedpba_mpi.data.scratch import Scratch
    from mfedpba_mpi.data.sources import open_dataset

    found: dict[object, str] = {}
    data = {}
    for planned in runs:
        config = planned.config
        key = config.dataset, config.samples, config.classes, config.dims
        if key not in found:
            found[key] = open_dataset(config, data_dir, Scratch(data_dir, run=directory)).fingerprint
        data[planned.path] = found[key]
    return data


def _show_plan(found: Study, directory: Path, runs: Sequence[PlannedRun], data_dir: Path, jobs: int) -> None:
    from mfedpba_mpi.cli.console import bytes_of, console, count, duration
    from mfedpba_mpi.planning.disk import Disk
    from mfedpba_mpi.records.status import overview, read_state
    from mfedpba_mpi.studies.estimates import estimate, shards_of
    from mfedpba_mpi.studies.formats import show_table
    from mfedpba_mpi.studies.tables import Measure, lay_out

    screen = console()
    states = {planned.path: read_state(directory / planned.path) for planned in runs}
    seconds: dict[Path, float] = {}
    disk: dict[Path, Disk] = {}
    with screen.status("calibrating") as status:
        for planned, each, needed in estimate(runs, data_dir):
            seconds[planned.path], disk[planned.path] = each, needed
            status.update(f"calibrating, {len(seconds)} of {len(runs)}")
    minutes = [(planned, seconds[planned.path] / 60, "") for planned in runs]
    show_table(lay_out(found, minutes, Measure("estimated minutes a run, on this machine", digits=1, plain=True)))
    screen.print(f"{count(len(runs), 'run')} in {directory}: {overview(states.values())}", markup=False)
    left = [p for p in runs if states[p.path].status != COMPLETE]
    total = sum(seconds[p.path] * (1 - states[p.path].rounds / p.config.rounds) for p in left)
    together = f", {duration(total / jobs)} with {jobs} side by side on as many cores" if jobs > 1 else ""
    screen.print(f"to do: {duration(total)} one after the other{together}")
    shards = {shards_of(p.config): disk[p.path].shards for p in runs}
    screen.print(
        f"disk of all of them: logs {bytes_of(sum(d.log for d in disk.values()))}, checkpoints "
        f"{bytes_of(sum(d.checkpoint for d in disk.values()))} (none with --keep-checkpoints none), shards "
        f"{bytes_of(sum(shards.values()))} in {data_dir / 'shards'}",
        markup=False,
    )


@study.command(short_help="Say how far a study is.")
@click.argument("directory", metavar="DIR", type=PathType)
def status(directory: Path) -> None:
    """Say how far the runs of the study in DIR are; those that are not complete, one by one."""
    from mfedpba_mpi.cli.console import console, count, table
    from mfedpba_mpi.records.run import in_full
    from mfedpba_mpi.records.status import overview, read_state

    found = _stored(directory)
    states = {place.path: read_state(directory / place.path) for place in found.places()}
    rows = [(p, s.status, s.progress, s.reason) for p, s in states.items() if s.status not in (COMPLETE, WAITING)]
    if rows:
        console().print(table(["run", "status", "rounds", ""], rows))
    click.echo(f"{found.title}: {count(len(states), 'run')} in {in_full(directory)}: {overview(states.values())}")


def _stored(directory: Path) -> Study:
    if not (directory / FILE).is_file():
        raise UserError(f"no study in {directory}; a study's directory holds {FILE}")
    return read_study(directory / FILE)


@study.command("table", short_help="Print a study's table.")
@click.argument("directory", metavar="DIR", type=PathType)
@click.option("--format", "form", default="text", metavar="NAME", help="text, markdown, latex or csv  [default: text]")
@click.option("--measure", default="", metavar="NAME", help="what a cell shows  [default: the study's, or last_five]")
@click.option("--against", default="", metavar="COLUMN", help="minus that column's, seed by seed, e.g. Local")
@click.option("--save", "saving", is_flag=True, help="store it in DIR as table.txt, .md, .tex and .csv, and runs.csv")
def make_table(directory: Path, form: str, measure: str, against: str, saving: bool) -> None:
    """Print the table of the study in DIR: mean and deviation over seeds, best bold, second best underlined.

    \b
    mfedpba-mpi study table runs/main-table --format latex
    mfedpba-mpi study table runs/main-table --against Local

    \b
    Measures: last_five (mean accuracy of the last five rounds), last, best, client_mean (unweighted over clients),
    seconds (of a round), client_seconds (CPU seconds of a client a round), kilobytes (payload a round),
    plan_trace (of MFedPBA's transport plans, 1: classes are matched with themselves), from_one, from_two, from_few
    (share of prototypes that are means of one, two, fewer than five samples).
    """
    from mfedpba_mpi.config.fields import unknown
    from mfedpba_mpi.studies.formats import FORMATS, save, show_table
    from mfedpba_mpi.studies.tables import tabulate

    if form not in FORMATS:
        raise unknown("format", form, FORMATS)
    found = _stored(directory)
    results = tabulate(found, directory, measure, against)
    if form == "text":
        show_table(results)
    else:
        click.echo(FORMATS[form][1](results), nl=False)
    if saving:
        save(found, results, directory)
