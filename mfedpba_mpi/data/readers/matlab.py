"""Load MATLAB files into a few Python types: versions 4 to 7.2 with scipy, version 7.3 (HDF5) with h5py."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypeAlias

import h5py
import numpy as np
from scipy.io import loadmat
from scipy.io.matlab import MatlabFunction, MatlabObject, MatlabOpaque, MatReadError, matfile_version
from scipy.sparse import csc_matrix, csr_matrix, issparse

from mfedpba_mpi.data.catalog import printable
from mfedpba_mpi.data.store import Values, decode_text, member, reading
from mfedpba_mpi.errors import UserError

_VERSIONS = {0: "4", 1: "5 to 7.2", 2: "7.3"}
_INTEGERS = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
_CLASSES = ("", "double", "single", "logical", *_INTEGERS, "char", "cell", "struct", "canonical empty")


@dataclass(frozen=True)
class Object:
    """A value that only MATLAB can read: a table, a string array, a function, ..."""

    kind: str


# Numeric array, string, cell array (in column order) or rows of a char matrix, struct, or unreadable object.
Value: TypeAlias = "Values | str | list[Value] | dict[str, Value] | Object"


def load(path: Path) -> tuple[str, dict[str, Value]]:
    """Return the format version and all variables of a MAT-file."""
    if not path.is_file():
        raise UserError(f"{path} does not exist or is not a file; give the path of a MAT-file")
    try:
        with open(path, "rb") as file:
            version = _version(path, file)
            return _VERSIONS[version], _load_hdf5(path) if version == 2 else _load_scipy(file)
    except UserError:
        raise
    except Exception as error:  # scipy raises almost anything on damaged files
        reason = printable(str(error)) or type(error).__name__
        raise UserError(f"cannot read {path}: damaged or truncated ({reason}); get or save it again") from error


def _version(path: Path, file: IO[bytes]) -> int:
    try:
        return 2 if h5py.is_hdf5(path) else matfile_version(file)[0]
    except (ValueError, IndexError, MatReadError):
        raise UserError(f"{path} is not a MAT-file; save it with MATLAB's save") from None


def _load_scipy(file: IO[bytes]) -> dict[str, Value]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # e.g. for duplicate variables; the last one is used
        warnings.filterwarnings("error", "Unreadable variable")
        found = loadmat(file)
    return {
        decode_text(value["s0"].item()) if isinstance(value, MatlabOpaque) else key: _from_scipy(value)
        for key, value in found.items()
        if not key.startswith("__")
    }


def _from_scipy(value: np.ndarray | None) -> Value:
    if value is None:  # a struct without fields
        return {}
    if issparse(value):
        return _checked_csr(value)
    if isinstance(value, MatlabOpaque):
        return Object(decode_text(value["s2"].item()))
    if isinstance(value, MatlabObject | MatlabFunction):
        return Object(getattr(value, "classname", "function"))
    if value.dtype.names is not None:
        return {field: _unwrap([_from_scipy(item) for item in value[field].ravel("F")]) for field in value.dtype.names}
    if value.dtype.kind == "O":
        return _cells(map(_from_scipy, value.ravel("F")))
    if value.dtype.kind == "U":
        return _unwrap([str(row).strip("\0 ") for row in value.ravel()])
    return value


def _load_hdf5(path: Path) -> dict[str, Value]:
    with reading(path, None, None, "get or save it again") as file:
        return {key: _from_hdf5(member(file, key), file) for key in file if not key.startswith("#")}


def _from_hdf5(item: h5py.Dataset | h5py.Group, file: h5py.File) -> Value:
    """Convert an HDF5 item; HDF5 stores the dimensions in reverse order."""
    attrs = item.attrs
    kind = decode_text(attrs.get("MATLAB_class", b""))
    if isinstance(item, h5py.Group):
        if "MATLAB_sparse" in attrs:
            return _sparse(item)
        if kind not in ("", "struct"):
            return Object(kind)
        fields = ["".join(map(decode_text, field)) for field in attrs.get("MATLAB_fields", [])] or list(item)
        return {field: _from_hdf5(member(item, field), file) for field in fields}
    if "MATLAB_object_decode" in attrs or kind not in _CLASSES:
        return Object(kind)
    values = item[()]
    if "MATLAB_empty" in attrs:
        empty: dict[str, Value] = {"char": "", "cell": [], "struct": {}}
        return empty[kind] if kind in empty else np.zeros(values.astype(int))
    if item.dtype == h5py.ref_dtype:
        return _cells(_from_hdf5(member(file, reference), file) for reference in np.ravel(values))
    if kind == "char":
        rows = np.atleast_2d(values.T).astype("<u2")
        return _unwrap([row.tobytes().decode("utf-16-le", "replace").strip("\0 ") for row in rows])
    values = np.atleast_2d(_numbers(values).T)
    return values if values.dtype.kind in "biufc" else Object(str(item.dtype))


def _sparse(group: h5py.Group) -> csr_matrix:
    """Read a sparse matrix, stored by columns (CSC); if all values are zero, only ``jc`` exists."""
    ends = member(group, "jc")[()].astype(np.int64)
    rows = member(group, "ir")[()].astype(np.int64) if "ir" in group else np.zeros(0, np.int64)
    values = _numbers(member(group, "data")[()]) if "data" in group else np.zeros(0)
    shape = (int(group.attrs["MATLAB_sparse"]), len(ends) - 1)
    return _checked_csr(csc_matrix((values, rows, ends), shape=shape))


def _numbers(values: np.ndarray) -> np.ndarray:
    """Convert complex numbers, which are (real, imag) records in HDF5."""
    return values["real"] + 1j * values["imag"] if values.dtype.names == ("real", "imag") else values


def _checked_csr(values: csc_matrix) -> csr_matrix:
    """Convert to CSR after checking the indices, since an index out of range would crash scipy."""
    if values.format == "csc":
        values.check_format(full_check=True)
    return csr_matrix(values.astype(values.dtype.newbyteorder("=")))


def _cells(items: Iterable[Value]) -> list[Value]:
    """Return a cell array as a list, removing 1 x 1 cells around each of its cells or around all of them."""
    cells = [item[0] if isinstance(item, list) and len(item) == 1 else item for item in items]
    return cells[0] if len(cells) == 1 and isinstance(cells[0], list) else cells


def _unwrap(items: list[Value]) -> Value:
    """Return a single item itself, several as a list, and an empty string for none."""
    return items[0] if len(items) == 1 else items or ""
