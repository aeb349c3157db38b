"""Figures of runs side by side, how their accuracy grows over rounds, and all figures that suit a study."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from mfedpba_mpi.config.fields import unknown
from mfedpba_mpi.errors import COMPLETE
from mfedpba_mpi.records.run import Run, bracketed, joint_remark
from mfedpba_mpi.records.status import load_ended
from mfedpba_mpi.report.style import COLUMN, GREY, PAGE, figure, mark, new
from mfedpba_mpi.report.table_figures import (
    METHOD,
    POINT,
    bars,
    curve,
    heat_map,
    legend,
    looks_of,
    scaling,
    wrapped,
)
from mfedpba_mpi.studies.study import RANKS, SEED, AxisValue, RunKey, Study
from mfedpba_mpi.studies.tables import MEASURES, Measure, Results, cell_of, lay_out

PANELS, ACROSS = 16, 4  # on a page, side by side
CLIENTS = 24  # as many have a column of their own in a table
BARS = 24  # as many are still a picture
Found = Sequence[tuple[RunKey, Run, float]]  # runs that have ended, each with its number (NaN: it has failed)


# ---- runs


@figure
def convergence(groups: Mapping[str, Sequence[Run]], ranked: bool = False) -> Figure:
    """Average accuracy over rounds, a line for each group of runs: their mean, in a band of one sample deviation.

    A round counts where all runs that came so far were tested; what only some have reached is the mean of these.

    Parameters
    ----------
    groups : by name, e.g. of a method, its runs, e.g. of several seeds.
    ranked : the legend from the highest last accuracy to the lowest, else as given.
    """
    return _panels({"": groups}, ranked)


@figure
def panels(cells: Mapping[str, Mapping[str, Sequence[Run]]]) -> Figure:
    """`convergence` for each of several groups of groups, side by side, with one legend."""
    return _panels(cells)


def _panels(cells: Mapping[str, Mapping[str, Sequence[Run]]], ranked: bool = False) -> Figure:
    names = list(dict.fromkeys(name for groups in cells.values() for name in groups))
    runs = [run for groups in cells.values() for several in groups.values() for run in several]
    looks = looks_of(names)
    down = -(-len(cells) // ACROSS) or 1
    across = -(-len(cells) // down) or 1  # rows about as long as each other
    width = COLUMN if across == 1 else PAGE
    mixed = len({run.remark for run in runs}) > 1
    titles = []
    for title, groups in cells.items():
        said = _remark(run for several in groups.values() for run in several)
        titles.append(wrapped(title, 15 * width / across, said if mixed and title else ""))
    lines = max((title.count("\n") for title in titles), default=0)
    height = down * ({1: 2.2, 2: 2.1, 3: 1.7}.get(across, 1.45) + 8 * lines * POINT)
    drawing, grid = new(width, height, down, across, squeeze=False)
    last: dict[str, float] = {}
    for i, (axes, title, groups) in enumerate(zip(grid.flat, titles, cells.values(), strict=False)):
        axes.set_title(title, fontsize=7, linespacing=1.1)
        last |= _draw_groups(axes, groups, looks)
        if i + across >= len(cells):
            axes.set_xlabel("round")
    drawing.supylabel("average accuracy in %", fontsize=8)
    for axes in grid.flat[len(cells) :]:
        axes.set_axis_off()
    if ranked:
        names.sort(key=lambda name: -last.get(name, -np.inf))
    legend(drawing, names, [Line2D([], [], **looks[name]) for name in names])
    mark(drawing, runs)
    return drawing


def _draw_groups(
    axes: Axes, groups: Mapping[str, Sequence[Run]], looks: Mapping[str, dict[str, Any]]
) -> dict[str, float]:
    """Draw the lines; the last accuracy of each."""
    last: dict[str, float] = {}
    for i, (name, runs) in enumerate(groups.items()):
        rounds, mean, deviation = _mean_over(runs)
        if not len(rounds):
            continue
        step = max(1, len(rounds) // 6)
        every = (i * step // len(groups), step)  # markers of lines close to each other stand apart
        axes.plot(rounds, mean, markevery=every, zorder=3 - i / len(groups), **looks[name])
        axes.fill_between(
            rounds, mean - deviation, mean + deviation, color=looks[name]["color"], alpha=0.15, linewidth=0
        )
        last[name] = float(mean[-1])
    missing = [name for name in groups if name not in last]
    if missing:
        words = ", ".join(missing) if len(missing) < 3 else f"{len(missing)} of {len(groups)}"
        axes.text(
            0.98, 0.02, wrapped(f"no numbers: {words}", 30), transform=axes.transAxes, fontsize=6, color=GREY,
            ha="right", va="bottom",
        )  # fmt: skip
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    return last


def _mean_over(runs: Sequence[Run]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rounds, and mean and deviation in % over the runs that came so far; NaN the deviation of one."""
    curves = [(own, max(own)) for run in runs if (own := _curve(run))]
    every = sorted({t for own, _ in curves for t in own})
    rounds = [t for t in every if all(t in own for own, last in curves if last >= t)]
    cells = [cell for t in rounds if (cell := cell_of([own[t] for own, _ in curves if t in own]))]
    return np.array(rounds), np.array([cell.mean for cell in cells]), np.array([cell.deviation for cell in cells])


