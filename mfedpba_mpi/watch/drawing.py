"""Drawing with characters: bars, sparklines, curves of braille dots, wrapped phrases, cells in columns."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence

import numpy as np

Span = tuple[str, str]  # text and its style
Line = list[Span]


def bar(share: float, width: int) -> str:
    """A bar that fills a share (0 to 1) of `width` columns, in steps of an eighth of a column; "" for NaN."""
    if math.isnan(share):
        return ""
    full, eighths = divmod(round(min(1.0, max(0.0, share)) * width * 8), 8)
    return "█" * full + (chr(0x2590 - eighths) if eighths else "")


def spark(values: np.ndarray, width: int) -> str:
    """A sparkline of the finite values. If there are more than `width`, evenly spaced ones up to the last are shown."""
    values = values[np.isfinite(values)]
    if not len(values) or width < 1:
        return ""
    shown = values[np.linspace(0, len(values) - 1, min(width, len(values))).round().astype(int)]
    low, high = shown.min(), shown.max()
    levels = np.zeros(len(shown)) if high == low else (shown - low) / (high - low) * 7
    return "".join(chr(0x2581 + level) for level in levels.round().astype(int).tolist())


def braille(x: np.ndarray, y: np.ndarray, low: float, high: float, width: int, height: int) -> list[str]:
    """A line through the points, drawn with 2 x 4 dots per character; the dots span the values `low` to `high`."""
    columns = np.linspace(x[0], x[-1], 2 * width) if len(x) > 1 else x
    rows = ((high - np.interp(columns, x, y)) / (high - low) * (4 * height - 1)).round().astype(int)
    dots = np.zeros((4 * height, 2 * width), bool)
    previous = rows[0]
    for column, row in enumerate(rows):
        start, end = (
            (row, previous) if row < previous else (previous + 1, row + 1) if row > previous else (row, row + 1)
        )
        dots[start:end, column] = True
        previous = row
    weights = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])
    cells = (dots.reshape(height, 4, width, 2) * weights[:, None]).sum(axis=(1, 3))
    return ["".join(chr(0x2800 + cell) if cell else " " for cell in line) for line in cells.tolist()]


def flow(phrases: Iterable[Span], width: int) -> list[Line]:
    """Put phrases one after another, two spaces apart, on as many lines as necessary; wrap those longer than a line."""
    lines: list[Line] = []
    used = width
    for phrase, style in phrases:
        for i, piece in enumerate(textwrap.wrap(phrase, width) or [""]):
            if i or used + 2 + len(piece) > width:
                lines.append([(piece, style)])
                used = len(piece)
            else:
                lines[-1].append((f"  {piece}", style))
                used += 2 + len(piece)
    return lines


def flow_each(phrases: Iterable[Span], width: int) -> list[Line]:
    """Put every phrase on a new line, wrapped if it is longer."""
    return [line for phrase in phrases for line in flow([phrase], width)]


def grid(cells: Sequence[Line], width: int, rows: int) -> list[Line]:
    """Arrange cells of `width` characters in columns of `rows` cells, two spaces apart."""
    lines: list[Line] = []
    for row in range(min(rows, len(cells))):
        line: Line = []
        for i, cell in enumerate(cells[row::rows]):
            used = sum(len(text) for text, _ in line)
            line += [(" " * (i * (width + 2) - used), ""), *cell]
        lines.append(line)
    return lines


def grid_shape(count: int, width: int, max_rows: int, min_cell: int) -> tuple[int, int, int]:
    """The shape of a grid with as few columns as possible: number of cells that fit, rows, and width of a cell."""
    columns = min(max(1, (width + 2) // (min_cell + 2)), -(-count // max_rows))
    shown = min(count, max_rows * columns)
    return shown, -(-shown // columns), min(60, (width + 2) // columns - 2)
