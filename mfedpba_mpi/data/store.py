"""The feature store: one HDF5 file holds one dataset.

::

    /                 attributes: format "mfedpba-features", version 1, name, note, classes, origin ("real" or
                      "synthetic"), fingerprint (SHA-256 of header, labels and values)
    /labels           (N,) int64, 0..C-1
    /class_names      (C,) UTF-8, optional
    /provenance       attributes, all text: where the values come from
    /modalities/m     m = 0..M-1, attributes name, type (I, L, A, T), width
        dense:        values (N, width), float16 or float32
        sparse (CSR): data (nnz,) float32, indices (nnz,) int32, indptr (N+1,) int64

Values are uncompressed and chunked by rows. Every chunk carries the Fletcher32 checksum and, since that does not see a
chunk that has become all zeros, every dataset CRC-32 as the attribute crc32; so damage is an error and never a wrong
number. A file is written aside and moved into place, so it is there completely or not at all.
"""

from __future__ import annotations

import hashlib
import os
import uuid
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import TypeAlias

import h5py
import numpy as np
from scipy.sparse import csr_matrix, issparse

from mfedpba_mpi.data.catalog import NAME, Dataset, Modality, check_name, printable
from mfedpba_mpi.errors import UserError

FORMAT, VERSION = "mfedpba-features", 1
CHUNK_BYTES = 2**18
Values: TypeAlias = np.ndarray | csr_matrix

# Locks only get in the way: files are written aside, and many ranks read at once, often on file systems without locks.
_NO_LOCK = {"locking": False} if h5py.version.hdf5_version_tuple >= (1, 12, 1) else {}


@contextmanager
def replacing(path: Path, format: str, version: int) -> Iterator[h5py.File]:
    """A new file of a format, moved to `path` only when it is complete and on disk."""
    aside = path.with_name(f".{path.name}.{os.getpid()}-{uuid.uuid4().hex[:8]}.part")  # see guard for the number
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with h5py.File(aside, "w", libver=("v110", "v110"), **_NO_LOCK) as file:  # v110 checksums the metadata
            file.attrs.update(format=text(format), version=version)
            yield file
        with open(aside, "rb+") as done:
            os.fsync(done.fileno())
        os.replace(aside, path)
    except BaseException as error:
        with suppress(OSError):
            aside.unlink()
        if isinstance(error, (OSError, RuntimeError)):
            raise UserError(f"cannot write {path}: {error}; is there room, and may you write there?") from error
        raise


def open_file(path: Path) -> h5py.File:
    """An existing HDF5 file, read-only."""
    return h5py.File(path, "r", **_NO_LOCK)


@contextmanager
def reading(
    path: Path, format: str | None, version: int | None, remedy: str, opener: Callable[[Path], h5py.File] = open_file
) -> Iterator[h5py.File]:
    """An existing file, read-only; whatever is wrong with it becomes a UserError that ends with the remedy."""
    try:
        with opener(path) as file:
            if format and plain(file.attrs.get("format")) != format:
                raise UserError(f"{path} is HDF5, but not of the format {format}; {remedy}")
            if format and file.attrs["version"] != version:
                found = file.attrs["version"]
                raise UserError(f"{path} has version {found} of its format, this program reads {version}; {remedy}")
            yield file
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; {remedy}") from None
    except (OSError, LookupError, ValueError, TypeError, AttributeError, RuntimeError, MemoryError) as error:
        reason = printable(str(error)) or type(error).__name__
        raise UserError(f"{path} cannot be read: not HDF5, damaged or cut short ({reason}); {remedy}") from error


def text(value: str) -> np.bytes_:
    """Text as a fixed-length attribute, which lies inside the checksummed header."""
    return np.bytes_(value.encode() or b"\0")


def plain(value: object) -> str:
    """The text of an attribute, of fixed or variable length, fit to be shown."""
    return printable(value.decode(errors="replace") if isinstance(value, bytes) else str(value))


def member(group: h5py.Group, name: str | h5py.Reference) -> h5py.Dataset | h5py.Group:
    """An item of a group; a ValueError where it, or its values, lie in another file, which HDF5 would open unasked."""
    item = group[name]
    elsewhere = h5py.h5f.get_name(item.id) != h5py.h5f.get_name(group.id)
    if elsewhere or (isinstance(item, h5py.Dataset) and (item.is_virtual or item.external)):
        raise ValueError(f"{name} leads to another file")
    return item


