"""The command line: parse, check, call. Everything heavy is imported when it is needed."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, get_origin

import click

from mfedpba_mpi import __version__
from mfedpba_mpi.comm.launcher import announced, first_on_node
from mfedpba_mpi.config import RunConfig, fit_to_data, make_config, preset_of, read_toml
from mfedpba_mpi.data.commands import PathType, data, data_dir_option
from mfedpba_mpi.errors import RankFailed, RunError, UserError
from mfedpba_mpi.methods.catalog import MFedPBA
from mfedpba_mpi.options import fields_of, kind_of


class Setting(click.Option):
    """An option that stands under a heading of the help."""

    def __init__(self, *args: Any, heading: str, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.heading = heading


class RunCommand(click.Command):
    """A command whose help shows its options under their headings."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record:
                sections.setdefault(getattr(parameter, "heading", "Other"), []).append(record)
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records)


class DefaultGroup(click.Group):
    """A group whose first option, where no command is named, starts `run`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        args = args or ["--help"]
        if args[0].startswith("-") and args[0] not in ("--help", "-h", "--version"):
            args = ["run", *args]
        return super().parse_args(ctx, args)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_help(ctx, formatter)
        run.format_options(click.Context(run, info_name="run"), formatter)


def _settings(cls: type, method: str = "") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """One option for every setting that `cls` declares; a method's own are named ``method__setting``."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for name, field in reversed(fields_of(cls).items()):
            if field.metadata["group"] is None:
                continue
            function = click.option(
                f"--{name.replace('_', '-')}", f"{method}__{name}" if method else name,
                cls=Setting, heading=cls.__name__ if method else field.metadata["group"],
                help=field.metadata["help"] + _default_words(name, field.default),
                **_click_arguments(cls, name),
            )(function)  # fmt: skip
        return function

    return decorate


def _click_arguments(cls: type, name: str) -> dict[str, Any]:
    kind, _ = kind_of(cls, name)
    choices = [choice for choice in fields_of(cls)[name].metadata["choices"] if choice]
    if kind is bool:
        return {"is_flag": True, "default": None}
    if get_origin(kind) is tuple:
        return {"multiple": True, "metavar": ",".join(choices) or "N,N,.."}
    return {"default": None, "metavar": {int: "N", float: "X"}.get(kind, "|".join(choices) or "NAME")}


def _default_words(name: str, default: Any) -> str:
    if not default:
        return ""
    if name in preset_of("youtube"):
        return "  [default: by dataset]"
    return f"  [default: {default}]"


@click.group(cls=DefaultGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="mfedpba-mpi")
def cli() -> None:
    """Multimodal federated learning with prototype-guided bilateral alignment (MFedPBA), simulated with MPI.

    \b
    mfedpba-mpi --dataset youtube                      one process
    mpirun -n 7 mfedpba-mpi --dataset youtube          a server and six clients, a rank each
    mpirun -n 3 mfedpba-mpi --dataset mfeat --method local --rounds 50 --seed 1
    mfedpba-mpi data list                              which datasets are there

    An option without a command belongs to `run`. The same seed gives the same bits on any number of ranks.
    """


@cli.command(cls=RunCommand, short_help="Train a method on a dataset (the default command).")
@_settings(RunConfig)
@_settings(MFedPBA, method="mfedpba")
@click.option(
    "--config", "config_file", type=PathType, metavar="FILE.toml",
    help="settings from a file; the command line wins over it",
)  # fmt: skip
@click.option(
    "--out", type=PathType, metavar="DIR",
    help="run directory  [default: runs/<dataset>-<partition>-<method>-s<seed>]",
)  # fmt: skip
@click.option("--overwrite", is_flag=True, help="replace a run that is already there")
@data_dir_option
def run(config_file: Path | None, out: Path | None, overwrite: bool, data_dir: Path, **options: Any) -> None:
    """Train a method on a dataset; write OUT/run.h5 round by round."""
    given: dict[str, Any] = {}
    for name, value in options.items():
        if value is not None and value != ():
            table, _, key = name.rpartition("__")
            target = given.setdefault(table, {}) if table else given
            target[key] = ",".join(value) if isinstance(value, tuple) else value
    config = make_config(given, read_toml(config_file) if config_file else None)

    from mfedpba_mpi.data.sources import describe

    if data_dir != Path("data") and not data_dir.is_dir():
        raise UserError(f"data-dir: {data_dir} is not a directory; make it, or name the one that holds the stores")
    config = fit_to_data(config, describe(config, data_dir))
    directory = out or Path("runs") / config.run_name
    claim(directory, overwrite)
    launch(config, data_dir, directory)


