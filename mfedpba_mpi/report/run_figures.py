"""Figures of one run, finished or still going: who has what, how it went, what it cost.

Every public function takes a run and returns a figure, or raises `NoData`, which says what the run lacks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator, NullFormatter

from mfedpba_mpi.data.catalog import CATALOG, Modality
from mfedpba_mpi.models.architecture import SHIPPED, Architecture, weights
from mfedpba_mpi.records.run import Run, mean_of_clients
from mfedpba_mpi.report.prototype_figures import prototypes, structures
from mfedpba_mpi.report.style import (
    COLUMN,
    GREY,
    PAGE,
    PALETTE,
    NoData,
    colour,
    figure,
    label,
    mark,
    modalities,
    new,
    outside,
)

NAMED = 24  # clients that get a curve of their own; more of them are bands of quantiles
BANDS = ((0.0, 1.0, "all clients"), (0.1, 0.9, "80% of them"), (0.25, 0.75, "50% of them"))
ACROSS, COLUMNS = 50, 200  # bubbles beside each other; in all
RANKS = 64  # with a bar of their own
CLIENTS = PALETTE[:6]  # black is the average's


@figure
def partition(run: Run) -> Figure:
    """Who owns what: a circle where a client (across) owns a modality (down), its area the client's training samples.

    Many clients go on in a second row; beyond 200 a circle is the mean of neighbouring clients.
    """
    samples = np.diff(run.partition["train_offsets"])[:, None] * run.partition["modalities"]  # (K, M)
    K, M = samples.shape
    group = -(-K // COLUMNS)
    means = np.stack([part.mean(axis=0) for part in np.split(samples, range(group, K, group))])
    rows = -(-len(means) // ACROSS)
    across = -(-len(means) // rows)
    names = modalities(run)
    width = COLUMN if across <= 12 else PAGE
    cell = min(0.3, (width - 0.5 - 0.06 * max(map(len, names))) / across)
    height = rows * (M * max(cell, 0.12) + 0.22) + 0.6
    drawing, grid = new(width, height, rows, squeeze=False)
    for row, axes in enumerate(grid[:, 0]):
        k, m = np.nonzero(means[row * across : (row + 1) * across])
        sizes = means[row * across + k, m] / means.max() * (0.92 * 72 * cell) ** 2
        axes.scatter((row * across + k) * group, m, sizes, [colour(int(i)) for i in m], linewidths=0, clip_on=False)
        axes.set_xlim((row * across - 0.7) * group, ((row + 1) * across - 0.3) * group)
        axes.set_ylim(M - 0.4, -0.6)
        axes.set_yticks(range(M), names)
        if across <= NAMED:
            axes.set_xticks(range(K))
        else:
            _integer_ticks(axes, 12)
    grid[-1, 0].set_xlabel("client")
    largest = f"{means.max():.4g} training samples"
    words = f"largest circle: {largest}" if group == 1 else f"means of {group} clients; largest circle: {largest}"
    grid[0, 0].set_title(words, fontsize=7, loc="right", color=GREY)
    mark(drawing, [run])
    return drawing


@figure
def accuracy(run: Run) -> Figure:
    """Accuracy of every client (thin) and the average over all test rows (thick, black), round by round.

    Of more than 24 clients one sees bands: the range of all, of 80% and of 50% of them, and the median.
    """
    _begun(run)
    rounds = run.evaluated
    if not len(rounds):
        raise NoData(f"{run.path}: no round has been evaluated yet")
    values = 100 * run.rounds["accuracy"][rounds - 1]
    drawing, axes = new(COLUMN, 2.2 + 0.14 * _legend_rows(values.shape[1]))
    _curves(axes, rounds, values)
    axes.plot(rounds, 100 * run.average(), **_dots(rounds), color="black", linewidth=1.8, label="average", zorder=4)
    axes.set_xlabel("round")
    axes.set_ylabel(f"{'validation' if run.validation else 'test'} accuracy (%)")
    _integer_ticks(axes)
    _legend(drawing, axes)
    mark(drawing, [run])
    return drawing


@figure
def losses(run: Run) -> Figure:
    """Terms of the clients' loss (mean over clients, band of 80% of them) and of the server's, round by round."""
    T = _begun(run)
    sides = {}
    for title, prefix in (("clients' terms", "loss_"), ("server's terms", "server_")):
        terms = {name.removeprefix(prefix): value for name, value in run.rounds.items() if name.startswith(prefix)}
        known = {name: value.reshape(T, -1) for name, value in terms.items() if np.isfinite(value).any()}
        if known:
            sides[title] = known
    if not sides:
        raise NoData(f"{run.path}: no loss has been logged")
    drawing, grid = new(COLUMN if len(sides) == 1 else PAGE, 2.2, 1, len(sides), squeeze=False)
    for axes, (title, terms) in zip(grid[0], sides.items(), strict=True):
        floor = -np.inf  # of what can be drawn
        shown = np.concatenate([value.ravel() for value in terms.values()])
        if _spans_decades(shown):
            axes.set_yscale("log")
            floor = shown[shown > 0].min()
        for i, name in enumerate(sorted(terms, key=_place)):
            rows = np.flatnonzero(np.isfinite(terms[name]).any(axis=1))
            values, rounds = terms[name][rows], rows + 1
            mean = np.nanmean(values, axis=1)
            mean[mean < floor] = np.nan
            if values.shape[1] > 1:
                edges = np.maximum(np.nanquantile(values, (0.1, 0.9), axis=1), floor)
                edges[:, np.isnan(mean)] = np.nan
                axes.fill_between(rounds, *edges, color=colour(i), alpha=0.2, linewidth=0)
            axes.plot(rounds, mean, **_dots(rounds), color=colour(i), label=_term(name))
        axes.set(xlabel="round", ylabel=title)
        _integer_ticks(axes)
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=4)
    mark(drawing, [run])
    return drawing


@figure
def communication(run: Run) -> Figure:
    """Payload of a round, all participants together, up and down, beside what the paper's formula says.

    The dotted line is what it would take to send the participants' whole networks (their weights, as float32) each
    way; it is missing for datasets whose widths are not known, and where there are extractors of one's own.
    """
    T = _begun(run)
    rounds, took_part = np.arange(1, T + 1), run.rounds["participants"]
    up, down = (run.rounds[f"bytes_{way}"].sum(axis=1) for way in ("up", "down"))
    formula, networks = (
        np.zeros(T) if floats is None else 4 * took_part @ floats
        for floats in (run.formula_floats(), network_floats(run))
    )
    drawing, axes = new(COLUMN, 2.3)
    for words, payload, look in (
        ("paper's formula, each way", formula, {"color": "#bbbbbb", "linewidth": 3, "markersize": 6}),
        ("whole networks, each way", networks, {"color": colour(2), "linestyle": ":"}),
        ("up, measured", up, {"color": colour(0)}),
        ("down, measured", down, {"color": colour(1), "linestyle": "--"}),
    ):
        if payload.any():
            axes.plot(rounds, np.where(payload > 0, payload, np.nan), label=words, **(_dots(rounds) | look))
    if not (up.any() or down.any()):
        axes.text(0.5, 0.15, f"{label(run.attributes['label'])} sends nothing", transform=axes.transAxes, ha="center")
    axes.set_yscale("log")
    shown = np.concatenate([up, down, formula, networks])
    shown = shown[shown > 0] if shown.any() else np.array([1e3])
    axes.set_ylim(10 ** np.floor(np.log10(shown.min()) - 0.1), 10 ** np.ceil(np.log10(shown.max()) + 0.1))
    axes.yaxis.set_major_formatter(EngFormatter("B"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("round")
    axes.set_ylabel("payload a round")
    _integer_ticks(axes)
    _legend(drawing, axes, 2)
    mark(drawing, [run])
    return drawing


@figure
def times(run: Run) -> Figure:
    """Where the time of every round went, as rank 0's clock has it, and how busy each rank was in a mean round.

    Evaluation is what of it did not hide behind the server's step; communication includes packing and the log. A rank's
    bar is the CPU time of its clients, and on rank 0 the server's step; beyond 64 ranks a bar is the mean of
    neighbours, the line above it their longest.
    """
    T = _begun(run)
    parts = run.time_parts()
    order = {
        "train": "training", "server": "server", "eval": "evaluation", "comm": "communication",
        "checkpoint": "checkpoint",
    }  # fmt: skip
    drawing, (left, right) = new(PAGE, 2.3, 1, 2, width_ratios=(3, 2))
    left.use_sticky_edges = right.use_sticky_edges = False  # or a bar of no height would touch the top
    rounds, bottom = np.arange(1, T + 1), np.zeros(T)
    for i, (name, words) in enumerate(order.items()):
        if parts[name].any():
            shape = dict(color=colour(i), linewidth=0, label=words)
            if T <= 60:
                left.bar(rounds, parts[name], 0.9, bottom, **shape)
            else:
                left.fill_between(rounds, bottom, bottom + parts[name], **shape)
            bottom = bottom + parts[name]
    left.set(xlabel="round", ylabel="seconds", ylim=(0, None))
    _integer_ticks(left)
    busy = busy_seconds(run)  # (2, ranks)
    group = -(-busy.shape[1] // RANKS)
    starts = np.arange(0, busy.shape[1], group)
    clients, server = np.add.reduceat(busy, starts, axis=1) / np.diff([*starts, busy.shape[1]])
    middle = starts + (group - 1) / 2
    right.bar(middle, clients, 0.9 * group, color=colour(0), linewidth=0, label="clients")
    right.bar(middle, server, 0.9 * group, clients, color=colour(1), linewidth=0, label="server")
    if group > 1:
        longest = np.maximum.reduceat(busy.sum(axis=0), starts)
        right.vlines(middle, clients + server, longest, color="black", linewidth=0.6)
    right.set(xlabel="rank", ylabel="busy seconds a round", ylim=(0, None))
    right.set_xlim(-0.7 * group, starts[-1] + group - 0.3)
    _integer_ticks(right)
    left.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=5, handlelength=1, columnspacing=1)
    right.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2, handlelength=1)
    mark(drawing, [run])
    return drawing


@figure
def gradients(run: Run) -> Figure:
    """The running mean of the squared gradient norm, 1/T sum_t ||grad L||^2, of every client and of all together.

    The dashed line is c / T, the rate of the paper's theorem, through the last point: a curve that falls more slowly
    than the line nears the theorem's constant instead.
    """
    T = _begun(run)
    values = run.rounds.get("gradient_norm2", np.full((T, 1), np.nan))
    if not np.nanmax(values, initial=0) > 0:
        raise NoData(f"{run.path}: no gradient norms; run it with --track-gradients")
    each, rounds = _running_mean(values), np.arange(1, T + 1)
    together = _running_mean(mean_of_clients(values)[:, None])[:, 0]
    drawing, axes = new(COLUMN, 2.3 + 0.14 * _legend_rows(values.shape[1]))
    _curves(axes, rounds, np.where(each > 0, each, np.nan))
    axes.plot(rounds, together, **_dots(rounds), color="black", linewidth=1.8, label="all clients' mean", zorder=4)
    axes.plot(rounds, together[-1] * T / rounds, "--", color=GREY, linewidth=1, label="$c\\,/\\,T$", zorder=3)
    axes.set(xscale="log", yscale="log", xlabel="rounds $T$")
    axes.set_ylabel(r"$\Vert\nabla\mathcal{L}\Vert_2^2$, mean of $T$ rounds")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    if T <= 10:
        axes.set_xticks(rounds)
    _legend(drawing, axes)
    mark(drawing, [run])
    return drawing


class Drawable(NamedTuple):
    """A figure of a run: the section of the page that it belongs to, its title, and the function that draws it."""

    section: str
    title: str
    draw: Callable[[Run], Figure]


FIGURES = {
    "partition": Drawable("Data", "Who owns what", partition),
    "accuracy": Drawable("Training", "Accuracy", accuracy),
    "losses": Drawable("Training", "Losses", losses),
    "gradients": Drawable("Training", "Convergence", gradients),
    "prototypes": Drawable("Prototypes", "Feature prototypes (t-SNE)", prototypes),
    "structures": Drawable("Prototypes", "Structure of classes", structures),
    "communication": Drawable("Cost", "Communication", communication),
    "times": Drawable("Cost", "Where time goes", times),
}  # as they come on the page


def drawn(run: Run) -> Iterator[tuple[str, Figure]]:
    """Every figure that the run has data for, by name."""
    for name, what in FIGURES.items():
        try:
            yield name, what.draw(run)
        except NoData:
            continue


# ---- numbers behind the figures


def network_floats(run: Run) -> np.ndarray | None:
    """Weights (without biases) of each client's network; None where widths or families are not known."""
    config, entry = run.attributes["config"], CATALOG.get(run.attributes["dataset"])
    widths = config.get("dims") or (entry and [modality.width for modality in entry.modalities])
    owned, d = run.partition["modalities"], config["feature_dim"]
    if not widths or len(widths) != owned.shape[1]:
        return None
    floats = []
    for own, networks in zip(owned, run.partition["architectures"], strict=True):
        total = d * run.attributes["classes"] * (int(own.sum()) if config["fusion"] == "concat" else 1)
        for m, fields in zip(np.flatnonzero(own), json.loads(networks), strict=True):
            if fields["family"] not in SHIPPED:
                return None
            total += weights(Architecture.from_dict(fields), Modality("x", "I", widths[m]), d)
        floats.append(total)
    return np.array(floats)


