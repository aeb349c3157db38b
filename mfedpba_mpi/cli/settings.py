"""The settings of a run as options of a command: declared once (see `config.fields`), read back as a `RunConfig`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, get_origin

import click

from mfedpba_mpi.cli.paths import PathType, check_data_dir, data_dir_option
from mfedpba_mpi.config.fields import check, fields_of, flag_of, kind_of, shown, unknown
from mfedpba_mpi.config.presets import default_of
from mfedpba_mpi.config.run_config import RunConfig, make_config, read_toml
from mfedpba_mpi.engine.launch import FaultTolerance
from mfedpba_mpi.errors import UserError
from mfedpba_mpi.methods.params import METHODS, MFedPBAParameters
from mfedpba_mpi.plugins import load_defaults

Function = Callable[..., Any]


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
            if record and isinstance(parameter, click.Option):
                sections.setdefault(getattr(parameter, "heading", "Other"), []).append(record)
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records)


def _settings(cls: type, flags: bool = False) -> Callable[[Function], Function]:
    """One option for every setting that `cls` declares; a method's own ones arrive as ``flag__<name>``."""

    def decorate(function: Function) -> Function:
        for name, field in reversed(fields_of(cls).items()):
            if field.metadata["group"] is None:
                continue
            function = click.option(
                flag_of(name), f"flag__{name}" if flags else name,
                cls=Setting, heading=cls.__name__ if flags else field.metadata["group"],
                help=field.metadata["help"] + _default_words(name, field.default),
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


def _default_words(name: str, default: Any) -> str:
    return f"  [default: {default_of(name, default)}]" if default else ""  # what 0 stands for is in the help


def run_settings(function: Function) -> Function:
    """Every setting of a run, of MFedPBA by flags of its own and of all methods by ``--set``, and ``--config``."""
    for decorate in reversed(
        (
            _settings(RunConfig),
            _settings(MFedPBAParameters, flags=True),
            click.option(
                "--set", "assignments", multiple=True, metavar="METHOD.NAME=VALUE", cls=Setting,
                heading="Other methods",
                help="a parameter of any method, e.g. fedtgp.margin=50; `mfedpba-mpi methods` lists them",
            ),
            click.option(
                "--config", "config_file", type=PathType, metavar="FILE.toml",
                help="settings from a file; the command line wins over it",
            ),
            data_dir_option,
        )
    ):  # fmt: skip
        function = decorate(function)
    return function


def read_settings(config_file: Path | None, data_dir: Path, assignments: tuple[str, ...], **options: Any) -> RunConfig:
    """The configuration that the options of `run_settings` describe, fitted to its dataset."""
    load_defaults()
    given: dict[str, Any] = {}
    flags: dict[str, Any] = {}
    for name, value in options.items():
        if value is not None and value != ():
            target, key = (flags, name.removeprefix("flag__")) if name.startswith("flag__") else (given, name)
            target[key] = ",".join(value) if isinstance(value, tuple) else value
    for method, name, value in map(parse_assignment, assignments):
        given.setdefault(method, {})[name] = value
    try:
        config = make_config(given, read_toml(config_file) if config_file else None, flags)
    except UserError as error:
        where = f" (with the settings in {config_file})" if config_file and str(config_file) not in str(error) else ""
        raise UserError(f"{error}{where}") from None

    from mfedpba_mpi.data.sources import resolve

    check_data_dir(data_dir)
    return resolve(config, data_dir)


fault_tolerance_settings = _settings(FaultTolerance)


def read_fault_tolerance(options: dict[str, Any]) -> FaultTolerance:
    """What the options of `fault_tolerance_settings` say, taken out of `options`."""
    given = {name: options.pop(name) for name in fields_of(FaultTolerance)}
    return FaultTolerance(
        **{name: check(FaultTolerance, name, value) for name, value in given.items() if value is not None}
    )


def parse_assignment(text: str) -> tuple[str, str, str]:
    """(method, name, value) of ``METHOD.NAME=VALUE``."""
    target, equals, value = text.partition("=")
    method, dot, name = target.partition(".")
    if not (equals and dot and name):
        raise UserError(f"set: {shown(text)} is not of the form METHOD.NAME=VALUE, for example fedtgp.margin=50")
    if method not in METHODS:
        raise unknown("method", method, METHODS)
    return method, name.replace("-", "_"), value
