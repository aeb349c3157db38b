"""A study: one file that describes many runs.

::

    title = "Local and MFedPBA, {rounds} rounds"      # optional; {name} stands for the value of a setting
    alone = true                    # optional: its runs measure time, so they go one after the other

    [settings]                      # of every run, as in a --config file; a method's own in its table
    rounds = 100
    ranks = 3                       # of each run (default 1: one process); the numbers do not depend on it
    mfedpba.tau = 0.5

    [cross]                         # lists to cross: a run for each combination
    dataset = ["youtube", "mfeat"]
    cell = [                        # or tables, where settings change together, each with a name
        { name = "M2", partition = "m2" },
        { name = "K20", clients = 20 },
    ]
    method = ["local", "mfedpba"]
    seed = [0, 1, 2, 3, 4]

    [table]                         # optional: how `study table` lays them out; always averaged over seeds
    rows = ["dataset", "cell"]
    columns = "method"
    measure = "last_five"

    [quick]                         # what --quick changes: lists are cut to these values, other settings set
    seed = [0]
    rounds = 3

Names and values are those of `mfedpba-mpi run`. Everything is checked before the first run starts. A file with
``base = "main-table"`` (or another file) starts from that study and changes it, as [quick] does.

Reading a study checks no names, and so needs no plugin. What methods of your own are called in tables is in the part
[labels] of the copy in the study's directory.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any

from mfedpba_mpi.config.assignments import combine, format_assignment, full_name, plain_text
from mfedpba_mpi.config.fields import (
    check,
    fields_of,
    flag_of,
    flat,
    kind_of,
    nearest,
    option,
    shown,
    toml,
    toml_key,
)
from mfedpba_mpi.config.run_config import RunConfig, fit_to_data, make_config, read_toml, setting_names
from mfedpba_mpi.errors import UserError
from mfedpba_mpi.methods.params import METHODS
from mfedpba_mpi.methods.params import SHIPPED as SHIPPED_METHODS
from mfedpba_mpi.plugins import load_defaults

FILE = "study.toml"  # in a study's directory: the study as it is run there
RANKS = "ranks"  # beside the settings of a run: on how many ranks it goes
SEED = "seed"  # the axis that tables average over
SHIPPED = files(__package__) / "shipped"
_PARTS = ("base", "name", "title", "alone", "settings", "cross", "table", "labels", "quick")
_METHOD = "method"  # the axis whose labels are the methods' names for people
_AXIS = re.compile(r"[A-Za-z0-9_-]+")
_PLACEHOLDER = re.compile(r"{([A-Za-z0-9_.-]+)}")


@dataclass(frozen=True)
class Ranks:
    """On how many ranks a run goes; the one setting of a study that is not of the run itself."""

    ranks: int = option(1, "ranks of each run", low=1)


@dataclass(frozen=True)
class Layout:
    """How a study's table is laid out; see `studies.tables`."""

    rows: tuple[str, ...] = option((), "axes down the side  [default: all others]")
    columns: str = option("", "axis across  [default: method, else the last one]")
    measure: str = option("last_five", "what a cell shows")
    best: str = option("", "where the best is looked for", choices=("", "row", "column", "table"))
    against_first: bool = option(False, "beside every number, how it compares with the first row's")


@dataclass(frozen=True)
class Choice:
    """One value of an axis: its label in tables and the settings that it stands for, by their full names."""

    label: str
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class Place:
    """Where a run stands in a study: the labels of its choices, by axis, and its path below the study's directory."""

    labels: Mapping[str, str]
    path: Path


