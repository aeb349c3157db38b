"""The one style of all figures: sizes of a paper's columns, a palette for all eyes, and the mark of synthetic data.

Figures are made without pyplot: nothing is global, no display is needed, and any thread may make one.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import matplotlib
from matplotlib import colormaps
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from mfedpba_mpi.errors import UserError
from mfedpba_mpi.records.run import Run, joint_remark

P = ParamSpec("P")
T = TypeVar("T")

COLUMN, PAGE = 3.25, 6.75  # inches: a column and a page of ICML's
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")  # Okabe and Ito's
GREY = "#777777"
LONGEST = 24  # letters of a name
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">", "h", "p")
RC: Any = {
    "font.family": ["STIXGeneral", "DejaVu Sans"],  # the second one where the first lacks a letter
    "mathtext.fontset": "stix",
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.4,
    "lines.linewidth": 1.0,
    "lines.markersize": 3.5,
    "figure.constrained_layout.use": True,
    "figure.facecolor": "white",
    "pdf.fonttype": 42,
    "svg.fonttype": "path",
    "svg.hashsalt": "mfedpba-mpi",
}


@contextmanager
def styled() -> Iterator[None]:
    """What is drawn, and what is saved, in here has the style."""
    with matplotlib.rc_context(RC):
        yield


@contextmanager
def _drawing() -> Iterator[None]:
    """The style, and no word about letters that no font at hand has: they are boxes, and the rest is well."""
    with styled(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph \d+ .*missing from font")
        yield


def figure(draw: Callable[P, T]) -> Callable[P, T]:
    """A function that draws a figure, with the style around all of it."""

    @wraps(draw)
    def with_style(*args: P.args, **options: P.kwargs) -> T:
        with styled():
            return draw(*args, **options)

    return with_style


def caption_of(draw: Callable[..., Any]) -> str:
    """What a figure shows, in the words of the function that draws it."""
    return " ".join((draw.__doc__ or "").partition("Parameters\n")[0].split())


class _Shown(Figure):
    """A figure that a notebook shows as a picture, with or without ``%matplotlib inline``."""

    def _repr_png_(self) -> bytes:
        with _drawing(), io.BytesIO() as file:
            self.savefig(file, format="png", dpi=150)
            return file.getvalue()


def new(
    width: float = COLUMN, height: float = 2.2, rows: int = 1, columns: int = 1, **options: Any
) -> tuple[Figure, Any]:
    """A figure of so many inches and its axes, as ``pyplot.subplots`` would make them."""
    figure = _Shown(figsize=(width, height))
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, **options)


def colour(i: int) -> str:
    """The i-th colour, from the first again after the last."""
    return PALETTE[i % len(PALETTE)]


def marker(i: int) -> str:
    """The i-th marker, from the first again after the last."""
    return MARKERS[i % len(MARKERS)]


def label(text: object, most: int | None = None) -> str:
    """Text as it is, whatever is in it: a dollar sign would start mathematics. Past `most` characters it ends in …"""
    words = str(text)
    if most and len(words) > most:
        words = f"{words[: most - 1]}…"
    return words.replace("$", r"\$")


def mark(figure: Figure, runs: Sequence[Run]) -> None:
    """Say below the figure what must be said of its data."""
    if remark := joint_remark(run.remark for run in runs):
        note(figure, remark)


def note(figure: Figure, words: str) -> None:
    """Small words below the figure, on the right."""
    figure.supxlabel(label(words), fontsize=6, color=GREY, x=0.99, ha="right")


def save(figure: Figure, stem: str | Path) -> None:
    """``STEM.png`` and ``STEM.pdf``."""
    stem = Path(stem)
    with _drawing():
        figure.savefig(stem.with_name(f"{stem.name}.png"), dpi=200)
        figure.savefig(stem.with_name(f"{stem.name}.pdf"), metadata={"CreationDate": None})


def svg(figure: Figure) -> str:
    """The figure as SVG, the same text for the same figure."""
    with _drawing(), io.StringIO() as file:
        figure.savefig(file, format="svg", metadata={"Date": None})
        return file.getvalue()


# ---- what figures of runs share


class NoData(UserError):
    """The run has not (yet) got what a figure shows."""


def modalities(run: Run, most: int = LONGEST) -> list[str]:
    """The names of the modalities, long ones cut."""
    return [label(name, most) for name in run.attributes["modalities"]]


def outside(side: str, columns: int) -> dict[str, Any]:
    """Where a legend is to go: above (``upper``) or below the axes."""
    return {
        "loc": f"outside {side} center", "ncols": columns, "handlelength": 1.4, "columnspacing": 0.9,
        "handletextpad": 0.4,
    }  # fmt: skip


def colours(low: float, high: float) -> Any:
    """Viridis from low to high, grey for what is missing."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    return ScalarMappable(Normalize(low, high), colormaps["viridis"].with_extremes(bad="#dddddd"))
