"""Figures of a table: bars, a heat map, curves, or a scaling plot.

Lines differ in dashes and markers as well as in colour. A method looks the same in all figures.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from textwrap import fill, shorten
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axis import Axis
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from mfedpba_mpi.methods.params import METHODS, SHIPPED
from mfedpba_mpi.records.run import joint_remark
from mfedpba_mpi.report.style import COLUMN, GREY, PAGE, add_note, colour, label, marker, new_figure, styled
from mfedpba_mpi.studies.study import RANKS
from mfedpba_mpi.studies.tables import Cell, Results, Row

METHOD = "method"  # name of the axis of methods
POINT = 1 / 72  # inches
_DASHES: tuple[Any, ...] = (
    "-", (0, (4, 1.5)), (0, (4, 1, 1, 1)), (0, (1, 1)), (0, (7, 2)), (0, (4, 1, 1, 1, 1, 1)), (0, (2, 1)),
    (0, (1, 2.5)), (0, (6, 1, 1, 1)),
)  # one more than there are colours, so that few lines share both  # fmt: skip
_HATCHES = (None, "////", "....", "xxxx", "\\\\\\\\", "++", "//", "--")
_METHODS = {  # index of every method by name and by label: MFedPBA first, plugins last
    name: i
    for i, key in enumerate([*reversed(SHIPPED), *(key for key in METHODS if key not in SHIPPED)])
    for name in (key, METHODS[key].label)
}
_BLUES = LinearSegmentedColormap.from_list("blues", ["#f4f9fd", colour(0)])
_AXIS_LABELS = {
    "lambda_1": r"$\lambda_1$", "lambda_2": r"$\lambda_2$", "tau": r"$\tau$", "feature_dim": "feature dimension $d$",
    "server_epochs": "server steps $S$ per round", "clients": "clients $K$", "ranks": "ranks (one is the server)",
    "gw_epsilon": r"$e_0$ of $\mathcal{L}_{\mathrm{align}}$",
}  # fmt: skip


@styled()
def bars(results: Results) -> Figure:
    """Means and sample standard deviations; with a single column, a dashed line marks the mean of the first row.

    If the values are too close for bars to differ visibly, they are shown as dots on an axis that does not start at 0.
    """
    columns, count = results.columns, len(results.rows)
    looks, names = line_styles(columns), [_row_label(row, 24) for row in results.rows]
    lines = max((name.count("\n") + 1 for name in names), default=1)
    drawing, axes = new_figure(COLUMN, 0.75 + max(0.07 + 0.12 * lines, 0.06 + 0.11 * len(columns)) * max(count, 2))
    good = [cell for _, cell in _cells(results) if cell.n]
    low = min((cell.mean - np.nan_to_num(cell.deviation) for cell in good), default=0.0)
    high = max((cell.mean + np.nan_to_num(cell.deviation) for cell in good), default=1.0)
    dots = len(good) > 1 and low > 0 and high - low < 0.2 * high
    thickness = 0.72 / max(len(columns), 1)
    for r, cells in enumerate(row.cells for row in results.rows):
        for c, cell in enumerate(cells):
            y = r + (c - (len(cells) - 1) / 2) * thickness
            if cell and cell.n:
                error, look = None if np.isnan(cell.deviation) else cell.deviation, looks[columns[c]]
                if not dots:
                    axes.barh(y, cell.mean, 0.9 * thickness, **_bar_style(look, c))
                ink, kind = (look["color"], look["marker"]) if dots else ("black", "none")
                axes.errorbar(cell.mean, y, xerr=error, fmt=kind, color=ink, capsize=2, linewidth=0.8)
            text, size = cell.text() if cell else "no run", 7 if thickness > 0.3 else 5.5
            axes.text(1.02, y, text, transform=axes.get_yaxis_transform(), va="center", fontsize=size)
    first = results.rows[0].cells[0] if results.rows and len(columns) == 1 else None
    if first and first.n and count > 1:
        axes.axvline(first.mean, color=GREY, linewidth=0.8, linestyle=(0, (4, 2)), zorder=4, gid="reference")
    if dots:
        axes.set_xlim(low - 0.12 * (high - low or high), high + 0.12 * (high - low or high))
    elif good:
        axes.set_xlim(min(0, 1.05 * low), 1.05 * max(high, 0) or 1)
    axes.set_yticks(range(count), names, linespacing=0.9)
    axes.set_ylim(count - 0.45, -0.55)
    axes.grid(visible=False, axis="y")
    text = wrap(results.measure.label, 38) + ("\n(the axis does not start at 0)" if dots else "")
    axes.set_xlabel(text, linespacing=0.9)
    if len(columns) > 1:
        spots = [Line2D([], [], **look | {"linestyle": ""}) for look in looks.values()]
        patches = [Patch(**_bar_style(look, c)) for c, look in enumerate(looks.values())]
        legend(drawing, columns, spots if dots else patches)
    _add_footnote(drawing, results)
    return drawing


@styled()
def heat_map(results: Results, column_axis: str = "") -> Figure:
    """Means by row and column, as colours and numbers; cells in which all runs failed are hatched.

    Parameters
    ----------
    column_axis : name of the setting that varies over the columns.
    """
    count, wide = len(results.rows), len(results.columns)
    longest = max((len(_mean_text(cell)) for _, cell in _cells(results)), default=1)
    row_labels = [_row_label(row, 22) for row in results.rows]
    column_labels = [wrap(name, 24) for name in results.columns]
    margins = 0.86 + _longest_line(row_labels) * 3.4 * POINT  # inches
    cell_width = {width: (width - margins) / max(wide, 1) / POINT for width in (COLUMN, PAGE)}  # points
    width = COLUMN if cell_width[COLUMN] > 2.75 * longest else PAGE
    size = min(1.84 * cell_width[width] / longest, 7)  # font size in points
    column_length = _longest_line(column_labels) * 3.4  # points
    upright = column_length > cell_width[width]
    height = 0.75 + count * min(0.26, max(0.2, cell_width[width] * POINT)) + upright * column_length * POINT
    drawing, axes = new_figure(width, min(8.5, height))
    means = np.array([[cell.mean if cell and cell.n else np.nan for cell in row.cells] for row in results.rows])
    good = means[np.isfinite(means)]
    low, high = (good.min(), good.max()) if len(good) else (0.0, 1.0)
    scale = Normalize(low, high if high > low else low + 1)
    shades = axes.pcolormesh(np.ma.masked_invalid(means), cmap=_BLUES, norm=scale, edgecolors="white", linewidth=0.6)
    for (r, c), cell in _cells(results, everywhere=True):
        failed = cell is not None and not cell.n
        if failed:
            axes.add_patch(
                Rectangle((c, r), 1, 1, facecolor="white", edgecolor="#999999", hatch="////", linewidth=0, gid="failed")
            )
        if size < 4:
            continue  # too small to read
        text = _mean_text(cell) if cell else "–"
        dark = cell is not None and cell.n and scale(cell.mean) > 0.62
        axes.text(
            c + 0.5, r + 0.5, text, ha="center", va="center", fontsize=size, color="white" if dark else "black",
            fontweight="bold" if cell and cell.place == 1 else "normal",
            bbox={"facecolor": "white", "linewidth": 0, "pad": 0.6} if failed else None,
        )  # fmt: skip
    axes.set_xticks(np.arange(wide) + 0.5, column_labels, rotation=90 * upright, linespacing=0.9)
    axes.set_yticks(np.arange(count) + 0.5, row_labels, linespacing=0.9)
    axes.set_ylim(count, 0)
    axes.tick_params(length=0)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.set_xlabel(_axis_label(column_axis))
    axes.set_ylabel(_axis_label(results.corner))
    axes.set_title(wrap(results.measure.label, 56 * width / COLUMN), fontsize=7, loc="left")
    bar = drawing.colorbar(shades, ax=axes, pad=0.02, fraction=0.06, aspect=25)
    bar.ax.grid(visible=False)
    bar.outline.set_visible(False)
    _add_footnote(drawing, results)
    return drawing


@styled()
def curve(results: Results, values: Sequence[float], column_axis: str = "") -> Figure:
    """Means with standard deviations over a numeric setting, one line per column.

    Parameters
    ----------
    values : of the setting, one per row.
    column_axis : name of the setting that varies over the columns.
    """
    drawing, axes = new_figure()
    log = bool(values) and min(values) > 0 and max(values) >= 10 * min(values)
    looks = line_styles(results.columns)
    for name, points in _points_by_column(results, values):
        x, mean, deviation = zip(*points, strict=True)
        axes.errorbar(x, mean, yerr=deviation, capsize=1.5, elinewidth=0.6, **looks[name])
    if log:
        axes.set_xscale("log")
    _set_ticks(axes.xaxis, values, log)
    axes.set_xlabel(_axis_label(results.corner))
    axes.set_ylabel(wrap(results.measure.label, 36), linespacing=0.9)
    if len(results.columns) > 1:
        legend(drawing, results.columns, [Line2D([], [], **look) for look in looks.values()], column_axis)
    _add_footnote(drawing, results)
    return drawing


@styled()
def scaling(results: Results, ranks: Sequence[int] = (), column_axis: str = "") -> Figure:
    """Time over ranks, compared with ideal scaling from the first point.

    Strong scaling: the work is the same in all rows, so twice the ranks should take half the time (log-log plot). Weak
    scaling: the work per rank is the same in all rows, so the time should stay constant.

    Parameters
    ----------
    ranks : of every row, for strong scaling; without them the plot shows weak scaling.
    column_axis : name of the setting that varies over the columns.
    """
    strong = bool(ranks)
    positions = ranks or range(len(results.rows))
    looks = line_styles(results.columns)
    drawing, axes = new_figure(height=2.4)
    ideal = {"color": GREY, "linestyle": (0, (2, 2)), "linewidth": 0.8, "marker": ""}
    for name, points in _points_by_column(results, positions):
        x, mean, deviation = (np.array(part) for part in zip(*points, strict=True))
        axes.errorbar(x, mean, yerr=deviation, capsize=1.5, elinewidth=0.6, zorder=3, **looks[name])
        best = mean[0] * x[0] / x if strong else np.full(len(x), mean[0])
        axes.plot(x, best, gid="ideal", **ideal | {"color": looks[name]["color"]})
    if strong:
        axes.set_xscale("log")
        axes.set_yscale("log")
        _set_log_ticks(axes.yaxis)
        _set_ticks(axes.xaxis, ranks, log=True)
        axes.set_xlabel(_axis_label(RANKS))
    else:
        axes.set_ylim(bottom=0)
        axes.set_xticks(positions, [_row_label(row, 24) for row in results.rows])
        axes.set_xlim(-0.3, len(positions) - 0.7)
        if sum(len(row.name) for row in results.rows) > 45:
            axes.tick_params("x", labelrotation=40)
            for tick in axes.get_xticklabels():
                tick.set(ha="right", rotation_mode="anchor")
        axes.set_xlabel(_axis_label(results.corner))
    axes.set_ylabel(wrap(results.measure.label, 36), linespacing=0.9)
    several = looks if len(looks) > 1 else {}
    legend(drawing, [*several, "ideal"], [Line2D([], [], **look) for look in (*several.values(), ideal)], column_axis)
    _add_footnote(drawing, results)
    return drawing


# ---- line styles and labels


def line_styles(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The style of every line by name. Methods have the same style everywhere; other names get theirs by position."""
    methods = all(name in _METHODS for name in names)
    indices = {name: _METHODS[name] if methods else i for i, name in enumerate(names)}
    return {
        name: {"color": colour(i), "marker": marker(i), "linestyle": _DASHES[i % len(_DASHES)], "markeredgewidth": 0.4}
        for name, i in indices.items()
    }