@dataclass(frozen=True)
class PlannedRun(Place):
    """A run of a study, ready to be started.

    Attributes
    ----------
    given : settings by their full names, as the study gives them; `config` is what they come to.
    weight : about how long it takes, in no unit.
    """

    given: Mapping[str, Any]
    config: RunConfig
    ranks: int
    weight: float

    @property
    def arguments(self) -> list[str]:
        """The run's settings as arguments of `mfedpba-mpi run`."""
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
    """A study as it is run; `quick` is what the quick form changes."""

    name: str
    title_format: str
    settings: Mapping[str, Any]
    axes: Mapping[str, Sequence[Choice]]
    layout: Layout = field(default_factory=Layout)
    alone: bool = False  # times are measured: one run after the other
    quick: Mapping[str, Any] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """The title of its tables: `title_format` with the values of settings, or of lists to cross, for ``{name}``."""

        def value(match: re.Match[str]) -> str:
            name = self.axis_name(match[1])
            if name in self.axes:
                return ", ".join(choice.label for choice in self.axes[name])
            return plain_text(self.settings[name]) if name in self.settings else match[0]

        return _PLACEHOLDER.sub(value, self.title_format)

    @property
    def methods(self) -> list[str]:
        """The methods of its runs, by name."""
        values = [self.settings, *(choice.settings for choices in self.axes.values() for choice in choices)]
        named = [str(method) for v in values if _METHOD in v for method in _listed(v[_METHOD])]
        return list(dict.fromkeys(named)) or [RunConfig.method]

    def full_name(self, name: str) -> str:
        """The full name of a setting (see `config.assignments`); `name` itself if it has none here."""
        try:
            return full_name(name, _setting_names(), self.methods)
        except UserError:
            return name

    def with_full_names(self) -> Study:
        """The study with settings, axes and what the quick form changes under their full names."""
        axes = {
            axis: [replace(choice, settings=combine(choice.settings.items(), self.full_name)) for choice in choices]
            for axis, choices in self.axes.items()
        }
        return replace(
            self,
            settings=combine(self.settings.items(), self.full_name),
            axes=combine(axes.items(), self.axis_name),
            quick=combine(self.quick.items(), self.axis_name),
        )

    def axis_name(self, name: str) -> str:
        """The name of an axis, as it is where its values have names, else the full name of its setting."""
        named = name in self.axes and _is_named(name, self.axes[name])
        return name if named else self.full_name(name)

    def changed(self, changes: Mapping[str, Any]) -> Study:
        """The study with an axis cut to, or replaced by, other values, and with other settings."""
        settings, axes = dict(self.settings), dict(self.axes)
        if _METHOD in changes:  # whose parameters may be among the changes
            new = replace(self, settings={_METHOD: changes[_METHOD]}, axes={})
        else:
            new = self
        for name, value in combine(changes.items(), lambda n: n if n in axes else new.full_name(n)).items():
            if name not in axes:
                settings[name] = value
            elif _is_named(name, axes[name]):
                axes[name] = [_chosen(name, axes[name], label) for label in _listed(value)]
            else:
                axes[name] = _choices(name, _listed(value))
        return replace(self, settings=settings, axes=axes)

    def shortened(self) -> Study:
        """The quick form."""
        if not self.quick:
            raise UserError(f"quick: the study {self.name} has no [quick] part")
        cut = self.changed(self.quick)
        return replace(cut, name=f"{self.name}-quick", title_format=f"{self.title_format} (quick form)", quick={})

    def joined(self, other: Study) -> Study:
        """The study with what the lists of `other`, which have the same names, have besides; the longer list first."""
        axes = {}
        for axis in self.axes:
            one, two = sorted((other.axes[axis], self.axes[axis]), key=len, reverse=True)
            labels = {choice.label for choice in one}
            axes[axis] = [*one, *(choice for choice in two if choice.label not in labels)]
        return replace(self, axes=axes)

    def places(self) -> list[Place]:
        """Where its runs stand; needs no data."""
        return [_place(chosen) for chosen in self._combinations()]

    def plan(self, data_dir: Path) -> list[PlannedRun]:
        """Every run, checked."""
        load_defaults()
        try:
            for name in self._names():
                full_name(name, _setting_names(), self.methods)
        except UserError as error:
            raise UserError(f"study {self.name}: {error}") from None
        runs: dict[Path, PlannedRun] = {}
        for chosen in self._combinations():
            path = _place(chosen).path
            try:
                planned = self._planned(chosen, data_dir)
            except UserError as error:
                raise UserError(f"study {self.name}, run {path}: {error}") from None
            if path in runs:
                raise UserError(f"study {self.name}: two of its runs would both be {path}; name them apart")
            runs[path] = planned
        return list(runs.values())

    def _names(self) -> list[str]:
        """Every setting that it names, by its full name."""
        crossed = [name for choices in self.axes.values() for choice in choices for name in choice.settings]
        return [*self.settings, *crossed, *(name for name in self.quick if name not in self.axes)]

    def _combinations(self) -> Iterator[dict[str, Choice]]:
        for choices in product(*self.axes.values()):
            yield dict(zip(self.axes, choices, strict=True))

    def _planned(self, chosen: Mapping[str, Choice], data_dir: Path) -> PlannedRun:
        from mfedpba_mpi.data.sources import describe

        crossed = {name: value for choice in chosen.values() for name, value in choice.settings.items()}
        method = str(crossed.get(_METHOD, self.settings.get(_METHOD, RunConfig.method)))
        # what is fixed for a method goes to its runs only
        fixed = {n: v for n, v in self.settings.items() if "." not in n or n.startswith(f"{method}.")}
        given = combine((fixed | crossed).items(), self.full_name)
        ranks = check(Ranks, RANKS, given.pop(RANKS, 1))
        config = make_config(given)
        info = describe(config, data_dir)
        config = fit_to_data(config, info)
        place = _place(chosen)
        weight = float(config.rounds * config.epochs * info.samples)
        return PlannedRun(place.labels, place.path, given, config, min(ranks, config.clients + 1), weight)

    def to_toml(self, named: bool = True) -> str:
        """The study as a file that describes it; not `named`: it is called what the file is."""
        cross = {
            axis: [
                {"name": choice.label, **choice.settings} if _is_named(axis, choices) else choice.settings[axis]
                for choice in choices
            ]
            for axis, choices in self.axes.items()
        }
        table = {name: getattr(self.layout, name) for name in fields_of(Layout)}
        lines = [f"name = {toml(self.name)}"] if named else []
        lines += [f"title = {toml(self.title_format)}", *(["alone = true"] if self.alone else [])]
        methods = [(str(choice.settings.get(_METHOD)), choice.label) for choice in self.axes.get(_METHOD, ())]
        labels = {name: label for name, label in methods if name not in SHIPPED_METHODS and label != name}
        parts = {
            "settings": self.settings, "cross": cross, "table": {n: v for n, v in table.items() if v},
            "labels": labels, "quick": self.quick,
        }  # fmt: skip
        for part, values in parts.items():
            if values:
                lines += ["", f"[{part}]", *(f"{toml_key(name)} = {toml(value)}" for name, value in values.items())]
        return "\n".join(lines) + "\n"


