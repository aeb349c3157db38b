"""From files as they are passed round to the feature store.

One layout is read so far: HDF5 with the views ``X0``, ``X1``, ... and the labels ``y`` (0..C-1). A dense view is a
dataset (N, width); a sparse one a group with ``data``, ``indices``, ``indptr``, ``shape`` (CSR). ``class_names`` and
the attributes ``n_classes`` and ``view_names`` are used where they are there; all attributes go into the provenance.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import h5py
import numpy as np
from scipy.sparse import csr_matrix, issparse

from mfedpba_mpi.data.catalog import CATALOG, Dataset, Modality, check_name
from mfedpba_mpi.data.store import Values, plain, reading, write_store
from mfedpba_mpi.errors import UserError

LAYOUT = "views X0, X1, ... (datasets, or groups data/indices/indptr/shape) and labels y"


def import_file(name: str, source: Path, out: Path) -> None:
    """Write the dataset in `source` as the feature store `out`.

    A name of the catalog asks for that dataset's shape; another name makes a new dataset, with the modality types of
    the catalog entry that its name starts with (``reuters_1200``: L), else I.
    """
    check_name(name)
    if source.suffix not in (".h5", ".hdf5"):
        raise UserError(f"cannot import {source}: for now only .h5 files with {LAYOUT}")
    with reading(source, None, None, f"expected are {LAYOUT}") as file:
        views = [_view(file[f"X{m}"]) for m in range(max(1, sum(key[:1] == "X" for key in file)))]
        labels = np.ravel(file["y"][()])
        classes = int(file.attrs.get("n_classes", labels.max() + 1))
        names = [plain(value) for value in file["class_names"][()]] if "class_names" in file else None
        attributes = {key: _words(value) for key, value in file.attrs.items()}
        view_names = [plain(value) for value in np.ravel(file.attrs.get("view_names", []))]
    if np.issubdtype(labels.dtype, np.floating) and np.array_equal(labels, np.rint(labels)):
        labels = labels.astype(np.int64)
    info = _describe(name, len(labels), classes, views, view_names)
    provenance = {"file": source.name, "sha256": _sha256(source), **attributes}
    write_store(out, info, labels, views, "real", provenance, names)


def _view(item: h5py.Dataset | h5py.Group) -> Values:
    """A view as a matrix of numbers, or a ValueError."""
    if isinstance(item, h5py.Dataset):
        values = item[()]
    else:
        parts = (item["data"][()], item["indices"][()], item["indptr"][()])
        values = csr_matrix(parts, shape=tuple(item["shape"][()]))
        values.check_format(full_check=True)  # before an index out of range crashes something
    if values.ndim != 2 or values.dtype.kind not in "biuf":
        raise ValueError(f"{item.name[1:]} is no matrix of numbers")
    return values


def _words(value: object) -> str:
    """An attribute as text; a list with commas."""
    return ", ".join(map(plain, value.ravel())) if isinstance(value, np.ndarray) else plain(value)


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _describe(name: str, samples: int, classes: int, views: list[Values], view_names: Sequence[str]) -> Dataset:
    """What was found, with the catalog's names and types; a UserError where a catalog name does not fit."""
    widths = [view.shape[1] for view in views]
    base = next((entry for key, entry in CATALOG.items() if name.startswith(key)), None)
    known = base.modalities if base and len(base.modalities) == len(views) else ()
    if base and base.name == name:
        expected = (base.samples, base.classes, [modality.width for modality in base.modalities])
        if (samples, classes, widths) != expected:
            raise UserError(
                f"{name} has {_shape(*expected)}; the file has {_shape(samples, classes, widths)}; a subset or "
                f"variant keeps a name of its own, for example {name}_{samples}"
            )
    names = [m.name for m in known] or (
        view_names if len(view_names) == len(views) else [f"V{m}" for m in range(len(views))]
    )
    types = [m.type for m in known] or ["I" if base is None else base.modalities[0].type] * len(views)
    modalities = tuple(map(Modality, names, types, widths, map(issparse, views)))
    return Dataset(name, samples, classes, modalities, base.note if base else "")


def _shape(samples: int, classes: int, widths: Sequence[int]) -> str:
    return f"{samples} samples, {classes} classes and {len(widths)} views of widths {', '.join(map(str, widths))}"
