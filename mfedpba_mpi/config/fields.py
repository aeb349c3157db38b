"""Declaring and checking settings: one description serves the command line, the TOML file and the error messages."""

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

LARGEST = {int: 2**63 - 1, float: sys.float_info.max}  # of a setting without a `high`


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
    """A dataclass field that knows its meaning and its range (low <= value <= high, value > above).

    `choices` are looked at when a value is checked: what is added to a catalog later is one of them. `files` are
    suffixes of paths that are allowed besides.
    """
    metadata = {
        "help": help, "low": low, "above": above, "high": high, "choices": choices, "files": files, "group": group
    }  # fmt: skip
    return dataclasses.field(default=default, metadata=metadata)


def shown(value: Any) -> str:
    """`value` as an error shows it: on one line, cut where it is long."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of more digits than Python prints, or nested too deeply
        return "something too large to show"
    return text if len(text) <= 100 else f"{text[:97]}..."


def nearest(name: str, known: Iterable[str]) -> str:
    """`` (did you mean 'x'?)`` where something known is close to `name`, else nothing."""
    plain = {other.lower(): other for other in known}
    close = difflib.get_close_matches(name.lower(), plain, n=1)
    return f" (did you mean '{plain[close[0]]}'?)" if close else ""


def flag_of(name: str) -> str:
    """The command-line option of a setting; ``allow_x``, which is on by default, has a second one, ``--no-x``."""
    flag = f"--{name.replace('_', '-')}"
    return f"{flag}/{flag.replace('allow', 'no', 1)}" if name.startswith("allow_") else flag


def unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    """The error for a name that does not exist, with the near match and the whole list."""
    known = sorted(set(known))
    return UserError(f"unknown {kind} {shown(name)}{nearest(name, known)}; choose from: {', '.join(known)}")


def fields_of(cls: type) -> dict[str, dataclasses.Field[Any]]:
    """The declared settings of a dataclass by name."""
    return {f.name: f for f in dataclasses.fields(cls)}


@functools.cache
def kind_of(cls: type, name: str) -> tuple[type, bool]:
    """(type, may be None) of a setting; a tuple setting gives its element type's tuple, e.g. ``tuple[int, ...]``."""
    hint = typing.get_type_hints(cls)[name]
    if isinstance(hint, types.UnionType):
        inner = [arg for arg in typing.get_args(hint) if arg is not type(None)]
        return inner[0], True
    return hint, False


def flat(values: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """Nested tables as one, names joined by dots."""
    joined: dict[str, Any] = {}
    for name, value in values.items():
        joined |= flat(value, f"{where}{name}.") if isinstance(value, Mapping) else {f"{where}{name}": value}
    return joined


def toml(value: Any) -> str:
    """`value` as TOML writes it."""
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{toml_key(name)} = {toml(item)}' for name, item in value.items())} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def toml_key(name: str) -> str:
    """A setting's full name as TOML writes it; the class of an own method may have any letters."""
    return ".".join(part if re.fullmatch("[A-Za-z0-9_-]+", part) else toml(part) for part in name.split("."))


def _convert(kind: Any, value: Any) -> Any:
    """`value` as `kind`, from a TOML value or a command-line string; ValueError or TypeError where it is not one."""
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
    """`value` as the type of the setting `cls.name` and inside its range, or a UserError that says what is allowed."""
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
        abs(value) <= LARGEST[type(value)]  # and not NaN
        and (spec["low"] is None or value >= spec["low"])
        and (spec["above"] is None or value > spec["above"])
        and (spec["high"] is None or value <= spec["high"])
    )


def _range(value: float, spec: Mapping[str, Any]) -> str:
    largest = LARGEST[type(value)]
    low = f">= {spec['low']}" if spec["low"] is not None else f"> {spec['above']}" if spec["above"] is not None else ""
    high = f"<= {spec['high']}" if spec["high"] is not None else f"<= {largest}" if value > largest else ""
    return " and ".join(part for part in (low, high) if part) or "finite numbers"
