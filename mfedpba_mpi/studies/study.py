"""A study: many runs, one for each combination of the values of its axes.

`studies.study_file` reads a study from a file and describes the format.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from mfedpba_mpi.config.assignments import combine, format_assignment, full_name, plain_text
from mfedpba_mpi.config.fields import check, fields_of, flag_of, flat, kind_of, nearest, option, shown, toml, toml_key
from mfedpba_mpi.config.run_config import RunConfig, fit_to_data, make_config, setting_names
from mfedpba_mpi.errors import UserError
from mfedpba_mpi.methods.params import METHODS
from mfedpba_mpi.methods.params import SHIPPED as SHIPPED_METHODS
from mfedpba_mpi.plugins import load_defaults

RANKS = "ranks"  # a setting of studies only: the number of ranks of each run
SEED = "seed"  # the axis that tables average over
METHOD = "method"  # the axis whose values have the methods' labels
_AXIS_NAME = re.compile(r"[A-Za-z0-9_-]+")
_PLACEHOLDER = re.compile(r"{([A-Za-z0-9_.-]+)}")  # in titles


@dataclass(frozen=True)
class Ranks:
    """Number of ranks of each run; the only setting of a study that is not a setting of `run`."""

    ranks: int = option(1, "ranks of each run", low=1)


@dataclass(frozen=True)
class Layout:
    """Layout of a study's table; see `studies.tables`."""

    rows: tuple[str, ...] = option((), "axes of the rows  [default: all others]")
    columns: str = option("", "axis of the columns  [default: method, else the last one]")
    measure: tuple[str, ...] = option(("last_five", "best"), "numbers in each cell")
    best: str = option("", "group in which the best cell is marked", choices=("", "row", "column", "table"))
    against_first: bool = option(False, "also show the difference to the first row, or the speed-up")
    prototypes: int | None = option(
        None, "the report shows the t-SNE of all runs, of clients with this number of modalities (0: of all)", low=0
    )


@dataclass(frozen=True)
class AxisValue:
    """One value of an axis: its label in tables, and its settings by full name."""

    label: str
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class RunKey:
    """Identifies a run in a study: the label of its value on each axis, and its path in the study's directory."""

    labels: Mapping[str, str]
    path: Path


@dataclass(frozen=True)
class StudyRun(RunKey):
    """A run of a study with all that is needed to start it.

    Attributes
    ----------
    given : the settings in the study, by full name.
    config : the configuration that they make.
    ranks : number of ranks, at most K + 1.
    weight : relative duration.
    """

    given: Mapping[str, Any]
    config: RunConfig
    ranks: int
    weight: float

    @property
    def arguments(self) -> list[str]:
        """The settings as arguments of `mfedpba-mpi run`."""
        words = []
        for name, value in self.given.items():
            if "." in name:
                words += ["--set", format_assignment(name, value)]
            elif kind_of(RunConfig, name)[0] is bool:
                on, _, off = flag_of(name).partition("/")
                words += [on] if value else [off] if off else []
            else:
                words += [flag_of(name), plain_text(value)]
        return words


