"""Figures that compare runs: accuracy over rounds, accuracy of every client, and all figures of a study."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import product
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from mfedpba_mpi.errors import COMPLETE
from mfedpba_mpi.records.run import Run, bracketed, joint_remark
from mfedpba_mpi.records.status import load_ended
from mfedpba_mpi.report.prototype_figures import PROTOTYPES_TITLE, prototypes
from mfedpba_mpi.report.style import COLUMN, GREY, PAGE, NoData, add_remark, capitalised, caption_of, new_figure, styled
from mfedpba_mpi.report.table_figures import (
    METHOD,
    POINT,
    bars,
    curve,
    heat_map,
    legend,
    line_styles,
    scaling,
    wrap,
)
from mfedpba_mpi.studies.measures import MEASURES, Measure, checked_measures
from mfedpba_mpi.studies.study import RANKS, SEED, AxisValue, RunKey, Study
from mfedpba_mpi.studies.tables import Results, RunValue, axis_of_methods, cell_of, lay_out, with_predictor

MAX_PANELS, PANELS_PER_ROW = 16, 4  # of a figure
MAX_CLIENTS = 24  # with a column each in a table; more are shown as quantiles
MAX_BARS = 24
EndedRuns = Sequence[tuple[RunKey, Run, float]]  # complete and failed runs with the value of a measure (NaN: failed)


# ---- runs


@styled()
def convergence(groups: Mapping[str, Sequence[Run]], ranked: bool = False) -> Figure:
    """Mean average accuracy of each group of runs; bands show plus and minus one sample standard deviation (n - 1).

    A round is shown if it was evaluated in all runs of the group that reached it.

    Parameters
    ----------
    groups : by name (for example of a method), its runs (for example of several seeds).
    ranked : sort the legend by the last accuracy, highest first; else it has the order of `groups`.
    """
    return _panels({"": groups}, ranked)


@styled()
def panels(cells: Mapping[str, Mapping[str, Sequence[Run]]]) -> Figure:
    """Several `convergence` plots by title, side by side, with a common legend."""
    return _panels(cells)


def _panels(cells: Mapping[str, Mapping[str, Sequence[Run]]], ranked: bool = False) -> Figure:
    names = list(dict.fromkeys(name for groups in cells.values() for name in groups))
    runs = [run for groups in cells.values() for members in groups.values() for run in members]
    looks = line_styles(names)
    rows = -(-len(cells) // PANELS_PER_ROW) or 1
    columns = -(-len(cells) // rows) or 1  # rows of about equal length
    width = COLUMN if columns == 1 else PAGE
    mixed = len({run.remark for run in runs}) > 1
    titles = []
    for title, groups in cells.items():
        remark = joint_remark(run.remark for members in groups.values() for run in members)
        titles.append(wrap(title, 15 * width / columns, remark if mixed and title else ""))
    lines = max((title.count("\n") for title in titles), default=0)
    height = rows * ({1: 2.2, 2: 2.1, 3: 1.7}.get(columns, 1.45) + 8 * lines * POINT)
    drawing, grid = new_figure(width, height, rows, columns, squeeze=False)
    last: dict[str, float] = {}
    for i, (axes, title, groups) in enumerate(zip(grid.flat, titles, cells.values(), strict=False)):
        axes.set_title(title, fontsize=7, linespacing=1.1)
        last |= _draw_groups(axes, groups, looks)
        if i + columns >= len(cells):
            axes.set_xlabel("round")
    drawing.supylabel("average accuracy (%)", fontsize=8)
    for axes in grid.flat[len(cells) :]:
        axes.set_axis_off()
    if ranked:
        names.sort(key=lambda name: -last.get(name, -np.inf))
    legend(drawing, names, [Line2D([], [], **looks[name]) for name in names])
    add_remark(drawing, runs)
    return drawing


def _draw_groups(
    axes: Axes, groups: Mapping[str, Sequence[Run]], looks: Mapping[str, dict[str, Any]]
) -> dict[str, float]:
    """Draw a line per group. Returns the last accuracy of every group that has one."""
    last: dict[str, float] = {}
    for i, (name, runs) in enumerate(groups.items()):
        rounds, mean, deviation = _mean_curve(runs)
        if not len(rounds):
            continue
        step = max(1, len(rounds) // 6)
        every = (i * step // len(groups), step)  # so that markers of different lines do not overlap
        axes.plot(rounds, mean, markevery=every, zorder=3 - i / len(groups), **looks[name])
        axes.fill_between(
            rounds, mean - deviation, mean + deviation, color=looks[name]["color"], alpha=0.15, linewidth=0
        )
        last[name] = float(mean[-1])
    missing = [name for name in groups if name not in last]
    if missing:
        text = ", ".join(missing) if len(missing) < 3 else f"{len(missing)} of {len(groups)}"
        axes.text(
            0.98, 0.02, wrap(f"no data: {text}", 30), transform=axes.transAxes, fontsize=6, color=GREY,
            ha="right", va="bottom",
        )  # fmt: skip
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    return last


def _mean_curve(runs: Sequence[Run]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rounds, mean and deviation in % over the runs that reached each round; NaN for the deviation of one run."""
    curves = [(average, max(average)) for run in runs if (average := _average_by_round(run))]
    evaluated = sorted({t for average, _ in curves for t in average})
    rounds = [t for t in evaluated if all(t in average for average, last in curves if last >= t)]
    cells = [cell for t in rounds if (cell := cell_of([average[t] for average, _ in curves if t in average]))]
    return np.array(rounds), np.array([cell.mean for cell in cells]), np.array([cell.deviation for cell in cells])


