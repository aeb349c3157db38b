"""Figures of the prototypes of a run: those of the clients in the plane, and the class structure of the global ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from textwrap import fill, shorten
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from mfedpba_mpi.cli.console import count
from mfedpba_mpi.records.run import Run
from mfedpba_mpi.report.groups import grouped
from mfedpba_mpi.report.style import (
    COLUMN,
    GREY,
    MAX_NAME,
    PAGE,
    NoData,
    add_remark,
    colour,
    colour_scale,
    label,
    legend_options,
    marker,
    modality_names,
    new_figure,
    styled,
)
from mfedpba_mpi.report.table_figures import wrap
from mfedpba_mpi.studies.study import SEED

PROTOTYPES_TITLE = "Feature prototypes (t-SNE)"
MAX_PANELS = 9
MAX_POINTS = 1000  # for t-SNE; more take long and show no more
MAX_PAIRED = 2000  # prototypes, for the distances of all pairs
CLASS_COLOURS = (
    "#332288", "#88CCEE", "#44AA99", "#117733", "#999933", "#DDCC77", "#CC6677", "#882255", "#AA4499", "#777777",
)  # Paul Tol's, for up to ten classes  # fmt: skip


@styled()
def prototypes(*runs: Run, modalities: int = 0) -> Figure:
    """The clients' final feature prototypes E_k^m, embedded in the plane by t-SNE, one panel per run.

    Each point is the prototype of one class (colour) and modality (marker) of a client (small number, if there are at
    most 150 points). Points of a class lie close together if the clients agree on the class. Classes without training
    samples at a client are omitted. At most nine runs are shown; if there are more, one per group of seeds. The runs
    that are not shown are listed below the panels, and whether only clients with some number of modalities are shown.

    Parameters
    ----------
    modalities : int
        Show only clients with this number of modalities; 0: all.
    """
    points: dict[str, _Prototypes] = {}
    errors: dict[str, NoData] = {}
    first: dict[str, str] = {}  # run of every group
    for group, members in grouped(runs).items():
        for run in members:
            name = f"{group}, seed {run.attributes['config'][SEED]}" if len(members) > 1 else group
            try:
                points[name] = _prototypes_of(run, modalities)
                first.setdefault(group, name)
            except NoData as error:
                errors[name] = error
    if not points:
        raise next(iter(errors.values()))
    shown = list(points if len(points) <= MAX_PANELS else first.values())[:MAX_PANELS]
    omitted = {"Omitted": [name for name in points if name not in shown], "Without prototypes": list(errors)}
    texts = [f"{why}: {'; '.join(names)}." for why, names in omitted.items() if names]
    if texts:
        texts.insert(0, f"{len(shown)} of {len(points) + len(errors)} runs.")
    if modalities:
        texts.insert(0, f"Clients with {count(modalities, 'modality', 'modalities')}.")
    return _panels({name: points[name] for name in shown}, shorten(" ".join(texts), 500, placeholder=" …"))


def _panels(points: Mapping[str, _Prototypes], note: str) -> Figure:
    runs, count = [own.run for own in points.values()], len(points)
    shown = [(own.run.attributes["modalities"], np.unique(own.modality)) for own in points.values()]
    names = list(dict.fromkeys(names[m] for names, modalities in shown for m in modalities))
    C = max(run.attributes["classes"] for run in runs)
    few_classes = len(CLASS_COLOURS) >= C
    shades = np.array(CLASS_COLOURS if few_classes else [colormaps["viridis"](c / (C - 1)) for c in range(C)])
    labels = [label(name, MAX_NAME) for name in names]
    legend_columns = max(1, (24 if count == 1 else 48) // max(6, *map(len, labels)))
    columns = count if count < 4 else 2 if count == 4 else 3
    rows, width = -(-count // columns), COLUMN if count == 1 else PAGE
    height = rows * (3 if columns < 3 else 2.25) + 0.14 * -(-len(names) // legend_columns)
    drawing, grid = new_figure(width, height, rows, columns, squeeze=False)
    for axes in grid.flat[count:]:
        axes.set_axis_off()
    for axes, (name, own) in zip(grid.flat, points.items(), strict=False):
        positions = _embedding(own.E)
        few_points = len(positions) <= 150
        for m, modality in enumerate(own.run.attributes["modalities"]):
            chosen = own.modality == m
            if not chosen.any():
                continue
            axes.scatter(
                *positions[chosen].T, 20 if few_points else 8, shades[own.label[chosen]],
                marker=marker(names.index(modality)), linewidths=0.2, edgecolors="white",
            )  # fmt: skip
        if few_points:
            for position, k in zip(positions, own.client, strict=True):
                axes.annotate(f"{k}", position, (2.2, 1.2), textcoords="offset points", fontsize=4, color=GREY)
        axes.set_title(wrap(name, 15 * width / columns, own.remark))
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_visible(True)
        axes.margins(0.06)
    if few_classes:
        dots = [Line2D([], [], color=shades[c], marker="o", linestyle="") for c in range(C)]
        drawing.legend(dots, [f"{c}" for c in range(C)], title="class", **legend_options("upper", 10))
    else:
        scale = colour_scale(0, C - 1)
        drawing.colorbar(scale, ax=list(grid.flat), label="class", location="top", aspect=40, shrink=0.8)
    markers = [Line2D([], [], color=GREY, marker=marker(i), linestyle="") for i in range(len(names))]
    legend = drawing.legend(
        markers, labels, title=label(fill(note, int(22 * width))), title_fontsize=6,
        **legend_options("lower", legend_columns),
    )  # fmt: skip
    legend.get_title().set_color(GREY)
    add_remark(drawing, runs)
    return drawing


@styled()
def feature_spaces(run: Run) -> Figure:
    """Whether clients share a feature space, and whether averages of their prototypes fall on the right classes.

    Left and middle: the cosine similarity, and the distance, of two prototypes of different clients, by class and
    modality: the clients' own (E) and, for MFedPBA, what the server's autoencoder makes of them (P). Distances are
    divided by the median over pairs of different classes. In a shared space, pairs of the same class are more similar
    and closer than the others.

    Right: the margin 1 - d(x, E_k,c) / min_c' d(x, E_k,c') of a global prototype x of class c, seen by a client k that
    owns its modality: 1 if x is the client's own prototype, 0 on the boundary to another class, negative beyond it. x
    is the plain average over the clients with the class and the modality (at least two), the average over all
    modalities, or the P_G of MFedPBA. A note says how many margins are negative.

    Boxes are the quartiles, whiskers the central 90%; the axis of margins ends at -2. At most 2000 prototypes, drawn at
    random, are paired.
    """
    own = _owned_prototypes(run)
    spaces, margins = {"$E$": own.E}, _margins(run, own)
    if (P := _projected(run, own)) is not None:
        spaces["$P$"] = P
    pairs = {name: _pairs(own, X) for name, X in spaces.items()}
    drawing, axes = new_figure(PAGE, 2.3, 1, 3, width_ratios=(1, 1, 0.95))
    for i, title in enumerate(("cosine similarity", "distance / median")):
        groups = [[values[i] for values in pairs[name].values()] for name in spaces]
        _boxes(axes[i], groups, [colour(j) for j in range(len(spaces))])
        axes[i].set_xlabel(title)
        axes[i].axhline(1.5, color="#dddddd", linewidth=0.4)
    axes[0].set_yticks(range(4), [f"{modality},\n{classes}" for modality, classes in _PAIRS])
    axes[1].set_yticks(range(4), [""] * 4)
    _boxes(axes[2], [list(margins.values())], [colour(2)])
    axes[2].set_yticks(range(len(margins)), margins)
    axes[2].set_xlabel("margin (0: boundary)")
    axes[2].axvline(0, color="black", linewidth=0.8, zorder=1)
    axes[2].set_xlim(max(axes[2].get_xlim()[0], -2), 1.05)
    for i, values in enumerate(margins.values()):
        if len(values):
            axes[2].text(1.05, i - 0.41, f"{np.mean(values < 0):.0%} below 0", ha="right", fontsize=6, color=GREY)
    names = ["clients' prototypes $E$", "after the autoencoder, $P$"][: len(spaces)]
    handles = [Patch(color=colour(j)) for j in range(len(spaces))]
    drawing.legend(handles, names, **legend_options("upper", 2) | {"columnspacing": 2, "handlelength": 1})
    add_remark(drawing, [run])
    return drawing


@styled()
def structures(run: Run) -> Figure:
    """Distances between classes in P_G of each modality and in I_G; alignment makes the former resemble the latter.

    The distances are squared Euclidean, divided by their mean. Absent classes are grey. The second group of panels, if
    the run has it, shows the transport plans from the classes of I_G (rows) to those of P_G (columns), each row as
    shares that sum to 1. Aligned structures have a bright diagonal.
    """
    if "P_G" not in run.final or "I_G" not in run.final:
        raise NoData(f"{run.path}: no global prototypes; only complete runs of MFedPBA have them")
    final, names = run.final, modality_names(run, 10)
    present = [*(final["P_present"] > 0), final["I_present"] > 0]
    distances = [_distances(X, there) for X, there in zip([*final["P_G"], final["I_G"]], present, strict=True)]
    groups = [(list(zip([*names, "$I_G$"], distances, strict=True)), "distance / mean", "class")]
    if "plan" in final:
        shares = [plan * there.sum() for plan, there in zip(final["plan"], present, strict=False)]
        groups.append((list(zip(names, shares, strict=True)), "share of a row", "class in $I_G$"))
    columns = min(len(distances), 7)
    rows_of = [-(-len(panels) // columns) for panels, *_ in groups]
    size = min(1.2, (PAGE - 0.9) / columns)
    height = sum(rows_of) * (size + 0.24) + (0.15 if run.remark else 0)
    drawing, grid = new_figure(max(COLUMN, size * columns + 0.9), height, sum(rows_of), columns, squeeze=False)
    for axes in grid.flat:
        axes.set(xticks=[], yticks=[])
        axes.set_axis_off()
    first = 0
    for i, ((panels, scale_label, row_label), rows) in enumerate(zip(groups, rows_of, strict=True)):
        part = grid[first : first + rows]
        first += rows
        highest = max((np.nanmax(value, initial=0) for _, value in panels), default=0)
        scale = colour_scale(0, 1 if i else min(max(highest, 1), 4))
        for axes, (name, value) in zip(part.flat, panels, strict=False):
            axes.imshow(value, cmap=scale.cmap, norm=scale.norm, interpolation="nearest")
            axes.set_title(name, fontsize=7)
            axes.set_axis_on()
            axes.spines[:].set_visible(True)
            axes.grid(False)
        extend = "max" if highest > 4 else "neither"
        drawing.colorbar(scale, ax=list(part.flat), label=scale_label, aspect=12 * rows, extend=extend)
        part[0, 0].set_ylabel(row_label)
    add_remark(drawing, [run])
    return drawing


def _boxes(axes: Any, groups: Sequence[Sequence[np.ndarray]], colours: Sequence[str]) -> None:
    """Draw horizontal boxes at y = 0, 1, ... from top to bottom, with those of several groups beside each other."""
    size = min(0.7 / len(groups), 0.45)
    for g, (group, shade) in enumerate(zip(groups, colours, strict=True)):
        for y, values in enumerate(group):
            if not len(values):
                axes.text(0.5, y, "none", transform=axes.get_yaxis_transform(), ha="center", va="center", color=GREY)
            else:
                low, q1, middle, q3, high = np.quantile(values, (0.05, 0.25, 0.5, 0.75, 0.95))
                at = y + (g - (len(groups) - 1) / 2) * size
                axes.plot((low, high), (at, at), color=shade, linewidth=0.8)
                axes.barh(at, q3 - q1, 0.8 * size, q1, color=shade, linewidth=0)
                axes.plot((middle, middle), (at - 0.4 * size, at + 0.4 * size), color="white", linewidth=1)
    axes.set_ylim(max(map(len, groups)) - 0.5, -0.5)
    axes.grid(False, axis="y")
    axes.tick_params(axis="y", length=0)


# ---- the data of the figures


@dataclass(frozen=True)
class _Prototypes:
    """A run's prototypes E (N, d) of present classes, with class, modality and client of each (N,)."""

    run: Run
    E: np.ndarray
    label: np.ndarray
    modality: np.ndarray
    client: np.ndarray
    remark: str = ""


