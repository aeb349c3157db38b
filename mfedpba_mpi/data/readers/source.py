"""The reader interface, and its result: views and labels as found in the files, not yet matched with the catalog.

A reader is a module with

* ``FORMAT``, a one-line description of the format for the user,
* ``recognises(path)``, whether `path` looks like this format (cheap: names and first bytes; never raises), and
* ``read(path, scratch)``, which returns a `Source` or raises a one-line UserError with the file and the problem. A
  reader that takes minutes saves partial results in the directory `scratch`, from which an interrupted import
  continues. It creates the directory on demand; the importer removes it once the dataset is written.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np

from mfedpba_mpi.data.store import Values


@dataclass
class Source:
    """N samples: `views` are (N, width) numeric matrices, dense or CSR; `labels` are (N,) numbers or strings."""

    views: list[Values]
    labels: np.ndarray
    files: list[Path]  # all files read; their digest goes into the provenance
    view_names: list[str] = field(default_factory=list)  # empty, or one for each view
    class_names: list[str] | None = None  # for the labels in sorted order, if the files contain names
    classes: int = 0  # if the files contain the number; 0: count the distinct labels
    details: dict[str, str] = field(default_factory=dict)  # added to the provenance


class Reader(Protocol):
    """Interface of the modules that read one format each."""

    FORMAT: str

    def recognises(self, path: Path) -> bool: ...
    def read(self, path: Path, scratch: Path) -> Source: ...


def draw_evenly(labels: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Draw `count` samples, the same number from every class, or all of a smaller class; return sorted positions.

    The other classes make up for small ones; if the rest is not divisible, the first classes in sorted order get one
    more.
    """
    values, sizes = np.unique(labels, return_counts=True)
    quota = np.zeros_like(sizes)
    for _ in range(min(count, int(sizes.sum()))):
        open_classes = np.flatnonzero(quota < sizes)
        quota[open_classes[quota[open_classes].argmin()]] += 1
    parts = [rng.permutation(np.flatnonzero(labels == v))[:q] for v, q in zip(values, quota, strict=True)]
    return np.sort(np.concatenate(parts))


def describe_draw(available: int, count: int) -> str:
    """Describe the result of `draw_evenly` for the provenance."""
    return f"{count} drawn evenly" if available > count else f"all, as there are no more than {count}"
