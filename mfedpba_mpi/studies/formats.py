"""A study's table as text, Markdown, LaTeX or CSV, and its runs as CSV."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import click
import numpy as np
from rich.table import Table as RichTable
from rich.text import Text

from mfedpba_mpi.cli.console import console, table
from mfedpba_mpi.errors import COMPLETE
from mfedpba_mpi.files import write_text
from mfedpba_mpi.records import tables
from mfedpba_mpi.records.run import Run
from mfedpba_mpi.studies.study import Study
from mfedpba_mpi.studies.tables import MEASURES, Cell, Results, ended_runs

_MARKS = ("bold (*)", "underlined (+)")  # of the best and the second best cells, with and without styles


def as_rich(results: Results) -> RichTable:
    """The table for a terminal. Marks follow the numbers, so that these are aligned."""
    styles, marks = {1: "bold", 2: "underline", 0: ""}, {1: " *", 2: " +", 0: ""}
    columns = [[Text(row.name) for row in results.rows]]
    for cells in zip(*(row.cells for row in results.rows), strict=True):
        texts = [cell.full_text(results.measure.digits) if cell else "-" for cell in cells]
        width = max(map(len, texts))
        places = [cell.place if cell else 0 for cell in cells]
        columns.append([Text(t.rjust(width) + marks[p], styles[p]) for t, p in zip(texts, places, strict=True)])
    rich_table = table([results.corner, *results.columns], [])
    for row in zip(*columns, strict=True):
        rich_table.add_row(*row)
    return rich_table


def as_text(results: Results) -> str:
    """The table as plain text, with * for the best and + for the second best cells."""
    with io.StringIO() as file:
        screen = console(file)
        screen.print(results.title, markup=False, soft_wrap=True)
        screen.print(as_rich(results))
        screen.print("; ".join(results.notes(*_MARKS)), markup=False, soft_wrap=True)
        return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"


def show_table(results: Results) -> None:
    """Print the table, with styles on a terminal."""
    screen = console()
    if not screen.is_terminal:
        click.echo(as_text(results), nl=False)
        return
    screen.print(results.title, style="bold", markup=False)
    screen.print(as_rich(results))
    screen.print("; ".join(results.notes(*_MARKS)), markup=False)


def as_markdown(results: Results) -> str:
    """The table in Markdown."""

    def line(cells: Iterable[str]) -> str:
        return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"

    def marked(cell: Cell | None) -> str:
        if cell is None:
            return "-"
        return cell.full_text(results.measure.digits, {1: "**{}**", 2: "<u>{}</u>", 0: "{}"}[cell.place])

    rows = [line([row.name, *map(marked, row.cells)]) for row in results.rows]
    head = [line([results.corner, *results.columns]), "|---" + "|---:" * len(results.columns) + "|"]
    return "\n".join([results.title, "", *head, *rows, "", "; ".join(results.notes())]) + "\n"


def as_latex(results: Results) -> str:
    """The table in LaTeX, with booktabs."""
    return tables.as_latex(as_table(results))


def as_table(results: Results) -> tables.Table:
    """The table for reports and LaTeX: cells as text, and marks."""
    digits = results.measure.digits
    rows = [[row.name, *(cell.full_text(digits) if cell else None for cell in row.cells)] for row in results.rows]
    cells = {(r, c): cell for r, row in enumerate(results.rows) for c, cell in enumerate(row.cells, 1) if cell}
    marks = {position: cell.place for position, cell in cells.items() if cell.place}
    headers = [results.corner, *results.columns]
    name = re.sub("[^A-Za-z0-9-]", "-", results.name)
    return tables.Table(name, results.title, headers, rows, marks, "; ".join(results.notes()))


def as_csv(results: Results) -> str:
    """The table in CSV, with a line for each cell."""
    headers = [results.corner, "column", "mean", "deviation", "runs", "place", "title"]
    rows = [
        [row.name, column, cell.mean, cell.deviation, cell.n, cell.place or None, results.title]
        for row in results.rows
        for column, cell in zip(results.columns, row.cells, strict=True)
        if cell and cell.n
    ]
    return tables.csv_text(headers, rows)


# by name: the suffix of the file, and the function that makes its text
FORMATS: dict[str, tuple[str, Callable[[Results], str]]] = {
    "text": ("txt", as_text), "markdown": ("md", as_markdown), "latex": ("tex", as_latex), "csv": ("csv", as_csv),
}  # fmt: skip


def runs_csv(study: Study, directory: Path) -> str:
    """A line of CSV for each run that has ended: labels, all measures, the clients' accuracies (last five rounds).

    If a method has several predictors, the column `predictors` has their names, the default one first, and columns
    such as `last_five_classifier` and `clients_classifier` have the accuracies of the others; see `of_predictors`.
    """
    lines: list[dict[str, str]] = []
    for key, run in ended_runs(study, directory):
        line = {**key.labels, "status": run.status, "remark": run.remark}
        if run.status == COMPLETE:
            for i, (predictor, judged) in enumerate(run.by_predictor().items()):
                line |= {f"{name}_{predictor}" if i else name: text for name, text in _numbers(judged, i > 0).items()}
            line |= {"predictors": " ".join(run.predictors)} if run.predictors else {}
        lines.append(line)
    headers = [*study.axes, "status", "remark", *MEASURES, "clients"]
    more = dict.fromkeys(name for line in lines for name in line if name not in headers)
    headers += sorted(more, key=lambda name: name != "predictors")
    return tables.csv_text(headers, ([line.get(name) for name in headers] for line in lines))


def _numbers(run: Run, accuracies_only: bool) -> dict[str, str]:
    """The cells of a run in `runs_csv`."""
    shown = {n: value_of for n, (measure, value_of) in MEASURES.items() if measure.of_predictor or not accuracies_only}
    cells = {name: "" if np.isnan(number := value_of(run)) else f"{number:.6g}" for name, value_of in shown.items()}
    clients = 100 * run.rounds["accuracy"][run.evaluated - 1][-5:].mean(axis=0)
    return cells | {"clients": " ".join(f"{accuracy:.2f}" for accuracy in clients)}


def of_predictors(line: Mapping[str, str], name: str) -> dict[str, str]:
    """The cells of a measure, or of ``clients``, in a line of `runs_csv`, by predictor.

    ``{"": cell}`` if the method has only one, or if the line is of an older version, which had the default's cells.
    """
    default, *others = (line.get("predictors") or "").split() or [""]
    return {default: line[name]} | {other: line[f"{name}_{other}"] for other in others}


def save(study: Study, results: Results, directory: Path) -> None:
    """Write ``table.txt``, ``.md``, ``.tex`` and ``.csv`` in the study's directory, and `runs_csv` as ``runs.csv``."""
    for suffix, to_text in FORMATS.values():
        write_text(directory / f"table.{suffix}", to_text(results))
    write_text(directory / "runs.csv", runs_csv(study, directory))
    click.echo(f"tables: {directory}/table.txt, .md, .tex, .csv; all runs: {directory}/runs.csv")
