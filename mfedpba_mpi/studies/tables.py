"""The table of a study: mean and standard deviation over seeds, with the best and the second best cells marked.

The deviation is that of a sample (n - 1). Only complete runs count; the table notes missing and failed runs. Results on
synthetic data are marked in the title, or in the rows if only some of them are. A method with several predictors has
a column (or row) for the accuracies of each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mfedpba_mpi.config.fields import unknown
from mfedpba_mpi.errors import COMPLETE
from mfedpba_mpi.records.run import Run, bracketed, joint_remark
from mfedpba_mpi.records.status import load_ended
from mfedpba_mpi.records.tables import NumberText
from mfedpba_mpi.studies.measures import MEASURES, Measure, checked_measures
from mfedpba_mpi.studies.study import METHOD, SEED, AxisValue, RunKey, Study

PREDICTOR = "predictor"  # the axis of the predictors of a study's only method
Grid = list[list["Cell | None"]]


class RunValue(NamedTuple):
    """A number of a run that has ended.

    Attributes
    ----------
    value : the number, NaN if the run failed.
    predictor : which of the method's predictors the number is about; "" if it has only one, or failed.
    """

    key: RunKey
    value: float
    remark: str = ""
    predictor: str = ""


@dataclass(frozen=True)
class Cell:
    """The mean of n values and their standard deviation (NaN if n = 1).

    Attributes
    ----------
    failed : number of failed runs, which have no value. A cell with failed runs is never marked.
    place : 1 for the best cell, 2 for the second best, else 0.
    against : the comparison with the first row: a difference, or a speed-up if smaller is better.
    digits : to show after the point.
    """

    mean: float
    deviation: float
    n: int
    failed: int = 0
    place: int = 0
    against: str = ""
    digits: int = 2

    def text(self) -> str:
        """Mean and deviation."""
        if not self.n:
            return "failed"
        deviation = "" if np.isnan(self.deviation) else f" ± {self.deviation:.{self.digits}f}"
        return NumberText(f"{self.mean:.{self.digits}f}{deviation}", self.mean, self.deviation)

    def full_text(self, mark: str = "{}") -> str:
        """Mean and deviation in the format `mark`, the comparison, and the number of failed runs."""
        failed = f"{self.failed} failed" if self.failed and self.n else ""
        notes = ", ".join(filter(None, [self.against, failed]))
        text = mark.format(self.text()) + (f" ({notes})" if notes else "")
        return NumberText(text, self.mean, self.deviation) if self.n else text


@dataclass(frozen=True)
class Row:
    """A row of a table: its label, its cells (None: no run), and its remark if rows have different ones.

    `measure` is the name of its measure if rows have different ones.
    """

    label: str
    cells: Sequence[Cell | None]
    remark: str = ""
    measure: str = ""

    @property
    def name(self) -> str:
        """The label with the remark."""
        return self.label + bracketed(self.remark)


@dataclass(frozen=True)
class Results:
    """A table of a study.

    Attributes
    ----------
    subject : the title of the study.
    measure : the number in the cells. Without a label, rows or columns have different measures.
    corner : header of the column of labels.
    incomplete : the number of complete runs in words, "" if all are complete.
    remark : `Run.remark` if it is the same for all runs.
    name : the name of the study.
    seeds : number of seeds.
    best : where the best cells are marked: in each row, in each column or in the table.
    against_first : whether cells are compared with those of the first row.
    short : whether a run has fewer rounds than the measure is a mean of.
    combined : whether the table has several measures, see `combine`.
    """

    subject: str
    measure: Measure
    corner: str
    columns: Sequence[str]
    rows: Sequence[Row]
    incomplete: str = ""
    remark: str = ""
    name: str = "table"
    seeds: int = 1
    best: str = "row"
    against_first: bool = False
    short: bool = False
    combined: bool = False

    @property
    def title(self) -> str:
        """Subject, remark and measure."""
        return ": ".join(filter(None, [f"{self.subject}{bracketed(self.remark)}", self.measure.label]))

    def notes(self, bold: str = "bold", underlined: str = "underlined") -> list[str]:
        """How to read the table. `bold` and `underlined` describe the marks of the best and the second best cells."""
        notes = []
        if not self.measure.plain:
            notes.append(f"mean ± deviation over {self.seeds} seeds" if self.seeds > 1 else "one seed")
            notes += [self.incomplete] if self.incomplete else []
            group = "the table" if self.best == "table" else f"a {self.best}"
            each = " by each measure" if self.combined and self.best != self._one_measure else ""
            notes.append(f"best of {group}{each} {bold}, second best {underlined}")
            notes += ["in brackets: against the first row"] if self.against_first else []
        notes += ["last five rounds: their mean"] if self.combined and self.measure.last_five else []
        return [*notes, "runs with fewer than five rounds: mean of all rounds"] if self.short else notes

    @property
    def _one_measure(self) -> str:
        """The group of cells that has a single measure in a combined table."""
        return "row" if self.rows and self.rows[0].measure else "column"


def tabulate(study: Study, directory: Path, measures: Sequence[str] = (), against: str = "") -> list[Results]:
    """The tables of the complete runs in `directory`, one for each measure.

    Parameters
    ----------
    measures : keys of `MEASURES`  [default: the study's].
    against : label of the column to subtract, see `difference_table`.
    """
    names = checked_measures(measures or study.layout.measure)
    values: dict[str, list[RunValue]] = {name: [] for name in names}
    short = False
    for key, run in ended_runs(study, directory):
        short |= len(run.evaluated) < 5
        for name in values:
            values[name] += values_of(key, run, name)
    tables = {name: table_of(study, found, MEASURES[name][0], against) for name, found in values.items()}
    return [replace(table, short=short and MEASURES[name][0].last_five) for name, table in tables.items()]


def combine(tables: Sequence[Results]) -> list[Results]:
    """Tables of several measures as one: measures are columns if there is only one column, else rows below each other.

    Tables with other columns or rows than the first stay alone, as those of seconds if a method has two predictors.
    """

    def labels(table: Results) -> tuple[object, ...]:
        return [*table.columns], [row.label for row in table.rows]

    alike = [table for table in tables if labels(table) == labels(tables[0])]
    others = [table for table in tables if labels(table) != labels(tables[0])]
    return [_combine_alike(alike), *(combine(others) if others else [])]


def _combine_alike(tables: Sequence[Results]) -> Results:
    """Tables with the same columns and rows as one."""
    first = tables[0]
    if len(tables) == 1:
        return first
    measures = [table.measure for table in tables]
    same = bool(measures[0].quantity) and len({measure.quantity for measure in measures}) == 1
    names = [measure.rounds if same else measure.label for measure in measures]
    groups = list(zip(*(table.rows for table in tables), strict=True))
    if len(first.columns) == 1:
        columns, rows = names, [replace(group[0], cells=[row.cells[0] for row in group]) for group in groups]
    else:
        columns = list(first.columns)
        rows = [replace(row, measure=name) for group in groups for row, name in zip(group, names, strict=True)]
    measure = replace(
        measures[0], label=measures[0].quantity if same else "", plain=all(measure.plain for measure in measures),
        last_five=same and any(measure.last_five for measure in measures),
    )  # fmt: skip
    return replace(
        first, measure=measure, columns=columns, rows=rows, combined=True,
        incomplete=next((table.incomplete for table in tables if table.incomplete), ""),
        short=any(table.short for table in tables),
    )  # fmt: skip


def ended_runs(study: Study, directory: Path) -> Iterator[tuple[RunKey, Run]]:
    """The runs of the study in `directory` that are complete or have failed."""
    for key in study.run_keys():
        if run := load_ended(directory / key.path):
            yield key, run


def values_of(key: RunKey, run: Run, measure: str) -> Iterator[RunValue]:
    """The values of a measure, one for each predictor; none if a complete run lacks it, e.g. plan_trace of Local."""
    shown, value_of = MEASURES[measure]
    if run.status != COMPLETE:
        yield RunValue(key, np.nan, run.remark)
        return
    for predictor, judged in (run.by_predictor() if shown.of_predictor else {"": run}).items():
        if not np.isnan(number := value_of(judged)):
            yield RunValue(key, number, run.remark, predictor)


def table_of(study: Study, values: Sequence[RunValue], measure: Measure, against: str = "") -> Results:
    """The table of these values, or of their differences to the column `against`."""
    return difference_table(study, values, measure, against) if against else lay_out(study, values, measure)


def difference_table(study: Study, values: Sequence[RunValue], measure: Measure, column: str) -> Results:
    """The table of differences to a column, seed by seed.

    Runs with the same seed have the same clients, so the deviation of the differences does not contain that of the
    problems. Runs without a partner in `column` are left out, but failed runs still count as failed. `column` may be
    the label of a row instead.
    """
    runs = len(study.run_keys())
    study, values = _split_by_predictor(study, values)
    axes = [*filter(None, [study.layout.columns]), *study.layout.rows]
    labels = {axis: [value.label for value in study.axes[axis]] for axis in axes}
    axis = next((axis for axis in axes if column in labels[axis]), "")
    if not axis:
        raise unknown("column", column, labels[axes[0]] if axes else [])

    def other_labels(key: RunKey) -> tuple[str, ...]:
        return tuple(label for name, label in key.labels.items() if name != axis)

    base = {other_labels(v.key): v.value for v in values if v.key.labels[axis] == column and not np.isnan(v.value)}
    differences = [
        v._replace(value=v.value - base.get(other_labels(v.key), np.nan))
        for v in values
        if other_labels(v.key) in base or np.isnan(v.value)
    ]
    study = replace(study, layout=replace(study.layout, against_first=False))
    label, quantity = (f"{text}, minus {column}'s" if text else "" for text in (measure.label, measure.quantity))
    return _lay_out(study, differences, replace(measure, label=label, quantity=quantity), runs)


def lay_out(study: Study, values: Sequence[RunValue], measure: Measure) -> Results:
    """The table of these values, in the study's layout."""
    return _lay_out(*_split_by_predictor(study, values), measure, len(study.run_keys()))


def axis_of_methods(study: Study) -> str:
    """The first axis with methods among its settings, "" if there is none."""
    return next((axis for axis in study.axes if any(METHOD in value.settings for value in study.axes[axis])), "")


def with_predictor(label: str, predictor: str) -> str:
    """The label of numbers about one of several predictors, e.g. "FedProto, classifier"."""
    return ", ".join(filter(None, (label, predictor)))


def _split_by_predictor(study: Study, values: Sequence[RunValue]) -> tuple[Study, Sequence[RunValue]]:
    """The study with a label for each predictor in place of a method with several, and the values under these labels.

    If no axis has methods, the labels of the columns are split; a table without columns gets one for each predictor. A
    failed run counts for all predictors of its method. A value without a predictor, of a method that has some, is from
    a file of an older version and about the default one, which comes first.
    """
    if not any(value.predictor for value in values):
        return study, values
    layout, axes = study.layout, study.axes
    axis = axis_of_methods(study) or layout.columns
    if not axis:
        axis, layout = PREDICTOR, replace(layout, columns=PREDICTOR, best=layout.best or "column")
        axes = {**axes, axis: [AxisValue("", {})]}
    predictors: dict[str, list[str]] = {}
    for value in values:
        known = predictors.setdefault(value.key.labels.get(axis, ""), [])
        known += [value.predictor] if value.predictor and value.predictor not in known else []
    split = []
    for value in values:
        label = value.key.labels.get(axis, "")
        known = predictors[label] or [""]
        for name in [value.predictor] if value.predictor else known if np.isnan(value.value) else known[:1]:
            labels = {**value.key.labels, axis: with_predictor(label, name)}
            split.append(RunValue(replace(value.key, labels=labels), value.value, value.remark))
    choices = [
        replace(choice, label=with_predictor(choice.label, name))
        for choice in axes[axis]
        for name in predictors.get(choice.label) or [""]
    ]
    return replace(study, axes={**axes, axis: choices}, layout=layout), split


def _lay_out(study: Study, values: Sequence[RunValue], measure: Measure, runs: int) -> Results:
    """The table of values that are split by predictor, of a study with `runs` runs."""
    layout, remarks = study.layout, {value.remark for value in values}
    columns = _labels(study, [layout.columns] if layout.columns else [])
    grid: Grid = []
    labels, row_remarks = [], []
    for row in _labels(study, layout.rows):
        in_row = [value for value in values if _has_labels(value.key, layout.rows, row)]
        labels.append(" ".join(row) or study.name)
        row_remarks.append(joint_remark(value.remark for value in in_row) if len(remarks) > 1 else "")
        by_column = [[v.value for v in in_row if _has_labels(v.key, [layout.columns], column)] for column in columns]
        grid.append([cell_of(own, measure.digits) for own in by_column])
    best = layout.best or ("row" if len(columns) > 1 else "column")
    incomplete = "" if measure.plain else _incomplete(runs, values)
    if measure.plain:
        grid = [[cell and replace(cell, deviation=np.nan) for cell in row] for row in grid]
    else:
        grid = _mark_best(grid, best, measure.larger_is_better)
        grid = _compare_with_first_row(grid, measure) if layout.against_first else grid
    return Results(
        study.title, measure,
        ", ".join(axis.rpartition(".")[2] for axis in layout.rows) or "study",
        [" ".join(column) for column in columns] if layout.columns else ["mean"],
        list(map(Row, labels, grid, row_remarks)),
        incomplete, next(iter(remarks)) if len(remarks) == 1 else "", study.name,
        len(study.axes.get(SEED, ())), best, layout.against_first,
    )  # fmt: skip


def _incomplete(total: int, values: Sequence[RunValue]) -> str:
    """How many of `total` runs are complete and how many have failed; "" if all are complete."""
    failed = len({value.key.path for value in values if np.isnan(value.value)})
    complete = len({value.key.path for value in values if not np.isnan(value.value)})
    if complete == total:
        return ""
    runs = "1 run is" if total == 1 else f"{total} runs are"
    return f"{complete} of {runs} complete{f', {failed} failed' if failed else ''}"


def _labels(study: Study, axes: Iterable[str]) -> list[tuple[str, ...]]:
    """The labels of every combination of values of these axes; a single empty one if there are no axes."""
    return list(product(*([value.label for value in study.axes[axis]] for axis in axes)))


def _has_labels(key: RunKey, axes: Sequence[str], labels: Sequence[str]) -> bool:
    return all(key.labels[axis] == label for axis, label in zip(axes, labels, strict=False))


def cell_of(values: Sequence[float], digits: int = 2) -> Cell | None:
    """The cell of these values, with NaN for failed runs; None if there are no values."""
    if not values:
        return None
    good = [value for value in values if not np.isnan(value)]
    deviation = float(np.std(good, ddof=1)) if len(good) > 1 else np.nan
    mean = float(np.mean(good)) if good else np.nan
    return Cell(mean, deviation, len(good), len(values) - len(good), digits=digits)


def _mark_best(grid: Grid, best: str, larger_is_better: bool) -> Grid:
    """Set the places of the best and the second best cell of every row, every column or the table. Ties share."""
    rows = [[(r, c) for c in range(len(row))] for r, row in enumerate(grid)]
    columns, table = [list(group) for group in zip(*rows, strict=True)], [spot for row in rows for spot in row]
    groups = {"row": rows, "column": columns, "table": [table]}
    result = [list(row) for row in grid]
    for group in groups[best]:
        cells = {(r, c): cell for r, c in group if (cell := grid[r][c]) and not cell.failed}
        means = sorted({cell.mean for cell in cells.values()}, reverse=larger_is_better)
        for (r, c), cell in cells.items():
            if len(cells) > 1 and cell.mean in means[:2]:
                result[r][c] = replace(cell, place=means.index(cell.mean) + 1)
    return result


def _compare_with_first_row(grid: Grid, measure: Measure) -> Grid:
    """Set `Cell.against` of all rows but the first."""
    result = [list(row) for row in grid]
    for r, row in enumerate(grid[1:], 1):
        for c, (first, cell) in enumerate(zip(grid[0], row, strict=True)):
            if first and cell and first.n and cell.n:
                text = (
                    f"{cell.mean - first.mean:+.{measure.digits}f}"
                    if measure.larger_is_better
                    else f"{first.mean / cell.mean:.2f}x"
                )
                result[r][c] = replace(cell, against=text)
    return result
