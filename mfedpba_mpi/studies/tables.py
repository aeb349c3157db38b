"""The table of a study: mean and standard deviation over seeds, with the best and the second best cells marked.

The deviation is that of a sample (n - 1). Only complete runs count; the table notes missing and failed runs. Results on
synthetic data are marked in the title, or in the rows if only some of them are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np

from mfedpba_mpi.config.fields import unknown
from mfedpba_mpi.errors import COMPLETE
from mfedpba_mpi.records.run import Run, bracketed, joint_remark
from mfedpba_mpi.records.status import load_ended
from mfedpba_mpi.records.tables import NumberText
from mfedpba_mpi.studies.study import SEED, RunKey, Study

RunValue = tuple[RunKey, float, str]  # a run that has ended: its number (NaN if it failed), and its remark
Grid = list[list["Cell | None"]]


@dataclass(frozen=True)
class Measure:
    """A number of a run, and how to show it.

    Attributes
    ----------
    plain : show no deviations and mark no best cells.
    last_five : the number is a mean over the last five rounds, or over all if there are fewer.
    """

    label: str
    larger_is_better: bool = False
    digits: int = 3
    plain: bool = False
    last_five: bool = False


def _accuracy(label: str, name: str, last_five: bool = False) -> tuple[Measure, Callable[[Run], float]]:
    """A measure of `Run.summary`, in percent."""
    measure = Measure(f"{label} in %", larger_is_better=True, digits=2, last_five=last_five)
    return measure, lambda run: 100 * run.summary()[name]


def _prototypes(words: str, low: int, high: int) -> tuple[Measure, Callable[[Run], float]]:
    """The share of (client, class) prototypes that are means of `low` to `high` training samples."""

    def share(run: Run) -> float:
        counts = run.partition["counts"]
        return 100 * float(((counts >= low) & (counts <= high)).sum() / (counts > 0).sum())

    return Measure(f"share of (client, class) prototypes made from {words}, in %", digits=2, plain=True), share


FIRST_ROUNDS = 10  # accuracies are still low and unsteady; `_diverged` and `_largest_fall` leave them out
DIVERGED = 0.6  # a client that keeps less of its accuracy from one round to the next has diverged


def _diverged(run: Run) -> float:
    """The number of clients that lose two fifths of their accuracy, or more, from one evaluated round to the next."""
    accuracy = run.rounds["accuracy"][run.evaluated - 1][run.evaluated > FIRST_ROUNDS]
    return float((accuracy[1:] < DIVERGED * accuracy[:-1]).any(axis=0).sum())


def _largest_fall(run: Run) -> float:
    """The largest fall of the average accuracy from one evaluated round to the next, in points."""
    falls = -np.diff(run.average()[run.evaluated > FIRST_ROUNDS])
    return 100 * max(0.0, falls.max(initial=0.0))


MEASURES: dict[str, tuple[Measure, Callable[[Run], float]]] = {
    "last_five": _accuracy("average accuracy (mean of the last five rounds)", "last_five", last_five=True),
    "last": _accuracy("average accuracy after the last round", "last"),
    "best": _accuracy("best average accuracy of a round", "best"),
    "client_mean": _accuracy(
        "unweighted mean of the clients' accuracies (last five rounds)", "client_mean_last_five", last_five=True
    ),
    "seconds": (
        Measure("seconds per round (median)"),
        lambda run: float(np.median(run.rounds["seconds_total"])),
    ),
    "client_seconds": (
        Measure("CPU seconds of a client per round (mean over clients, median over rounds)"),
        lambda run: float(np.median(run.rounds["seconds_client"].mean(axis=1))),
    ),
    "kilobytes": (
        Measure("payload per round in kB, up and down together", digits=1),
        lambda run: float((run.rounds["bytes_up"] + run.rounds["bytes_down"]).sum(axis=1).mean() / 1000),
    ),
    "plan_trace": (
        Measure(
            "trace of MFedPBA's transport plans (mean over modalities, last five rounds)", plain=True, last_five=True
        ),
        lambda run: float(np.nanmean(run.rounds["gw_trace"][-5:])) if "gw_trace" in run.rounds else np.nan,
    ),
    "diverged": (Measure("clients that lose two fifths of their accuracy in a round", digits=1), _diverged),
    "largest_fall": (Measure("largest fall of the average accuracy in a round, in points", digits=1), _largest_fall),
    "from_one": _prototypes("one sample", 1, 1),
    "from_two": _prototypes("two samples", 2, 2),
    "from_few": _prototypes("fewer than five samples", 1, 4),
}


@dataclass(frozen=True)
class Cell:
    """The mean of n values and their standard deviation (NaN if n = 1).

    Attributes
    ----------
    failed : number of failed runs, which have no value. A cell with failed runs is never marked.
    place : 1 for the best cell, 2 for the second best, else 0.
    against : the comparison with the first row: a difference, or a speed-up if smaller is better.
    """

    mean: float
    deviation: float
    n: int
    failed: int = 0
    place: int = 0
    against: str = ""

    def text(self, digits: int, plus_minus: str = " ± ") -> str:
        """Mean and deviation."""
        if not self.n:
            return "failed"
        deviation = "" if np.isnan(self.deviation) else f"{plus_minus}{self.deviation:.{digits}f}"
        return NumberText(f"{self.mean:.{digits}f}{deviation}", self.mean, self.deviation)

    def full_text(self, digits: int, mark: str = "{}") -> str:
        """Mean and deviation in the format `mark`, the comparison, and the number of failed runs."""
        failed = f"{self.failed} failed" if self.failed and self.n else ""
        notes = ", ".join(filter(None, [self.against, failed]))
        text = mark.format(self.text(digits)) + (f" ({notes})" if notes else "")
        return NumberText(text, self.mean, self.deviation) if self.n else text


@dataclass(frozen=True)
class Row:
    """A row of a table: its label, its cells (None: no run), and its remark if rows have different ones."""

    label: str
    cells: Sequence[Cell | None]
    remark: str = ""

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
    measure : the number in the cells.
    corner : header of the column of labels.
    incomplete : the number of complete runs in words, "" if all are complete.
    remark : `Run.remark` if it is the same for all runs.
    name : the name of the study.
    seeds : number of seeds.
    best : where the best cells are marked: in each row, in each column or in the table.
    against_first : whether cells are compared with those of the first row.
    short : whether a run has fewer rounds than the measure is a mean of.
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

    @property
    def title(self) -> str:
        """Subject, remark and measure."""
        return f"{self.subject}{bracketed(self.remark)}: {self.measure.label}"

    def notes(self, bold: str = "bold", underlined: str = "underlined") -> list[str]:
        """How to read the table. `bold` and `underlined` describe the marks of the best and the second best cells."""
        notes = []
        if not self.measure.plain:
            notes.append(f"mean ± deviation over {self.seeds} seeds" if self.seeds > 1 else "one seed")
            notes += [self.incomplete] if self.incomplete else []
            group = "the table" if self.best == "table" else f"a {self.best}"
            notes.append(f"best of {group} {bold}, second best {underlined}")
            notes += ["in brackets: against the first row"] if self.against_first else []
        return [*notes, "runs with fewer than five rounds: mean of all rounds"] if self.short else notes


def tabulate(study: Study, directory: Path, measure: str = "", against: str = "") -> Results:
    """The table of the complete runs in `directory`.

    Parameters
    ----------
    measure : a key of `MEASURES`  [default: the study's].
    against : label of the column to subtract, see `difference_table`.
    """
    key = measure or study.layout.measure
    if key not in MEASURES:
        raise unknown("measure", key, MEASURES)
    shown, value_of = MEASURES[key]
    values: list[RunValue] = []
    short = False
    for run_key, run in ended_runs(study, directory):
        short |= shown.last_five and len(run.evaluated) < 5
        complete, number = run.status == COMPLETE, value_of(run) if run.status == COMPLETE else np.nan
        if not (complete and np.isnan(number)):  # a complete run without this measure, e.g. plan_trace of Local
            values.append((run_key, number, run.remark))
    results = difference_table(study, values, shown, against) if against else lay_out(study, values, shown)
    return replace(results, short=short)


def difference_table(study: Study, values: Sequence[RunValue], measure: Measure, column: str) -> Results:
    """The table of differences to a column, seed by seed.

    Runs with the same seed have the same clients, so the deviation of the differences does not contain that of the
    problems. Runs without a partner in `column` are left out, but failed runs still count as failed. In a table with
    a single column, `column` is the label of a row.
    """
    axis = study.layout.columns or next(iter(study.layout.rows), "")
    labels = [value.label for value in study.axes[axis]] if axis else []
    if column not in labels:
        raise unknown("column", column, labels)

    def other_labels(key: RunKey) -> tuple[str, ...]:
        return tuple(label for name, label in key.labels.items() if name != axis)

    base = {other_labels(key): x for key, x, _ in values if key.labels[axis] == column and not np.isnan(x)}
    differences = [
        (key, x - base.get(other_labels(key), np.nan), remark)
        for key, x, remark in values
        if other_labels(key) in base or np.isnan(x)
    ]
    study = replace(study, layout=replace(study.layout, against_first=False))
    return lay_out(study, differences, replace(measure, label=f"{measure.label}, minus {column}'s"))


def ended_runs(study: Study, directory: Path) -> Iterator[tuple[RunKey, Run]]:
    """The runs of the study in `directory` that are complete or have failed."""
    for key in study.run_keys():
        if run := load_ended(directory / key.path):
            yield key, run


def lay_out(study: Study, values: Sequence[RunValue], measure: Measure) -> Results:
    """The table of these values, in the study's layout."""
    layout, remarks = study.layout, {remark for *_, remark in values}
    columns = _labels(study, [layout.columns] if layout.columns else [])
    grid: Grid = []
    labels, row_remarks = [], []
    for row in _labels(study, layout.rows):
        in_row = [entry for entry in values if _has_labels(entry[0], layout.rows, row)]
        labels.append(" ".join(row) or study.name)
        row_remarks.append(joint_remark(remark for *_, remark in in_row) if len(remarks) > 1 else "")
        grid.append([cell_of([x for key, x, _ in in_row if _has_labels(key, [layout.columns], c)]) for c in columns])
    best = layout.best or ("row" if len(columns) > 1 else "column")
    incomplete = "" if measure.plain else _incomplete(study, [value for _, value, _ in values])
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


def _incomplete(study: Study, values: Sequence[float]) -> str:
    """How many runs are complete and how many have failed; "" if all are complete."""
    total, failed = len(study.run_keys()), int(np.isnan(values).sum())
    if len(values) - failed == total:
        return ""
    runs = "1 run is" if total == 1 else f"{total} runs are"
    return f"{len(values) - failed} of {runs} complete{f', {failed} failed' if failed else ''}"


def _labels(study: Study, axes: Iterable[str]) -> list[tuple[str, ...]]:
    """The labels of every combination of values of these axes; a single empty one if there are no axes."""
    return list(product(*([value.label for value in study.axes[axis]] for axis in axes)))


def _has_labels(key: RunKey, axes: Sequence[str], labels: Sequence[str]) -> bool:
    return all(key.labels[axis] == label for axis, label in zip(axes, labels, strict=False))


def cell_of(values: Sequence[float]) -> Cell | None:
    """The cell of these values, with NaN for failed runs; None if there are no values."""
    if not values:
        return None
    good = [value for value in values if not np.isnan(value)]
    deviation = float(np.std(good, ddof=1)) if len(good) > 1 else np.nan
    return Cell(float(np.mean(good)) if good else np.nan, deviation, len(good), len(values) - len(good))


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