def _average_by_round(run: Run) -> dict[int, float]:
    """The average accuracy in % of every evaluated round."""
    if "tested" not in run.rounds:
        return {}
    with np.errstate(invalid="ignore"):
        pairs = zip(run.evaluated.tolist(), (100 * run.average()).tolist(), strict=True)
        return {t: value for t, value in pairs if np.isfinite(value)}


def client_table(groups: Mapping[str, Sequence[Run]]) -> tuple[list[str], list[list[str]]]:
    """Accuracy of every client in %, mean of the last five evaluated rounds: headers, and a row per group of runs.

    Cells are mean ± deviation over the runs. A method with several predictors has a row for each. A group of runs with
    different problem seeds, and so with different clients, has a row for each problem. Columns are the clients k0, k1,
    ... and Avg; for more than 24 clients, quantiles over the clients. The remark on the data is in the first header, or
    in the rows if they have different ones.
    """
    groups = _groups_by_problem(split_by_predictor(groups))
    tables = {name: [row for run in runs if (row := _client_row(run))] for name, runs in groups.items()}
    heads, cells = client_cells(tables)
    remarks = {name: joint_remark(run.remark for run in runs) for name, runs in groups.items()}
    found = {run.remark for runs in groups.values() for run in runs}
    mixed = len(found) > 1
    rows = [[name + bracketed(remarks[name] if mixed else ""), *cells[name]] for name in tables]
    return [METHOD + bracketed("" if mixed else joint_remark(found)), *heads], rows


def split_by_predictor(groups: Mapping[str, Sequence[Run]]) -> dict[str, list[Run]]:
    """The groups, with one for each predictor, e.g. "FedProto, classifier", in place of a method with several."""
    split: dict[str, list[Run]] = {}
    for name, runs in groups.items():
        judged = [pair for run in runs for pair in run.by_predictor().items()]
        for predictor in dict.fromkeys(predictor for predictor, _ in judged) or [""]:
            split[with_predictor(name, predictor)] = [run for other, run in judged if other == predictor]
    return split


def predictor_note(groups: Mapping[str, Sequence[Run]]) -> str:
    """The predictor behind the accuracies of each group whose method has several, for a caption; "" if none has."""
    names = [with_predictor(name, run.predictors[0]) for name, runs in groups.items() for run in runs if run.predictors]
    return f" Predictors: {'; '.join(dict.fromkeys(names))}." if names else ""


def _groups_by_problem(groups: Mapping[str, Sequence[Run]]) -> dict[str, list[Run]]:
    """Split groups whose runs have different problems; the groups of a problem follow each other."""

    def problem(run: Run) -> int:
        config = run.attributes["config"]
        own = config.get("problem_seed")
        return config.get(SEED, 0) if own is None else own

    problems = sorted({problem(run) for runs in groups.values() for run in runs})
    if len(problems) < 2:
        return {name: [*runs] for name, runs in groups.items()}
    split = {
        f"{name}, problem seed {seed}": [run for run in runs if problem(run) == seed]
        for seed in problems
        for name, runs in groups.items()
    }
    return {name: runs for name, runs in split.items() if runs}


