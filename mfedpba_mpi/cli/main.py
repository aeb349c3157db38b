"""The command line. Heavy modules are imported only when a command needs them."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from mfedpba_mpi import __version__, plugins
from mfedpba_mpi.cli.clean import clean
from mfedpba_mpi.cli.data import data
from mfedpba_mpi.cli.export import export
from mfedpba_mpi.cli.logs import set_up_logging
from mfedpba_mpi.cli.paths import PathType, check_data_dir
from mfedpba_mpi.cli.report import report
from mfedpba_mpi.cli.settings import (
    RunCommand,
    fault_tolerance_settings,
    read_fault_tolerance,
    read_settings,
    run_settings,
)
from mfedpba_mpi.cli.study import study
from mfedpba_mpi.cli.watch import watch
from mfedpba_mpi.comm.launcher import check_slurm, launcher_rank_and_size
from mfedpba_mpi.config.fields import fields_of
from mfedpba_mpi.config.presets import default_of
from mfedpba_mpi.engine.launch import abort_all, claim, exit_all, launch
from mfedpba_mpi.errors import COMPLETE, PROGRAM, Ended, RankFailed, RunError, UserError, describe_error
from mfedpba_mpi.methods.params import METHODS


class DefaultGroup(click.Group):
    """A group with `run` as its default command; --plugin may precede the command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        first = 0  # the first argument that is not a --plugin
        while first + 1 < len(args) and args[first].partition("=")[0] == "--plugin":
            first += 1 if "=" in args[first] else 2
        plugin_args, rest = args[:first], args[first:] or ["--help"]
        if rest[0].startswith("-") and rest[0] not in ("--help", "-h", "--version"):
            rest = ["run", *rest]
        return super().parse_args(ctx, [*plugin_args, *rest])

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_help(ctx, formatter)
        run.format_options(click.Context(run, info_name="run", help_option_names=[]), formatter)


@click.group(cls=DefaultGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name=PROGRAM)
def cli() -> None:
    """Multimodal federated learning with prototype-guided bilateral alignment (MFedPBA), simulated with MPI.

    \b
    mfedpba-mpi --dataset youtube                      one process
    mpirun -n 7 mfedpba-mpi --dataset youtube          a server and six clients, one rank each
    mpirun -n 3 mfedpba-mpi --dataset mfeat --method local --rounds 50 --seed 1
    mpirun -n 7 mfedpba-mpi check                      test the installation, MPI and the file system
    mfedpba-mpi config --dataset youtube               all settings of that run, as a TOML file
    mfedpba-mpi data list                              available datasets
    mfedpba-mpi study run main-table --quick           the paper's main table in small
    mfedpba-mpi watch runs/youtube-m2-mfedpba-s0       watch the progress of a run
    mfedpba-mpi report runs/youtube-m2-mfedpba-s0      make a page with figures and tables

    Without a command, options belong to `run`. The same seed gives the same bits on any number of ranks. All commands
    accept --plugin FILE.py, a Python file with your own methods, extractors or datasets.
    """


@cli.command(cls=RunCommand, short_help="Train a method on a dataset (the default command).")
@run_settings
@fault_tolerance_settings
@click.option(
    "--out", type=PathType, metavar="DIR",
    help="run directory  [default: runs/<dataset>-<partition>-<method>-s<seed>]",
)  # fmt: skip
@click.option("--overwrite", is_flag=True, help="replace an existing run")
@click.option("--resume", "resuming", is_flag=True, help="resume the run in OUT if there is one (for batch jobs)")
def run(out: Path | None, overwrite: bool, resuming: bool, data_dir: Path, **options: Any) -> None:
    """Train a method on a dataset, and log every round to OUT/run.h5.

    On SIGUSR1, SIGTERM or SIGINT a run writes a checkpoint and stops with exit code 75; continue it with `mfedpba-mpi
    resume OUT`. After Ctrl-C, Open MPI's mpirun kills the ranks after 0.2 s and its exit code is 1.
    """
    if overwrite and resuming:
        raise UserError("overwrite: --resume continues an existing run, --overwrite replaces it; give only one of them")
    fault_tolerance = read_fault_tolerance(options)
    config = read_settings(data_dir=data_dir, **options)
    directory = out or Path("runs") / config.run_name
    if resuming:
        from mfedpba_mpi.engine.resume import find_same, resumed

        config, complete = resumed(find_same(directory, config), config, data_dir)
        if complete:
            click.echo(f"the run in {directory} is complete")
            return
    claim(directory, overwrite or resuming)
    launch(config, data_dir, directory, fault_tolerance, resume=resuming)


