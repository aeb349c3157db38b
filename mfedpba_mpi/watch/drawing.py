"""Pictures and tables made of characters: bars, curves of braille dots, words that flow, cells in columns."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence

import numpy as np

Span = tuple[str, str]  # words and their style
Line = list[Span]


def bar(share: float, width: int) -> str:
    """A bar of so many eighths of a column."""
    if math.isnan(share):
        return ""
    full, eighths = divmod(round(min(1.0, max(0.0, share)) * width * 8), 8)
    return "█" * full + (chr(0x2590 - eighths) if eighths else "")


def spark(values: np.ndarray, width: int) -> str:
    """A line of blocks, the lowest value the lowest; of many values, as many as fit, the last among them."""
    values = values[np.isfinite(values)]
    if not len(values) or width < 1:
        return ""
    picked = values[np.linspace(0, len(values) - 1, min(width, len(values))).round().astype(int)]
    low, high = picked.min(), picked.max()
    levels = np.zeros(len(picked)) if high == low else (picked - low) / (high - low) * 7
    return "".join(chr(0x2581 + level) for level in levels.round().astype(int).tolist())


def braille(x: np.ndarray, y: np.ndarray, low: float, high: float, width: int, height: int) -> list[str]:
    """A line through the points in 2 x 4 dots a character; `low` is the lowest row of dots, `high` the highest."""
    columns = np.linspace(x[0], x[-1], 2 * width) if len(x) > 1 else x
    rows = ((high - np.interp(columns, x, y)) / (high - low) * (4 * height - 1)).round().astype(int)
    dots = np.zeros((4 * height, 2 * width), bool)
    before = rows[0]
    for column, row in enumerate(rows):
        start, end = (row, before) if row < before else (before + 1, row + 1) if row > before else (row, row + 1)
        dots[start:end, column] = True
        before = row
    weights = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])
    cells = (dots.reshape(height, 4, width, 2) * weights[:, None]).sum(axis=(1, 3))
    return ["".join(chr(0x2800 + cell) if cell else " " for cell in line) for line in cells.tolist()]


def flow(words: Iterable[Span], width: int) -> list[Line]:
    """Phrases one after the other, on as many lines as they need; one that is longer than a line is wrapped."""
    lines: list[Line] = []
    used = width
    for phrase, style in words:
        for i, piece in enumerate(textwrap.wrap(phrase, width) or [""]):
            if i or used + 2 + len(piece) > width:
                lines.append([(piece, style)])
                used = len(piece)
            else:
                lines[-1].append((f"  {piece}", style))
                used += 2 + len(piece)
    return lines


def flow_each(words: Iterable[Span], width: int) -> list[Line]:
    """Phrases, each on lines of its own."""
    return [line for phrase in words for line in flow([phrase], width)]


def grid(cells: Sequence[Line], width: int, rows: int) -> list[Line]:
    """Cells of `width` columns, two apart, down and then across."""
    lines: list[Line] = []
    for row in range(min(rows, len(cells))):
        line: Line = []
        for i, cell in enumerate(cells[row::rows]):
            used = sum(len(words) for words, _ in line)
            line += [(" " * (i * (width + 2) - used), ""), *cell]
        lines.append(line)
    return lines


def shape(number: int, width: int, rows: int, cell: int) -> tuple[int, int, int]:
    """(cells shown, rows, width of one) of a grid of at most so many rows, with as few columns as will do."""
    columns = min(max(1, (width + 2) // (cell + 2)), -(-number // rows))
    shown = min(number, rows * columns)
    return shown, -(-shown // columns), min(60, (width + 2) // columns - 2)