def find_study(source: str) -> Study:
    """The study in a file, in a study's directory, or one that comes with the program."""
    path = Path(source)
    with suppress(OSError):  # of a name that no file can have
        if (path / FILE).is_file():
            return read_study(path / FILE)
    shipped = {Path(entry.name).stem: entry for entry in SHIPPED.iterdir() if entry.name.endswith(".toml")}
    if source in shipped:
        return read_study(Path(str(shipped[source])))
    with suppress(OSError):
        if path.is_file():
            return read_study(path)
    known = ", ".join(sorted(shipped))
    raise UserError(
        f"no study {shown(source)}{nearest(source, shipped)}; give a file, the directory of a study, or one of: {known}"
    )


def shipped_studies() -> Iterator[Study]:
    """The studies that come with the program, by name."""
    for name in sorted(entry.name for entry in SHIPPED.iterdir() if entry.name.endswith(".toml")):
        yield find_study(name.removesuffix(".toml"))


def read_study(path: Path) -> Study:
    """The study that a file describes; whether there are such settings and values is checked by `Study.plan`."""
    document = read_toml(path)
    try:
        return _study(document, path.stem)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def _study(document: Mapping[str, Any], stem: str) -> Study:
    for name in document:
        if name not in _PARTS:
            raise UserError(f"unknown part {shown(name)}{nearest(name, _PARTS)}; a study has: {', '.join(_PARTS)}")
    settings, cross, table, labels, quick = (
        _table(document, part) for part in ("settings", "cross", "table", "labels", "quick")
    )
    if "base" in document:
        study = _base(document["base"], cross).changed(settings | cross)
    else:
        study = Study(stem, stem, settings, {name: _choices(name, values) for name, values in cross.items()})
    if not study.axes:
        raise UserError("nothing to cross; a study needs a part [cross] with at least one list, e.g. seed = [0, 1, 2]")
    study = study.with_full_names()
    axes = dict(study.axes)
    if _METHOD in axes:  # a method that is not registered has its name as its label so far
        axes[_METHOD] = [replace(choice, label=str(labels.get(choice.label, choice.label))) for choice in axes[_METHOD]]
    name = str(document.get("name", stem))
    if not _slug_of(name):
        raise UserError(f"name: {shown(name)} cannot name a directory; use letters and digits")
    return replace(
        study,
        axes=axes,
        name=_slug_of(name),
        title_format=str(document.get("title", study.title_format)),
        alone=document.get("alone", study.alone) is True,
        layout=_layout(asdict(study.layout) | table, study),
        quick=quick or study.quick,
    ).with_full_names()


