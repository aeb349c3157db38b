"""The style of all figures: sizes that fit a paper's columns, a colour-blind safe palette, and the remark on the data.

Figures are made without pyplot, so there is no global state, no display is needed, and any thread can make one.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import colormaps
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from mfedpba_mpi.errors import UserError
from mfedpba_mpi.records.run import Run, joint_remark

COLUMN, PAGE = 3.25, 6.75  # inches: widths of a column and of a page in ICML's format
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")  # Okabe and Ito
GREY = "#777777"
MAX_NAME = 24  # characters of a modality's name
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">", "h", "p")
RC: Any = {
    "font.family": ["STIXGeneral", "DejaVu Sans"],  # the second for characters that the first lacks
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
    """Use the style for figures drawn or saved in this context. Also a decorator: ``@styled()``."""
    with matplotlib.rc_context(RC):
        yield


@contextmanager
def _rendering() -> Iterator[None]:
    """Use the style, without warnings about characters that no installed font has. They are drawn as boxes."""
    with styled(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph \d+ .*missing from font")
        yield


def caption_of(draw: Callable[..., Any]) -> str:
    """The caption of a figure: the docstring of the function that draws it, without its parameters."""
    return " ".join((draw.__doc__ or "").partition("Parameters\n")[0].split())


class _NotebookFigure(Figure):
    """A figure that notebooks display as an image, with or without ``%matplotlib inline``."""

    def _repr_png_(self) -> bytes:
        with _rendering(), io.BytesIO() as file:
            self.savefig(file, format="png", dpi=150)
            return file.getvalue()


def new_figure(
    width: float = COLUMN, height: float = 2.2, rows: int = 1, columns: int = 1, **options: Any
) -> tuple[Figure, Any]:
    """A figure of this size in inches, and its axes, like ``pyplot.subplots``."""
    figure = _NotebookFigure(figsize=(width, height))
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, **options)


def colour(i: int) -> str:
    """The i-th colour of the palette, cyclically."""
    return PALETTE[i % len(PALETTE)]


def marker(i: int) -> str:
    """The i-th marker, cyclically."""
    return MARKERS[i % len(MARKERS)]


def label(text: object, max_length: int | None = None) -> str:
    """Text to be shown literally: dollar signs, which start mathematics, are escaped. Long text is cut with an …"""
    shown = str(text)
    if max_length and len(shown) > max_length:
        shown = f"{shown[: max_length - 1]}…"
    return shown.replace("$", r"\$")


def capitalised(text: str) -> str:
    """Text with a capital first letter."""
    return text[:1].upper() + text[1:]


def add_remark(figure: Figure, runs: Sequence[Run]) -> None:
    """Add the runs' joint remark below the figure, see `Run.remark`."""
    if remark := joint_remark(run.remark for run in runs):
        add_note(figure, remark)


def add_note(figure: Figure, text: str) -> None:
    """Add small text below the figure, on the right."""
    figure.supxlabel(label(text), fontsize=6, color=GREY, x=0.99, ha="right")


def save(figure: Figure, stem: str | Path) -> None:
    """Write ``STEM.png`` and ``STEM.pdf``."""
    stem = Path(stem)
    with _rendering():
        figure.savefig(stem.with_name(f"{stem.name}.png"), dpi=200)
        figure.savefig(stem.with_name(f"{stem.name}.pdf"), metadata={"CreationDate": None})


def svg(figure: Figure) -> str:
    """The figure as SVG. Equal figures give equal text."""
    with _rendering(), io.StringIO() as file:
        figure.savefig(file, format="svg", metadata={"Date": None})
        return file.getvalue()


# ---- for figures of runs


class NoData(UserError):
    """The run lacks the data of a figure, perhaps only so far."""


def modality_names(run: Run, max_length: int = MAX_NAME) -> list[str]:
    """The names of the modalities, cut if they are long."""
    return [label(name, max_length) for name in run.attributes["modalities"]]


def legend_options(side: str, columns: int) -> dict[str, Any]:
    """Options of a legend above (``upper``) or below (``lower``) all axes."""
    return {
        "loc": f"outside {side} center", "ncols": columns, "handlelength": 1.4, "columnspacing": 0.9,
        "handletextpad": 0.4,
    }  # fmt: skip


def colour_scale(low: float, high: float) -> Any:
    """Viridis from `low` to `high`, and grey for missing values."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    return ScalarMappable(Normalize(low, high), colormaps["viridis"].with_extremes(bad="#dddddd"))
