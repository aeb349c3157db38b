"""Figures of one run, finished or running: partition, training, communication and time.

Every public function takes a run and returns a figure, or raises `NoData` with the reason if the run lacks its data.
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
from mfedpba_mpi.report.prototype_figures import PROTOTYPES_TITLE, feature_spaces, prototypes, structures
from mfedpba_mpi.report.style import (
    COLUMN,
    GREY,
    PAGE,
    PALETTE,
    NoData,
    add_note,
    add_remark,
    colour,
    label,
    legend_options,
    modality_names,
    new_figure,
    styled,
)

MAX_CURVES = 24  # clients with a curve each; more are shown as quantile bands
BANDS = ((0.0, 1.0, "all clients"), (0.1, 0.9, "central 80%"), (0.25, 0.75, "central 50%"))
MAX_PER_ROW, MAX_COLUMNS = 50, 200  # circles side by side in a row of `partition`, and in all rows together
MAX_RANK_BARS = 64
CLIENT_COLOURS = PALETTE[:6]  # without black, which the average has


@styled()
def partition(run: Run) -> Figure:
    """The modalities (rows) that each client (columns) owns; the area of a circle shows the number of training samples.

    More than 50 clients are split over several rows. With more than 200 clients, a circle shows the mean of adjacent
    clients.
    """
    samples = np.diff(run.partition["train_offsets"])[:, None] * run.partition["modalities"]  # (K, M)
    return circles(samples, modality_names(run), run.remark)


@styled()
def circles(samples: np.ndarray, names: Sequence[str], remark: str = "") -> Figure:
    """The figure `partition` of the training samples (K, M) of each client and modality, with a remark on the data."""
    K, M = samples.shape
    group = -(-K // MAX_COLUMNS)
    means = np.stack([part.mean(axis=0) for part in np.split(samples, range(group, K, group))])
    rows = -(-len(means) // MAX_PER_ROW)
    across = -(-len(means) // rows)
    width = COLUMN if across <= 12 else PAGE
    cell = min(0.3, (width - 0.5 - 0.06 * max(map(len, names))) / across)
    height = rows * (M * max(cell, 0.12) + 0.22) + 0.6
    drawing, grid = new_figure(width, height, rows, squeeze=False)
    for row, axes in enumerate(grid[:, 0]):
        k, m = np.nonzero(means[row * across : (row + 1) * across])
        sizes = means[row * across + k, m] / means.max() * (0.92 * 72 * cell) ** 2
        axes.scatter((row * across + k) * group, m, sizes, [colour(int(i)) for i in m], linewidths=0, clip_on=False)
        axes.set_xlim((row * across - 0.7) * group, ((row + 1) * across - 0.3) * group)
        axes.set_ylim(M - 0.4, -0.6)
        axes.set_yticks(range(M), names)
        if across <= MAX_CURVES:
            axes.set_xticks(range(K))
        else:
            _integer_ticks(axes, 12)
    grid[-1, 0].set_xlabel("client")
    largest = f"{means.max():.4g} training samples"
    text = f"largest circle: {largest}" if group == 1 else f"means of {group} clients; largest circle: {largest}"
    grid[0, 0].set_title(text, fontsize=7, loc="right", color=GREY)
    if remark:
        add_note(drawing, remark)
    return drawing


@styled()
def accuracy(run: Run) -> Figure:
    """Accuracy of each client (thin lines) and average accuracy over all test samples (thick black line) per round.

    With more than 24 clients, bands show the range of all clients and their central 80% and 50%, and a thin line the
    median client.
    """
    _finished_rounds(run)
    rounds = run.evaluated
    if not len(rounds):
        raise NoData(f"{run.path}: no round has been evaluated yet")
    values = 100 * run.rounds["accuracy"][rounds - 1]
    drawing, axes = new_figure(COLUMN, 2.2 + 0.14 * _legend_rows(values.shape[1]))
    _client_curves(axes, rounds, values)
    axes.plot(rounds, 100 * run.average(), **_markers(rounds), color="black", linewidth=1.8, label="average", zorder=4)
    axes.set_xlabel("round")
    axes.set_ylabel(f"{'validation' if run.validation else 'test'} accuracy (%)")
    _integer_ticks(axes)
    _legend(drawing, axes)
    add_remark(drawing, [run])
    return drawing


@styled()
def losses(run: Run) -> Figure:
    """Loss terms per round: of the clients (mean over participants, band of the central 80%) and of the server."""
    T = _finished_rounds(run)
    sides = {}
    for title, prefix in (("loss terms of clients", "loss_"), ("loss terms of the server", "server_")):
        terms = {name.removeprefix(prefix): value for name, value in run.rounds.items() if name.startswith(prefix)}
        known = {name: value.reshape(T, -1) for name, value in terms.items() if np.isfinite(value).any()}
        if known:
            sides[title] = known
    if not sides:
        raise NoData(f"{run.path}: no loss has been logged")
    drawing, grid = new_figure(COLUMN if len(sides) == 1 else PAGE, 2.2, 1, len(sides), squeeze=False)
    for axes, (title, terms) in zip(grid[0], sides.items(), strict=True):
        floor = -np.inf  # lowest value that the axis can show
        shown = np.concatenate([value.ravel() for value in terms.values()])
        if _spans_decades(shown):
            axes.set_yscale("log")
            floor = shown[shown > 0].min()
        for i, name in enumerate(sorted(terms, key=_term_order)):
            _mean_with_band(axes, terms[name], colour(i), _term_label(name), floor)
        axes.set(xlabel="round", ylabel=title)
        _integer_ticks(axes)
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=4)
    add_remark(drawing, [run])
    return drawing


@styled()
def communication(run: Run) -> Figure:
    """Payload per round, summed over the participants, in each direction, compared with the paper's formula.

    The dotted line is the payload of the participants' full networks (their weights as float32) in one direction. It is
    omitted if the feature widths of the dataset are unknown, or if the run uses plugin extractors.
    """
    T = _finished_rounds(run)
    rounds, participants = np.arange(1, T + 1), run.rounds["participants"]
    up, down = (run.rounds[f"bytes_{direction}"].sum(axis=1) for direction in ("up", "down"))
    formula, networks = (
        np.zeros(T) if floats is None else 4 * participants @ floats
        for floats in (run.formula_floats(), network_floats(run))
    )
    drawing, axes = new_figure(COLUMN, 2.3)
    for name, payload, look in (
        ("paper's formula, one way", formula, {"color": "#bbbbbb", "linewidth": 3, "markersize": 6}),
        ("full networks, one way", networks, {"color": colour(2), "linestyle": ":"}),
        ("uploads, measured", up, {"color": colour(0)}),
        ("downloads, measured", down, {"color": colour(1), "linestyle": "--"}),
    ):
        if payload.any():
            axes.plot(rounds, np.where(payload > 0, payload, np.nan), label=name, **(_markers(rounds) | look))
    if not (up.any() or down.any()):
        axes.text(0.5, 0.15, f"{label(run.attributes['label'])} sends nothing", transform=axes.transAxes, ha="center")
    axes.set_yscale("log")
    shown = np.concatenate([up, down, formula, networks])
    shown = shown[shown > 0] if shown.any() else np.array([1e3])
    axes.set_ylim(10 ** np.floor(np.log10(shown.min()) - 0.1), 10 ** np.ceil(np.log10(shown.max()) + 0.1))
    axes.yaxis.set_major_formatter(EngFormatter("B"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("round")
    axes.set_ylabel("payload per round")
    _integer_ticks(axes)
    _legend(drawing, axes, 2)
    add_remark(drawing, [run])
    return drawing


@styled()
def times(run: Run) -> Figure:
    """Left: the time of each round by activity, measured on rank 0. Right: the mean busy time of each rank per round.

    Evaluation counts only as far as it does not overlap with the server's step; communication includes packing and
    writing the log. The busy time of a rank is the CPU time of its clients and, on rank 0, of the server's step. With
    more than 64 ranks, a bar is the mean of adjacent ranks, and the line above it reaches to the busiest of them.
    """
    T = _finished_rounds(run)
    parts = run.time_parts()
    names = {
        "train": "training", "server": "server", "eval": "evaluation", "comm": "communication",
        "checkpoint": "checkpoint",
    }  # fmt: skip
    drawing, (left, right) = new_figure(PAGE, 2.3, 1, 2, width_ratios=(3, 2))
    left.use_sticky_edges = right.use_sticky_edges = False  # a bar of height 0 on top would remove the margin
    rounds, bottom = np.arange(1, T + 1), np.zeros(T)
    for i, (part, name) in enumerate(names.items()):
        if parts[part].any():
            look = dict(color=colour(i), linewidth=0, label=name)
            if T <= 60:
                left.bar(rounds, parts[part], 0.9, bottom, **look)
            else:
                left.fill_between(rounds, bottom, bottom + parts[part], **look)
            bottom = bottom + parts[part]
    left.set(xlabel="round", ylabel="seconds", ylim=(0, None))
    _integer_ticks(left)
    busy = busy_seconds(run)  # (2, ranks)
    group = -(-busy.shape[1] // MAX_RANK_BARS)
    starts = np.arange(0, busy.shape[1], group)
    clients, server = np.add.reduceat(busy, starts, axis=1) / np.diff([*starts, busy.shape[1]])
    middle = starts + (group - 1) / 2
    right.bar(middle, clients, 0.9 * group, color=colour(0), linewidth=0, label="clients")
    right.bar(middle, server, 0.9 * group, clients, color=colour(1), linewidth=0, label="server")
    if group > 1:
        busiest = np.maximum.reduceat(busy.sum(axis=0), starts)
        right.vlines(middle, clients + server, busiest, color="black", linewidth=0.6)
    right.set(xlabel="rank", ylabel="busy seconds per round", ylim=(0, None))
    right.set_xlim(-0.7 * group, starts[-1] + group - 0.3)
    _integer_ticks(right)
    left.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=5, handlelength=1, columnspacing=1)
    right.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2, handlelength=1)
    add_remark(drawing, [run])
    return drawing


@styled()
def gradients(run: Run) -> Figure:
    """Running mean of the squared gradient norm, 1/T sum_t ||grad L||^2, of each client and averaged over all clients.

    The dashed line through the last point is c / T, the rate of the paper's theorem. A curve that falls more slowly
    approaches the constant term of the theorem.
    """
    T = _finished_rounds(run)
    values = run.rounds.get("gradient_norm2", np.full((T, 1), np.nan))
    if not np.nanmax(values, initial=0) > 0:
        raise NoData(f"{run.path}: no gradient norms; --track-gradients logs them")
    each, rounds = _running_mean(values), np.arange(1, T + 1)
    mean = _running_mean(mean_of_clients(values)[:, None])[:, 0]
    drawing, axes = new_figure(COLUMN, 2.3 + 0.14 * _legend_rows(values.shape[1]))
    _client_curves(axes, rounds, np.where(each > 0, each, np.nan))
    axes.plot(rounds, mean, **_markers(rounds), color="black", linewidth=1.8, label="mean over clients", zorder=4)
    axes.plot(rounds, mean[-1] * T / rounds, "--", color=GREY, linewidth=1, label="$c\\,/\\,T$", zorder=3)
    axes.set(xscale="log", yscale="log", xlabel="rounds $T$")
    axes.set_ylabel(r"$\Vert\nabla\mathcal{L}\Vert_2^2$, mean over $T$ rounds")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    if T <= 10:
        axes.set_xticks(rounds)
    _legend(drawing, axes)
    add_remark(drawing, [run])
    return drawing


@styled()
def arrival(run: Run) -> Figure:
    """How much a client's loss changes when new prototypes arrive, before it trains (Lemma 2 of the paper).

    Left: the loss after minus the loss before, for each client (thin lines) and the mean (thick black line). Right: the
    size of this change, the part that comes from training the server's autoencoder (the rest comes from clients that
    have moved), and the two terms whose sum bounds the change: the drift of the clients, and the bias of the server,
    which is the distance of the global prototypes from the mean of the uploads. Lines on the right are means over
    clients, bands their central 80%.
    """
    T = _finished_rounds(run)
    if "arrival_bias" not in run.rounds:
        raise NoData(f"{run.path}: the change by new prototypes is not known; MFedPBA logs it with --track-gradients")
    server, drift, bias = (
        np.concatenate([np.full_like(values[:1], np.nan), values[:-1]])  # of the round before
        for values in (run.rounds[f"arrival_{name}"] for name in ("server", "drift", "bias"))
    )
    change = run.rounds["arrival_new"] - run.rounds["arrival_old"]
    known = np.flatnonzero(np.isfinite(change).any(axis=1))
    if not len(known):
        raise NoData(f"{run.path}: new prototypes replace others from round 3 on; there are {T} rounds so far")
    rounds = known + 1
    drawing, (left, right) = new_figure(PAGE, 2.3, 1, 2)
    _client_curves(left, rounds, change[known])
    mean = mean_of_clients(change[known])
    left.plot(rounds, mean, **_markers(rounds), color="black", linewidth=1.8, label="mean", zorder=4)
    for i, (name, values) in enumerate({
        "drift of clients": drift, "bias of the server": bias, "change by the server": np.abs(server),
        "size of the change": np.abs(change),
    }.items()):  # fmt: skip
        shade = "black" if i == 3 else colour(i)
        _mean_with_band(right, values, shade, name, floor=np.nextafter(0, 1))
    right.set_yscale("log")
    left.set_ylabel(r"$\mathcal{L}$ after $-$ $\mathcal{L}$ before")
    right.set_ylabel(r"change of $\mathcal{L}$ and its bounds")
    for axes, columns in ((left, 4), (right, 2)):
        axes.set_xlabel("round at whose start prototypes arrive")
        _integer_ticks(axes)
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=columns, handlelength=1.4, columnspacing=0.9)
    add_remark(drawing, [run])
    return drawing


class RunFigure(NamedTuple):
    """A figure of a run: its section on the page, its title, and the function that draws it."""

    section: str
    title: str
    draw: Callable[[Run], Figure]


FIGURES = {
    "partition": RunFigure("Data", "Modalities and samples of clients", partition),
    "accuracy": RunFigure("Training", "Accuracy", accuracy),
    "losses": RunFigure("Training", "Losses", losses),
    "gradients": RunFigure("Training", "Gradient norms", gradients),
    "arrival": RunFigure("Training", "Loss when new prototypes arrive", arrival),
    "prototypes": RunFigure("Prototypes", PROTOTYPES_TITLE, prototypes),
    "feature_spaces": RunFigure("Prototypes", "Feature spaces of clients, and drift of averages", feature_spaces),
    "structures": RunFigure("Prototypes", "Class structure of global prototypes", structures),
    "communication": RunFigure("Cost", "Communication", communication),
    "times": RunFigure("Cost", "Time", times),
}  # in the order of the page


def draw_all(run: Run) -> Iterator[tuple[str, Figure]]:
    """Draw every figure for which the run has data; yields names and figures."""
    for name, figure in FIGURES.items():
        try:
            yield name, figure.draw(run)
        except NoData:
            continue


# ---- the data of the figures


def network_floats(run: Run) -> np.ndarray | None:
    """Number of weights (without biases) of each client's network, (K,); None if widths or families are unknown."""
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
    """Mean busy seconds per round of each rank, (2, ranks): with its clients, and with the server."""
    rank = run.partition["rank"]
    ranks = max(int(run.attributes["ranks"]), int(rank.max()) + 1)
    busy = np.zeros((2, ranks))
    np.add.at(busy[0], rank, np.nan_to_num(run.rounds["seconds_client"]).mean(axis=0))
    busy[1, 0] = run.rounds["seconds_server"].mean()
    return busy