def _curve(run: Run) -> dict[int, float]:
    """The average accuracy in % after each evaluated round."""
    if "tested" not in run.rounds:
        return {}
    with np.errstate(invalid="ignore"):
        pairs = zip(run.evaluated.tolist(), (100 * run.average()).tolist(), strict=True)
        return {t: value for t, value in pairs if np.isfinite(value)}


def _remark(runs: Iterable[Run]) -> str:
    """The joint remark of these runs, in brackets."""
    return bracketed(joint_remark(run.remark for run in runs))


def client_table(groups: Mapping[str, Sequence[Run]]) -> tuple[list[str], list[list[str]]]:
    """Every client's accuracy in %, last five evaluated rounds: headers, and a row of mean ± deviation for each group.

    Columns are the clients k0, k1, ... and Avg; for more than 24 clients their quantiles. What must be said of the
    data is in the first header, or in the rows where they differ.
    """
    tables = {name: [row for run in runs if (row := _client_row(run))] for name, runs in groups.items()}
    heads, cells = client_cells(tables)
    every = [run for runs in groups.values() for run in runs]
    mixed = len({run.remark for run in every}) > 1
    rows = [[name + (_remark(groups[name]) if mixed else ""), *cells[name]] for name in tables]
    return [METHOD + ("" if mixed else _remark(every)), *heads], rows


def client_cells(tables: Mapping[str, Sequence[Sequence[float]]]) -> tuple[list[str], dict[str, list[str]]]:
    """Headers and mean ± deviation, of groups of rows that are the accuracies of some clients and their average."""
    longest = max((len(row) - 1 for rows in tables.values() for row in rows), default=0)
    heads = [f"k{k}" for k in range(longest)]
    if longest > CLIENTS:
        heads = ["worst client", "25 %", "median", "75 %", "best client"]
        tables = {name: [[*_quantiles(row[:-1]), row[-1]] for row in rows] for name, rows in tables.items()}
    cells = {}
    for name, rows in tables.items():
        filled = [[*row[:-1], *[np.nan] * (len(heads) + 1 - len(row)), row[-1]] for row in rows]
        columns = list(zip(*filled, strict=True)) or [()] * (len(heads) + 1)
        cells[name] = [*map(_mean_text, columns)]
    return [*heads, "Avg"], cells


def _client_row(run: Run) -> list[float]:
    """The last-five mean of each client, NaN for one without tests, and of the average; nothing without evaluation."""
    average = list(_curve(run).values())
    if not average:
        return []
    accuracy = 100 * run.rounds["accuracy"][run.evaluated - 1][-5:]
    return [float(np.mean(own[np.isfinite(own)])) if np.isfinite(own).any() else np.nan for own in accuracy.T] + [
        float(np.mean(average[-5:]))
    ]


def _quantiles(values: Sequence[float]) -> list[float]:
    good = [value for value in values if np.isfinite(value)]
    return np.quantile(good, [0, 0.25, 0.5, 0.75, 1]).tolist() if good else [np.nan] * 5


def _mean_text(values: Sequence[float]) -> str:
    cell = cell_of([value for value in values if np.isfinite(value)])
    return cell.text(2) if cell else "-"


# ---- studies


def figures_of(study: Study, directory: Path) -> Iterator[tuple[str, str, Figure]]:
    """(file name, title, figure) of every figure that suits a study, from its runs that have ended.

    The axes decide: seconds over ranks give a scaling plot, two numeric axes a heat map, one a curve, and no numeric
    axis bars, if they are few. Where methods are compared by accuracy, accuracy over rounds is drawn as well.
    """
    if study.layout.measure not in MEASURES:
        raise unknown("measure", study.layout.measure, MEASURES)
    yield from figures_from(study, _ended(study, directory, MEASURES[study.layout.measure][1]))


def figures_from(study: Study, found: Found) -> Iterator[tuple[str, str, Figure]]:
    """`figures_of` these runs."""
    measure = MEASURES[study.layout.measure][0]
    yield from _numbered(_table_figures(study, found, measure))
    if measure.larger_is_better:
        yield from _numbered(_convergence_figures(study, found))


def cells_of(study: Study, directory: Path) -> Iterator[tuple[str, dict[str, list[Run]]]]:
    """For each combination of a study's other choices: what they are, and the complete runs of each method.

    The runs hold accuracies only.
    """
    return _cells_of(study, _ended(study, directory, lambda run: 0.0))


def _numbered(figures: Iterable[tuple[str, str, Figure]]) -> Iterator[tuple[str, str, Figure]]:
    """Names of their own, also where there are several of a kind."""
    for i, (name, title, drawing) in enumerate(figures):
        yield f"{name}-{i + 1}" if i else name, title, drawing


