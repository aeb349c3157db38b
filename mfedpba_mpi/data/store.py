"""The feature store: one HDF5 file holds one dataset.

::

    /                 attributes: format "mfedpba-features", version 1, name, note, classes, origin ("real" or
                      "synthetic"), fingerprint (SHA-256 of header, labels and values)
    /labels           (N,) int64, 0..C-1
    /class_names      (C,) UTF-8, optional
    /provenance       attributes, all text: origin of the values
    /modalities/m     m = 0..M-1, attributes name, type (I, L, A, T), width
        dense:        values (N, width), float16 or float32
        sparse (CSR): data (nnz,) float32, indices (nnz,) int32, indptr (N+1,) int64

Values are uncompressed and chunked by rows. Every chunk has a Fletcher32 checksum. Fletcher32 misses a chunk of zeros,
so every dataset also has its CRC-32 in the attribute crc32: damage raises an error and never yields wrong numbers. A
file is written under a temporary name and then renamed, so it is either complete or absent.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TypeAlias

import h5py
import numpy as np
from scipy.sparse import csr_matrix, issparse

from mfedpba_mpi.data.catalog import NAME, Dataset, Modality, check_name, printable
from mfedpba_mpi.errors import UserError
from mfedpba_mpi.files import replacing

FORMAT, VERSION = "mfedpba-features", 1
CHUNK_BYTES = 2**18
Values: TypeAlias = np.ndarray | csr_matrix

# No file locks: files are never modified in place, and many ranks read at once, often on file systems without locks.
_NO_LOCK = {"locking": False} if h5py.version.hdf5_version_tuple >= (1, 12, 1) else {}


@contextmanager
def new_file(path: Path, format: str, version: int) -> Iterator[h5py.File]:
    """Open a new HDF5 file of a format, which replaces `path` once it is complete and on disk."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as part:
            with h5py.File(part, "w", libver=("v110", "v110"), **_NO_LOCK) as file:  # v110 checksums the metadata
                file.attrs.update(format=encode_text(format), version=version)
                yield file
            with open(part, "rb+") as done:
                os.fsync(done.fileno())
    except (OSError, RuntimeError) as error:
        raise UserError(f"cannot write {path}: {error}; check free space and permissions") from error


def open_file(path: Path) -> h5py.File:
    """Open an existing HDF5 file read-only."""
    return h5py.File(path, "r", **_NO_LOCK)


@contextmanager
def reading(
    path: Path, format: str | None, version: int | None, remedy: str, opener: Callable[[Path], h5py.File] = open_file
) -> Iterator[h5py.File]:
    """Open an existing file read-only; any error in the block becomes a UserError that ends with the remedy.

    Without `format`, any HDF5 file is accepted.
    """
    try:
        with opener(path) as file:
            if format and decode_text(file.attrs.get("format")) != format:
                raise UserError(f"{path} is an HDF5 file, but not in the format {format}; {remedy}")
            if format and file.attrs["version"] != version:
                found = file.attrs["version"]
                raise UserError(f"{path} has format version {found}, this program reads version {version}; {remedy}")
            yield file
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; {remedy}") from None
    except (OSError, LookupError, ValueError, TypeError, AttributeError, RuntimeError, MemoryError) as error:
        reason = printable(str(error)) or type(error).__name__
        raise UserError(f"cannot read {path}: not HDF5, damaged or truncated ({reason}); {remedy}") from error


def encode_text(value: str) -> np.bytes_:
    """Encode text as a fixed-length attribute, which HDF5 stores inside the checksummed header."""
    return np.bytes_(value.encode() or b"\0")


def decode_text(value: object) -> str:
    """Decode the text of an attribute of fixed or variable length, with control characters removed."""
    return printable(value.decode(errors="replace") if isinstance(value, bytes) else str(value))


def member(group: h5py.Group, name: str | h5py.Reference) -> h5py.Dataset | h5py.Group:
    """Return an item of a group; raise a ValueError if it is stored in another file, which HDF5 would open silently."""
    item = group[name]
    elsewhere = h5py.h5f.get_name(item.id) != h5py.h5f.get_name(group.id)
    if elsewhere or (isinstance(item, h5py.Dataset) and (item.is_virtual or item.external)):
        raise ValueError(f"{name} is a link to another file")
    return item