@cli.command(cls=RunCommand, short_help="Resume an interrupted run, or extend a complete one.")
@click.argument("directory", metavar="RUN", type=PathType)
@click.option("--rounds", type=int, metavar="N", help="extend the run to N rounds")
@fault_tolerance_settings
@click.option(
    "--data-dir", type=PathType, metavar="DIR",
    help="directory of the feature stores  [default: as when the run was started]",
)  # fmt: skip
def resume(directory: Path, rounds: int | None, data_dir: Path | None, **options: Any) -> None:
    """Resume the run in the directory RUN from its last checkpoint, with its own settings, on any number of ranks.

    \b
    mfedpba-mpi resume runs/youtube-m2-mfedpba-s0
    mpirun -n 7 mfedpba-mpi resume runs/youtube-m2-mfedpba-s0 --rounds 600     more rounds than before

    The results are the same, bit for bit, as without the interruption.
    """
    from mfedpba_mpi.cli.console import count
    from mfedpba_mpi.engine.resume import extended, stored_run
    from mfedpba_mpi.records.run import run_directory

    fault_tolerance, directory = read_fault_tolerance(options), run_directory(directory)
    stored = stored_run(directory)
    config = extended(stored.config, rounds) if rounds is not None else stored.config
    if stored.status == COMPLETE and config == stored.config:
        click.echo(f"the run in {directory} is complete ({count(config.rounds, 'round')}); extend it with --rounds N")
        return
    if data_dir:
        check_data_dir(data_dir)
    launch(config, data_dir or stored.data_dir, directory, fault_tolerance, resume=True)