def put(group: h5py.Group, name: str, array: np.ndarray, chunk_bytes: int = CHUNK_BYTES) -> None:
    """Write `array` in chunks of whole rows with a checksum each; an empty one has no chunks."""
    layout: dict[str, object] = {}
    if array.size:
        rows = chunk_bytes // (array.nbytes // len(array))
        layout = {"chunks": (int(np.clip(rows, 1, len(array))), *array.shape[1:]), "fletcher32": True}
    group.create_dataset(name, data=array, **layout).attrs["crc32"] = checksum(array)


def get(group: h5py.Group, name: str) -> np.ndarray:
    """All of a dataset; a ValueError where it is not what was written."""
    item = member(group, name)
    values = item[()]
    total = checksum(values)
    if item.attrs.get("crc32", total) != total:  # the first stores did not have it
        raise ValueError(f"{name} has other values than were written")
    return values


def checksum(*arrays: np.ndarray) -> np.uint32:
    """CRC-32 of the values of some arrays, one after the other."""
    total = 0
    for array in arrays:
        total = zlib.crc32(np.ascontiguousarray(array).data, total)
    return np.uint32(total)


def checksum_rows(values: Values) -> np.uint32:
    """The checksum of some rows of a modality, wherever they lie."""
    if isinstance(values, np.ndarray):
        return checksum(values)
    return checksum(values.data, values.indices.astype(np.int32), values.indptr.astype(np.int64))


def put_rows(group: h5py.Group, values: Values, chunk_bytes: int = CHUNK_BYTES) -> None:
    """Write the rows of a modality, dense or CSR."""
    group.attrs["width"] = values.shape[1]
    if isinstance(values, np.ndarray):
        put(group, "values", values, chunk_bytes)
    else:
        put(group, "data", values.data, chunk_bytes)
        put(group, "indices", values.indices.astype(np.int32), chunk_bytes)
        put(group, "indptr", values.indptr.astype(np.int64), chunk_bytes)


def get_rows(group: h5py.Group, start: int, stop: int) -> Values:
    """Rows start..stop-1 of a modality; touches only the chunks they lie in, so that nobody checks `crc32`."""
    if "values" in group:
        return member(group, "values")[start:stop]
    indptr = member(group, "indptr")[start : stop + 1]
    part = slice(indptr[0], indptr[-1])
    return _csr(group, member(group, "data")[part], member(group, "indices")[part], indptr - indptr[0])


def get_all_rows(group: h5py.Group) -> Values:
    """All rows of a modality."""
    if "values" in group:
        return get(group, "values")
    return _csr(group, get(group, "data"), get(group, "indices"), get(group, "indptr"))


def _csr(group: h5py.Group, data: np.ndarray, indices: np.ndarray, indptr: np.ndarray) -> csr_matrix:
    values = csr_matrix((data, indices, indptr), shape=(len(indptr) - 1, int(group.attrs["width"])))
    values.check_format(full_check=True)  # before an index out of range crashes something
    return values


def _checked(info: Dataset, m: int, values: Values) -> Values:
    """The values of modality m as they are stored, or a UserError."""
    modality = info.modalities[m]
    where = f"modality {modality.name} of {info.name}"
    if values.shape != (info.samples, modality.width):
        raise UserError(f"{where}: expected {info.samples} x {modality.width} values, got {values.shape}")
    if issparse(values) != modality.sparse:
        raise UserError(f"{where}: expected {'sparse' if modality.sparse else 'dense'} values, got the other kind")
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows becomes inf, refused below
        if not isinstance(values, np.ndarray):
            values = csr_matrix(values, dtype=np.float32, copy=True)
            values.sum_duplicates()
        elif values.dtype not in (np.float16, np.float32):
            values = values.astype(np.float32)
    if not np.isfinite(values if isinstance(values, np.ndarray) else values.data).all():
        raise UserError(f"{where}: NaN or infinite values (beyond float32); clean the source first")
    return values


def _checked_labels(info: Dataset, labels: np.ndarray) -> np.ndarray:
    labels = np.asarray(labels)
    if labels.shape != (info.samples,) or not np.issubdtype(labels.dtype, np.integer):
        kind = f"{labels.dtype} of shape {labels.shape}"
        raise UserError(f"labels of {info.name}: expected {info.samples} whole numbers, got {kind}")
    if info.samples == 0 or labels.min() < 0 or labels.max() >= info.classes:
        found = f"{labels.min()}..{labels.max()}" if info.samples else "none"
        raise UserError(f"labels of {info.name}: expected numbers in 0..{info.classes - 1}, got {found}")
    return labels.astype(np.int64)


