"""A self-contained HTML page of text, figures and tables, and the files of its figures and tables.

The page loads no other file and runs only its own script; a content security policy (CSP) makes the browser enforce
this. All text is escaped. Invisible characters, and those that change the direction of text, are shown by their number.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

from matplotlib.figure import Figure

from mfedpba_mpi.files import write_text
from mfedpba_mpi.records.tables import (
    BEST,
    SECOND,
    Table,
    as_csv,
    as_latex,
    check_name,
    missing,
    number,
    text_of,
    visible,
)
from mfedpba_mpi.report import style

FIGURES, TABLES = "figures", "tables"  # directories beside the page
MAX_ZOOM, MIN_ZOOM = 1.4, 0.8  # largest and smallest width of a figure on the screen, relative to its width in print


class Page:
    """A page: add its parts from top to bottom, then write it. The `remark` on its data is shown with every table."""

    def __init__(self, title: str, subtitle: str = "", remark: str = "") -> None:
        self.title, self.subtitle, self.remark = title, subtitle, remark
        self.figures: dict[str, Figure] = {}
        self.tables: dict[str, Table] = {}
        self._sections: list[_Section] = []

    def section(self, title: str) -> None:
        """Start a section."""
        self._sections.append(_Section(title))

    def text(self, paragraph: str) -> None:
        """Add a paragraph of plain text."""
        self._add(f"<p>{_html(paragraph)}</p>")

    def facts(self, facts: Mapping[str, object]) -> None:
        """Add a list of names and values."""
        pairs = (f"<dt>{_html(name)}</dt><dd>{_html(text_of(value))}</dd>" for name, value in facts.items())
        self._add(f"<dl>{''.join(pairs)}</dl>")

    def figure(self, name: str, title: str, figure: Figure, caption: str = "") -> None:
        """Add a figure; `name` is used for its files and its anchor."""
        self._check_new(name, self.figures)
        self.figures[name] = figure
        width, height = (96 * inches for inches in figure.get_size_inches())
        image = base64.b64encode(style.svg(figure).encode()).decode()
        self._add(
            f'<figure id="figure-{name}"{" class=column" if width < 96 * 1.5 * style.COLUMN else ""}>'
            f"{_caption(title, caption)}"
            f'<div class="box card">'
            f'<img alt="{_html(title)}" width={width:.0f} height={height:.0f} src="data:image/svg+xml;base64,{image}"'
            f' style="max-width: {MAX_ZOOM * width:.0f}px; min-width: {MIN_ZOOM * width:.0f}px"></div>'
            f"{_files(f'{FIGURES}/{name}.png', f'{FIGURES}/{name}.pdf')}</figure>",
            (f"figure-{name}", title),
        )

    def table(
        self,
        name: str,
        title: str,
        headers: Sequence[str],
        rows: Sequence[Sequence[object]],
        marks: Mapping[tuple[int, int], int] | None = None,
        caption: str = "",
    ) -> None:
        """Add a sortable table, see `Table`; `name` is used for its files and its anchor."""
        self._check_new(name, self.tables)
        table = self.tables[name] = Table(name, title, headers, rows, marks or {}, caption)
        self._add(
            f'<figure class=table id="table-{name}">{_caption(title, table.caption, self.remark)}'
            f'<div class="box rows" tabindex=0 role=region aria-label="{_html(title)}">{_html_table(table)}</div>'
            f"{_files(f'{TABLES}/{name}.csv', f'{TABLES}/{name}.tex')}</figure>",
            (f"table-{name}", title),
        )

    def write(self, path: Path) -> None:
        """Write the page atomically."""
        write_text(path, self.html())

    def write_files(self, directory: Path) -> None:
        """Write the figures and tables to the directories beside the page that its links refer to."""
        for name, figure in self.figures.items():
            (directory / FIGURES).mkdir(parents=True, exist_ok=True)
            style.save(figure, directory / FIGURES / name)
        write_tables(directory / TABLES, self.tables.values(), self.remark)

    def html(self) -> str:
        """The HTML text. Equal contents give equal text."""
        script, css = (files(__package__).joinpath(name).read_text("utf-8") for name in ("page.js", "page.css"))
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        policy = (
            "default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
            f"script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
        )
        sections = list(enumerate(self._sections, 1))
        contents = "".join(section.entry(i) for i, section in sections if section.title)
        subtitle = f"<p class=subtitle>{_html(self.subtitle)}</p>" if self.subtitle else ""
        remark = f"<p class=remark role=note>{_html(self.remark)}</p>" if self.remark else ""
        return "\n".join(
            [
                "<!DOCTYPE html>", '<html lang="en">', "<head>", '<meta charset="utf-8">',
                f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
                '<meta name="viewport" content="width=device-width, initial-scale=1">',
                f"<title>{_html(self.title)}</title>", '<link rel="icon" href="data:,">',
                f"<style>{css}</style>", "</head>", "<body>",
                f"<header><h1>{_html(self.title)}</h1>{subtitle}{remark}</header>",
                f'<nav aria-label="Contents"><ul>{contents}</ul></nav>', "<main>",
                *(section.html(i) for i, section in sections),
                "</main>", f"<script>{script}</script>", "</body>", "</html>", "",
            ]
        )  # fmt: skip

    def _check_new(self, name: str, others: Mapping[str, object]) -> None:
        check_name(name)
        if name in others:
            raise ValueError(f"{name} is already on the page; names must be unique")

    def _add(self, part: str, entry: tuple[str, str] | None = None) -> None:
        if not self._sections:
            self.section("")
        self._sections[-1].parts.append(part)
        self._sections[-1].entries.extend([entry] if entry else [])


@dataclass
class _Section:
    """A heading, the HTML parts below it, and anchor and title of every figure and table in it."""

    title: str
    parts: list[str] = field(default_factory=list)
    entries: list[tuple[str, str]] = field(default_factory=list)

    def entry(self, number: int) -> str:
        """The section in the table of contents."""
        inner = "".join(f'<li><a href="#{anchor}">{_html(title)}</a></li>' for anchor, title in self.entries)
        below = f"<ul>{inner}</ul>" if inner else ""
        return f'<li><a href="#section-{number}">{_html(self.title)}</a>{below}</li>'

    def html(self, number: int) -> str:
        heading = [f"<h2>{_html(self.title)}</h2>"] if self.title else []
        return "\n".join([f'<section id="section-{number}">', *heading, *self.parts, "</section>"])


def _caption(title: str, caption: str, remark: str = "") -> str:
    tag = f" <span class=tag>{_html(remark)}</span>" if remark else ""
    below = f"<p class=caption>{_html(caption)}</p>" if caption else ""
    return f"<figcaption><h3>{_html(title)}{tag}</h3>{below}</figcaption>"


def _files(*names: str) -> str:
    links = (f'<a href="{name}">{name}</a>' for name in names)
    return f"<p class=files>{' · '.join(links)}</p>"


def _html_table(table: Table) -> str:
    kinds = [" class=number" if numeric else "" for numeric in table.numeric()]

    def cell(r: int, c: int, value: object) -> str:
        size, text = number(value), _html(text_of(value))
        key = ' data-value=""' if missing(value) else "" if size is None else f' data-value="{json.dumps(size)}"'
        text = {BEST: f"<b>{text}</b>", SECOND: f"<u>{text}</u>"}.get(table.marks.get((r, c), 0), text)
        return f"<td{kinds[c]}{key}>{text}</td>" if c else f"<th scope=row{kinds[c]}{key}>{text}</th>"

    head = "".join(
        f"<th scope=col aria-sort=none{kind}><button type=button>{_html(header)}</button></th>"
        for header, kind in zip(table.headers, kinds, strict=True)
    )
    rows = ("".join(cell(r, c, value) for c, value in enumerate(row)) for r, row in enumerate(table.rows))
    body = "\n".join(f"<tr>{row}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table>"


# ---- files


def write_tables(directory: Path, tables: Iterable[Table], remark: str = "") -> None:
    """Write ``NAME.csv`` and ``NAME.tex`` (for booktabs) of every table, both with the `remark`."""
    for table in tables:
        directory.mkdir(parents=True, exist_ok=True)
        write_text(directory / f"{table.name}.csv", as_csv(table, remark))
        write_text(directory / f"{table.name}.tex", as_latex(table, remark))


def _html(text: str) -> str:
    return html.escape(visible(text))
