"""Console output: tables, numbers with units, and throttled progress."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Sequence
from typing import IO

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mfedpba_mpi.comm.launcher import on_terminal


class _Console(Console):
    """A console that survives a closed pipe, as of ``| head``: further output is discarded."""

    def on_broken_pipe(self) -> None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def console(file: IO[str] | None = None) -> Console:
    """A console that wraps at the terminal's width, at COLUMNS or 120 in a pipe, and not at all in a file."""
    terminal = on_terminal() and file is None
    columns = os.environ.get("COLUMNS", "")
    piped = max(int(columns), 20) if columns.isdecimal() and int(columns) else 120
    width = None if terminal else piped if file is None else 1000
    return _Console(file=file, force_terminal=terminal, width=width, highlight=False)


def table(headers: Sequence[str], rows: Iterable[Sequence[object]], title: str | None = None) -> Table:
    """A small table. Columns in which all cells start like a number are right-aligned."""
    body = [[str(cell) for cell in row] for row in rows]
    result = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for i, header in enumerate(headers):
        cells = [row[i] for row in body if row[i]]
        numeric = bool(cells) and all(cell.lstrip("+-")[:1].isdigit() for cell in cells)
        result.add_column(header, justify="right" if numeric else "left", overflow="fold")
    for row in body:
        result.add_row(*map(Text, row))  # without interpreting markup
    return result


def bytes_of(n: float) -> str:
    """A number of bytes with a suitable unit."""
    for unit in ("B", "kB", "MB"):
        if n < 1000:
            return f"{n:.4g} {unit}"
        n /= 1000
    return f"{n:.4g} GB"


def count(n: int, noun: str, plural: str = "") -> str:
    """A number and its noun, in the plural if necessary."""
    return f"{n or 'no'} {noun if n == 1 else plural or f'{noun}s'}"


def ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers in SLURM's notation, for example 0-3,8."""
    parts: list[list[int]] = []
    for n in numbers:
        if parts and n == parts[-1][-1] + 1:
            parts[-1][1:] = [n]
        else:
            parts.append([n])
    return ",".join("-".join(map(str, part)) for part in parts)


def duration(seconds: float) -> str:
    """A time with a suitable unit."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


class Throttle:
    """Limits progress lines to one in `seconds`."""

    def __init__(self, seconds: float):
        self.seconds = seconds
        self.reset()

    def due(self) -> bool:
        """Whether the last line was printed long enough ago."""
        return time.monotonic() - self._last >= self.seconds

    def reset(self) -> None:
        """Start the interval again: a line has been printed."""
        self._last = time.monotonic()
