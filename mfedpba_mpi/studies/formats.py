"""A study's table as text, Markdown, LaTeX or CSV, and its runs as CSV."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
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
from mfedpba_mpi.studies.measures import MEASURES
from mfedpba_mpi.studies.study import Study
from mfedpba_mpi.studies.tables import Cell, Results, combine, ended_runs

_MARKS = ("bold (*)", "underlined (+)")  # of the best and the second best cells, with and without styles


def as_rich(results: Results, width: int = 1000) -> list[RichTable]:
    """The table for a terminal of `width` columns, in several pieces below each other if it is wider.

    Marks follow the numbers, so that these are aligned.
    """
    styles, marks = {1: "bold", 2: "underline", 0: ""}, {1: " *", 2: " +", 0: ""}
    labels = [[Text(text) for text in column] for column in zip(*_labels(results), strict=True)]
    columns = []
    for cells in zip(*(row.cells for row in results.rows), strict=True):
        texts = [cell.full_text() if cell else "-" for cell in cells]
        longest = max(map(len, texts))
        places = [cell.place if cell else 0 for cell in cells]
        columns.append([Text(t.rjust(longest) + marks[p], styles[p]) for t, p in zip(texts, places, strict=True)])
    headers = [*_corners(results), *results.columns]
    widths = [
        max(max(map(len, header.split()), default=0), *map(len, column))
        for header, column in zip(headers, [*labels, *columns], strict=True)
    ]
    fixed, pieces = len(labels), [[0]]
    for c in range(1, len(columns)):
        shown = [*widths[:fixed], *(widths[fixed + i] for i in (*pieces[-1], c))]
        if sum(shown) + 3 * len(shown) <= width:
            pieces[-1].append(c)
        else:
            pieces.append([c])
    return [_rich_table(headers, [*labels, *columns], widths, [*range(fixed), *(fixed + c for c in p)]) for p in pieces]


def _rich_table(
    headers: Sequence[str], columns: Sequence[Sequence[Text]], widths: Sequence[int], chosen: Sequence[int]
) -> RichTable:
    """The chosen columns as a table; headers are wrapped."""
    rich_table = table([headers[c] for c in chosen], [])
    for column, c in zip(rich_table.columns, chosen, strict=True):
        column.width = widths[c]
    for row in zip(*(columns[c] for c in chosen), strict=True):
        rich_table.add_row(*row)
    return rich_table


def _labels(results: Results) -> list[list[str]]:
    """The labels of each row: its name, "" if the row above has it, and its measure if rows have different ones."""
    names = [row.name for row in results.rows]
    repeated = [bool(row.measure) and i > 0 and names[i] == names[i - 1] for i, row in enumerate(results.rows)]
    return [
        ["" if again else name, *([row.measure] if row.measure else [])]
        for name, row, again in zip(names, results.rows, repeated, strict=True)
    ]


def _corners(results: Results) -> list[str]:
    """The headers of the columns of labels."""
    return [results.corner, *(["measure"] if any(row.measure for row in results.rows) else [])]


def as_text(*parts: Results) -> str:
    """The table as plain text, with * for the best and + for the second best cells."""
    with io.StringIO() as file:
        screen = console(file)
        for i, results in enumerate(combine(parts)):
            screen.print(*["\n"] * bool(i), results.title, markup=False, soft_wrap=True, sep="")
            screen.print(*as_rich(results))
            screen.print("; ".join(results.notes(*_MARKS)), markup=False, soft_wrap=True)
        return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"


def show_table(*parts: Results) -> None:
    """Print the table, with styles on a terminal."""
    screen = console()
    if not screen.is_terminal:
        click.echo(as_text(*parts), nl=False)
        return
    for results in combine(parts):
        screen.print(results.title, style="bold", markup=False)
        screen.print(*as_rich(results, screen.width), sep="")
        screen.print("; ".join(results.notes(*_MARKS)), markup=False)


def as_markdown(*parts: Results) -> str:
    """The table in Markdown."""

    def line(cells: Iterable[str]) -> str:
        return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"

    def marked(cell: Cell | None) -> str:
        return cell.full_text({1: "**{}**", 2: "<u>{}</u>", 0: "{}"}[cell.place]) if cell else "-"

    texts = []
    for results in combine(parts):
        labels, corners = _labels(results), _corners(results)
        rows = [line([*own, *map(marked, row.cells)]) for own, row in zip(labels, results.rows, strict=True)]
        head = [line([*corners, *results.columns]), "|---" * len(corners) + "|---:" * len(results.columns) + "|"]
        notes = ["", "; ".join(results.notes())] if results.notes() else []
        texts.append("\n".join([results.title, "", *head, *rows, *notes]) + "\n")
    return "\n".join(texts)


def as_latex(*parts: Results) -> str:
    """The table in LaTeX, with booktabs."""
    return "\n".join(map(tables.as_latex, as_tables(*parts)))


def as_tables(*parts: Results) -> list[tables.Table]:
    """The table for reports and LaTeX: cells as text, and marks. Further tables have numbers in their names."""
    made = []
    for number, results in enumerate(combine(parts), 1):
        corners = _corners(results)
        rows = [
            [
                row.name,
                *([row.measure] if row.measure else []),
                *(cell.full_text() if cell else None for cell in row.cells),
            ]
            for row in results.rows
        ]
        cells = {
            (r, c): cell for r, row in enumerate(results.rows) for c, cell in enumerate(row.cells, len(corners)) if cell
        }
        marks = {position: cell.place for position, cell in cells.items() if cell.place}
        name = re.sub("[^A-Za-z0-9-]", "-", results.name) + (f"-{number}" if number > 1 else "")
        headers, caption = [*corners, *results.columns], "; ".join(results.notes())
        made.append(tables.Table(name, results.title, headers, rows, marks, caption))
    return made


def as_csv(*parts: Results) -> str:
    """The table in CSV, with a line for each cell; `title` says which measure it is of."""
    headers = [parts[0].corner, "column", "mean", "deviation", "runs", "place", "title"]
    rows = [
        [row.name, column, cell.mean, cell.deviation, cell.n, cell.place or None, results.title]
        for results in parts
        for row in results.rows
        for column, cell in zip(results.columns, row.cells, strict=True)
        if cell and cell.n
    ]
    return tables.csv_text(headers, rows)


# by name: the suffix of the file, and the function that makes its text
FORMATS: dict[str, tuple[str, Callable[..., str]]] = {
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


def save(study: Study, parts: Sequence[Results], directory: Path) -> None:
    """Write ``table.txt``, ``.md``, ``.tex`` and ``.csv`` in the study's directory, and `runs_csv` as ``runs.csv``."""
    for suffix, to_text in FORMATS.values():
        write_text(directory / f"table.{suffix}", to_text(*parts))
    write_text(directory / "runs.csv", runs_csv(study, directory))
    click.echo(f"tables: {directory}/table.txt, .md, .tex, .csv; all runs: {directory}/runs.csv")
