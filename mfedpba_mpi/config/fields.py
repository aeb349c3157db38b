"""Declaration and validation of settings, for the command line, TOML files and error messages alike."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
import re
import sys
import types
import typing
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from mfedpba_mpi.errors import UserError

LARGEST = {int: 2**63 - 1, float: sys.float_info.max}  # for settings without `high`


def option(
    default: Any,
    help: str,
    *,
    low: float | None = None,
    above: float | None = None,
    high: float | None = None,
    choices: Collection[str] = (),
    files: tuple[str, ...] = (),
    group: str = "",
) -> Any:
    """Declare a setting: a dataclass field with its help text and its range.

    Parameters
    ----------
    default : object
        The default value.
    help : str
        Shown by ``--help``.
    low : float
        Smallest allowed value.
    above : float
        Allowed values are larger than this.
    high : float
        Largest allowed value.
    choices : collection of str
        Allowed values. They are read when a value is checked, so later additions to a catalog count.
    files : tuple of str
        Suffixes of file names that are allowed besides `choices`.
    group : str
        Heading in the help  [default: the label of the method].
    """
    metadata = {
        "help": help, "low": low, "above": above, "high": high, "choices": choices, "files": files, "group": group
    }  # fmt: skip
    return dataclasses.field(default=default, metadata=metadata)


def shown(value: Any) -> str:
    """`value` for an error message: on one line, and not too long."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer with too many digits, or nested too deeply
        return "a value that is too long to show"
    return text if len(text) <= 100 else f"{text[:97]}..."


def nearest(name: str, known: Iterable[str]) -> str:
    """`` (did you mean 'x'?)`` if a name in `known` is similar to `name`, else ""."""
    by_lower = {other.lower(): other for other in known}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1)
    return f" (did you mean '{by_lower[close[0]]}'?)" if close else ""


def flag_of(name: str) -> str:
    """The command-line option of a setting; ``allow_x``, which is true by default, also has ``--no-x``."""
    flag = f"--{name.replace('_', '-')}"
    return f"{flag}/{flag.replace('allow', 'no', 1)}" if name.startswith("allow_") else flag


def unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    """The error for an unknown name, with the most similar one and the list of all."""
    known = sorted(set(known))
    listed = ("; " if any("," in other for other in known) else ", ").join(known)
    return UserError(f"unknown {kind} {shown(name)}{nearest(name, known)}; choose from: {listed}")


def fields_of(cls: type) -> dict[str, dataclasses.Field[Any]]:
    """The fields of a dataclass by name."""
    return {f.name: f for f in dataclasses.fields(cls)}


@functools.cache
def kind_of(cls: type, name: str) -> tuple[type, bool]:
    """(type, whether it may be None) of a setting. The type of a tuple is for example ``tuple[int, ...]``."""
    hint = typing.get_type_hints(cls)[name]
    if isinstance(hint, types.UnionType):
        inner = [arg for arg in typing.get_args(hint) if arg is not type(None)]
        return inner[0], True
    return hint, False


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as one table, with names joined by dots."""
    joined: dict[str, Any] = {}
    for name, value in values.items():
        joined |= flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return joined


def toml(value: Any) -> str:
    """`value` in TOML."""
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{toml_key(name)} = {toml(item)}' for name, item in value.items())} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def toml_key(name: str) -> str:
    """A setting's full name in TOML; names of methods from plugins may need quotes."""
    return ".".join(part if re.fullmatch("[A-Za-z0-9_-]+", part) else toml(part) for part in name.split("."))


def _convert(kind: Any, value: Any) -> Any:
    """`value`, from TOML or the command line, as `kind`; raises ValueError, TypeError, KeyError or OverflowError."""
    if typing.get_origin(kind) is tuple:
        items = value.split(",") if isinstance(value, str) else value if isinstance(value, list | tuple) else [value]
        element = typing.get_args(kind)[0]
        return tuple(_convert(element, item.strip() if isinstance(item, str) else item) for item in items if item != "")
    if kind is bool:
        if isinstance(value, bool):
            return value
        return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}[str(value).lower()]
    if isinstance(value, bool) or (kind is str and not (isinstance(value, str) and value.isprintable())):
        raise TypeError
    if kind is int and isinstance(value, float) and not value.is_integer():
        raise ValueError
    return kind(value)


def check(cls: type, name: str, value: Any, where: str = "") -> Any:
    """`value` converted to the type of the setting `cls.name`; a UserError if it is of another type or out of range."""
    spec = fields_of(cls)[name].metadata
    kind, optional = kind_of(cls, name)
    label = f"{where}{name}" if where else name.replace("_", "-")
    if value is None and optional:
        return None
    try:
        result = _convert(kind, value)
    except (ValueError, TypeError, KeyError, OverflowError):
        words: dict[Any, str] = {
            int: "a whole number", float: "a number", bool: "true or false", str: "a word",
            tuple[int, ...]: "whole numbers separated by commas, e.g. 64,128",
        }  # fmt: skip
        wanted = words.get(kind, "words separated by commas")
        raise UserError(f"{label}: expected {wanted}, got {shown(value)}") from None
    for item in result if isinstance(result, tuple) else (result,):
        if spec["choices"] and item not in spec["choices"] and not str(item).endswith(spec["files"]):
            known = [*spec["choices"], *(f"a FILE{suffix}" for suffix in spec["files"])]
            raise UserError(f"{label}: {shown(item)} is not one of {', '.join(known)}{nearest(item, known)}")
        if isinstance(item, (int, float)) and not isinstance(item, bool) and not _inside(item, spec):
            raise UserError(f"{label}: {shown(item)} is out of range; allowed: {_range(item, spec)}")
    return result


def _inside(value: float, spec: Mapping[str, Any]) -> bool:
    return (
        abs(value) <= LARGEST[type(value)]  # False for NaN
        and (spec["low"] is None or value >= spec["low"])
        and (spec["above"] is None or value > spec["above"])
        and (spec["high"] is None or value <= spec["high"])
    )


def _range(value: float, spec: Mapping[str, Any]) -> str:
    largest = LARGEST[type(value)]
    low = f">= {spec['low']}" if spec["low"] is not None else f"> {spec['above']}" if spec["above"] is not None else ""
    high = f"<= {spec['high']}" if spec["high"] is not None else f"<= {largest}" if value > largest else ""
    return " and ".join(part for part in (low, high) if part) or "finite numbers"
