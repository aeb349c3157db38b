"""Figures of what a run has learnt: the clients' prototypes in the plane, and the structure of the global ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from textwrap import fill, shorten

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from mfedpba_mpi.records.run import Run
from mfedpba_mpi.report.groups import grouped
from mfedpba_mpi.report.style import (
    COLUMN,
    GREY,
    LONGEST,
    PAGE,
    NoData,
    colours,
    figure,
    label,
    mark,
    marker,
    modalities,
    new,
    outside,
)
from mfedpba_mpi.report.table_figures import wrapped
from mfedpba_mpi.studies.study import SEED

PANELS = 9
POINTS = 1000  # that t-SNE gets; more take long and say no more
CLASSES = (
    "#332288", "#88CCEE", "#44AA99", "#117733", "#999933", "#DDCC77", "#CC6677", "#882255", "#AA4499", "#777777",
)  # Paul Tol's, for up to ten classes  # fmt: skip


@figure
def prototypes(*runs: Run) -> Figure:
    """The clients' final feature prototypes E_k^m in the plane (t-SNE), a panel for each run.

    A point is a class (colour) of a modality (marker) of a client (small number, where there is room). Where clients
    agree on a class, its points lie together, whoever made them. Classes a client has no samples of are left out.
    There is room for nine runs; of more, one of each group of seeds is shown. Runs that are not shown are named below.
    """
    clouds: dict[str, _Cloud] = {}
    errors: dict[str, NoData] = {}
    first: dict[str, str] = {}  # of each group
    for group, own in grouped(runs).items():
        for run in own:
            name = f"{group}, seed {run.attributes['config'][SEED]}" if len(own) > 1 else group
            try:
                clouds[name] = _cloud(run)
                first.setdefault(group, name)
            except NoData as error:
                errors[name] = error
    if not clouds:
        raise next(iter(errors.values()))
    shown = list(clouds if len(clouds) <= PANELS else first.values())[:PANELS]
    left = {"No room for": [name for name in clouds if name not in shown], "No prototypes in": list(errors)}
    words = [f"{why} {'; '.join(names)}." for why, names in left.items() if names]
    if words:
        words.insert(0, f"{len(shown)} of {len(clouds) + len(errors)} runs.")
    return _panels({name: clouds[name] for name in shown}, shorten(" ".join(words), 500, placeholder=" …"))


def _panels(clouds: Mapping[str, _Cloud], words: str) -> Figure:
    runs, count = [cloud.run for cloud in clouds.values()], len(clouds)
    names = list(dict.fromkeys(name for run in runs for name in run.attributes["modalities"]))
    C = max(run.attributes["classes"] for run in runs)
    shades = np.array(CLASSES if len(CLASSES) >= C else [colormaps["viridis"](c / (C - 1)) for c in range(C)])
    shown = [label(name, LONGEST) for name in names]
    beside = max(1, (24 if count == 1 else 48) // max(6, *map(len, shown)))  # names in a row of the legend
    across = count if count < 4 else 2 if count == 4 else 3
    down, width = -(-count // across), COLUMN if count == 1 else PAGE
    height = down * (3 if across < 3 else 2.25) + 0.14 * -(-len(names) // beside)
    drawing, grid = new(width, height, down, across, squeeze=False)
    for axes in grid.flat[count:]:
        axes.set_axis_off()
    for axes, (name, cloud) in zip(grid.flat, clouds.items(), strict=False):
        place = _embedding(cloud.E)
        few = len(place) <= 150
        for m, modality in enumerate(cloud.run.attributes["modalities"]):
            own = cloud.modality == m
            axes.scatter(
                *place[own].T, 20 if few else 8, shades[cloud.label[own]], marker=marker(names.index(modality)),
                linewidths=0.2, edgecolors="white",
            )  # fmt: skip
        if few:
            for point, k in zip(place, cloud.client, strict=True):
                axes.annotate(f"{k}", point, (2.2, 1.2), textcoords="offset points", fontsize=4, color=GREY)
        axes.set_title(wrapped(name, 15 * width / across, cloud.remark))
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_visible(True)
        axes.margins(0.06)
    if len(CLASSES) >= C:
        dots = [Line2D([], [], color=shades[c], marker="o", linestyle="") for c in range(C)]
        drawing.legend(dots, [f"{c}" for c in range(C)], title="class", **outside("upper", 10))
    else:
        span = colours(0, C - 1)
        drawing.colorbar(span, ax=list(grid.flat), label="class", location="top", aspect=40, shrink=0.8)
    kinds = [Line2D([], [], color=GREY, marker=marker(i), linestyle="") for i in range(len(names))]
    said = label(fill(words, int(22 * width)))
    drawing.legend(kinds, shown, title=said, title_fontsize=6, **outside("lower", beside)).get_title().set_color(GREY)
    mark(drawing, runs)
    return drawing


@figure
def structures(run: Run) -> Figure:
    """How far classes are from each other: in P_G of each modality, and in I_G, which alignment makes them resemble.

    Squared Euclidean distances divided by their mean; absent classes are grey. Below, where the run has them, the
    transport plans that match the two, row by row as shares: aligned structures have a bright diagonal.
    """
    if "P_G" not in run.final or "I_G" not in run.final:
        raise NoData(f"{run.path}: no global prototypes; complete runs of MFedPBA have them")
    final, names = run.final, modalities(run, 10)
    present = [*(final["P_present"] > 0), final["I_present"] > 0]
    spaces = [_distances(X, there) for X, there in zip([*final["P_G"], final["I_G"]], present, strict=True)]
    groups = [(list(zip([*names, "$I_G$"], spaces, strict=True)), "distance / mean")]
    if "plan" in final:
        shares = [plan * there.sum() for plan, there in zip(final["plan"], present, strict=False)]
        groups.append((list(zip(names, shares, strict=True)), "share"))
    across = min(len(spaces), 7)
    heights = [-(-len(panels) // across) for panels, _ in groups]
    size = min(1.2, (PAGE - 0.9) / across)
    height = sum(heights) * (size + 0.24) + (0.15 if run.remark else 0)
    drawing, grid = new(max(COLUMN, size * across + 0.9), height, sum(heights), across, squeeze=False)
    for axes in grid.flat:
        axes.set(xticks=[], yticks=[])
        axes.set_axis_off()
    for (panels, words), first, rows in zip(groups, np.cumsum([0, *heights]), heights, strict=False):
        part = grid[first : first + rows]
        highest = max((np.nanmax(value, initial=0) for _, value in panels), default=0)
        span = colours(0, 1 if words == "share" else min(max(highest, 1), 4))
        for axes, (name, value) in zip(part.flat, panels, strict=False):
            axes.imshow(value, cmap=span.cmap, norm=span.norm, interpolation="nearest")
            axes.set_title(name, fontsize=7)
            axes.set_axis_on()
            axes.spines[:].set_visible(True)
            axes.grid(False)
        beyond = "max" if highest > 4 else "neither"
        drawing.colorbar(span, ax=list(part.flat), label=words, aspect=12 * rows, extend=beyond)
        part[0, 0].set_ylabel("class" if words != "share" else "class in $I_G$")
    mark(drawing, [run])
    return drawing


# ---- numbers behind the figures


@dataclass(frozen=True)
class _Cloud:
    """A run's prototypes E (N, d) of present classes with the class, modality and client of each."""

    run: Run
    E: np.ndarray
    label: np.ndarray
    modality: np.ndarray
    client: np.ndarray
    remark: str = ""