def put(group: h5py.Group, name: str, array: np.ndarray, chunk_bytes: int = CHUNK_BYTES) -> None:
    """Write `array` in chunks of whole rows, each with a checksum; an empty array is not chunked."""
    layout: dict[str, object] = {}
    if array.size:
        rows = chunk_bytes // (array.nbytes // len(array))
        layout = {"chunks": (int(np.clip(rows, 1, len(array))), *array.shape[1:]), "fletcher32": True}
    group.create_dataset(name, data=array, **layout).attrs["crc32"] = checksum(array)


def get(group: h5py.Group, name: str) -> np.ndarray:
    """Read a whole dataset; raise a ValueError if its checksum is wrong."""
    item = member(group, name)
    values = item[()]
    total = checksum(values)
    if item.attrs.get("crc32", total) != total:  # early stores have no crc32
        raise ValueError(f"wrong checksum of {name}")
    return values


def checksum(*arrays: np.ndarray) -> np.uint32:
    """Return the CRC-32 of the concatenated bytes of the arrays."""
    total = 0
    for array in arrays:
        total = zlib.crc32(np.ascontiguousarray(array).data, total)
    return np.uint32(total)


def checksum_rows(values: Values) -> np.uint32:
    """Return the checksum of rows of a modality; it does not depend on their position in the file."""
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
    """Read rows start..stop-1 of a modality, only the chunks that contain them; `crc32` is therefore not checked."""
    if "values" in group:
        return member(group, "values")[start:stop]
    indptr = member(group, "indptr")[start : stop + 1]
    part = slice(indptr[0], indptr[-1])
    return _csr(group, member(group, "data")[part], member(group, "indices")[part], indptr - indptr[0])


def get_all_rows(group: h5py.Group) -> Values:
    """Read all rows of a modality."""
    if "values" in group:
        return get(group, "values")
    return _csr(group, get(group, "data"), get(group, "indices"), get(group, "indptr"))


def _csr(group: h5py.Group, data: np.ndarray, indices: np.ndarray, indptr: np.ndarray) -> csr_matrix:
    values = csr_matrix((data, indices, indptr), shape=(len(indptr) - 1, int(group.attrs["width"])))
    values.check_format(full_check=True)  # an index out of range would crash scipy
    return values


def _validate_values(info: Dataset, m: int, values: Values) -> Values:
    """Return the values of modality m in the stored type, or raise a UserError."""
    modality = info.modalities[m]
    where = f"modality {modality.name} of {info.name}"
    if values.shape != (info.samples, modality.width):
        raise UserError(f"{where}: expected {info.samples} x {modality.width} values, got {values.shape}")
    if issparse(values) != modality.sparse:
        raise UserError(f"{where}: expected {'sparse' if modality.sparse else 'dense'} values, got the other kind")
    with np.errstate(over="ignore", invalid="ignore"):  # an overflow becomes inf, which is refused below
        if not isinstance(values, np.ndarray):
            values = csr_matrix(values, dtype=np.float32, copy=True)
            values.sum_duplicates()
        elif values.dtype not in (np.float16, np.float32):
            values = values.astype(np.float32)
    if not np.isfinite(values if isinstance(values, np.ndarray) else values.data).all():
        raise UserError(f"{where}: NaN or infinite values (beyond float32); clean the source first")
    return values