def busy_seconds(run: Run) -> np.ndarray:
    """Mean seconds a round that each rank was busy, (2, ranks): with its clients, with the server."""
    rank = run.partition["rank"]
    ranks = max(int(run.attributes["ranks"]), int(rank.max()) + 1)
    busy = np.zeros((2, ranks))
    np.add.at(busy[0], rank, np.nan_to_num(run.rounds["seconds_client"]).mean(axis=0))
    busy[1, 0] = run.rounds["seconds_server"].mean()
    return busy


def _running_mean(values: np.ndarray) -> np.ndarray:
    """Means over rounds 1 to t of (T, K), of those that are not NaN; NaN before the first."""
    known = np.isfinite(values)
    total, number = np.where(known, values, 0).cumsum(axis=0), known.cumsum(axis=0)
    return np.divide(total, number, out=np.full(values.shape, np.nan), where=number > 0)


# ---- parts of figures


def _begun(run: Run) -> int:
    """The number of rounds so far, at least 1."""
    T = len(run.rounds.get("participants", ()))
    if not T:
        raise NoData(f"{run.path}: no round is finished yet")
    return T


def _integer_ticks(axes: Any, most: int = 6) -> None:
    """Ticks at whole numbers only: rounds, clients and ranks have no halves."""
    axes.xaxis.set_major_locator(MaxNLocator(most, integer=True, min_n_ticks=1))


