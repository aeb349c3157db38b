"""A study's table: mean and deviation over seeds, the best and the second best marked.

The deviation is that of a sample (n - 1). Only complete runs count; what is missing or has failed is said. What was
measured on synthetic data says so, in the title or, where a table mixes, in the row.
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
from mfedpba_mpi.studies.study import SEED, Place, Study


@dataclass(frozen=True)
class Measure:
    """A number and how it is shown; a `plain` one without deviation, and the best ones are not looked for."""

    label: str
    larger_is_better: bool = False
    digits: int = 3
    plain: bool = False
    last_five: bool = False  # a mean over the last five rounds, or over all if there are fewer


def _accuracy(label: str, name: str, last_five: bool = False) -> tuple[Measure, Callable[[Run], float]]:
    measure = Measure(f"{label} in %", larger_is_better=True, digits=2, last_five=last_five)
    return measure, lambda run: 100 * run.summary()[name]


def _prototypes(words: str, low: int, high: int) -> tuple[Measure, Callable[[Run], float]]:
    """How many of the (client, class) prototypes are means of `low` to `high` training samples."""

    def share(run: Run) -> float:
        counts = run.partition["counts"]
        return 100 * float(((counts >= low) & (counts <= high)).sum() / (counts > 0).sum())

    return Measure(f"share of (client, class) prototypes made from {words}, in %", digits=2, plain=True), share


MEASURES: dict[str, tuple[Measure, Callable[[Run], float]]] = {
    "last_five": _accuracy("average accuracy (mean of the last five rounds)", "last_five", last_five=True),
    "last": _accuracy("average accuracy after the last round", "last"),
    "best": _accuracy("best average accuracy of a round", "best"),
    "client_mean": _accuracy(
        "unweighted mean of the clients' accuracies (last five rounds)", "client_mean_last_five", last_five=True
    ),
    "seconds": (
        Measure("seconds a round (median)"),
        lambda run: float(np.median(run.rounds["seconds_total"])),
    ),
    "client_seconds": (
        Measure("CPU seconds of a client a round (mean over clients, median over rounds)"),
        lambda run: float(np.median(run.rounds["seconds_client"].mean(axis=1))),
    ),
    "kilobytes": (
        Measure("payload a round in kB, up and down together", digits=1),
        lambda run: float((run.rounds["bytes_up"] + run.rounds["bytes_down"]).sum(axis=1).mean() / 1000),
    ),
    "plan_trace": (
        Measure(
            "trace of MFedPBA's transport plans (mean over modalities, last five rounds)", plain=True, last_five=True
        ),
        lambda run: float(np.nanmean(run.rounds["gw_trace"][-5:])) if "gw_trace" in run.rounds else np.nan,
    ),
    "from_one": _prototypes("one sample", 1, 1),
    "from_two": _prototypes("two samples", 2, 2),
    "from_few": _prototypes("fewer than five samples", 1, 4),
}


Found = tuple[Place, float, str]  # a run that has ended: its number, NaN if it has failed, and what is said of it


@dataclass(frozen=True)
class Cell:
    """Mean and deviation of n values (NaN where one value has none); `place` 1 is the best, 2 the second, 0 neither.

    `failed` runs beside these have no value, for example because they diverged; then the cell has no place.
    `against` compares with the first row: a difference where more is better, else how many times as fast.
    """

    mean: float
    deviation: float
    n: int
    failed: int = 0
    place: int = 0
    against: str = ""

    def text(self, digits: int, plus_minus: str = " ± ") -> str:
        """The number as it is read."""
        if not self.n:
            return "failed"
        spread = "" if np.isnan(self.deviation) else f"{plus_minus}{self.deviation:.{digits}f}"
        return f"{self.mean:.{digits}f}{spread}"

    def words(self, digits: int, mark: str = "{}") -> str:
        """The number, in `mark`, how it compares, and how many runs it is without."""
        without = f"{self.failed} failed" if self.failed and self.n else ""
        said = ", ".join(filter(None, [self.against, without]))
        return mark.format(self.text(digits)) + (f" ({said})" if said else "")


@dataclass(frozen=True)
class Row:
    """A row of a table: its label, its cells (None: no run), and its remark if the rows have different ones."""

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
    measure : what the cells show.
    corner : header of the column of labels.
    incomplete : how many runs are complete, "" if all are.
    remark : what must be shown with every number, if it is the same for all, see `Run.remark`.
    name : the name of the study.
    seeds : number of seeds that a cell is a mean of.
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
        return [*notes, "runs of fewer than five rounds: mean of all of them"] if self.short else notes


def tabulate(study: Study, directory: Path, measure: str = "", against: str = "") -> Results:
    """The table of the complete runs below `directory`.

    `against` is the column from which the others are to be subtracted, seed by seed: runs of one seed have the same
    clients, so the deviation is that of the methods, and not of the problems that they were given.
    """
    name = measure or study.layout.measure
    if name not in MEASURES:
        raise unknown("measure", name, MEASURES)
    kind, value = MEASURES[name]
    found = []
    short = False
    for place, run in ended(study, directory):
        short |= kind.last_five and len(run.evaluated) < 5
        complete, number = run.status == COMPLETE, value(run) if run.status == COMPLETE else np.nan
        if not (complete and np.isnan(number)):  # what only some methods have is no number of the others
            found.append((place, number, run.remark))
    results = subtracted(study, found, kind, against) if against else lay_out(study, found, kind)
    return replace(results, short=short)


def subtracted(study: Study, found: Sequence[Found], measure: Measure, column: str) -> Results:
    """The table of each number minus that of the same row and seed in a column; without those that lack the other.

    A failed run is one here too, and no run for what the others did. Where a table has but one column, it is its rows
    that are compared.
    """
    axis = study.layout.columns or next(iter(study.layout.rows), "")
    labels = [choice.label for choice in study.axes[axis]] if axis else []
    if column not in labels:
        raise unknown("against", column, labels)

    def rest(place: Place) -> tuple[str, ...]:
        return tuple(label for name, label in place.labels.items() if name != axis)

    base = {rest(place): x for place, x, _ in found if place.labels[axis] == column and not np.isnan(x)}
    differences = [
        (place, x - base.get(rest(place), np.nan), remark)
        for place, x, remark in found
        if rest(place) in base or np.isnan(x)
    ]
    study = replace(study, layout=replace(study.layout, against_first=False))
    return lay_out(study, differences, replace(measure, label=f"{measure.label}, minus {column}'s"))


def ended(study: Study, directory: Path) -> Iterator[tuple[Place, Run]]:
    """The study's runs below `directory` that are complete, or have failed."""
    for place in study.places():
        if run := load_ended(directory / place.path):
            yield place, run


