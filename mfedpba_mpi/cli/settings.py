"""Command-line options for the settings of a run, from their declarations (see `config.fields`)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, get_origin

import click

from mfedpba_mpi.cli.paths import PathType, check_data_dir, data_dir_option
from mfedpba_mpi.config.assignments import parse_assignment
from mfedpba_mpi.config.fault_tolerance import FaultTolerance
from mfedpba_mpi.config.fields import check, fields_of, flag_of, kind_of
from mfedpba_mpi.config.presets import default_of
from mfedpba_mpi.config.run_config import RunConfig, make_config, read_toml
from mfedpba_mpi.errors import UserError
from mfedpba_mpi.methods.params import MFedPBAParameters

Function = Callable[..., Any]


class Setting(click.Option):
    """An option with a heading in the help."""

    def __init__(self, *args: Any, heading: str, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.heading = heading


class RunCommand(click.Command):
    """A command with options grouped under headings in its help."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record and isinstance(parameter, click.Option):
                sections.setdefault(getattr(parameter, "heading", "Other"), []).append(record)
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records)


def _settings(cls: Any) -> Callable[[Function], Function]:
    """Add an option for every setting that `cls` declares; a method's parameters arrive by their bare names."""

    def decorate(function: Function) -> Function:
        for name, field in reversed(fields_of(cls).items()):
            if field.metadata["group"] is None:
                continue
            function = click.option(
                flag_of(name), name,
                cls=Setting, heading=field.metadata["group"] or cls.label,
                help=field.metadata["help"] + _default_text(name, field.default),
                **_click_arguments(cls, name),
            )(function)  # fmt: skip
        return function

    return decorate


def _click_arguments(cls: type, name: str) -> dict[str, Any]:
    kind, _ = kind_of(cls, name)
    spec = fields_of(cls)[name].metadata
    choices = [*spec["choices"], *(["FILE"] if spec["files"] else [])]
    if kind is bool:
        return {"is_flag": True, "default": None}
    if get_origin(kind) is tuple:
        return {"multiple": True, "metavar": ",".join(choices) or "N,N,.."}
    return {"default": None, "metavar": {int: "N", float: "X"}.get(kind, "|".join(choices) or "NAME")}


def _default_text(name: str, default: Any) -> str:
    if not default or default is True:  # the help text explains what 0 means, and flags show what they do
        return ""
    return f"  [default: {default_of(name, default)}]"


def run_settings(function: Function) -> Function:
    """Add the options of a run: all its settings, MFedPBA's parameters, ``--set``, ``--config`` and ``--data-dir``."""
    for decorate in reversed(
        (
            _settings(RunConfig),
            _settings(MFedPBAParameters),
            click.option(
                "--set", "assignments", multiple=True, metavar="NAME=VALUE", cls=Setting,
                heading="Any setting",
                help="any setting by its name in TOML, e.g. fedtgp.margin=50; `mfedpba-mpi methods` lists the "
                "parameters of all methods",
            ),
            click.option(
                "--config", "config_file", type=PathType, metavar="FILE.toml",
                help="read settings from a file; the command line takes precedence",
            ),
            data_dir_option,
        )
    ):  # fmt: skip
        function = decorate(function)
    return function


def read_settings(config_file: Path | None, data_dir: Path, assignments: tuple[str, ...], **options: Any) -> RunConfig:
    """The configuration that the options of `run_settings` describe, fitted to its dataset."""
    given = {
        name: ",".join(value) if isinstance(value, tuple) else value
        for name, value in options.items()
        if value is not None and value != ()
    }
    file = read_toml(config_file) if config_file else None
    try:
        config = make_config(given, file, list(map(parse_assignment, assignments)))
    except UserError as error:
        raise UserError(f"{error} (with the settings in {config_file})" if config_file else str(error)) from None

    from mfedpba_mpi.data.sources import resolve

    check_data_dir(data_dir)
    return resolve(config, data_dir)


fault_tolerance_settings = _settings(FaultTolerance)


def read_fault_tolerance(options: dict[str, Any]) -> FaultTolerance:
    """Remove the options of `fault_tolerance_settings` from `options` and return their values."""
    given = {name: options.pop(name) for name in fields_of(FaultTolerance)}
    return FaultTolerance(
        **{name: check(FaultTolerance, name, value) for name, value in given.items() if value is not None}
    )