def _dots(x: Sequence[int] | np.ndarray) -> dict[str, Any]:
    """Markers where there are few points, so that a single one is seen."""
    return {"marker": "o", "markersize": 2.5} if len(x) <= 10 else {}


def _curves(axes: Any, x: np.ndarray, values: np.ndarray) -> None:
    """A thin line for each client of values (len(x), K), or bands of quantiles where there are many."""
    if values.shape[1] <= NAMED:
        for k, column in enumerate(values.T):
            dashes = ("-", "--", ":", "-.")[k // len(CLIENTS)]
            shade = CLIENTS[k % len(CLIENTS)]
            axes.plot(x, column, **_dots(x), color=shade, linestyle=dashes, linewidth=0.7, label=f"client {k}")
        return
    known = np.isfinite(values).any(axis=1)
    x, values = x[known], values[known]
    if len(x) == 1:  # a band needs a breadth
        x, values = np.array([x[0] - 0.1, x[0] + 0.1]), np.repeat(values, 2, axis=0)
    for (low, high, words), strength in zip(BANDS, (0.15, 0.25, 0.35), strict=True):
        edges = np.nanquantile(values, (low, high), axis=1)
        axes.fill_between(x, *edges, color=colour(0), alpha=strength, linewidth=0, label=words)
    axes.plot(x, np.nanmedian(values, axis=1), color=colour(0), linewidth=0.8, label="median client")


def _legend_rows(K: int) -> int:
    return -(-(K + 1) // 4) if K <= NAMED else 2


def _legend(drawing: Figure, axes: Any, columns: int = 4) -> None:
    """All labelled curves, above the axes."""
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        drawing.legend(handles, labels, **outside("upper", columns))


def _term(name: str) -> str:
    """A loss term as the paper writes it, others as they are called."""
    return rf"$\mathcal{{L}}_{{\mathrm{{{name}}}}}$" if name in _PAPER else label(name)


_PAPER = ("ce", "fea", "logit", "rec", "con", "align")


def _place(name: str) -> tuple[int, str]:
    """The paper's terms in its order, then the others."""
    return (_PAPER.index(name) if name in _PAPER else len(_PAPER)), name


def _spans_decades(values: np.ndarray) -> bool:
    """Whether a linear axis would flatten much of `values`."""
    values = values[np.isfinite(values)]
    positive = values[values > 0]
    return bool(positive.size and (values >= 0).all() and positive.max() > 30 * positive.min())