def client_cells(tables: Mapping[str, Sequence[Sequence[float]]]) -> tuple[list[str], dict[str, list[str]]]:
    """Headers, and by group mean ± deviation of every column. `tables` has a row per run: its clients, its average."""
    longest = max((len(row) - 1 for rows in tables.values() for row in rows), default=0)
    heads = [f"k{k}" for k in range(longest)]
    if longest > MAX_CLIENTS:
        heads = ["worst client", "25 %", "median", "75 %", "best client"]
        tables = {name: [[*_quantiles(row[:-1]), row[-1]] for row in rows] for name, rows in tables.items()}
    cells = {}
    for name, rows in tables.items():
        filled = [[*row[:-1], *[np.nan] * (len(heads) + 1 - len(row)), row[-1]] for row in rows]
        columns = list(zip(*filled, strict=True)) or [()] * (len(heads) + 1)
        cells[name] = [*map(_mean_text, columns)]
    return [*heads, "Avg"], cells


def _client_row(run: Run) -> list[float]:
    """Means of the last five evaluated rounds: of every client (NaN without test rows) and of the average.

    Empty if no round was evaluated.
    """
    average = list(_average_by_round(run).values())
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
    return cell.text() if cell else "-"


# ---- studies


class StudyFigure(NamedTuple):
    """A figure of a study; `name` is unique among those of the study."""

    name: str
    title: str
    figure: Figure
    caption: str


def figures_of(study: Study, directory: Path) -> Iterator[StudyFigure]:
    """Draw the figures of a study from its complete runs, of the first measure of its table.

    The axes determine the kind: a scaling plot for seconds over ranks, a heat map for two numeric axes, a curve for
    one, and bars for none, unless they are too many. Studies that compare the accuracy of methods also get accuracy
    over rounds, and those whose layout says so the t-SNE of all runs. Figures have the accuracies of a method's default
    predictor, which captions name.
    """
    measure = checked_measures(study.layout.measure)[0]
    yield from figures_from(study, _load_ended(study, directory, MEASURES[measure][1]))
    if study.layout.prototypes is not None:
        runs = [run for place in study.run_keys() if (run := load_ended(directory / place.path))]
        if runs:
            with suppress(NoData):
                figure = prototypes(*runs, modalities=study.layout.prototypes)
                yield StudyFigure("prototypes", PROTOTYPES_TITLE, figure, caption_of(prototypes))


def figures_from(study: Study, ended: EndedRuns) -> Iterator[StudyFigure]:
    """Like `figures_of`, from loaded runs."""
    measure = MEASURES[study.layout.measure[0]][0]
    axis = axis_of_methods(study)
    note = predictor_note({place.labels[axis] if axis else study.name: [run] for place, run, _ in ended})
    figures = [_table_figures(study, ended, measure)]
    figures += [_convergence_figures(study, ended)] if measure.of_predictor else []
    for numbered in map(_numbered, figures):
        for figure in numbered:
            yield figure._replace(caption=figure.caption + note * measure.of_predictor)


def runs_by_method(study: Study, directory: Path) -> Iterator[tuple[str, dict[str, list[Run]]]]:
    """For each combination of the axes other than method and seed: its title, and the complete runs by method.

    The runs contain accuracies only.
    """
    return _group_by_method(study, _load_ended(study, directory, lambda run: 0.0))


def _numbered(figures: Iterable[StudyFigure]) -> Iterator[StudyFigure]:
    """Number the names of the second and further figures, so that names are unique."""
    for i, figure in enumerate(figures):
        yield figure._replace(name=f"{figure.name}-{i + 1}") if i else figure


def _load_ended(study: Study, directory: Path, measure: Callable[[Run], float]) -> EndedRuns:
    """The complete and failed runs of a study, reduced to their accuracies to save memory."""
    ended = []
    for place in study.run_keys():
        run = load_ended(directory / place.path)
        if run and (run.status != COMPLETE or _average_by_round(run)):
            rounds = {
                name: run.rounds[name] for name in run.rounds if name.startswith(("accuracy", "correct", "tested"))
            }
            final = {name: run.final[name] for name in run.final if name == "predictors"}
            value = measure(run) if run.status == COMPLETE else np.nan
            ended.append((place, replace(run, rounds=rounds, partition={}, final=final), value))
    return ended


