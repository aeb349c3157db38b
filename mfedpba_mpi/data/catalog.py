"""Catalog of datasets: number of samples and classes, and the modalities of each."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mfedpba_mpi.errors import UserError

DATA_DIR_VARIABLE = "MFEDPBA_DATA_DIR"

TYPES = {
    "I": "image",
    "L": "language",
    "A": "audio",
    "T": "time series",
}  # the type restricts which extractor families a client may draw

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")  # valid dataset names; they become file names


@dataclass(frozen=True)
class Modality:
    """A modality: one feature vector of length `width` per sample; `type` is a key of TYPES."""

    name: str
    type: str
    width: int
    sparse: bool = False

    def __post_init__(self) -> None:
        if not self.name:
            raise UserError("modality: the name is empty; give it a name")
        if self.type not in TYPES:
            known = ", ".join(f"{key} ({name})" for key, name in TYPES.items())
            raise UserError(f"modality {self.name}: unknown type {self.type!r}; choose from: {known}")
        if self.width < 1:
            raise UserError(f"modality {self.name}: width {self.width} is out of range; allowed: >= 1")


@dataclass(frozen=True)
class Dataset:
    """Shape of a dataset: N samples of C classes, each with the same M modalities."""

    name: str
    samples: int
    classes: int
    modalities: tuple[Modality, ...]
    note: str = ""

    def __post_init__(self) -> None:
        names = [modality.name for modality in self.modalities]
        if not names:
            raise UserError(f"dataset {self.name} has no modalities; give it at least one")
        if len(set(names)) < len(names):
            raise UserError(f"dataset {self.name}: two modalities have the same name: {', '.join(names)}; rename one")
        if self.classes < 2:
            raise UserError(f"dataset {self.name}: classes {self.classes} is out of range; allowed: >= 2")


def _dataset(name: str, samples: int, classes: int, views: str, note: str, sparse: bool = False) -> Dataset:
    """Build a catalog entry; the format of `views` is ``name:type:width ...``."""
    parts = [view.split(":") for view in views.split()]
    return Dataset(name, samples, classes, tuple(Modality(n, t, int(w), sparse) for n, t, w in parts), note)


CATALOG: dict[str, Dataset] = {
    entry.name: entry
    for entry in (
        _dataset("caltech101", 9144, 102, "I1:I:1984 I2:I:512 I3:I:928", "Caltech-101 images: HOG, GIST, LBP."),
        _dataset(
            "reuters",
            18758,
            6,
            "L1:L:21531 L2:L:24892 L3:L:34251 L4:L:15506 L5:L:11547",
            "Reuters multilingual news: TF-IDF of the English, French, German, Italian and Spanish texts.",
            sparse=True,
        ),
        _dataset(
            "nus-wide",
            5000,
            10,
            "I1:I:64 I2:I:144 I3:I:225 L:L:500",
            "NUS-WIDE web images: colour histogram, correlogram, colour moments, bag of words.",
        ),
        _dataset(
            "youtube",
            2000,
            10,
            "I1:I:2000 I2:I:1024 T:T:64 A1:A:512 A2:A:64 A3:A:647",
            "YouTube video games. The labels are the paper's; UCI names these widths, in this order, audio_mfcc, "
            "audio_spectrogram_stream, audio_volume_stream, vision_cuboids_histogram, vision_hist_motion_estimate, "
            "vision_hog_features.",
        ),
        _dataset(
            "mfeat",
            2000,
            10,
            "fou:I:76 fac:I:216 kar:I:64 pix:I:240 zer:I:47 mor:I:6",
            "UCI Multiple Features: six views of handwritten digits (Fourier, profile correlations, Karhunen-Loeve, "
            "pixels, Zernike moments, morphology).",
        ),
    )
}


def default_data_dir() -> Path:
    """Default directory of the feature stores: $MFEDPBA_DATA_DIR, or ``data``."""
    return Path(os.environ.get(DATA_DIR_VARIABLE) or "data")


Loader = Callable[[], tuple[Any, Sequence[Any]]]
"""Returns the labels, (N,) integers from 0, and the values of each modality, (N, width), dense or CSR."""

LOADERS: dict[str, tuple[Dataset, Loader, str]] = {}


def register_dataset(info: Dataset, loader: Loader, origin: str = "real") -> None:
    """Register a dataset under its name.

    The first run that uses it calls `loader` and writes the store DATA_DIR/NAME.h5. Later runs read the store; delete
    it to call `loader` again. See examples/.

    Parameters
    ----------
    info : Dataset
        Its name and shape.
    loader : callable
        Called without arguments; returns the labels (N,) and a list of M arrays or CSR matrices (N, width).
    origin : str
        ``real`` or ``synthetic``; synthetic data are marked as such wherever their results are shown.
    """
    if info.name in CATALOG or info.name == "synthetic":
        raise ValueError(f"{info.name} is a built-in dataset; choose another name")
    if origin not in ("real", "synthetic"):
        raise ValueError(f"origin of {info.name}: '{origin}' is neither real nor synthetic")
    LOADERS[check_name(info.name)] = info, loader, origin


def base_of(name: str) -> Dataset | None:
    """Return the catalog entry of a name or of a variant (``reuters_1200``, ``nus-wide-8``), None for other names."""
    return next((entry for key, entry in CATALOG.items() if re.fullmatch(rf"{re.escape(key)}([_-].*)?", name)), None)


def printable(text: str) -> str:
    """Return `text` with every non-printable character (line breaks, terminal control codes) replaced by a blank."""
    return "".join(c if c.isprintable() else " " for c in text)


def check_name(name: str) -> str:
    """Return `name` if it is a safe file name (letters, digits, ``-``, ``_``, ``.``), else raise a UserError."""
    if not NAME.fullmatch(name):
        raise UserError(
            f"invalid dataset name '{name}'; use letters, digits, '-', '_' and '.', starting with a letter or digit"
        )
    return name