@cli.command(hidden=True, context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def ablate(arguments: tuple[str, ...]) -> None:
    """Refer to the study that has replaced this command."""
    raise UserError("ablate: the ablation is a study; use `mfedpba-mpi study run ablation --set dataset=NAME`")


@cli.command(cls=RunCommand, short_help="Predict the memory, payload, time and disk space of a run.")
@run_settings
@click.option("--ranks", type=int, metavar="N", help="number of ranks, including the server  [default: K + 1]")
@click.option("--nodes", type=int, default=1, metavar="N", help="nodes, each with consecutive ranks  [default: 1]")
@click.option("--cores", type=int, metavar="N", help="cores per node  [default: as on this machine]")
@click.option("--gpus", type=int, default=0, metavar="N", help="GPUs per node  [default: 0]")
def plan(data_dir: Path, ranks: int | None, nodes: int, cores: int | None, gpus: int, **options: Any) -> None:
    """Predict the resources of a run on a cluster, from a second or two of calibration on this machine.

    \b
    mfedpba-mpi plan --dataset youtube --clients 100 --ranks 101 --nodes 4 --cores 32

    Accepts the settings of `run`. Starts and writes nothing.
    """
    config = read_settings(data_dir=data_dir, **options)
    from mfedpba_mpi.cli.console import console
    from mfedpba_mpi.planning.display import report
    from mfedpba_mpi.planning.plan import make_plan

    for line in report(make_plan(config, data_dir, ranks, nodes, cores, gpus)):
        console().print(line)


@cli.command("config", cls=RunCommand, short_help="Print all settings of a run as TOML.")
@run_settings
def show_config(data_dir: Path, **options: Any) -> None:
    """Print all settings of a run with these options, as a file for --config.

    \b
    mfedpba-mpi config --dataset youtube --clients 20 > mine.toml
    mfedpba-mpi --config mine.toml

    Accepts the settings of `run`. Comments mark values from the dataset's preset.
    """
    click.echo(read_settings(data_dir=data_dir, **options).to_toml(), nl=False)


@cli.command(short_help="Test the installation, MPI and the file system.")
@click.option(
    "--dir",
    "directory",
    type=PathType,
    default=Path(),
    metavar="DIR",
    help="a directory that all nodes must share  [default: the current one]",
)
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", help="as in `run`")
def check(directory: Path, device: str) -> None:
    """Test this installation: ranks, cores and devices, shared files, MPI messages, and that results are reproduced.

    \b
    mpirun -n 7 mfedpba-mpi check
    srun --mpi=pmix --ntasks=64 mfedpba-mpi check --dir $SCRATCH

    Takes a few seconds and removes its files. Exit code 0: passed, 1: failed, 2: usage or environment error.
    """
    check_slurm(clients=6)
    from mfedpba_mpi.cli.console import console
    from mfedpba_mpi.planning.check import check as steps

    for line in steps(directory, device):
        console().print(line)


for command in (data, study, watch, report, export, clean):
    cli.add_command(command)


@cli.command("methods", short_help="List the methods and their parameters.")
def list_methods() -> None:
    """List all methods with their parameters and defaults; set them with --set METHOD.NAME=VALUE."""
    from mfedpba_mpi.cli.console import console, table

    plugins.load_defaults()
    for name, cls in METHODS.items():
        click.echo(f"{name}: {cls.label}. {cls.__doc__}")
        rows = [
            (f"  {name}.{parameter}", default_of(parameter, field.default), _help_text(field.metadata))
            for parameter, field in fields_of(cls).items()
        ]
        if rows:
            console().print(table(["  parameter", "default", ""], rows))


def _load_plugins(ctx: click.Context, parameter: click.Parameter, files: tuple[Path, ...]) -> None:
    for file in files:
        plugins.load(file)


def _plugin_option(hidden: bool) -> click.Option:
    return click.Option(
        ["--plugin"], type=PathType, multiple=True, metavar="FILE.py", expose_value=False, callback=_load_plugins,
        help=f"load your own methods, extractors or datasets; may be repeated (or ${plugins.VARIABLE})",
        hidden=hidden,
    )  # fmt: skip


def _add_plugin_option(command: click.Command) -> None:
    """Add --plugin to a command and all its subcommands."""
    command.params.append(_plugin_option(hidden=isinstance(command, click.Group)))
    for inner in command.commands.values() if isinstance(command, click.Group) else ():
        _add_plugin_option(inner)


_add_plugin_option(cli)


def _help_text(metadata: Mapping[str, Any]) -> str:
    return metadata["help"] + (f": {', '.join(metadata['choices'])}" if metadata["choices"] else "")


def main() -> None:
    """The entry point. Like with ``python -m mpi4py``, an error on one rank ends all ranks."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    if launcher_rank_and_size()[0] > 0:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    try:
        set_up_logging()
        cli.main(prog_name=PROGRAM, standalone_mode=False)
        exit_all("", 0)
    except click.exceptions.Exit as done:
        sys.exit(done.exit_code)
    except click.exceptions.NoArgsIsHelpError as help_instead:
        click.echo(help_instead.format_message())
    except click.ClickException as error:
        context = error.ctx if isinstance(error, click.UsageError) else None
        hint = f"; see {context.command_path} --help" if context else ""
        abort_all(f"{error.format_message().rstrip('.')}{hint}", 2)
    except Ended as error:
        exit_all(str(error), error.exit_code)
    except RankFailed as error:
        abort_all("", error.exit_code)  # that rank has printed the error
    except (UserError, RunError) as error:
        abort_all(describe_error(error), error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        abort_all("interrupted", 130)
    except PermissionError as error:
        abort_all(f"{error.filename}: {error.strerror}; check permissions", 2)
    except Exception as error:
        if isinstance(error, MemoryError) or "can't allocate memory" in str(error):  # torch has no class for this
            abort_all(f"not enough memory (`mfedpba-mpi plan` predicts how much is needed): {describe_error(error)}", 1)
        traceback.print_exc()
        abort_all(describe_error(error), 1)