def _table_figures(study: Study, ended: EndedRuns, measure: Measure) -> Iterator[StudyFigure]:
    crossed = [axis for axis, choices in study.axes.items() if axis != SEED and len(choices) > 1]
    order = [axis for axis in (*study.layout.rows, study.layout.columns) if axis in crossed]  # rows before columns
    numeric = [axis for axis in order if _is_numeric(axis, study.axes[axis])]
    by_ranks = [axis for axis in order if len(set(_ranks(study, axis))) > 1 and study.layout.measure[0] == "seconds"]
    if not by_ranks and not numeric:
        results = _results(study, ended, measure)
        if crossed and len(results.rows) * len(results.columns) <= MAX_BARS and _has_values(results):
            yield StudyFigure("bars", capitalised(measure.label), bars(results), caption_of(bars))
        return
    row_axis = (by_ranks or numeric)[0]
    others = [axis for axis in order if axis != row_axis]
    is_map = not by_ranks and len(numeric) > 1
    preferred = numeric[1:] if is_map else [study.layout.columns, METHOD, *others]
    column_axis = next((axis for axis in preferred if axis in others), "")
    for cell, part in _slices(study, [axis for axis in others if axis != column_axis]):
        title = f"{cell}: {measure.label}" if cell else capitalised(measure.label)
        layout = replace(part.layout, rows=(row_axis,), columns=column_axis)
        results = _results(replace(part, layout=layout), ended, measure)
        if not _has_values(results):
            continue
        name = column_axis.rpartition(".")[2]
        if by_ranks:
            strong = all(set(choice.settings) <= {RANKS} for choice in study.axes[row_axis])
            figure = scaling(results, _ranks(study, row_axis) if strong else (), name)
            yield StudyFigure("scaling", title, figure, caption_of(scaling))
        elif is_map:
            yield StudyFigure("heat-map", title, heat_map(results, name), caption_of(heat_map))
        else:
            values = [choice.settings[row_axis] for choice in study.axes[row_axis]]
            yield StudyFigure("curve", title, curve(results, values, name), caption_of(curve))


def _convergence_figures(study: Study, ended: EndedRuns) -> Iterator[StudyFigure]:
    cells = {
        title: groups
        for title, groups in _group_by_method(study, ended)
        if any(len(_mean_curve(runs)[0]) > 1 for runs in groups.values())
    }
    seeds = len(study.axes.get(SEED, ()))
    title = f"Average accuracy over rounds{f', mean and deviation over {seeds} seeds' if seeds > 1 else ''}"
    pages = [list(cells.items())[i : i + MAX_PANELS] for i in range(0, len(cells), MAX_PANELS)]
    for page in pages:
        figure = convergence(page[0][1], ranked=True) if len(cells) == 1 else panels(dict(page))
        yield StudyFigure("convergence", title, figure, caption_of(convergence))


def _group_by_method(study: Study, ended: EndedRuns) -> Iterator[tuple[str, dict[str, list[Run]]]]:
    if METHOD not in study.axes:
        return
    methods = [choice.label for choice in study.axes[METHOD]]
    for cell, part in _slices(study, [axis for axis in study.axes if axis not in (METHOD, SEED)]):
        complete = [(place, run) for place, run, _ in _select(part, ended) if run.status == COMPLETE]
        if complete:
            groups = {name: [run for place, run in complete if place.labels[METHOD] == name] for name in methods}
            yield cell or study.title, groups


def _slices(study: Study, axes: Sequence[str]) -> Iterator[tuple[str, Study]]:
    """For each combination of choices of these axes: its title, and the study restricted to it."""
    for chosen in product(*(study.axes[axis] for axis in axes)):
        titles = [
            f"{axis.rpartition('.')[2]} = {choice.label}" if _is_numeric(axis, [choice]) else choice.label
            for axis, choice in zip(axes, chosen, strict=True)
        ]
        cut = {axis: [choice] for axis, choice in zip(axes, chosen, strict=True)}
        yield ", ".join(titles), replace(study, axes={**study.axes, **cut})


def _select(study: Study, ended: EndedRuns) -> EndedRuns:
    """The runs that belong to this part of a study."""
    labels = {axis: {choice.label for choice in choices} for axis, choices in study.axes.items()}
    return [entry for entry in ended if all(entry[0].labels[axis] in own for axis, own in labels.items())]


def _results(study: Study, ended: EndedRuns, measure: Measure) -> Results:
    return lay_out(study, [RunValue(place, value, run.remark) for place, run, value in _select(study, ended)], measure)


def _is_numeric(axis: str, choices: Sequence[AxisValue]) -> bool:
    """Whether every choice sets the axis alone, to a finite number."""
    values = [choice.settings[axis] if list(choice.settings) == [axis] else None for choice in choices]
    return all(isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value) for value in values)


def _ranks(study: Study, axis: str) -> list[int]:
    """The number of ranks of every choice of an axis."""
    default = study.settings.get(RANKS, 1)
    return [int(choice.settings.get(RANKS, default)) for choice in study.axes[axis]]


def _has_values(results: Results) -> bool:
    """Whether at least two cells have values."""
    return sum(bool(cell and cell.n) for row in results.rows for cell in row.cells) > 1