@dataclass(frozen=True)
class Study:
    """A study.

    Attributes
    ----------
    title_format : the title, with ``{name}`` in place of values of settings.
    settings : of all runs, by full name; a method's parameters are passed to its runs only.
    axes : values by axis. The axis of a setting has its full name.
    alone : whether runs measure time and therefore never run in parallel.
    quick : changes of the quick form, see `with_changes`.
    """

    name: str
    title_format: str
    settings: Mapping[str, Any]
    axes: Mapping[str, Sequence[AxisValue]]
    layout: Layout = field(default_factory=Layout)
    alone: bool = False
    quick: Mapping[str, Any] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """The title of tables: `title_format` with the values of settings and axes."""

        def value(match: re.Match[str]) -> str:
            name = self.axis_name(match[1])
            if name in self.axes:
                return ", ".join(value.label for value in self.axes[name])
            return plain_text(self.settings[name]) if name in self.settings else match[0]

        return _PLACEHOLDER.sub(value, self.title_format)

    @property
    def methods(self) -> list[str]:
        """The names of all methods of its runs."""
        tables = [self.settings, *(value.settings for values in self.axes.values() for value in values)]
        methods = [str(method) for table in tables if METHOD in table for method in _as_list(table[METHOD])]
        return list(dict.fromkeys(methods)) or [RunConfig.method]

    def full_name(self, name: str) -> str:
        """The full name of a setting (see `config.assignments`); `name` unchanged if it is unknown or ambiguous."""
        try:
            return full_name(name, _setting_names(), self.methods)
        except UserError:
            return name

    def axis_name(self, name: str) -> str:
        """The full name of the setting of an axis; `name` unchanged for an axis of named values."""
        named = name in self.axes and _has_named_values(name, self.axes[name])
        return name if named else self.full_name(name)

    def with_full_names(self) -> Study:
        """The study with full names of all settings and axes."""
        axes = {
            axis: [replace(value, settings=combine(value.settings.items(), self.full_name)) for value in values]
            for axis, values in self.axes.items()
        }
        return replace(
            self,
            settings=combine(self.settings.items(), self.full_name),
            axes=combine(axes.items(), self.axis_name),
            quick=combine(self.quick.items(), self.axis_name),
        )

    def with_changes(self, changes: Mapping[str, Any]) -> Study:
        """The study with other settings, or other values of axes; an axis of named values can only be reduced."""
        settings, axes = dict(self.settings), dict(self.axes)
        if METHOD in changes:  # bare names are parameters of the new methods
            changed = replace(self, settings={METHOD: changes[METHOD]}, axes={})
        else:
            changed = self
        for name, value in combine(changes.items(), lambda n: n if n in axes else changed.full_name(n)).items():
            if name not in axes:
                settings[name] = value
            elif _has_named_values(name, axes[name]):
                axes[name] = [_labelled(name, axes[name], label) for label in _as_list(value)]
            else:
                axes[name] = axis_values(name, _as_list(value))
        return replace(self, settings=settings, axes=axes)

    def quick_form(self) -> Study:
        """The short version of the study, for a first try."""
        if not self.quick:
            raise UserError(f"quick: the study {self.name} has no [quick] part")
        quick = self.with_changes(self.quick)
        return replace(quick, name=f"{self.name}-quick", title_format=f"{self.title_format} (quick form)", quick={})

    def with_values_of(self, other: Study) -> Study:
        """The study with the values of `other` added to its axes, which have the same names; the longer list first."""
        axes = {}
        for axis in self.axes:
            longer, shorter = sorted((other.axes[axis], self.axes[axis]), key=len, reverse=True)
            labels = {value.label for value in longer}
            axes[axis] = [*longer, *(value for value in shorter if value.label not in labels)]
        return replace(self, axes=axes)

    def run_keys(self) -> list[RunKey]:
        """The keys of all runs. Needs neither data nor plugins."""
        return [_run_key(values) for values in self._combinations()]

    def plan(self, data_dir: Path) -> list[StudyRun]:
        """All runs, with every name and value checked."""
        load_defaults()
        try:
            for name in self._names():
                full_name(name, _setting_names(), self.methods, [axis for axis in self.axes if axis != name])
        except UserError as error:
            raise UserError(f"study {self.name}: {error}") from None
        runs: dict[Path, StudyRun] = {}
        for values in self._combinations():
            path = _run_key(values).path
            try:
                run = self._make_run(values, data_dir)
            except UserError as error:
                raise UserError(f"study {self.name}, run {path}: {error}") from None
            if path in runs:
                raise UserError(f"study {self.name}: two runs have the same directory, {path}; give them other names")
            runs[path] = run
        return list(runs.values())

    def _names(self) -> list[str]:
        """The names of all settings in the study."""
        crossed = [name for values in self.axes.values() for value in values for name in value.settings]
        return [*self.settings, *crossed, *(name for name in self.quick if name not in self.axes)]

    def _combinations(self) -> Iterator[dict[str, AxisValue]]:
        """For each run, its value on each axis."""
        for values in product(*self.axes.values()):
            yield dict(zip(self.axes, values, strict=True))

    def _make_run(self, values: Mapping[str, AxisValue], data_dir: Path) -> StudyRun:
        from mfedpba_mpi.data.sources import describe

        crossed = {name: value for axis_value in values.values() for name, value in axis_value.settings.items()}
        method = str(crossed.get(METHOD, self.settings.get(METHOD, RunConfig.method)))
        fixed = {n: v for n, v in self.settings.items() if "." not in n or n.startswith(f"{method}.")}
        given = combine((fixed | crossed).items(), self.full_name)
        ranks = check(Ranks, RANKS, given.pop(RANKS, 1))
        config = make_config(given)
        info = describe(config, data_dir)
        config = fit_to_data(config, info)
        key = _run_key(values)
        weight = float(config.rounds * config.epochs * info.samples)
        return StudyRun(key.labels, key.path, given, config, min(ranks, config.clients + 1), weight)

    def to_toml(self, named: bool = True) -> str:
        """The study as the text of a file; not `named`: the name of the file will be its name."""
        cross = {
            axis: [
                {"name": value.label, **value.settings} if _has_named_values(axis, values) else value.settings[axis]
                for value in values
            ]
            for axis, values in self.axes.items()
        }
        table = {name: getattr(self.layout, name) for name in fields_of(Layout)}
        lines = [f"name = {toml(self.name)}"] if named else []
        lines += [f"title = {toml(self.title_format)}", *(["alone = true"] if self.alone else [])]
        methods = [(str(value.settings.get(METHOD)), value.label) for value in self.axes.get(METHOD, ())]
        labels = {name: label for name, label in methods if name not in SHIPPED_METHODS and label != name}
        parts = {
            "settings": self.settings, "cross": cross, "table": {n: v for n, v in table.items() if v},
            "labels": labels, "quick": self.quick,
        }  # fmt: skip
        for part, values in parts.items():
            if values:
                lines += ["", f"[{part}]", *(f"{toml_key(name)} = {toml(value)}" for name, value in values.items())]
        return "\n".join(lines) + "\n"


