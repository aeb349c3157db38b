"""Figures of a table: its numbers as bars, as a map, as curves or as a scaling.

Colour never stands alone: lines differ in dashes and markers too. A method looks the same in all figures.
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
from mfedpba_mpi.records.run import bracketed, joint_remark
from mfedpba_mpi.report.style import COLUMN, GREY, PAGE, colour, figure, label, marker, new, note
from mfedpba_mpi.studies.study import RANKS
from mfedpba_mpi.studies.tables import Cell, Results, Row

METHOD = "method"  # the axis of the methods
POINT = 1 / 72  # in inches
_DASHES: tuple[Any, ...] = (
    "-", (0, (4, 1.5)), (0, (4, 1, 1, 1)), (0, (1, 1)), (0, (7, 2)), (0, (4, 1, 1, 1, 1, 1)), (0, (2, 1)),
    (0, (1, 2.5)), (0, (6, 1, 1, 1)),
)  # one more than colours, so that both together repeat late  # fmt: skip
_HATCHES = (None, "////", "....", "xxxx", "\\\\\\\\", "++", "//", "--")
_METHODS = {  # by either of their names: the paper's own first, users' own last
    name: i
    for i, key in enumerate([*reversed(SHIPPED), *(key for key in METHODS if key not in SHIPPED)])
    for name in (key, METHODS[key].label)
}
_BLUES = LinearSegmentedColormap.from_list("blues", ["#f4f9fd", colour(0)])
_NAMES = {
    "lambda_1": r"$\lambda_1$", "lambda_2": r"$\lambda_2$", "tau": r"$\tau$", "feature_dim": "feature dimension $d$",
    "server_epochs": "server steps $S$ a round", "clients": "clients $K$", "ranks": "ranks, one of them the server",
    "gw_epsilon": r"$e_0$ of $\mathcal{L}_{\mathrm{align}}$",
}  # fmt: skip


@figure
def bars(results: Results) -> Figure:
    """A bar for each row, with its deviation, and a line at the first one's.

    Bars start at 0. Where the numbers are so close that bars would look alike, there are dots instead, on an axis
    that starts elsewhere and says so. Where there are several columns, each row has a bar for each.
    """
    columns, count = results.columns, len(results.rows)
    looks, names = looks_of(columns), [_row(row, 24) for row in results.rows]
    lines = max((name.count("\n") + 1 for name in names), default=1)
    drawing, axes = new(COLUMN, 0.75 + max(0.07 + 0.12 * lines, 0.06 + 0.11 * len(columns)) * max(count, 2))
    good = [cell for _, cell in _cells(results) if cell.n]
    low = min((cell.mean - np.nan_to_num(cell.deviation) for cell in good), default=0.0)
    high = max((cell.mean + np.nan_to_num(cell.deviation) for cell in good), default=1.0)
    dots = len(good) > 1 and low > 0 and high - low < 0.2 * high
    thick = 0.72 / max(len(columns), 1)
    for r, cells in enumerate(row.cells for row in results.rows):
        for c, cell in enumerate(cells):
            y = r + (c - (len(cells) - 1) / 2) * thick
            if cell and cell.n:
                error, look = None if np.isnan(cell.deviation) else cell.deviation, looks[columns[c]]
                if not dots:
                    axes.barh(y, cell.mean, 0.9 * thick, **_filling(look, c))
                ink, kind = (look["color"], look["marker"]) if dots else ("black", "none")
                axes.errorbar(cell.mean, y, xerr=error, fmt=kind, color=ink, capsize=2, linewidth=0.8)
            words, size = cell.text(results.measure.digits) if cell else "no run", 7 if thick > 0.3 else 5.5
            axes.text(1.02, y, words, transform=axes.get_yaxis_transform(), va="center", fontsize=size)
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
    words = wrapped(results.measure.label, 38) + ("\n(the axis does not start at 0)" if dots else "")
    axes.set_xlabel(words, linespacing=0.9)
    if len(columns) > 1:
        spots = [Line2D([], [], **look | {"linestyle": ""}) for look in looks.values()]
        fillings = [Patch(**_filling(look, c)) for c, look in enumerate(looks.values())]
        legend(drawing, columns, spots if dots else fillings)
    _foot(drawing, results)
    return drawing


@figure
def heat_map(results: Results, across: str = "") -> Figure:
    """Rows by columns, the means in colour and in words; hatched where all runs have failed.

    Parameters
    ----------
    across : what the columns are values of.
    """
    digits, count, wide = results.measure.digits, len(results.rows), len(results.columns)
    longest = max((len(_mean(cell, digits)) for _, cell in _cells(results)), default=1)
    down, over = [_row(row, 22) for row in results.rows], [wrapped(name, 24) for name in results.columns]
    beside = 0.86 + _length(down) * 3.4 * POINT  # inches of everything but the cells
    room = {width: (width - beside) / max(wide, 1) / POINT for width in (COLUMN, PAGE)}  # points of a cell
    width = COLUMN if room[COLUMN] > 2.75 * longest else PAGE
    size = min(1.84 * room[width] / longest, 7)  # points of the letters
    upright = _length(over) * 3.4 > room[width]
    height = 0.75 + count * min(0.26, max(0.2, room[width] * POINT)) + upright * _length(over) * 3.4 * POINT
    drawing, axes = new(width, min(8.5, height))
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
            continue  # too small to be read
        words = _mean(cell, digits) if cell else "–"
        dark = cell is not None and cell.n and scale(cell.mean) > 0.62
        axes.text(
            c + 0.5, r + 0.5, words, ha="center", va="center", fontsize=size, color="white" if dark else "black",
            fontweight="bold" if cell and cell.place == 1 else "normal",
            bbox={"facecolor": "white", "linewidth": 0, "pad": 0.6} if failed else None,
        )  # fmt: skip
    axes.set_xticks(np.arange(wide) + 0.5, over, rotation=90 * upright, linespacing=0.9)
    axes.set_yticks(np.arange(count) + 0.5, down, linespacing=0.9)
    axes.set_ylim(count, 0)
    axes.tick_params(length=0)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.set_xlabel(_name(across))
    axes.set_ylabel(_name(results.corner))
    axes.set_title(wrapped(results.measure.label, 56 * width / COLUMN), fontsize=7, loc="left")
    bar = drawing.colorbar(shades, ax=axes, pad=0.02, fraction=0.06, aspect=25)
    bar.ax.grid(visible=False)
    bar.outline.set_visible(False)
    _foot(drawing, results)
    return drawing


@figure
def curve(results: Results, across: str = "") -> Figure:
    """The mean, with its deviation, over the numbers that the rows are; a line for each column.

    Parameters
    ----------
    across : what the columns are values of.
    """
    drawing, axes = new()
    numbers = [_number(row) for row in results.rows]
    at = [x for x in numbers if x is not None]
    log = bool(at) and min(at) > 0 and max(at) >= 10 * min(at)
    looks = looks_of(results.columns)
    for name, points in _columns(results, numbers):
        x, mean, deviation = zip(*points, strict=True)
        axes.errorbar(x, mean, yerr=deviation, capsize=1.5, elinewidth=0.6, **looks[name])
    if log:
        axes.set_xscale("log")
    _ticks(axes.xaxis, at, log)
    axes.set_xlabel(_name(results.corner))
    axes.set_ylabel(wrapped(results.measure.label, 36), linespacing=0.9)
    if len(results.columns) > 1:
        legend(drawing, results.columns, [Line2D([], [], **look) for look in looks.values()], across)
    _foot(drawing, results)
    return drawing


@figure
def scaling(results: Results, across: str = "", ranks: Sequence[int] = ()) -> Figure:
    """Seconds over ranks, with what would be ideal from the first point on.

    Strong scaling, where rows are ranks: the same work, so twice the ranks should need half the time (log-log).
    Weak scaling, where rows are sizes that have as much work for a rank: the time should stay.

    Parameters
    ----------
    across : what the columns are values of.
    ranks : of every row, where the work is the same but the rows have other names.
    """
    named: list[float | None] = [*ranks] or [_number(row) for row in results.rows]
    strong = bool(ranks) or (results.corner == RANKS and None not in named)
    numbers = named if strong else [float(i) for i in range(len(results.rows))]
    at = [x for x in numbers if x is not None]
    looks = looks_of(results.columns)
    drawing, axes = new(height=2.4)
    ideal = {"color": GREY, "linestyle": (0, (2, 2)), "linewidth": 0.8, "marker": ""}
    for name, points in _columns(results, numbers):
        x, mean, deviation = (np.array(part) for part in zip(*points, strict=True))
        axes.errorbar(x, mean, yerr=deviation, capsize=1.5, elinewidth=0.6, zorder=3, **looks[name])
        best = mean[0] * x[0] / x if strong else np.full(len(x), mean[0])
        axes.plot(x, best, gid="ideal", **ideal | {"color": looks[name]["color"]})
    if strong:
        axes.set_xscale("log")
        axes.set_yscale("log")
        _log_ticks(axes.yaxis)
        _ticks(axes.xaxis, at, log=True)
        axes.set_xlabel(_name(RANKS))
    else:
        axes.set_ylim(bottom=0)
        axes.set_xticks(at, [_row(row, 24) for row in results.rows])
        axes.set_xlim(-0.3, len(at) - 0.7)
        if sum(len(row.name) for row in results.rows) > 45:
            axes.tick_params("x", labelrotation=40)
            for tick in axes.get_xticklabels():
                tick.set(ha="right", rotation_mode="anchor")
        axes.set_xlabel(_name(results.corner))
    axes.set_ylabel(wrapped(results.measure.label, 36), linespacing=0.9)
    several = looks if len(looks) > 1 else {}
    legend(drawing, [*several, "ideal"], [Line2D([], [], **look) for look in (*several.values(), ideal)], across)
    _foot(drawing, results)
    return drawing


# ---- looks and words


def looks_of(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """How each line is drawn: methods as everywhere, others by their place."""
    known = all(name in _METHODS for name in names)
    at = {name: _METHODS[name] if known else i for i, name in enumerate(names)}
    return {
        name: {"color": colour(i), "marker": marker(i), "linestyle": _DASHES[i % len(_DASHES)], "markeredgewidth": 0.4}
        for name, i in at.items()
    }


def _filling(look: Mapping[str, Any], i: int) -> dict[str, Any]:
    """How the bars of the i-th column are filled."""
    return {"facecolor": look["color"], "edgecolor": "white", "hatch": _HATCHES[i % len(_HATCHES)], "linewidth": 0}


def legend(drawing: Figure, names: Sequence[str], handles: Sequence[Artist], title: str = "") -> None:
    """A legend above everything, and the figure higher by it."""
    width = drawing.get_figwidth()
    names, title = [wrapped(name, 60 * width / COLUMN) for name in names], "" if title == METHOD else title
    columns = max(1, min(len(names), int(width / ((_length(names) * 3.3 + 32) * POINT))))
    rows = -(-len(names) // columns) + bool(title)
    columns = max(1, -(-len(names) // max(1, rows - bool(title))))  # as even as they can be
    drawing.set_figheight(drawing.get_figheight() + 0.06 + rows * 9.5 * POINT)
    drawing.legend(
        list(handles), names, loc="outside upper center", ncols=columns, title=_name(title) or None, title_fontsize=7,
        handlelength=2.6, columnspacing=1.0, labelspacing=0.25, borderpad=0.2, borderaxespad=0.3,
    )  # fmt: skip


def _ticks(axis: Axis, values: Sequence[float], log: bool) -> None:
    """Ticks at the values, with a number where there is room for it."""
    if not values:
        return
    place = np.log(values) if log else np.array(values, float)
    place = (place - place.min()) / (np.ptp(place) or 1) * (COLUMN - 0.75) / POINT
    shown: dict[int, float] = {}  # from the right: its place, and how far to the left it reaches
    for i in np.argsort(-place):
        half = len(f"{values[i]:g}") * 1.8 + 1.5
        if not shown or place[i] + half <= min(shown.values()):
            shown[int(i)] = place[i] - half
    axis.set_major_locator(NullLocator())
    axis.set_minor_locator(NullLocator())
    axis.set_ticks(list(values), [f"{x:g}" if i in shown else "" for i, x in enumerate(values)])


def _log_ticks(axis: Axis) -> None:
    """Ticks with plain numbers, also where the axis is shorter than a decade."""
    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)) if high > 3 * low else MaxNLocator(5))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(NullLocator())


def _cells(results: Results, everywhere: bool = False) -> Iterator[tuple[tuple[int, int], Any]]:
    """The cells that there are (or all, None where there is nothing), each with its row and column."""
    for r, cells in enumerate(row.cells for row in results.rows):
        yield from (((r, c), cell) for c, cell in enumerate(cells) if everywhere or cell)


def _mean(cell: Cell, digits: int) -> str:
    """The number without its deviation."""
    return replace(cell, deviation=np.nan).text(digits)


def _columns(
    results: Results, numbers: Sequence[float | None]
) -> Iterator[tuple[str, list[tuple[float, float, float]]]]:
    """Each column's points from left to right: a row's number, mean and deviation."""
    for c, name in enumerate(results.columns):
        points = [
            (x, cell.mean, cell.deviation)
            for x, cells in zip(numbers, (row.cells for row in results.rows), strict=True)
            if x is not None and (cell := cells[c]) and cell.n
        ]
        if points:
            yield name, sorted(points)


def _number(row: Row) -> float | None:
    """The number that a row's label is; None if it is none."""
    try:
        value = float(row.label)
    except ValueError:
        return None
    return value if np.isfinite(value) else None


def _name(axis: str) -> str:
    """An axis of a study in words, or by the paper's letter."""
    return _NAMES.get(axis, wrapped(axis.replace("_", " "), 40))


def wrapped(text: str, width: float, after: str = "") -> str:
    """Words that fit, on two lines if need be, and what is to be said after them."""
    lines = fill(text, max(8, int(width))).split("\n")
    short = lines if len(lines) < 3 else [lines[0], shorten(" ".join(lines[1:]), max(8, int(width)), placeholder="…")]
    return label("\n".join(short) + (f"\n{after.strip()}" if after else ""))


def _length(texts: Iterable[str]) -> int:
    """Letters of the longest line."""
    return max((len(line) for text in texts for line in text.split("\n")), default=1)


def _row(row: Row, width: int) -> str:
    """A row's label, shortened, with its remark in full."""
    return wrapped(row.label, width, bracketed(row.remark))


def _foot(drawing: Figure, results: Results) -> None:
    """Note below a table's figure how many runs are complete, and the remark on its data."""
    remark = results.remark or joint_remark(row.remark for row in results.rows)
    if text := "; ".join(filter(None, [results.incomplete, remark])):
        note(drawing, fill(text, int(78 * drawing.get_figwidth() / COLUMN)))
