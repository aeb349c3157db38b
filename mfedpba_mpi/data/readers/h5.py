"""HDF5 with the views ``X0``, ``X1``, ... and the labels ``y``.

A dense view is a dataset (N, width); a sparse one a group with ``data``, ``indices``, ``indptr``, ``shape`` (CSR).
``class_names`` and the attributes ``n_classes`` and ``view_names`` are used where they are there; all attributes go
into the provenance.
"""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
from scipy.sparse import csr_matrix

from mfedpba_mpi.data.readers.source import Source
from mfedpba_mpi.data.store import FORMAT as STORE
from mfedpba_mpi.data.store import Values, member, plain, reading
from mfedpba_mpi.errors import UserError

FORMAT = "HDF5 (.h5): views X0, X1, ... (datasets, or groups data/indices/indptr/shape) and labels y"


def recognises(path: Path) -> bool:
    """By suffix."""
    return path.suffix in (".h5", ".hdf5")


def read(path: Path, scratch: Path) -> Source:
    """The views X0, X1, ... and the labels y of an HDF5 file; `scratch` is not used."""
    with reading(path, None, None, f"expected is {FORMAT}") as file:
        if plain(file.attrs.get("format")) == STORE:
            raise UserError(f"{path} is a feature store already: `--dataset {path}` takes it as it is")
        views = [_view(member(file, f"X{m}")) for m in range(max(1, sum(key[:1] == "X" for key in file)))]
        class_names = [plain(value) for value in member(file, "class_names")[()]] if "class_names" in file else None
        return Source(
            views,
            np.ravel(member(file, "y")[()]),
            [path],
            view_names=[plain(value) for value in np.ravel(file.attrs.get("view_names", []))],
            class_names=class_names,
            classes=int(file.attrs.get("n_classes", len(class_names or ()))),
            details={key: _words(value) for key, value in file.attrs.items()},
        )


def _view(item: h5py.Dataset | h5py.Group) -> Values:
    """A view as a matrix of numbers, or a ValueError."""
    if isinstance(item, h5py.Dataset):
        values = item[()]
    else:
        *parts, shape = (member(item, name)[()] for name in ("data", "indices", "indptr", "shape"))
        values = csr_matrix(tuple(parts), shape=tuple(shape))
        values.check_format(full_check=True)  # before an index out of range crashes something
    if values.ndim != 2 or values.dtype.kind not in "biuf":
        raise ValueError(f"{item.name[1:]} is no matrix of numbers")
    return values


def _words(value: object) -> str:
    """An attribute as text; a list with commas."""
    return ", ".join(map(plain, value.ravel())) if isinstance(value, np.ndarray) else plain(value)