def _cloud(run: Run) -> _Cloud:
    if "E" not in run.final:
        raise NoData(f"{run.path}: no prototypes; they are in the log of a complete run")
    E, client, modality = (run.final[name] for name in ("E", "E_client", "E_modality"))
    there = (run.partition["counts"][client] > 0) & np.isfinite(E).all(axis=2)  # (sum |M_k|, C)
    if not there.any():
        raise NoData(f"{run.path}: no prototype is finite")
    step = -(-int(there.sum()) // POINTS)
    there &= (client % step == 0)[:, None]
    row, c = np.nonzero(there)
    remark = f" (one in {step} clients)" if step > 1 else ""
    return _Cloud(run, E[row, c], c, modality[row], client[row], remark)


def _embedding(X: np.ndarray) -> np.ndarray:
    """t-SNE of X (N, d) in the plane, started at its principal components, so the same for the same X."""
    from sklearn.manifold import TSNE

    X = X - X.mean(axis=0)
    U, s, _ = np.linalg.svd(X.astype(float), full_matrices=False)
    start = np.zeros((len(X), 2))
    start[:, : min(2, len(s))] = (U * s)[:, :2]
    start *= 1e-4 / max(start[:, 0].std(), 1e-12)
    if len(X) < 4:  # nothing to spread out
        return start
    method = "exact" if len(X) < 300 else "barnes_hut"
    perplexity = min(30.0, len(X) ** 0.5)
    tsne = TSNE(perplexity=perplexity, init=start.astype(np.float32), method=method, random_state=0, n_jobs=1)
    return tsne.fit_transform(X.astype(np.float32))


def _distances(X: np.ndarray, present: np.ndarray) -> np.ndarray:
    """Squared distances of the present rows of X (C, d) divided by their mean, (C, C); NaN for the others."""
    from scipy.spatial.distance import cdist

    D = np.full((len(X), len(X)), np.nan)
    distances = cdist(X[present], X[present], "sqeuclidean")
    if distances.any():
        distances /= distances.mean()
    D[np.ix_(present, present)] = distances
    return D
