"""A table of text and numbers, and its LaTeX and CSV forms."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Self

MISSING = "–"
BEST, SECOND = 1, 2
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff\ufffe\uffff]"
)


class NumberText(str):
    """The text of a number in a cell, with the number itself, by which tables are sorted and which CSV files contain.

    Attributes
    ----------
    value : the number.
    deviation : its deviation, NaN if there is none.
    """

    __slots__ = ("deviation", "value")
    value: float
    deviation: float

    def __new__(cls, text: str, value: float, deviation: float = math.nan) -> Self:
        result = super().__new__(cls, text)
        result.value, result.deviation = float(value), float(deviation)
        return result


@dataclass(frozen=True)
class Table:
    """A table. Cells are text or numbers, None or NaN if empty; the first column contains the row labels.

    `marks` maps (row, column) to 1 for the best value, shown in bold, and to 2 for the second best, underlined.
    """

    name: str
    title: str
    headers: Sequence[str]
    rows: Sequence[Sequence[object]]
    marks: Mapping[tuple[int, int], int] = field(default_factory=dict)
    caption: str = ""

    def __post_init__(self) -> None:
        check_name(self.name)
        if any(len(row) != len(self.headers) for row in self.rows):
            raise ValueError(
                f"table {self.name}: every row needs as many cells as there are headers, {len(self.headers)}"
            )

    def numeric(self) -> list[bool]:
        """Whether each column contains more numbers than text."""
        columns = ([row[i] for row in self.rows if not missing(row[i])] for i in range(len(self.headers)))
        return [2 * sum(number(value) is not None for value in column) > len(column) for column in columns]


def as_csv(table: Table, remark: str = "") -> str:
    """The table as CSV, with numbers that are not rounded, and deviations in separate columns."""
    deviations = [[_deviation(row[c]) for row in table.rows] for c in range(len(table.headers))]
    split = [any(deviation != "" for deviation in column) for column in deviations]

    def line(row: Sequence[object]) -> Iterable[object]:
        for value, with_deviation in zip(row, split, strict=True):
            plain = value.value if isinstance(value, NumberText) else value
            yield "" if missing(value) else visible(plain) if isinstance(plain, str) else plain
            if with_deviation:
                yield _deviation(value)

    headers: list[str] = []
    for header, with_deviation in zip(map(visible, table.headers), split, strict=True):
        headers += [header, f"{header} ±"] if with_deviation else [header]
    own = ["remark"] if remark else []
    return csv_text([*headers, *own], ([*line(row), *([remark] if remark else [])] for row in table.rows))


def csv_text(headers: Iterable[object], rows: Iterable[Iterable[object]]) -> str:
    """A header and rows as CSV; None and NaN are empty cells."""
    with io.StringIO() as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(headers)
        writer.writerows(["" if isinstance(cell, Real) and cell != cell else cell for cell in row] for row in rows)
        return file.getvalue()


def as_latex(table: Table, remark: str = "") -> str:
    r"""LaTeX for booktabs; graphicx scales the table down if it is wider than \linewidth."""

    def cell(r: int, c: int, value: object) -> str:
        text = _latex(text_of(value)).replace(MISSING, "--")
        if number(value) is not None:
            text = re.sub(r"^[-−]", "$-$", re.sub(r"\s*\$\\pm\$\s*(\S+)", r"$_{\\pm \1}$", text))
        return {BEST: rf"\textbf{{{text}}}", SECOND: rf"\underline{{{text}}}"}.get(table.marks.get((r, c), 0), text)

    def line(cells: Iterable[str]) -> str:
        text = " & ".join(cells)
        return f"{'{}' if text.startswith(('[', '*')) else ''}{text} \\\\"  # not an option of \\

    title = f"{table.title} ({remark})" if remark else table.title
    return "\n".join(
        [
            r"% needs \usepackage{booktabs} and \usepackage{graphicx}",
            r"\begin{table}", r"\centering", rf"\caption{{{_latex('. '.join(filter(None, [title, table.caption])))}}}",
            rf"\label{{tab:{table.name}}}",
            r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
            rf"\begin{{tabular}}{{{''.join('r' if numeric else 'l' for numeric in table.numeric())}}}", r"\toprule",
            line(map(_latex, table.headers)), r"\midrule",
            *(line(cell(r, c, value) for c, value in enumerate(row)) for r, row in enumerate(table.rows)),
            r"\bottomrule", r"\end{tabular}}", r"\end{table}",
        ]
    ) + "\n"  # fmt: skip


def check_name(name: str) -> None:
    """Raise a ValueError if `name` cannot be a file name and an HTML anchor."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} does not name a file: use letters, digits, - and _")


def missing(value: object) -> bool:
    """Whether a cell is empty."""
    if isinstance(value, NumberText):
        value = value.value
    if isinstance(value, Real):
        return bool(value != value)  # NaN
    return value is None or value in ("", "-", MISSING)


def number(value: object) -> float | None:
    """The number by which a cell is sorted; None for text that is not a number."""
    if isinstance(value, Real | NumberText):
        return float(value.value if isinstance(value, NumberText) else value)
    try:
        found = float(value) if isinstance(value, str) else math.nan
    except ValueError:
        return None
    return found if math.isfinite(found) else None


def _deviation(value: object) -> object:
    """The deviation of a number, "" if it has none."""
    return value.deviation if isinstance(value, NumberText) and not math.isnan(value.deviation) else ""


def text_of(value: object) -> str:
    """The text of a cell."""
    if missing(value):
        return MISSING
    return f"{float(value):.6g}" if isinstance(value, Real) and not isinstance(value, Integral) else str(value)


def visible(text: str) -> str:
    """Text with invisible and direction-changing characters replaced by their code points."""
    return _UNSEEN.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _latex(text: str) -> str:
    """Text on one line for LaTeX; < and > need macros in its old fonts."""
    line = tex(" ".join(visible(text).split()))
    return line.replace("<", r"\textless{}").replace(">", r"\textgreater{}").replace("|", r"\textbar{}")


_TEX: Mapping[str, str] = {c: f"\\{c}" for c in "&%$#_{}"} | {
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}", "±": r"$\pm$",
}  # fmt: skip


def tex(text: str) -> str:
    """Text with LaTeX's special characters escaped."""
    return re.sub(r"[&%$#_{}~^\\±]", lambda match: _TEX[match[0]], text)