def _ended(study: Study, directory: Path, value: Callable[[Run], float]) -> Found:
    """The study's runs that have ended, without what no figure of many needs."""
    found = []
    for place in study.run_keys():
        run = load_ended(directory / place.path)
        if run and (run.status != COMPLETE or _curve(run)):
            rounds = {name: values for name, values in run.rounds.items() if name in ("accuracy", "correct", "tested")}
            number = value(run) if run.status == COMPLETE else np.nan
            found.append((place, replace(run, rounds=rounds, partition={}, final={}), number))
    return found


def _table_figures(study: Study, found: Found, measure: Measure) -> Iterator[tuple[str, str, Figure]]:
    crossed = [axis for axis, choices in study.axes.items() if axis != SEED and len(choices) > 1]
    order = [axis for axis in (*study.layout.rows, study.layout.columns) if axis in crossed]  # rows before columns
    numeric = [axis for axis in order if _is_numeric(axis, study.axes[axis])]
    ranked = [axis for axis in order if len(set(_ranks(study, axis))) > 1 and study.layout.measure == "seconds"]
    if not ranked and not numeric:
        results = _laid_out(study, found, measure)
        if crossed and len(results.rows) * len(results.columns) <= BARS and _is_enough(results):
            yield "bars", _title("", measure.label), bars(results)
        return
    down = (ranked or numeric)[0]
    others = [axis for axis in order if axis != down]
    is_map = not ranked and len(numeric) > 1
    wished = numeric[1:] if is_map else [study.layout.columns, METHOD, *others]
    across = next((axis for axis in wished if axis in others), "")
    for cell, part in _slices(study, [axis for axis in others if axis != across]):
        title = _title(cell, measure.label)
        results = _laid_out(replace(part, layout=replace(part.layout, rows=(down,), columns=across)), found, measure)
        if not _is_enough(results):
            continue
        name = across.rpartition(".")[2]
        if ranked:
            same = all(set(choice.settings) <= {RANKS} for choice in study.axes[down])
            yield "scaling", title, scaling(results, name, _ranks(study, down) if same else ())
        elif is_map:
            yield "heat-map", title, heat_map(results, name)
        else:
            yield "curve", title, curve(results, name)


def _convergence_figures(study: Study, found: Found) -> Iterator[tuple[str, str, Figure]]:
    cells = {title: groups for title, groups in _cells_of(study, found) if any(_is_line(g) for g in groups.values())}
    seeds = len(study.axes.get(SEED, ()))
    words = f"average accuracy over rounds{f', mean and deviation over {seeds} seeds' if seeds > 1 else ''}"
    pages = [list(cells.items())[i : i + PANELS] for i in range(0, len(cells), PANELS)]
    for page in pages:
        drawing = convergence(page[0][1], ranked=True) if len(cells) == 1 else panels(dict(page))
        yield "convergence", _title("", words), drawing


def _cells_of(study: Study, found: Found) -> Iterator[tuple[str, dict[str, list[Run]]]]:
    if METHOD not in study.axes:
        return
    methods = [choice.label for choice in study.axes[METHOD]]
    for cell, part in _slices(study, [axis for axis in study.axes if axis not in (METHOD, SEED)]):
        own = [(place, run) for place, run, _ in _within(part, found) if run.status == COMPLETE]
        if own:
            yield (
                cell or study.title,
                {name: [run for place, run in own if place.labels[METHOD] == name] for name in methods},
            )


def _slices(study: Study, axes: Sequence[str]) -> Iterator[tuple[str, Study]]:
    """Each combination of these axes: its name, and the study cut to it."""
    for chosen in product(*(study.axes[axis] for axis in axes)):
        words = [
            f"{axis.rpartition('.')[2]} = {choice.label}" if _is_numeric(axis, [choice]) else choice.label
            for axis, choice in zip(axes, chosen, strict=True)
        ]
        cut = {axis: [choice] for axis, choice in zip(axes, chosen, strict=True)}
        yield ", ".join(words), replace(study, axes={**study.axes, **cut})


def _title(cell: str, text: str) -> str:
    return f"{cell}: {text}" if cell else text[:1].upper() + text[1:]


def _within(study: Study, found: Found) -> Found:
    """Those runs that are of this part of a study."""
    labels = {axis: {choice.label for choice in choices} for axis, choices in study.axes.items()}
    return [entry for entry in found if all(entry[0].labels[axis] in own for axis, own in labels.items())]


def _laid_out(study: Study, found: Found, measure: Measure) -> Results:
    return lay_out(study, [(place, number, run.remark) for place, run, number in _within(study, found)], measure)


def _is_numeric(axis: str, choices: Sequence[AxisValue]) -> bool:
    values = [choice.settings[axis] if list(choice.settings) == [axis] else None for choice in choices]
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def _ranks(study: Study, axis: str) -> list[int]:
    """The ranks that an axis' choices come to."""
    usual = study.settings.get(RANKS, 1)
    return [int(choice.settings.get(RANKS, usual)) for choice in study.axes[axis]]


def _is_enough(results: Results) -> bool:
    return sum(bool(cell and cell.n) for row in results.rows for cell in row.cells) > 1


def _is_line(runs: Sequence[Run]) -> bool:
    return len(_mean_over(runs)[0]) > 1