cli.add_command(data)


def claim(directory: Path, overwrite: bool) -> None:
    """Make the run's directory; a run that is already there is never overwritten unasked."""
    from mfedpba_mpi.records.run import status_of

    status = None if overwrite else status_of(directory)
    if status:
        raise UserError(
            f"out: {directory} holds a run already (status {status}); use --overwrite to replace it, or another --out"
        )
    try:
        directory.mkdir(parents=True, exist_ok=True)
        writable = os.access(directory, os.W_OK)
    except OSError as error:
        raise UserError(f"out: cannot make the directory {directory}: {error.strerror}; choose another --out") from None
    if not writable:
        raise UserError(f"out: the directory {directory} is not writable; choose another --out")


def launch(config: RunConfig, data_dir: Path, directory: Path) -> None:
    """Take this process's part in the run: server, clients, everything, or nothing."""
    rank, size = announced()
    if size > 1 and rank > config.clients:
        from mfedpba_mpi.comm.waiting import wait_as_spare

        wait_as_spare(config.clients + 1)
        return
    from mfedpba_mpi.comm.serial import Comm

    comm = Comm()
    if size > 1:
        from mfedpba_mpi.comm.mpi import MPIComm

        comm = MPIComm(config.clients)
    from mfedpba_mpi.records.runlog import RunLog
    from mfedpba_mpi.screen import Screen
    from mfedpba_mpi.simulation import simulate

    log, screen = RunLog(directory), Screen(directory, max(0, size - config.clients - 1))
    try:
        simulate(config, data_dir, comm, [log, screen])
    except BaseException as error:
        screen.stop()
        status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
        with suppress(RunError):  # the disk may be full, and `error` says so
            log.abandon(status, describe_error(error))
        raise


def describe_error(error: BaseException) -> str:
    """One line: where (innermost first on the error, outermost first here), what."""
    if isinstance(error, RankFailed):
        return str(error)  # says where itself
    where = ", ".join(reversed(getattr(error, "__notes__", [])))
    kind = "" if isinstance(error, (UserError, RunError)) else f"{type(error).__name__}: "
    return f"{where + ': ' if where else ''}{kind}{error}"


def _exit(message: str, code: int) -> None:
    """End this process, and with it all ranks, with one line from one of them (none where `message` is empty).

    Before MPI has started the ranks of a node find the same fault, so one of them says it, and other nodes leave it to
    rank 0 for a while: where it is alive they have met something of their own.
    """
    rank, size = announced()
    started = "mpi4py.MPI" in sys.modules
    if started and size > 1 and message:
        message = f"rank {rank}, {message}"
    elif rank > 0:
        time.sleep(5)
        message = message if first_on_node() else ""
    if message:
        print(f"mfedpba-mpi: {message}", file=sys.stderr, flush=True)
    if started:
        from mfedpba_mpi.comm.waiting import abort

        abort(code, message)
    sys.exit(code)


def main() -> None:
    """The entry point: like ``python -m mpi4py``, an error on one rank ends all of them."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    if announced()[0] > 0:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    try:
        cli.main(standalone_mode=False)
    except click.exceptions.Exit as done:
        sys.exit(done.exit_code)
    except click.ClickException as error:
        hint = "; see mfedpba-mpi --help" if isinstance(error, click.UsageError) else ""
        _exit(f"{error.format_message().rstrip('.')}{hint}", 2)
    except RankFailed as error:
        _exit("", error.exit_code)  # the rank itself has said it
    except (UserError, RunError) as error:
        _exit(describe_error(error), error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        _exit("interrupted", 130)
    except Exception as error:
        traceback.print_exc()
        _exit(describe_error(error), 1)
