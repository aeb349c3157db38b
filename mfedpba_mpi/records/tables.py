"""A table of text and numbers, and how it goes into LaTeX and CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real

MISSING = "–"
BEST, SECOND = 1, 2
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff\ufffe\uffff]"
)
_SIZE = r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?|\.\d+"
_NUMBER = re.compile(rf"([-+−]?(?:{_SIZE})(?:[eE][-+]?\d+)?)\s*[%x×]?(?:\s*±\s*(\S+))?(?:\s*\(.*\))?")


@dataclass(frozen=True)
class Table:
    """Cells are text or numbers, None or NaN where there is nothing; the first column names the rows.

    `marks` has a 1 at the (row, column) of what is best, shown in bold, and a 2 at that of the second best, underlined.
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
                f"table {self.name}: every row has as many cells as there are headers, {len(self.headers)}"
            )

    def numeric(self) -> list[bool]:
        """Which columns hold more numbers than text."""
        columns = ([row[i] for row in self.rows if not missing(row[i])] for i in range(len(self.headers)))
        return [2 * sum(number(value) is not None for value in column) > len(column) for column in columns]


def as_csv(table: Table, remark: str = "") -> str:
    """As on the page, but that a deviation is a column of its own and nothing is rounded."""
    spread = [any(_deviation(row[c]) for row in table.rows) for c in range(len(table.headers))]

    def line(cells: Sequence[object], split: bool = True) -> Iterable[object]:
        for value, wide in zip(cells, spread, strict=True):
            found = _deviation(value)
            yield "" if missing(value) else found[0] if found else visible(value) if isinstance(value, str) else value
            if wide:
                yield (found[1] if found else "") if split else f"{visible(str(value))} ±"

    headers = [*line(table.headers, split=False), *(["remark"] if remark else [])]
    return csv_text(headers, ([*line(row), *([remark] if remark else [])] for row in table.rows))


def csv_text(headers: Iterable[object], rows: Iterable[Iterable[object]]) -> str:
    """A header and rows as CSV; None and NaN are empty cells."""
    with io.StringIO() as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(headers)
        writer.writerows(["" if isinstance(cell, Real) and cell != cell else cell for cell in row] for row in rows)
        return file.getvalue()


def as_latex(table: Table, remark: str = "") -> str:
    r"""A LaTeX table for booktabs, made smaller by graphicx where it is wider than \linewidth."""

    def cell(r: int, c: int, value: object) -> str:
        text = _latex(text_of(value)).replace(MISSING, "--")
        if number(value) is not None:
            text = re.sub(r"^[-−]", "$-$", re.sub(r"\s*\$\\pm\$\s*(\S+)", r"$_{\\pm \1}$", text))
        return {BEST: rf"\textbf{{{text}}}", SECOND: rf"\underline{{{text}}}"}.get(table.marks.get((r, c), 0), text)

    def line(cells: Iterable[str]) -> str:
        text = " & ".join(cells)
        return f"{'{}' if text.startswith(('[', '*')) else ''}{text} \\\\"  # else an option of the \\ before

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
    """Refuse what cannot name a file, and an anchor."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} does not name a file: use letters, digits, - and _")


def missing(value: object) -> bool:
    """Whether there is nothing in a cell."""
    if isinstance(value, Real):
        return bool(value != value)  # NaN
    return value is None or value in ("", "-", MISSING)


def number(value: object) -> float | None:
    """What a cell is sorted by, the mean of ``49.04 ± 0.21``; None for other text."""
    if isinstance(value, Real):
        return float(value)
    match = _NUMBER.fullmatch(value.strip()) if isinstance(value, str) else None
    return float(match[1].replace(",", "").replace("−", "-")) if match else None


def _deviation(value: object) -> tuple[str, str] | None:
    match = _NUMBER.fullmatch(value.strip()) if isinstance(value, str) else None
    return (match[1], match[2]) if match and match[2] else None


def text_of(value: object) -> str:
    """A cell as it is read."""
    if missing(value):
        return MISSING
    return f"{float(value):.6g}" if isinstance(value, Real) and not isinstance(value, Integral) else str(value)


def visible(text: str) -> str:
    """Text with the number of every character that would not be seen, or would turn the text around."""
    return _UNSEEN.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _latex(text: str) -> str:
    """Text on one line; < and > are other characters in LaTeX's old fonts."""
    line = tex(" ".join(visible(text).split()))
    return line.replace("<", r"\textless{}").replace(">", r"\textgreater{}").replace("|", r"\textbar{}")


_TEX: Mapping[str, str] = {c: f"\\{c}" for c in "&%$#_{}"} | {
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}", "±": r"$\pm$",
}  # fmt: skip


def tex(text: str) -> str:
    """Text as it is, in LaTeX."""
    return re.sub(r"[&%$#_{}~^\\±]", lambda match: _TEX[match[0]], text)