def _bar_style(look: Mapping[str, Any], i: int) -> dict[str, Any]:
    """The style of the bars of the i-th column."""
    return {"facecolor": look["color"], "edgecolor": "white", "hatch": _HATCHES[i % len(_HATCHES)], "linewidth": 0}


def legend(drawing: Figure, names: Sequence[str], handles: Sequence[Artist], title: str = "") -> None:
    """Add a legend above all axes, and increase the figure's height accordingly."""
    width = drawing.get_figwidth()
    names, title = [wrap(name, 60 * width / COLUMN) for name in names], "" if title == METHOD else title
    columns = max(1, min(len(names), int(width / ((_longest_line(names) * 3.3 + 32) * POINT))))
    rows = -(-len(names) // columns) + bool(title)
    columns = max(1, -(-len(names) // max(1, rows - bool(title))))  # rows of about equal length
    drawing.set_figheight(drawing.get_figheight() + 0.06 + rows * 9.5 * POINT)
    drawing.legend(
        list(handles), names, loc="outside upper center", ncols=columns, title=_axis_label(title) or None,
        title_fontsize=7, handlelength=2.6, columnspacing=1.0, labelspacing=0.25, borderpad=0.2, borderaxespad=0.3,
    )  # fmt: skip


def _set_ticks(axis: Axis, values: Sequence[float], log: bool) -> None:
    """Place ticks at the values, and label those that have room for a label."""
    if not values:
        return
    position = np.log(values) if log else np.array(values, float)
    position = (position - position.min()) / (np.ptp(position) or 1) * (COLUMN - 0.75) / POINT  # points
    shown: dict[int, float] = {}  # index of every labelled value, from the right, and the left edge of its label
    for i in np.argsort(-position):
        half = len(f"{values[i]:g}") * 1.8 + 1.5
        if not shown or position[i] + half <= min(shown.values()):
            shown[int(i)] = position[i] - half
    axis.set_major_locator(NullLocator())
    axis.set_minor_locator(NullLocator())
    axis.set_ticks(list(values), [f"{x:g}" if i in shown else "" for i, x in enumerate(values)])


def _set_log_ticks(axis: Axis) -> None:
    """Label a logarithmic axis with plain numbers, even if it spans less than a decade."""
    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)) if high > 3 * low else MaxNLocator(5))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(NullLocator())


