"""What a reader finds in files: views and labels as they are there, not yet matched with any dataset.

A reader is a module with

* ``FORMAT``, what it reads, a line for people,
* ``recognises(path)``, whether `path` looks like it (cheap: names and first bytes; never raises), and
* ``read(path, scratch)``, its `Source`, or a UserError of one line that names the file and what is wrong with it. A
  reader that takes minutes keeps what it has done in the directory `scratch`, to go on from there when it is started
  again; it makes the directory when it needs it, and the importer removes it once the dataset is written.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np

from mfedpba_mpi.data.store import Values


@dataclass
class Source:
    """N samples: `views` are (N, width) matrices of numbers, dense or CSR; `labels` are (N,) numbers or texts."""

    views: list[Values]
    labels: np.ndarray
    files: list[Path]  # all that was read; they are digested into the provenance
    view_names: list[str] = field(default_factory=list)  # none, or one for each view
    class_names: list[str] | None = None  # of the labels in sorted order, where the files say more than the labels
    classes: int = 0  # where the files say so; else the number of different labels
    details: dict[str, str] = field(default_factory=dict)  # goes into the provenance


class Reader(Protocol):
    """A module of this package that reads one format."""

    FORMAT: str

    def recognises(self, path: Path) -> bool: ...
    def read(self, path: Path, scratch: Path) -> Source: ...


def draw_evenly(labels: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Sorted positions of `count` samples, from every class the same number, or all of a class that has fewer.

    What small classes lack is spread over the others; where that does not come out even, the classes that come first
    in sorted order get one more.
    """
    values, sizes = np.unique(labels, return_counts=True)
    quota = np.zeros_like(sizes)
    for _ in range(min(count, int(sizes.sum()))):
        open_classes = np.flatnonzero(quota < sizes)
        quota[open_classes[quota[open_classes].argmin()]] += 1
    parts = [rng.permutation(np.flatnonzero(labels == v))[:q] for v, q in zip(values, quota, strict=True)]
    return np.sort(np.concatenate(parts))


def drawn_words(available: int, count: int) -> str:
    """What `draw_evenly` has made of so many samples, for the provenance."""
    return f"{count} drawn evenly" if available > count else f"all, as there are no more than {count}"
