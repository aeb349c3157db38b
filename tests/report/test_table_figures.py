"""Figures of tables: their data and their texts."""

import io
from dataclasses import replace
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
from matplotlib.collections import QuadMesh

from mfedpba_mpi.report.style import RC
from mfedpba_mpi.report.table_figures import bars, curve, heat_map, scaling
from mfedpba_mpi.studies.measures import MEASURES
from mfedpba_mpi.studies.tables import Cell, Results, Row

ACCURACY, SECONDS = MEASURES["last_five"][0], MEASURES["seconds"][0]
HOSTILE = r"_<b>$x_1$ & 100 % \alpha^2 {'q'} $"


def a_table(rows, columns=("mean",), measure=ACCURACY, corner="variant", remark="", incomplete=""):
    """A table of (mean, deviation) pairs; () is a failed cell, None a cell without runs."""
    made = [
        Row(name, [pair and Cell(*pair, 3) if pair != () else Cell(np.nan, np.nan, 0) for pair in pairs])
        for name, pairs in rows.items()
    ]
    return Results("T", measure, corner, list(columns), made, remark=remark, incomplete=incomplete)


def words_of(figure):
    """All texts of a figure."""
    with matplotlib.rc_context(RC | {"svg.fonttype": "none"}), io.StringIO() as file:
        figure.savefig(file, format="svg")
        tree = ElementTree.fromstring(file.getvalue())
    return [text for element in tree.iter("{http://www.w3.org/2000/svg}text") if (text := "".join(element.itertext()))]