def write_store(
    path: Path | str,
    info: Dataset,
    labels: np.ndarray,
    values: Sequence[Values],
    origin: str,
    provenance: Mapping[str, str],
    class_names: Sequence[str] | None = None,
) -> None:
    """Write a dataset, all or nothing.

    Parameters
    ----------
    labels : (N,) whole numbers in 0..C-1.
    values : (N, width) of each modality, as `info` says; float16 and float32 are kept, others become float32.
    origin : ``real`` or ``synthetic``.
    provenance : where the values come from, free text by keyword.
    """
    if origin not in ("real", "synthetic"):
        raise UserError(f"origin of {info.name}: '{origin}' is neither real nor synthetic")
    if len(values) != len(info.modalities):
        raise UserError(f"{info.name}: values of modalities: expected {len(info.modalities)}, got {len(values)}")
    if class_names is not None and len(class_names) != info.classes:
        raise UserError(f"{info.name}: expected {info.classes} class names, got {len(class_names)}")
    labels = _checked_labels(info, labels)
    header = (info.name, info.classes, info.modalities, origin, tuple(class_names or ()))
    digest = hashlib.sha256(repr(header).encode())
    digest.update(labels.tobytes())
    with replacing(Path(path), FORMAT, VERSION) as file:
        file.attrs.update(name=text(check_name(info.name)), note=text(info.note), classes=info.classes)
        put(file, "labels", labels)
        if class_names is not None:
            put(file, "class_names", np.array([name.encode() or b"\0" for name in class_names]))
        file.create_group("provenance").attrs.update({key: text(value) for key, value in provenance.items()})
        for m, modality in enumerate(info.modalities):
            group = file.create_group(f"modalities/{m}")
            group.attrs.update(name=text(modality.name), type=text(modality.type))
            stored = _checked(info, m, values[m])
            put_rows(group, stored)
            for name in ("data", "indices", "indptr") if modality.sparse else ("values",):
                digest.update(group[name][()])
        file.attrs.update(origin=text(origin), fingerprint=text(digest.hexdigest()))


class FeatureStore:
    """A dataset on disk: the header is read at once, labels and values when asked for; nothing stays open."""

    _remedy = "make it again with `mfedpba-mpi data import` or `mfedpba-mpi data synthesize`"

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        with self._reading() as file:
            attrs, groups = file.attrs, member(file, "modalities")
            samples, classes = len(member(file, "labels")), int(attrs["classes"])
            try:
                modalities = tuple(self._modality(member(groups, str(m))) for m in range(len(groups)))
                self.info = Dataset(plain(attrs["name"]), samples, classes, modalities, plain(attrs["note"]))
            except UserError as error:
                raise ValueError(error) from None  # `reading` names the file
            if not NAME.fullmatch(self.info.name):  # it becomes part of file names
                raise ValueError(f"its name is '{self.info.name}'")
            self.origin = plain(attrs["origin"])
            self.fingerprint = plain(attrs["fingerprint"])
            self.provenance = {plain(key): plain(value) for key, value in member(file, "provenance").attrs.items()}
            names = get(file, "class_names") if "class_names" in file else None
            self.class_names = None if names is None else tuple(plain(name) for name in names)

    @staticmethod
    def _modality(group: h5py.Group) -> Modality:
        attrs = group.attrs
        return Modality(plain(attrs["name"]), plain(attrs["type"]), int(attrs["width"]), "values" not in group)

    def _reading(self) -> AbstractContextManager[h5py.File]:
        return reading(self.path, FORMAT, VERSION, self._remedy)

    def labels(self) -> np.ndarray:
        """The class of every sample, (N,) int64."""
        with self._reading() as file:
            labels = get(file, "labels")
            if labels.dtype != np.int64 or labels.min(initial=0) < 0 or labels.max(initial=0) >= self.info.classes:
                raise ValueError(f"labels are not all in 0..{self.info.classes - 1}")
            return labels

    def modality(self, m: int) -> Values:
        """All rows of modality m, (N, width): an array, or a CSR matrix where `info` says sparse."""
        with self._reading() as file:
            values = get_all_rows(member(file, f"modalities/{m}"))
            if values.shape != (self.info.samples, self.info.modalities[m].width) or values.dtype.kind != "f":
                raise ValueError(f"modality {m} is no matrix of {self.info.samples} rows")
            return values


def locate(name: str, data_dir: Path) -> Path | None:
    """Where the dataset is: a path ending in .h5 itself, else the real file, else the stand-in, else None."""
    if name.endswith(".h5"):
        candidates = [Path(name)]
    else:
        file = f"{check_name(name)}.h5"
        candidates = [data_dir / file, data_dir / "synthetic" / file]
    return next((path for path in candidates if path.is_file()), None)