def _validate_labels(info: Dataset, labels: np.ndarray) -> np.ndarray:
    labels = np.asarray(labels)
    if labels.shape != (info.samples,) or not np.issubdtype(labels.dtype, np.integer):
        kind = f"{labels.dtype} of shape {labels.shape}"
        raise UserError(f"labels of {info.name}: expected {info.samples} integers, got {kind}")
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
    """Write a dataset as a feature store; on an error no file is left.

    Parameters
    ----------
    path : Path or str
        The file to write.
    info : Dataset
        Name and shape.
    labels : array
        (N,) integers in 0..C-1.
    values : sequence of arrays or CSR matrices
        (N, width) for each modality of `info`; float16 and float32 are kept, other types become float32.
    origin : str
        ``real`` or ``synthetic``.
    provenance : mapping of str to str
        Where the values come from, as free text by keyword.
    class_names : sequence of str
        Names of the C classes.
    """
    if origin not in ("real", "synthetic"):
        raise UserError(f"origin of {info.name}: '{origin}' is neither real nor synthetic")
    if len(values) != len(info.modalities):
        raise UserError(f"{info.name}: expected values of {len(info.modalities)} modalities, got {len(values)}")
    if class_names is not None and len(class_names) != info.classes:
        raise UserError(f"{info.name}: expected {info.classes} class names, got {len(class_names)}")
    labels = _validate_labels(info, labels)
    header = (info.name, info.classes, info.modalities, origin, tuple(class_names or ()))
    digest = hashlib.sha256(repr(header).encode())
    digest.update(labels.tobytes())
    with new_file(Path(path), FORMAT, VERSION) as file:
        file.attrs.update(name=encode_text(check_name(info.name)), note=encode_text(info.note), classes=info.classes)
        put(file, "labels", labels)
        if class_names is not None:
            put(file, "class_names", np.array([name.encode() or b"\0" for name in class_names]))
        file.create_group("provenance").attrs.update({key: encode_text(value) for key, value in provenance.items()})
        for m, modality in enumerate(info.modalities):
            group = file.create_group(f"modalities/{m}")
            group.attrs.update(name=encode_text(modality.name), type=encode_text(modality.type))
            stored = _validate_values(info, m, values[m])
            put_rows(group, stored)
            for name in ("data", "indices", "indptr") if modality.sparse else ("values",):
                digest.update(group[name][()])
        file.attrs.update(origin=encode_text(origin), fingerprint=encode_text(digest.hexdigest()))


class FeatureStore:
    """A dataset on disk; the header is read at once, labels and values on request, and no file stays open."""

    _remedy = "recreate it with `mfedpba-mpi data import` or `mfedpba-mpi data synthesize`"

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        with self._reading() as file:
            attrs, groups = file.attrs, member(file, "modalities")
            samples, classes = len(member(file, "labels")), int(attrs["classes"])
            try:
                modalities = tuple(self._modality(member(groups, str(m))) for m in range(len(groups)))
                self.info = Dataset(
                    decode_text(attrs["name"]), samples, classes, modalities, decode_text(attrs["note"])
                )
            except UserError as error:
                raise ValueError(error) from None  # `reading` adds the path
            if not NAME.fullmatch(self.info.name):  # the name becomes part of file names
                raise ValueError(f"invalid dataset name '{self.info.name}'")
            self.origin = decode_text(attrs["origin"])
            self.fingerprint = decode_text(attrs["fingerprint"])
            self.provenance = {
                decode_text(key): decode_text(value) for key, value in member(file, "provenance").attrs.items()
            }
            names = get(file, "class_names") if "class_names" in file else None
            self.class_names = None if names is None else tuple(decode_text(name) for name in names)

    @staticmethod
    def _modality(group: h5py.Group) -> Modality:
        attrs = group.attrs
        return Modality(
            decode_text(attrs["name"]), decode_text(attrs["type"]), int(attrs["width"]), "values" not in group
        )

    def _reading(self) -> AbstractContextManager[h5py.File]:
        return reading(self.path, FORMAT, VERSION, self._remedy)

    def labels(self) -> np.ndarray:
        """Read the class of every sample, (N,) int64."""
        with self._reading() as file:
            labels = get(file, "labels")
            if labels.dtype != np.int64 or labels.min(initial=0) < 0 or labels.max(initial=0) >= self.info.classes:
                raise ValueError(f"labels are not all in 0..{self.info.classes - 1}")
            return labels

    def modality(self, m: int) -> Values:
        """Read modality m, (N, width), as an array, or as a CSR matrix for a sparse modality."""
        with self._reading() as file:
            values = get_all_rows(member(file, f"modalities/{m}"))
            if values.shape != (self.info.samples, self.info.modalities[m].width) or values.dtype.kind != "f":
                raise ValueError(f"modality {m} is not a float matrix of {self.info.samples} rows")
            return values


def locate(name: str, data_dir: Path) -> Path | None:
    """Return the path of a dataset: `name` itself if it ends in .h5, else the real file, else the stand-in, or None."""
    if name.endswith(".h5"):
        candidates = [Path(name)]
    else:
        file = f"{check_name(name)}.h5"
        candidates = [data_dir / file, data_dir / "synthetic" / file]
    return next((path for path in candidates if path.is_file()), None)
