"""A study's table as text, Markdown, LaTeX or CSV, and its runs as lines of CSV."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable
from pathlib import Path

import click
import numpy as np
from rich.table import Table as RichTable
from rich.text import Text

from mfedpba_mpi.cli.console import console, table
from mfedpba_mpi.errors import COMPLETE
from mfedpba_mpi.files import write_text
from mfedpba_mpi.records import tables as tabular
from mfedpba_mpi.studies.study import Study
from mfedpba_mpi.studies.tables import MEASURES, Cell, Results, ended

_MARKED = ("bold (*)", "underlined (+)")  # in text, for terminals and files without styles


def as_rich(results: Results) -> RichTable:
    """For the terminal; the marks stand apart from the numbers, so that these are in line."""
    styles, marks = {1: "bold", 2: "underline", 0: ""}, {1: " *", 2: " +", 0: ""}
    rows = [[Text(row.name) for row in results.rows]]
    for cells in zip(*(row.cells for row in results.rows), strict=True):
        texts = [cell.words(results.measure.digits) if cell else "-" for cell in cells]
        width = max(map(len, texts))
        places = [cell.place if cell else 0 for cell in cells]
        rows.append([Text(t.rjust(width) + marks[p], styles[p]) for t, p in zip(texts, places, strict=True)])
    shown = table([results.corner, *results.columns], [])
    for row in zip(*rows, strict=True):
        shown.add_row(*row)
    return shown


def as_text(results: Results) -> str:
    """Plain text, the best marked by * and the second by +."""
    with io.StringIO() as file:
        screen = console(file)
        screen.print(results.title, markup=False, soft_wrap=True)
        screen.print(as_rich(results))
        screen.print("; ".join(results.notes(*_MARKED)), markup=False, soft_wrap=True)
        return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"


def show_table(results: Results) -> None:
    """Print it: styled on a terminal, with the same marks elsewhere."""
    screen = console()
    if not screen.is_terminal:
        click.echo(as_text(results), nl=False)
        return
    screen.print(results.title, style="bold", markup=False)
    screen.print(as_rich(results))
    screen.print("; ".join(results.notes(*_MARKED)), markup=False)


def as_markdown(results: Results) -> str:
    """A Markdown table."""

    def line(cells: Iterable[str]) -> str:
        return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"

    def marked(cell: Cell | None) -> str:
        if cell is None:
            return "-"
        return cell.words(results.measure.digits, {1: "**{}**", 2: "<u>{}</u>", 0: "{}"}[cell.place])

    rows = [line([row.name, *map(marked, row.cells)]) for row in results.rows]
    head = [line([results.corner, *results.columns]), "|---" + "|---:" * len(results.columns) + "|"]
    return "\n".join([results.title, "", *head, *rows, "", "; ".join(results.notes())]) + "\n"


def as_latex(results: Results) -> str:
    """A LaTeX table for booktabs."""
    return tabular.as_latex(as_table(results))


def as_table(results: Results) -> tabular.Table:
    """The table as text with marks."""
    digits = results.measure.digits
    rows = [[row.name, *(cell.words(digits) if cell else None for cell in row.cells)] for row in results.rows]
    cells = {(r, c): cell for r, row in enumerate(results.rows) for c, cell in enumerate(row.cells, 1) if cell}
    marks = {spot: cell.place for spot, cell in cells.items() if cell.place}
    headers = [results.corner, *results.columns]
    name = re.sub("[^A-Za-z0-9-]", "-", results.name)
    return tabular.Table(name, results.title, headers, rows, marks, "; ".join(results.notes()))


def as_csv(results: Results) -> str:
    """One line for each cell."""
    headers = [results.corner, "column", "mean", "deviation", "runs", "place", "title"]
    rows = [
        [row.name, column, cell.mean, cell.deviation, cell.n, cell.place or None, results.title]
        for row in results.rows
        for column, cell in zip(results.columns, row.cells, strict=True)
        if cell and cell.n
    ]
    return tabular.csv_text(headers, rows)


FORMATS: dict[str, tuple[str, Callable[[Results], str]]] = {
    "text": ("txt", as_text), "markdown": ("md", as_markdown), "latex": ("tex", as_latex), "csv": ("csv", as_csv),
}  # fmt: skip


def raw(study: Study, directory: Path) -> str:
    """A line of CSV for each run that has ended: its choices, every measure, its clients' accuracies (last five)."""
    rows: list[list[object]] = []
    for place, run in ended(study, directory):
        numbers: list[object] = [None] * (len(MEASURES) + 1)
        if run.status == COMPLETE:
            values = [value(run) for _, value in MEASURES.values()]
            clients = 100 * run.rounds["accuracy"][run.evaluated - 1][-5:].mean(axis=0)
            numbers = [None if np.isnan(number) else f"{number:.6g}" for number in values]
            numbers.append(" ".join(f"{accuracy:.2f}" for accuracy in clients))
        rows.append([*place.labels.values(), run.status, run.remark, *numbers])
    return tabular.csv_text([*study.axes, "status", "remark", *MEASURES, "clients"], rows)


def save(study: Study, results: Results, directory: Path) -> None:
    """``table.txt``, ``.md``, ``.tex`` and ``.csv`` in the study's directory, and ``runs.csv``, see `raw`."""
    for ending, form in FORMATS.values():
        write_text(directory / f"table.{ending}", form(results))
    write_text(directory / "runs.csv", raw(study, directory))
    click.echo(f"tables: {directory}/table.txt, .md, .tex, .csv; every run: {directory}/runs.csv")
