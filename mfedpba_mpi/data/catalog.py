"""What each dataset is: samples, classes and modalities, without any of its values."""

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
}  # decide which extractor families may be drawn

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")  # a safe name of a dataset, and of its file


@dataclass(frozen=True)
class Modality:
    """One feature vector per sample: `width` numbers of a type (a key of TYPES)."""

    name: str
    type: str
    width: int
    sparse: bool = False

    def __post_init__(self) -> None:
        if not self.name:
            raise UserError("modality: its name is empty; give it one")
        if self.type not in TYPES:
            known = ", ".join(f"{key} ({words})" for key, words in TYPES.items())
            raise UserError(f"modality {self.name}: type {self.type!r} is not known; choose from: {known}")
        if self.width < 1:
            raise UserError(f"modality {self.name}: width {self.width} is out of range; allowed: >= 1")


@dataclass(frozen=True)
class Dataset:
    """N samples of C classes, each seen through the same M modalities."""

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
    """A catalog entry; `views` reads ``name:type:width ...``."""
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
    """Where feature stores are kept unless a directory is given."""
    return Path(os.environ.get(DATA_DIR_VARIABLE) or "data")


Loader = Callable[[], tuple[Any, Sequence[Any]]]
"""Gives the labels, (N,) whole numbers from 0, and the values of each modality, (N, width), dense or CSR."""

LOADERS: dict[str, tuple[Dataset, Loader, str]] = {}


def register_dataset(info: Dataset, loader: Loader, origin: str = "real") -> None:
    """Make a dataset of your own known by its name; the first run that uses it stores what `loader` gives.

    From then on the store, DATA_DIR/NAME.h5, is what is read: delete it to have `loader` called again. `origin` is
    ``real``, or ``synthetic`` for made-up data, which is then said wherever its numbers are shown. See examples/.
    """
    if info.name in CATALOG or info.name == "synthetic":
        raise ValueError(f"{info.name} comes with the program; call yours something else")
    if origin not in ("real", "synthetic"):
        raise ValueError(f"origin of {info.name}: '{origin}' is neither real nor synthetic")
    LOADERS[check_name(info.name)] = info, loader, origin


def base_of(name: str) -> Dataset | None:
    """The catalog entry that a name is, or is a variant of (``reuters_1200``, ``nus-wide-8``); None for any other."""
    return next((entry for key, entry in CATALOG.items() if re.fullmatch(rf"{re.escape(key)}([_-].*)?", name)), None)


def printable(text: str) -> str:
    """`text` on one line, with a blank for every character that would do something to a terminal."""
    return "".join(c if c.isprintable() else " " for c in text)


def check_name(name: str) -> str:
    """`name` if it is a safe file name (letters, digits, ``-``, ``_``, ``.``), else a UserError."""
    if not NAME.fullmatch(name):
        raise UserError(
            f"'{name}' cannot name a dataset; use letters, digits, '-', '_' and '.', starting with a letter or digit"
        )
    return name
