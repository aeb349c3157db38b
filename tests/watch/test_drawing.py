"""Bars, sparklines, curves, wrapped phrases and columns of cells."""

import math

import numpy as np
import pytest

from mfedpba_mpi.watch.drawing import bar, braille, flow, grid, spark


@pytest.mark.parametrize(
    ("share", "width", "drawn"),
    [(0.5, 4, "██"), (5 / 16, 4, "█▎"), (1, 3, "███"), (0, 3, ""), (1 / 8, 1, "▏"), (7.0, 2, "██"), (math.nan, 4, "")],
)
def test_a_bar_has_as_many_eighths_of_a_column_as_its_share(share, width, drawn):
    assert bar(share, width) == drawn


def test_a_sparkline_spans_all_block_heights():
    assert spark(np.arange(8.0), 10) == "▁▂▃▄▅▆▇█"
    assert spark(np.arange(15.0), 8) == "▁▂▃▄▅▆▇█"
    assert spark(np.array([3.0, 3.0, math.inf]), 8) == "▁▁"
    assert spark(np.array([]), 8) == ""


def test_a_curve_joins_its_points():
    # the lowest left dot, and the right column from the highest dot down to the row above it
    assert braille(np.array([1, 2]), np.array([0.0, 1.0]), 0, 1, 1, 1) == [chr(0x2800 + 0x40 + 0x08 + 0x10 + 0x20)]
    assert braille(np.array([1, 9]), np.array([1.0, 1.0]), 0, 1, 3, 2) == ["⠉⠉⠉", "   "]
    assert braille(np.array([4]), np.array([0.0]), 0, 1, 2, 1) == ["⡀ "]


def test_phrases_wrap_and_cells_fill_columns():
    lines = ["".join(words for words, _ in line) for line in flow([("one", ""), ("two", ""), ("three", "")], 8)]
    assert lines == ["one  two", "three"]
    cells = [[(name, "")] for name in "abc"]
    assert ["".join(words for words, _ in line) for line in grid(cells, 3, 2)] == ["a    c", "b"]