def _running_mean(values: np.ndarray) -> np.ndarray:
    """Means over the finite values of rounds 1 to t, (T, K) -> (T, K); NaN before the first one."""
    known = np.isfinite(values)
    total, n = np.where(known, values, 0).cumsum(axis=0), known.cumsum(axis=0)
    return np.divide(total, n, out=np.full(values.shape, np.nan), where=n > 0)


# ---- parts of figures


def _finished_rounds(run: Run) -> int:
    """The number of finished rounds, at least 1."""
    T = len(run.rounds.get("participants", ()))
    if not T:
        raise NoData(f"{run.path}: no round is finished yet")
    return T


def _integer_ticks(axes: Any, max_ticks: int = 6) -> None:
    """Place ticks of the x axis (rounds, clients or ranks) at integers only."""
    axes.xaxis.set_major_locator(MaxNLocator(max_ticks, integer=True, min_n_ticks=1))


def _markers(x: Sequence[int] | np.ndarray) -> dict[str, Any]:
    """Options that mark the points of short curves, so that a single point is visible."""
    return {"marker": "o", "markersize": 2.5} if len(x) <= 10 else {}


def _client_curves(axes: Any, x: np.ndarray, values: np.ndarray) -> None:
    """Draw a thin line per client of values (len(x), K), or quantile bands if there are many clients."""
    if values.shape[1] <= MAX_CURVES:
        for k, column in enumerate(values.T):
            dashes = ("-", "--", ":", "-.")[k // len(CLIENT_COLOURS)]
            shade = CLIENT_COLOURS[k % len(CLIENT_COLOURS)]
            axes.plot(x, column, **_markers(x), color=shade, linestyle=dashes, linewidth=0.7, label=f"client {k}")
        return
    known = np.isfinite(values).any(axis=1)
    x, values = x[known], values[known]
    if len(x) == 1:  # give the band a width
        x, values = np.array([x[0] - 0.1, x[0] + 0.1]), np.repeat(values, 2, axis=0)
    for (low, high, name), alpha in zip(BANDS, (0.15, 0.25, 0.35), strict=True):
        edges = np.nanquantile(values, (low, high), axis=1)
        axes.fill_between(x, *edges, color=colour(0), alpha=alpha, linewidth=0, label=name)
    axes.plot(x, np.nanmedian(values, axis=1), color=colour(0), linewidth=0.8, label="median client")


def _mean_with_band(axes: Any, values: np.ndarray, shade: str, name: str, floor: float = -np.inf) -> None:
    """Draw the mean of values (T, clients) and a band of the central 80%; values below `floor` cannot be shown."""
    rows = np.flatnonzero(np.isfinite(values).any(axis=1))
    values, rounds = values[rows], rows + 1
    mean = np.nanmean(values, axis=1)
    mean[mean < floor] = np.nan
    if values.shape[1] > 1:
        edges = np.maximum(np.nanquantile(values, (0.1, 0.9), axis=1), floor)
        edges[:, np.isnan(mean)] = np.nan
        axes.fill_between(rounds, *edges, color=shade, alpha=0.2, linewidth=0)
    axes.plot(rounds, mean, **_markers(rounds), color=shade, label=name)


def _legend_rows(K: int) -> int:
    return -(-(K + 1) // 4) if K <= MAX_CURVES else 2


def _legend(drawing: Figure, axes: Any, columns: int = 4) -> None:
    """Add a legend of all labelled curves above the axes."""
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        drawing.legend(handles, labels, **legend_options("upper", columns))


_PAPER_TERMS = ("ce", "fea", "logit", "rec", "con", "align")


def _term_label(name: str) -> str:
    """A loss term in the paper's notation, or by its name if it is not in the paper."""
    return rf"$\mathcal{{L}}_{{\mathrm{{{name}}}}}$" if name in _PAPER_TERMS else label(name)


def _term_order(name: str) -> tuple[int, str]:
    """A sort key: the terms of the paper in its order, then all others."""
    return (_PAPER_TERMS.index(name) if name in _PAPER_TERMS else len(_PAPER_TERMS)), name


def _spans_decades(values: np.ndarray) -> bool:
    """Whether `values` are too far apart for a linear axis: none negative, largest over 30 times the smallest."""
    values = values[np.isfinite(values)]
    positive = values[values > 0]
    return bool(positive.size and (values >= 0).all() and positive.max() > 30 * positive.min())