def axis_values(axis: str, values: Any) -> list[AxisValue]:
    """The values of an axis from a list in a file: values of the setting `axis`, or tables of settings with names."""
    if not isinstance(values, list) or not values:
        raise UserError(f"cross: {axis} needs a list of values, got {shown(values)}")
    if not all(isinstance(value, Mapping) for value in values):
        labels = {name: cls.label for name, cls in METHODS.items()} if axis == METHOD else {}
        return [AxisValue(labels.get(str(value), _default_label(axis, value)), {axis: value}) for value in values]
    if not _AXIS_NAME.fullmatch(axis):
        raise UserError(f"cross: {shown(axis)} cannot be the name of a list of tables; use letters and digits")
    result = []
    for value in values:
        name = value.get("name")
        if not isinstance(name, str) or not name.isprintable() or not slug(name):
            raise UserError(f"cross: every table in {axis} needs a name = '...', unlike {shown(dict(value))}")
        result.append(AxisValue(name, {n: v for n, v in flat(value).items() if n != "name"}))
    return result


def slug(text: str) -> str:
    """`text` as the name of a directory."""
    return re.sub(r"[^A-Za-z0-9.+_-]+", "-", text).strip("-.").lower()


def _setting_names() -> list[str]:
    return [*setting_names(), RANKS]


def _has_named_values(axis: str, values: Sequence[AxisValue]) -> bool:
    """Whether the values of an axis are tables with names, and not values of the setting `axis`."""
    return any(list(value.settings) != [axis] for value in values)


def _labelled(axis: str, values: Sequence[AxisValue], label: Any) -> AxisValue:
    """The value with a label."""
    for value in values:
        if value.label == plain_text(label):
            return value
    known = [value.label for value in values]
    raise UserError(
        f"{axis}: unknown value {shown(label)}{nearest(str(label), known)}; choose from: {', '.join(known)}"
    )


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _default_label(axis: str, value: Any) -> str:
    """The label of a value without a name; for a partition file, its stem."""
    return Path(plain_text(value)).stem if axis == "partition" else plain_text(value)


def _run_key(values: Mapping[str, AxisValue]) -> RunKey:
    labels = {axis: value.label for axis, value in values.items()}
    return RunKey(labels, Path(*(_directory_name(axis, value) for axis, value in values.items())))


def _directory_name(axis: str, axis_value: AxisValue) -> str:
    """One part of a run's path: the value, with the name of the axis if it is a number."""
    value = axis_value.settings.get(axis)
    if axis == SEED:
        return f"s{slug(axis_value.label)}"
    if isinstance(value, int | float):
        return f"{axis.rpartition('.')[2]}-{slug(axis_value.label)}"
    return slug(_default_label(axis, value) if isinstance(value, str) else axis_value.label) or "none"