def legend_of(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def lines_of(axes, gid=None):
    return [line for line in axes.get_lines() if line.get_gid() == gid and len(line.get_xdata()) and line.get_zorder()]


def test_bars_start_at_zero():
    figure = bars(a_table({"full": [(40, 2)], "w/o rec": [(20, 1)], "EA": [(30, np.nan)]}))
    (axes,) = figure.axes
    assert [(bar.get_x(), bar.get_width()) for bar in axes.patches] == [(0, 40), (0, 20), (0, 30)]
    assert axes.get_xlim()[0] == 0
    assert lines_of(axes, "reference")[0].get_xdata() == [40, 40]
    assert {"full", "w/o rec", "EA", "40.00 ± 2.00", "20.00 ± 1.00", "30.00"} <= set(words_of(figure))


def test_close_values_are_dots_on_a_labelled_axis():
    figure = bars(a_table({"full": [(40, 0.2)], "EA": [(39, 0.3)]}))
    (axes,) = figure.axes
    assert not axes.patches
    assert axes.get_xlim()[0] > 0
    assert "(the axis does not start at 0)" in words_of(figure)
    ends = [segment[:, 0].tolist() for bar in axes.collections for segment in bar.get_segments()]
    np.testing.assert_allclose(ends, [[39.8, 40.2], [38.7, 39.3]])


def test_failed_and_missing_bars_are_labelled():
    words = words_of(bars(a_table({"full": [(40, 1)], "bad": [()], "later": [None]})))
    assert {"failed", "no run"} <= set(words)
    bars(a_table({"bad": [()], "later": [None]})).draw_without_rendering()


def test_a_heat_map_shows_its_values_and_hatches_failed_cells():
    table = a_table({"0.1": [(50.123, 1), (60, 1)], "1": [(), None]}, ["5", "10"], corner="lambda_1")
    table.rows[0].cells[1] = replace(table.rows[0].cells[1], place=1)
    figure = heat_map(table, "lambda_2")
    axes, _ = figure.axes
    at = {(text.get_position()): text for text in axes.texts}
    assert {place: text.get_text() for place, text in at.items()} == {
        (0.5, 0.5): "50.12", (1.5, 0.5): "60.00", (0.5, 1.5): "failed", (1.5, 1.5): "–"
    }  # fmt: skip
    assert [place for place, text in at.items() if text.get_fontweight() == "bold"] == [(1.5, 0.5)]
    (patch,) = [patch for patch in axes.patches if patch.get_hatch()]
    assert patch.get_xy() == (0, 1)
    (mesh,) = [item for item in axes.collections if isinstance(item, QuadMesh)]
    assert np.ma.getmaskarray(mesh.get_array()).ravel().tolist() == [False, False, True, True]
    assert axes.get_ylim() == (2, 0)  # the first row above


@pytest.mark.parametrize("count", [1, 9, 60])
def test_heat_maps_of_any_size_can_be_drawn(count):
    names = [str(i) for i in range(count)]
    figure = heat_map(a_table({name: [(1.0, 0.1)] * count for name in names}, names))
    figure.draw_without_rendering()
    assert figure.get_figwidth() <= 6.75


def test_a_curve_shows_every_column_over_the_values_of_the_rows():
    table = a_table(
        {"1": [(10, 1), (5, 1)], "10": [(20, 2), ()], "1000": [(15, 3), (6, np.nan)]},
        ["A", "B"],
        corner="server_epochs",
    )
    table.rows[1] = replace(table.rows[1], remark="synthetic data")
    figure = curve(table, [1, 10, 1000], "kind")
    (axes,) = figure.axes
    assert axes.get_xscale() == "log"
    points = [(line.get_xdata().tolist(), line.get_ydata().tolist()) for line in axes.get_lines()]
    assert ([1, 10, 1000], [10, 20, 15]) in points
    assert ([1, 1000], [5, 6]) in points
    assert legend_of(figure) == ["A", "B"]
    assert {"1", "10", "1000", "kind", "partly synthetic data"} <= set(words_of(figure))
    near = a_table({"2": [(10, 1)], "3": [(11, 1)]}, corner="tau")
    assert curve(near, [2, 3]).axes[0].get_xscale() == "linear"


def test_ideal_strong_scaling_halves_the_time_on_twice_the_ranks():
    ranks = [2, 4, 9, 33]
    rows = {str(n): [(8 / n**0.5, 0.1), (20 / n**0.5, np.nan)] for n in ranks}
    figure = scaling(a_table(rows, ["64", "256"], SECONDS, corner="ranks"), ranks, "clients")
    figure.draw_without_rendering()
    (axes,) = figure.axes
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    for line, first in zip(lines_of(axes, "ideal"), (8 / 2**0.5, 20 / 2**0.5), strict=True):
        x, y = np.log(line.get_xdata()), np.log(line.get_ydata())
        np.testing.assert_allclose(np.diff(y) / np.diff(x), -1)
        assert line.get_ydata()[0] == pytest.approx(first)


def test_ideal_weak_scaling_keeps_the_time():
    rows = {"2 ranks, K 16": [(1.0, 0.1)], "3 ranks, K 32": [(1.5, 0.1)]}
    figure = scaling(a_table(rows, measure=SECONDS, corner="size"))
    (axes,) = figure.axes
    (ideal,) = lines_of(axes, "ideal")
    assert ideal.get_ydata().tolist() == [1, 1]
    assert (axes.get_xscale(), axes.get_yscale(), axes.get_ylim()[0]) == ("linear", "linear", 0)
    assert {*rows, "ideal"} <= set(words_of(figure))


@pytest.mark.parametrize("draw", [bars, heat_map, lambda table: curve(table, [1, 2]), scaling])
def test_synthetic_and_incomplete_tables_are_marked(draw):
    rows = {"1": [(10, 1)], "2": [(20, 1)]}
    assert draw(a_table(rows, corner="ranks")).get_supxlabel() == ""
    made = a_table(rows, corner="ranks", remark="synthetic data", incomplete="2 of 3 runs are complete")
    assert draw(made).get_supxlabel() == "2 of 3 runs are complete; synthetic data"
    mixed = a_table(rows, corner="ranks")
    mixed.rows[1] = replace(mixed.rows[1], remark="synthetic data")
    assert draw(mixed).get_supxlabel() == "partly synthetic data"


def test_hostile_names_are_shown_literally():
    table = a_table({HOSTILE: [(1, 0.1), (2, 0.1)], "b": [(3, 0.1), (4, 0.1)]}, [HOSTILE, "$"], corner=HOSTILE)
    for figure in (bars(table), heat_map(table, HOSTILE), scaling(table, column_axis=HOSTILE)):
        assert HOSTILE.replace(" ", "") in "".join(words_of(figure)).replace(" ", "")