def _prototypes_of(run: Run, modalities: int = 0) -> _Prototypes:
    if "E" not in run.final:
        raise NoData(f"{run.path}: no prototypes; only the logs of complete runs contain them")
    E, client, modality = (run.final[name] for name in ("E", "E_client", "E_modality"))
    present = (run.partition["counts"][client] > 0) & np.isfinite(E).all(axis=2)  # (sum |M_k|, C)
    if not present.any():
        raise NoData(f"{run.path}: no prototype is finite")
    if modalities:
        present &= (run.partition["modalities"].sum(axis=1) == modalities)[client, None]
        if not present.any():
            raise NoData(f"{run.path}: no client has {count(modalities, 'modality', 'modalities')}")
    step = -(-int(present.sum()) // MAX_POINTS)
    present &= (client % step == 0)[:, None]
    row, c = np.nonzero(present)
    remark = f"1 in {step} clients" if step > 1 else ""
    return _Prototypes(run, E[row, c], c, modality[row], client[row], remark)


@dataclass(frozen=True)
class _Owned:
    """Prototypes E (R, C, d) of all clients, with client and modality (R,) and which are `present` (R, C)."""

    E: np.ndarray
    client: np.ndarray
    modality: np.ndarray
    present: np.ndarray


def _owned_prototypes(run: Run) -> _Owned:
    """The prototypes that a server can receive: those of classes with enough training samples."""
    _prototypes_of(run)  # raises if there are none
    E, client, modality = (run.final[name] for name in ("E", "E_client", "E_modality"))
    config = run.attributes["config"]
    enough = config.get(config["method"], {}).get("min_class_samples", 1)
    present = (run.partition["counts"][client] >= enough) & np.isfinite(E).all(axis=2)
    if len(np.unique(client[present.any(axis=1)])) < 2:
        raise NoData(f"{run.path}: fewer than two clients have prototypes")
    return _Owned(E.astype(float), client, modality, present)


def _projected(run: Run, own: _Owned) -> np.ndarray | None:
    """P_k^m = psi(Phi_m(E_k^m)) (R, C, d) by the run's autoencoder; None for runs without one."""
    if "P_G" not in run.final or run.attributes["method"] != "mfedpba":
        return None
    if "encoder_weight" not in run.final:
        if run.attributes["config"]["mfedpba"].get("global_prototypes", "trained") in ("mean", "zero"):
            return None
        raise NoData(f"{run.path}: no autoencoder; the log was written by an older version")
    W, b, V, c = (run.final[f"{part}_{kind}"] for part in ("encoder", "decoder") for kind in ("weight", "bias"))
    return np.maximum(own.E @ W[own.modality] + b[own.modality], 0) @ V + c


_PAIRS = (("same modality", "same class"), ("same modality", "other class"),
          ("other modality", "same class"), ("other modality", "other class"))  # fmt: skip


def _pairs(own: _Owned, X: np.ndarray) -> dict[tuple[str, str], tuple[np.ndarray, np.ndarray]]:
    """Cosine similarities and relative distances of prototypes X (R, C, d) of different clients, by kind of pair."""
    from scipy.spatial.distance import pdist

    row, c = np.nonzero(own.present)
    chosen = np.sort(np.random.default_rng(0).permutation(len(row))[:MAX_PAIRED])
    row, c = row[chosen], c[chosen]
    i, j = np.triu_indices(len(row), 1)
    others = own.client[row[i]] != own.client[row[j]]
    same_class, same_modality = (c[i] == c[j])[others], (own.modality[row[i]] == own.modality[row[j]])[others]
    similarity, distance = 1 - pdist(X[row, c], "cosine")[others], pdist(X[row, c])[others]
    if not same_class.all():
        distance /= np.median(distance[~same_class])
    found = {}
    for modality, classes in _PAIRS:
        kind = (same_modality == modality.startswith("same")) & (same_class == classes.startswith("same"))
        found[modality, classes] = similarity[kind], distance[kind]
    return found


def _margins(run: Run, own: _Owned) -> dict[str, np.ndarray]:
    """The margins of global prototypes in the spaces of their clients, by the name of the global prototype."""
    E, present = own.E, own.present[..., None]

    def mean(rows: np.ndarray) -> np.ndarray:
        """Plain average (C, d) of the present prototypes of some rows; NaN where fewer than two clients have one."""
        total, n = np.where(present[rows], E[rows], 0).sum(axis=0), present[rows].sum(axis=0)
        owners = np.array([len(np.unique(own.client[rows & own.present[:, c]])) for c in range(E.shape[1])])
        return np.where(owners[:, None] >= 2, total / np.maximum(n, 1), np.nan)

    M = len(run.attributes["modalities"])
    everyone = np.ones(len(E), bool)
    globals_ = {
        "average over\nall modalities": np.broadcast_to(mean(everyone), (M, *E.shape[1:])),
        "average of the\nmodality": np.stack([mean(own.modality == m) for m in range(M)]),
    }
    if "P_G" in run.final and run.final["P_G"].ndim == 3 and "P_present" in run.final:
        there = (run.final["P_present"] > 0)[..., None]
        globals_["$P_G$ of MFedPBA"] = np.where(there, run.final["P_G"], np.nan)
    return {name: _margin(own, X[own.modality]) for name, X in globals_.items()}


def _margin(own: _Owned, X: np.ndarray) -> np.ndarray:
    """The margins of X (R, C, d), one for each class that a row has if it has others; without those that are NaN."""
    found = []
    for E, x, present in zip(own.E, X, own.present, strict=True):
        if present.sum() > 1:
            D = np.linalg.norm(x[present][:, None] - E[present], axis=-1)  # (classes of x, classes of E)
            to_own = D.diagonal().copy()
            np.fill_diagonal(D, np.inf)
            found.append(1 - to_own / D.min(axis=1))
    values = np.concatenate([np.zeros(0), *found])
    return values[np.isfinite(values)]


def _embedding(X: np.ndarray) -> np.ndarray:
    """t-SNE of X (N, d) in the plane, (N, 2). Initialised with principal components, so equal X give equal results."""
    from sklearn.manifold import TSNE

    X = X - X.mean(axis=0)
    U, s, _ = np.linalg.svd(X.astype(float), full_matrices=False)
    start = np.zeros((len(X), 2))
    start[:, : min(2, len(s))] = (U * s)[:, :2]
    start *= 1e-4 / max(start[:, 0].std(), 1e-12)
    if len(X) < 4:  # too few points for t-SNE
        return start
    method = "exact" if len(X) < 300 else "barnes_hut"
    perplexity = min(30.0, len(X) ** 0.5)
    tsne = TSNE(perplexity=perplexity, init=start.astype(np.float32), method=method, random_state=0, n_jobs=1)
    return tsne.fit_transform(X.astype(np.float32))


def _distances(X: np.ndarray, present: np.ndarray) -> np.ndarray:
    """Squared distances of the present rows of X (C, d) divided by their mean, (C, C); NaN for absent rows."""
    from scipy.spatial.distance import cdist

    D = np.full((len(X), len(X)), np.nan)
    distances = cdist(X[present], X[present], "sqeuclidean")
    if distances.any():
        distances /= distances.mean()
    D[np.ix_(present, present)] = distances
    return D
