"""Write MATLAB files of any version, for tests."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
from scipy.io import savemat
from scipy.sparse import csc_matrix, issparse


def cell(*items: Any) -> np.ndarray:
    """A 1 x n cell array."""
    cells = np.empty((1, len(items)), object)
    for i, item in enumerate(items):
        cells[0, i] = item
    return cells


def write(path: Path, version: str, **variables: Any) -> Path:
    if version == "7.3":
        write_hdf5(path, variables)
    else:
        savemat(path, variables, format="4" if version == "4" else "5", do_compression=version == "7")
    return path


def write_hdf5(path: Path, variables: dict[str, Any]) -> None:
    """Write version 7.3 like MATLAB: HDF5 behind a 512-byte block with a header, dimensions reversed."""
    with h5py.File(path, "w", userblock_size=512) as file:
        refs = file.create_group("#refs#")
        for key, value in variables.items():
            put(file, key, value, refs)
    with open(path, "r+b") as raw:
        raw.write(b"MATLAB 7.3 MAT-file, Platform: GLNXA64, HDF5 schema 1.00 .".ljust(116) + bytes(8) + b"\0\2IM")


def put(group: h5py.Group, name: str, value: Any, refs: h5py.Group) -> None:
    if isinstance(value, dict):
        item = group.create_group(name)
        fields = np.empty(len(value), object)
        fields[:] = [np.array(list(field.encode()), "u1").view("S1") for field in value]
        item.attrs.create("MATLAB_fields", fields, dtype=h5py.vlen_dtype(np.dtype("S1")))
        kind = "struct"
        for field, content in value.items():
            put(item, field, content, refs)
    elif issparse(value):
        value = csc_matrix(value)
        item = group.create_group(name)
        item.attrs["MATLAB_sparse"] = np.uint64(value.shape[0])
        kind = "logical" if value.dtype == bool else "double"
        item["jc"] = value.indptr.astype(np.uint64)
        if value.nnz:
            item["data"], item["ir"] = value.data, value.indices.astype(np.uint64)
    elif isinstance(value, str) or value.dtype.kind == "U":
        rows = [list(row.encode("utf-16-le")) for row in np.ravel(value)]
        item = group.create_dataset(name, data=np.array(rows, "u1").view("<u2").T)
        kind = "char"
    elif value.dtype == object:
        stored = np.empty(value.T.shape, h5py.ref_dtype)
        for at, content in np.ndenumerate(value.T):
            key = f"r{id(content)}"
            if key not in refs:
                put(refs, key, content, refs)
            stored[at] = refs[key].ref
        item, kind = group.create_dataset(name, data=stored), "cell"
    elif value.dtype.kind == "c":
        pairs = np.rec.fromarrays([value.T.real, value.T.imag], names="real,imag")
        item, kind = group.create_dataset(name, data=pairs), "double"
    elif value.dtype == bool:
        item, kind = group.create_dataset(name, data=value.T.astype(np.uint8)), "logical"
    else:
        item = group.create_dataset(name, data=value.T)
        kind = {"float64": "double", "float32": "single"}.get(value.dtype.name, value.dtype.name)
    item.attrs["MATLAB_class"] = np.bytes_(kind)
    if isinstance(value, np.ndarray) and value.size == 0:
        del group[name]
        item = group.create_dataset(name, data=np.array(value.shape, np.uint64))
        item.attrs.update({"MATLAB_class": np.bytes_(kind), "MATLAB_empty": np.uint8(1)})