def _base(source: Any, cross: Mapping[str, Any]) -> Study:
    """The study that another starts from; one that has the lists which are to be changed."""
    if not isinstance(source, str):
        raise UserError(f"base: expected the name of a study or a file, got {shown(source)}")
    base = find_study(source)
    for name in cross:
        if name not in base.axes and base.full_name(name) not in base.axes:
            raise UserError(f"cross: {base.name} has no list {shown(name)}{nearest(name, base.axes)} to cut or replace")
    return base


def _table(document: Mapping[str, Any], part: str) -> dict[str, Any]:
    values = document.get(part, {})
    if not isinstance(values, Mapping):
        raise UserError(f"{part}: expected a table, [{part}], got {shown(values)}")
    return flat(values)


def _setting_names() -> list[str]:
    return [*setting_names(), RANKS]


def _layout(table: Mapping[str, Any], study: Study) -> Layout:
    """The layout of the table, with what is not said filled in."""
    for name in table:
        if name not in fields_of(Layout):
            raise UserError(f"table: unknown {shown(name)}{nearest(name, fields_of(Layout))}")
    layout = Layout(**{name: check(Layout, name, value, "table.") for name, value in table.items()})
    layout = replace(
        layout, rows=tuple(study.axis_name(axis) for axis in layout.rows), columns=study.axis_name(layout.columns)
    )
    shown_axes = [axis for axis in study.axes if axis != SEED]
    for axis in (*layout.rows, *filter(None, [layout.columns])):
        if axis not in shown_axes:
            raise UserError(f"table: {shown(axis)} is not one of the lists to cross: {', '.join(shown_axes)}")
    free = [axis for axis in shown_axes if axis not in layout.rows]
    columns = layout.columns or ("method" if "method" in free else free[-1] if len(shown_axes) > 1 and free else "")
    rows = layout.rows or tuple(axis for axis in shown_axes if axis != columns)
    if missing := set(shown_axes) - {*rows, columns}:
        raise UserError(f"table: {', '.join(sorted(missing))} is neither in rows nor in columns")
    return replace(layout, rows=rows, columns=columns)


def _choices(axis: str, values: Any) -> list[Choice]:
    """The values of an axis: of a setting of that name, or tables with names."""
    if not isinstance(values, list) or not values:
        raise UserError(f"cross: {axis} needs a list of values, got {shown(values)}")
    if not all(isinstance(value, Mapping) for value in values):
        labels = {name: cls.label for name, cls in METHODS.items()} if axis == _METHOD else {}
        return [Choice(labels.get(str(value), _label(axis, value)), {axis: value}) for value in values]
    if not _AXIS.fullmatch(axis):
        raise UserError(f"cross: {shown(axis)} cannot name a list of tables; use letters and digits")
    choices = []
    for value in values:
        name = value.get("name")
        if not isinstance(name, str) or not name.isprintable() or not _slug_of(name):
            raise UserError(f"cross: every table in {axis} needs a name = '...', unlike {shown(dict(value))}")
        choices.append(Choice(name, {n: v for n, v in flat(value).items() if n != "name"}))
    return choices


def _is_named(axis: str, choices: Sequence[Choice]) -> bool:
    return any(list(choice.settings) != [axis] for choice in choices)


def _chosen(axis: str, choices: Sequence[Choice], label: Any) -> Choice:
    for choice in choices:
        if choice.label == label:
            return choice
    known = [choice.label for choice in choices]
    raise UserError(f"{axis}: no {shown(label)}{nearest(str(label), known)}; there are: {', '.join(known)}")


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _label(axis: str, value: Any) -> str:
    """What a value of a list is called: a partition file by its stem."""
    return Path(plain_text(value)).stem if axis == "partition" else plain_text(value)


def _slug_of(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.+_-]+", "-", text).strip("-.").lower()


def _place(chosen: Mapping[str, Choice]) -> Place:
    labels = {axis: choice.label for axis, choice in chosen.items()}
    return Place(labels, Path(*(_slug(axis, choice) for axis, choice in chosen.items())))


def _slug(axis: str, choice: Choice) -> str:
    """A part of a run's path: the value, with the axis where it is a number."""
    value = choice.settings.get(axis)
    if axis == SEED:
        return f"s{_slug_of(choice.label)}"
    if isinstance(value, int | float):
        return f"{axis.rpartition('.')[2]}-{_slug_of(choice.label)}"
    return _slug_of(_label(axis, value) if isinstance(value, str) else choice.label) or "none"
