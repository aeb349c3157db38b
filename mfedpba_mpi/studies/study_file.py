"""Reading a study from a TOML file.

::

    title = "Local and MFedPBA, {rounds} rounds"    # optional; {name} stands for the value of a setting
    alone = true                    # optional: runs measure time, so they never run in parallel

    [settings]                      # of every run, as in a --config file
    rounds = 100
    ranks = 3                       # of each run (default 1: one process); results do not depend on it
    mfedpba.tau = 0.5               # only for runs of mfedpba

    [cross]                         # each list is an axis; there is a run for each combination of their values
    dataset = ["youtube", "mfeat"]
    cell = [                        # named values, where several settings change together
        { name = "M2", partition = "m2" },
        { name = "K20", clients = 20 },
    ]
    method = ["local", "mfedpba"]
    seed = [0, 1, 2, 3, 4]

    [table]                         # optional: layout of `study table`; cells are means over seeds
    rows = ["dataset", "cell"]
    columns = "method"
    measure = ["last_five", "best"]

    [quick]                         # optional: changes for --quick, of axes or of settings
    seed = [0]
    rounds = 3

Names and values are those of `mfedpba-mpi run` (see `config.assignments`). A file with ``base = "main-table"``, or with
the path of another file, contains only changes of that study.

Reading a study accepts unknown names, so it needs no plugin; `Study.plan` checks them. The copy in the study's
directory has a part [labels] with the labels of methods from plugins.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from mfedpba_mpi.config.fields import check, fields_of, flat, nearest, shown
from mfedpba_mpi.config.run_config import read_toml
from mfedpba_mpi.errors import UserError
from mfedpba_mpi.studies.study import METHOD, SEED, Layout, Study, axis_values, slug

FILE = "study.toml"  # in a study's directory: the study that is run there
SHIPPED = files(__package__) / "shipped"
_PARTS = ("base", "name", "title", "alone", "settings", "cross", "table", "labels", "quick")


def find_study(source: str) -> Study:
    """The study in a directory, in a file, or the shipped study of that name."""
    path = Path(source)
    with suppress(OSError):  # for example, a name that is too long for a file
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
    """The studies that come with the program, sorted by name."""
    for name in sorted(entry.name for entry in SHIPPED.iterdir() if entry.name.endswith(".toml")):
        yield find_study(name.removesuffix(".toml"))


def read_study(path: Path) -> Study:
    """The study in a file. Names and values of settings are checked later, by `Study.plan`."""
    document = read_toml(path)
    try:
        return make_study(document, path.stem)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def make_study(document: Mapping[str, Any], stem: str) -> Study:
    """The study in the parsed file `stem`.toml."""
    for name in document:
        if name not in _PARTS:
            raise UserError(f"unknown part {shown(name)}{nearest(name, _PARTS)}; a study has: {', '.join(_PARTS)}")
    settings, cross, table, labels, quick = (
        _part(document, part) for part in ("settings", "cross", "table", "labels", "quick")
    )
    if "base" in document:
        study = _find_base(document["base"], cross).with_changes(settings | cross)
    else:
        study = Study(stem, stem, settings, {name: axis_values(name, values) for name, values in cross.items()})
    if not study.axes:
        raise UserError("cross: missing; a study needs [cross] with at least one list, e.g. seed = [0, 1, 2]")
    study = study.with_full_names()
    axes = dict(study.axes)
    if METHOD in axes:  # without its plugin, the label of a method is its name
        axes[METHOD] = [replace(value, label=str(labels.get(value.label, value.label))) for value in axes[METHOD]]
    name = str(document.get("name", stem))
    if not slug(name):
        raise UserError(f"name: {shown(name)} cannot be the name of a directory; use letters and digits")
    return replace(
        study,
        axes=axes,
        name=slug(name),
        title_format=str(document.get("title", study.title_format)),
        alone=document.get("alone", study.alone) is True,
        layout=_make_layout(asdict(study.layout) | table, study),
        quick=quick or study.quick,
    ).with_full_names()


def _find_base(source: Any, cross: Mapping[str, Any]) -> Study:
    """The study that another one changes. It must have the axes in `cross`."""
    if not isinstance(source, str):
        raise UserError(f"base: expected the name of a study or a file, got {shown(source)}")
    base = find_study(source)
    for name in cross:
        if name not in base.axes and base.full_name(name) not in base.axes:
            raise UserError(f"cross: {base.name} has no list {shown(name)}{nearest(name, base.axes)} to change")
    return base


def _part(document: Mapping[str, Any], part: str) -> dict[str, Any]:
    """A part of the file, as one table with dotted names."""
    values = document.get(part, {})
    if not isinstance(values, Mapping):
        raise UserError(f"{part}: expected a table, [{part}], got {shown(values)}")
    return flat(values)


def _make_layout(table: Mapping[str, Any], study: Study) -> Layout:
    """The layout of the study's table, with defaults for what is missing in [table]."""
    for name in table:
        if name not in fields_of(Layout):
            raise UserError(f"table: unknown {shown(name)}{nearest(name, fields_of(Layout))}")
    layout = Layout(**{name: check(Layout, name, value, "table.") for name, value in table.items()})
    layout = replace(
        layout, rows=tuple(study.axis_name(axis) for axis in layout.rows), columns=study.axis_name(layout.columns)
    )
    axes = [axis for axis in study.axes if axis != SEED]
    for axis in (*layout.rows, *filter(None, [layout.columns])):
        if axis not in axes:
            raise UserError(f"table: {shown(axis)} is not a list in [cross]; choose from: {', '.join(axes)}")
    free = [axis for axis in axes if axis not in layout.rows]
    columns = layout.columns or (METHOD if METHOD in free else free[-1] if len(axes) > 1 and free else "")
    rows = layout.rows or tuple(axis for axis in axes if axis != columns)
    if missing := set(axes) - {*rows, columns}:
        raise UserError(f"table: {', '.join(sorted(missing))} is neither in rows nor in columns")
    return replace(layout, rows=rows, columns=columns)