def _cells(results: Results, everywhere: bool = False) -> Iterator[tuple[tuple[int, int], Any]]:
    """Row and column, and the cell; `everywhere` includes None for cells without runs."""
    for r, cells in enumerate(row.cells for row in results.rows):
        yield from (((r, c), cell) for c, cell in enumerate(cells) if everywhere or cell)


def _mean_text(cell: Cell) -> str:
    """The mean without its deviation, or ``failed``."""
    return replace(cell, deviation=np.nan).text()


def _points_by_column(
    results: Results, x_values: Sequence[float]
) -> Iterator[tuple[str, list[tuple[float, float, float]]]]:
    """Name and points (x, mean, deviation) of every column with values; `x_values` has one value per row."""
    for c, name in enumerate(results.columns):
        points = [
            (x, cell.mean, cell.deviation)
            for x, row in zip(x_values, results.rows, strict=True)
            if (cell := row.cells[c]) and cell.n
        ]
        if points:
            yield name, sorted(points)


def _axis_label(axis: str) -> str:
    """The label of an axis of a study, in the paper's notation if it has one."""
    return _AXIS_LABELS.get(axis, wrap(axis.replace("_", " "), 40))


def wrap(text: str, width: float, remark: str = "") -> str:
    """Text on at most two lines of `width` characters, shortened if necessary, and the full remark on a third line."""
    lines = fill(text, max(8, int(width))).split("\n")
    short = lines if len(lines) < 3 else [lines[0], shorten(" ".join(lines[1:]), max(8, int(width)), placeholder="…")]
    return label("\n".join(short) + (f"\n({remark})" if remark else ""))


def _longest_line(texts: Iterable[str]) -> int:
    """The number of characters of the longest line."""
    return max((len(line) for text in texts for line in text.split("\n")), default=1)


def _row_label(row: Row, width: int) -> str:
    """The label of a row, shortened, with its full remark."""
    return wrap(row.label, width, row.remark)


def _add_footnote(drawing: Figure, results: Results) -> None:
    """Add the number of complete runs and the remark on the data below the figure."""
    remark = results.remark or joint_remark(row.remark for row in results.rows)
    if text := "; ".join(filter(None, [results.incomplete, remark])):
        add_note(drawing, fill(text, int(78 * drawing.get_figwidth() / COLUMN)))
