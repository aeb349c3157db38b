"""Settings as users write them: their names, and ``NAME=VALUE``.

The same rules hold for the command line (``--set``), TOML files, studies and `RunConfig.of`. The full name of a setting
is for example ``rounds`` or ``fedtgp.margin``. A method's parameter may be given by its bare name, ``margin``, if it
belongs to the run's method (in a study, to exactly one of its methods) and no setting of the run has the same name.
Dashes and underscores are the same.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Collection, Iterable
from typing import Any

from mfedpba_mpi.config.fields import fields_of, nearest, shown, toml
from mfedpba_mpi.errors import UserError
from mfedpba_mpi.methods.params import METHODS, owners


def full_name(name: str, settings: Collection[str], methods: Collection[str], axes: Collection[str] = ()) -> str:
    """The full name of a setting, e.g. ``feature_dim`` or ``mfedpba.tau``; a UserError if there is none.

    Parameters
    ----------
    settings : names of the settings that belong to no method.
    methods : methods whose parameters may be given by their bare names: the run's, or all methods of a study.
    axes : the lists of a study, for the hint in the error.
    """
    plain = name.replace("-", "_")
    if plain in settings:
        return plain
    method, dot, parameter = name.partition(".")
    if dot:
        if method not in METHODS:
            known = f"no method {shown(method)}{nearest(method, METHODS)}; the methods are: {', '.join(METHODS)}"
            raise UserError(f"unknown setting {shown(name)}: {known}")
        parameters = fields_of(METHODS[method])
        if parameter.replace("-", "_") not in parameters:
            allowed = ", ".join(parameters) or "none"
            hint = nearest(parameter, parameters)
            raise UserError(f"method {method} has no parameter {shown(parameter)}{hint}; it has: {allowed}")
        return f"{method}.{parameter.replace('-', '_')}"
    having = owners(plain)
    if not having:
        hint = nearest(
            plain, [*axes, *settings, *METHODS, *(name for cls in METHODS.values() for name in fields_of(cls))]
        )
        raise UserError(f"unknown setting {shown(name)}{hint}; see `mfedpba-mpi run --help` and `mfedpba-mpi methods`")
    meant = [method for method in having if method in methods]
    if len(meant) == 1:
        return f"{meant[0]}.{plain}"
    if meant:
        full = " or ".join(f"{method}.{plain}" for method in meant)
        raise UserError(f"{name}: a parameter of {' and '.join(meant)}; give it as {full}")
    others = f"this run's method is {next(iter(methods))}" if len(methods) == 1 else f"not to {', '.join(methods)}"
    raise UserError(f"{name}: belongs to method {' or '.join(having)}, but {others}")


def combine(settings: Iterable[tuple[str, Any]], rename: Callable[[str], str] = str) -> dict[str, Any]:
    """The settings by their names after `rename`; one that is given twice with different values is a UserError."""
    combined: dict[str, Any] = {}
    for given, value in settings:
        name = rename(given)
        if name in combined and not _same(combined[name], value):
            raise UserError(f"{name}: given as {shown(combined[name])} and as {shown(value)}; give it once")
        combined[name] = value
    return combined


def parse_assignment(text: str) -> tuple[str, Any]:
    """The name and the value of ``NAME=VALUE``, the argument of ``--set``."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise UserError(f"set: {shown(text)} is not of the form NAME=VALUE, for example rounds=50 or fedtgp.margin=50")
    return name.strip(), parse_value(value)


def format_assignment(name: str, value: Any) -> str:
    """``NAME=VALUE`` as `parse_assignment` reads it: plain words where these mean the same, else TOML."""
    text = plain_text(value)
    parsed, items = parse_value(text), list(value) if isinstance(value, list | tuple) else value
    return f"{name}={text if items in (parsed, [parsed]) else toml(value)}"


def plain_text(value: Any) -> str:
    """A value as the argument of an option, a list with commas."""
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def parse_value(text: str) -> Any:
    """A value as in TOML, or a plain word; a list where there are commas.

    A word with a comma in it needs TOML's quotes: ``"a, b"``.
    """
    text = text.strip()
    try:
        return _toml_value(text)
    except ValueError:
        pass
    return [_toml_or_word(part.strip()) for part in text.split(",")] if "," in text else text


def _toml_or_word(text: str) -> Any:
    try:
        return _toml_value(text)
    except ValueError:
        return text


def _toml_value(text: str) -> Any:
    """`text` as a TOML value, or several with commas between them as a list; else a ValueError."""
    for document in (f"value = {text}", f"value = [{text}]"):
        try:
            values = tomllib.loads(document)
        except (ValueError, RecursionError):  # also an integer of more digits than Python reads
            continue
        value = values.pop("value")
        tables = (isinstance(item, dict) for item in (value if isinstance(value, list) else [value]))
        if text and not values and not any(tables):
            return value
    raise ValueError(text)


def _same(one: Any, two: Any) -> bool:
    """Whether two values mean the same, e.g. the text of an option and the value of ``--set``."""
    return bool(_comparable(one) == _comparable(two))


def _comparable(value: Any) -> Any:
    value = parse_value(value) if isinstance(value, str) else value
    if isinstance(value, list | tuple):
        return [_comparable(item) for item in value] if len(value) != 1 else _comparable(value[0])
    return value
