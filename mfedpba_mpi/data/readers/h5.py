"""HDF5 files with the views ``X0``, ``X1``, ... and the labels ``y``.

A dense view is a dataset (N, width); a sparse one is a group with ``data``, ``indices``, ``indptr``, ``shape`` (CSR).
``class_names`` and the attributes ``n_classes`` and ``view_names`` are optional. All attributes go into the provenance.
"""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
from scipy.sparse import csr_matrix

from mfedpba_mpi.data.readers.source import Source
from mfedpba_mpi.data.store import FORMAT as STORE
from mfedpba_mpi.data.store import Values, decode_text, member, reading
from mfedpba_mpi.errors import UserError

FORMAT = "HDF5 (.h5): views X0, X1, ... (datasets, or groups data/indices/indptr/shape) and labels y"


def recognises(path: Path) -> bool:
    """Whether the suffix is .h5 or .hdf5."""
    return path.suffix in (".h5", ".hdf5")


def read(path: Path, scratch: Path) -> Source:
    """Read the views X0, X1, ... and the labels y of an HDF5 file; `scratch` is unused."""
    with reading(path, None, None, f"expected {FORMAT}") as file:
        if decode_text(file.attrs.get("format")) == STORE:
            raise UserError(f"{path} is already a feature store; run it with `--dataset {path}`")
        views = [_view(member(file, f"X{m}")) for m in range(max(1, sum(key[:1] == "X" for key in file)))]
        class_names = (
            [decode_text(value) for value in member(file, "class_names")[()]] if "class_names" in file else None
        )
        return Source(
            views,
            np.ravel(member(file, "y")[()]),
            [path],
            view_names=[decode_text(value) for value in np.ravel(file.attrs.get("view_names", []))],
            class_names=class_names,
            classes=int(file.attrs.get("n_classes", len(class_names or ()))),
            details={key: _attribute_text(value) for key, value in file.attrs.items()},
        )


def _view(item: h5py.Dataset | h5py.Group) -> Values:
    """Read a view as a numeric matrix, or raise a ValueError."""
    if isinstance(item, h5py.Dataset):
        values = item[()]
    else:
        *parts, shape = (member(item, name)[()] for name in ("data", "indices", "indptr", "shape"))
        values = csr_matrix(tuple(parts), shape=tuple(shape))
        values.check_format(full_check=True)  # an index out of range would crash scipy
    if values.ndim != 2 or values.dtype.kind not in "biuf":
        raise ValueError(f"{item.name[1:]} is not a numeric matrix")
    return values


def _attribute_text(value: object) -> str:
    """Return an attribute as text; list items are separated by commas."""
    return ", ".join(map(decode_text, value.ravel())) if isinstance(value, np.ndarray) else decode_text(value)