def lay_out(study: Study, found: Sequence[Found], measure: Measure) -> Results:
    """The table of these values."""
    layout, remarks = study.layout, {remark for *_, remark in found}
    columns = _labels(study, [layout.columns] if layout.columns else [])
    grid: list[list[Cell | None]] = []
    labels, row_remarks = [], []
    for row in _labels(study, layout.rows):
        own = [entry for entry in found if _is_at(entry[0], layout.rows, row)]
        labels.append(" ".join(row) or study.name)
        row_remarks.append(joint_remark(remark for *_, remark in own) if len(remarks) > 1 else "")
        grid.append([cell_of([x for place, x, _ in own if _is_at(place, [layout.columns], c)]) for c in columns])
    best = layout.best or ("row" if len(columns) > 1 else "column")
    incomplete = "" if measure.plain else _incomplete(study, [value for _, value, _ in found])
    if measure.plain:
        grid = [[cell and replace(cell, deviation=np.nan) for cell in row] for row in grid]
    else:
        grid = _placed(grid, best, measure.larger_is_better)
        grid = _compared(grid, measure) if layout.against_first else grid
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
    total, failed = len(study.places()), int(np.isnan(values).sum())
    if len(values) - failed == total:
        return ""
    runs = "1 run is" if total == 1 else f"{total} runs are"
    return f"{len(values) - failed} of {runs} complete{f', {failed} failed' if failed else ''}"


def _labels(study: Study, axes: Iterable[str]) -> list[tuple[str, ...]]:
    """The labels of every combination of these axes, one empty one where there are none."""
    return list(product(*([choice.label for choice in study.axes[axis]] for axis in axes)))


def _is_at(place: Place, axes: Sequence[str], labels: Sequence[str]) -> bool:
    return all(place.labels[axis] == label for axis, label in zip(axes, labels, strict=False))


def cell_of(values: Sequence[float]) -> Cell | None:
    """The cell of these values, NaN those of failed runs; None where there are no values."""
    if not values:
        return None
    good = [value for value in values if not np.isnan(value)]
    deviation = float(np.std(good, ddof=1)) if len(good) > 1 else np.nan
    return Cell(float(np.mean(good)) if good else np.nan, deviation, len(good), len(values) - len(good))


def _placed(grid: list[list[Cell | None]], best: str, larger: bool) -> list[list[Cell | None]]:
    """The grid with the best and the second best cell marked in every row, every column or the whole; ties share."""
    where = [[(r, c) for c in range(len(row))] for r, row in enumerate(grid)]
    columns, whole = [list(group) for group in zip(*where, strict=True)], [spot for row in where for spot in row]
    groups = {"row": where, "column": columns, "table": [whole]}
    result = [list(row) for row in grid]
    for group in groups[best]:
        cells = {(r, c): cell for r, c in group if (cell := grid[r][c]) and not cell.failed}
        means = sorted({cell.mean for cell in cells.values()}, reverse=larger)
        for (r, c), cell in cells.items():
            if len(cells) > 1 and cell.mean in means[:2]:
                result[r][c] = replace(cell, place=means.index(cell.mean) + 1)
    return result


def _compared(grid: list[list[Cell | None]], measure: Measure) -> list[list[Cell | None]]:
    """The grid with every cell compared with that of the first row."""
    result = [list(row) for row in grid]
    for r, row in enumerate(grid[1:], 1):
        for c, (first, cell) in enumerate(zip(grid[0], row, strict=True)):
            if first and cell and first.n and cell.n:
                words = (
                    f"{cell.mean - first.mean:+.{measure.digits}f}"
                    if measure.larger_is_better
                    else f"{first.mean / cell.mean:.2f}x"
                )
                result[r][c] = replace(cell, against=words)
    return result
