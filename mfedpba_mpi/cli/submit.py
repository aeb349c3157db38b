"""``mfedpba-mpi study submit``: a study as a SLURM job array."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from pathlib import Path
from typing import Any

import click

from mfedpba_mpi.cli.study_options import (
    default_keep,
    keep_option,
    launcher_option,
    prepare_data,
    select_study,
    store_study,
    study_options,
)
from mfedpba_mpi.config.assignments import combine, parse_assignment
from mfedpba_mpi.errors import COMPLETE, UserError
from mfedpba_mpi.studies.study import StudyRun


@click.command(short_help="Submit a study to SLURM.")
@study_options
@click.option("--account", default="", metavar="NAME", help="SLURM account")
@click.option("--slurm-partition", default="", metavar="NAME", help="SLURM partition")
@click.option("--partition", "old_partition", default="", hidden=True)
@click.option(
    "--time", default="", metavar="HH:MM:SS", help="time limit of an element; unfinished runs continue in another job"
)
@click.option("--nodes", type=click.IntRange(1), default=1, metavar="N", help="nodes of an element  [default: 1]")
@click.option(
    "--cpus-per-task",
    type=click.IntRange(1),
    default=1,
    metavar="N",
    help="cores per rank; a rank has one thread, so more cores only help memory bandwidth, or with --set threads=N  "
    "[default: 1]",
)
@click.option("--gpus-per-node", default="", metavar="N", help="GPUs of a node, shared by its ranks")
@click.option(
    "--mem", metavar="SIZE",
    help="memory of a node; '' leaves it to the site  [default: the prediction of `plan`, and a quarter more]",
)  # fmt: skip
@click.option(
    "--sbatch", "extra", multiple=True, metavar="OPTION", help="any other option of sbatch, e.g. --sbatch=--qos=x"
)
@click.option("--per-element", type=click.IntRange(1), default=1, metavar="N", help="runs per element  [default: 1]")
@click.option(
    "--at-once", type=click.IntRange(1), metavar="N", help="maximum number of elements at the same time  [default: all]"
)
@click.option(
    "--jobs", type=click.IntRange(1), default=1, metavar="N", help="parallel runs in an element  [default: 1]"
)
@launcher_option
@click.option(
    "--setup", multiple=True, metavar="LINE", help="shell command before the program, e.g. 'module load openmpi'"
)
@keep_option
@click.option("--dry-run", "--print", "dry_run", is_flag=True, help="print the batch scripts; submit nothing")
def submit(
    per_element: int, at_once: int | None, jobs: int, launcher: str, setup: tuple[str, ...], keep: str | None,
    slurm_partition: str, old_partition: str, dry_run: bool, data_dir: Path, **options: Any,
) -> None:  # fmt: skip
    """Submit a study as a SLURM job array, and a job that makes its table after all elements have ended.

    \b
    mfedpba-mpi study submit mine.toml --account abc --slurm-partition long --time 02:00:00
    mfedpba-mpi study submit mine.toml --ranks 7 --launcher 'srun --mpi=pmix' --dry-run

    FILE is a study file, the name of a shipped study, or the directory of a study. Two minutes before its time limit
    an element writes checkpoints, stops and queues itself again. Submit a study again to run what is not complete.
    """
    from mfedpba_mpi.cli.console import count
    from mfedpba_mpi.records.status import read_state
    from mfedpba_mpi.studies.slurm import CORES, Resources, Submission

    given = {name: options.pop(name) for name in Resources.__dataclass_fields__ if name in options}
    given["partition"] = _slurm_partition(slurm_partition, old_partition)
    selection = select_study(data_dir=data_dir, **options)
    stored, directory, assignments = selection.stored, selection.directory, options["assignments"]
    # elements read the stored study and apply --set again, so parts are numbered by these runs
    runs = stored.with_changes(combine(map(parse_assignment, assignments))).plan(data_dir)
    jobs = 1 if stored.alone else min(jobs, per_element)
    remarks = [CORES]
    if given["mem"] is None:
        given["mem"], remark = _default_memory(runs, data_dir, jobs, given)
        remarks += [remark] if remark else []
    resources = Resources(tasks=jobs * max(run.ranks for run in runs), **given)
    parts = -(-len(runs) // per_element)
    todo = [i for i, run in enumerate(runs) if read_state(directory / run.path).status != COMPLETE]
    if not todo:
        done = f"{count(len(runs), 'run')} in {directory}, all complete"
        click.echo(f"{done}; show the table with mfedpba-mpi study table {directory}")
        return
    elements = sorted({i % parts for i in todo})
    submission = Submission(
        stored.name, directory, data_dir, parts, elements, at_once, resources, setup, launcher, jobs,
        default_keep(keep, options["quick"]), assignments, remarks,
    )  # fmt: skip
    if dry_run:
        click.echo(f"{submission.array()}\n{submission.table()}", nl=False)
        return
    store_study(stored, directory)
    prepare_data(runs, data_dir, directory)
    array, table = submission.submit()
    size = f"{count(len(elements), 'element')}, {count(len(todo), 'run')}"
    click.echo(f"array {array}: {size} in {directory}; table: job {table}")
    click.echo(f"progress: mfedpba-mpi study status {directory}; output of the jobs: {directory}/slurm")


def _slurm_partition(name: str, old_name: str) -> str:
    """SLURM's partition; `old_name` comes from --partition, the option's name in earlier versions."""
    if not old_name:
        return name
    if name not in ("", old_name):
        raise UserError(f"slurm-partition: given as {name!r} and, by --partition, as {old_name!r}; give it once")
    click.echo(f"hint: use --slurm-partition {old_name}; --partition is an option of `run`, for the data", err=True)
    return old_name


def _default_memory(runs: Sequence[StudyRun], data_dir: Path, jobs: int, given: Mapping[str, Any]) -> tuple[str, str]:
    """The default of --mem, and a remark about it.

    Both are empty with GPUs, since the memory of CUDA's runtime is not known, and with --sbatch=--mem....
    """
    if given["gpus_per_node"] or any(option.startswith("--mem") for option in given["extra"]):
        return "", ""
    from mfedpba_mpi.cli.console import bytes_of
    from mfedpba_mpi.studies.estimates import memory

    needed = memory(runs, data_dir, jobs, given["nodes"])
    return (
        f"{ceil(1.25 * needed / 1e8) * 100}M",
        f"--mem: a node needs about {bytes_of(needed)} (see `mfedpba-mpi plan`).",
    )
