"""Plain tables: CSV and other text, NPY, NPZ.

A directory has one file per view (.csv, .tsv, .txt, also with .gz; .npy; .npz with one array, or written by
`scipy.sparse.save_npz`) and one label file named y, label(s), gt, gnd, truth, target(s) or class(es). Views are in
natural order of their names (view2 before view10); readme and licence files are ignored. A single .npz has everything
as arrays: the labels under one of these names, the views under other names; other arrays that are not two-dimensional
are ignored.

Text files have one sample per line, with numbers separated by commas, semicolons, tabs or blanks; a first line without
any number is a header. Label files have one number or string per line. Arrays of Python objects are pickles and are
never loaded.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy.sparse import csc_matrix, csr_matrix

from mfedpba_mpi.cli.console import count
from mfedpba_mpi.data.catalog import printable
from mfedpba_mpi.data.readers.source import Source
from mfedpba_mpi.data.readers.text import Line, excerpt, parse_numbers, read_lines
from mfedpba_mpi.data.store import Values
from mfedpba_mpi.errors import UserError

FORMAT = "tables: a directory with a .csv, .tsv, .txt, .npy or .npz file for each view and one of labels; or one .npz"
_LABELS = re.compile(r"y|labels?|gt|gnd|truth|targets?|class(es)?", re.IGNORECASE)
_NAMES = "y, label, labels, gt, gnd, truth, target, targets, class or classes"
_IGNORED = re.compile(r"\..*|readme.*|licen[cs]e.*", re.IGNORECASE)
_FILE = re.compile(r"(.+)\.(npy|npz|(?:csv|tsv|txt)(?:\.gz)?)", re.IGNORECASE)
_SPARSE = {"format", "shape", "data", "indices", "indptr"}


def recognises(path: Path) -> bool:
    """Whether `path` is an .npz file, or a directory with tables and a label file."""
    if path.is_file():
        return path.suffix.lower() == ".npz"
    tables = _tables(path)
    return len(tables) > 1 and any(_LABELS.fullmatch(name) for name, _ in tables)


def read(path: Path, scratch: Path) -> Source:
    """Read one view per table of a directory, or per matrix of an .npz file; `scratch` is unused."""
    return _read_directory(path) if path.is_dir() else _read_archive(path)


def parse_table(path: Path, texts: Sequence[Line], width: int, delimiter: bytes = b"") -> np.ndarray:
    """Parse lines of `width` numbers each into a float32 matrix; an empty delimiter means blanks."""

    def values(some: Sequence[Line]) -> np.ndarray | None:
        found = parse_numbers((delimiter or b" ").join(line.text for line in some), f" {delimiter.decode()} ")
        return found if found is not None and len(found) == len(some) * width else None

    def fields(line: Line) -> int:
        return line.text.count(delimiter) + 1 if delimiter else len(line.text.split())

    parsed = values(texts) if all(fields(line) == width for line in texts) else None
    if parsed is None:
        bad = next(line for line in texts if fields(line) != width or values([line]) is None)
        if fields(bad) != width:
            raise UserError(
                f"{path} line {bad.number} has {count(fields(bad), 'column')} instead of {width}; give all lines the "
                "same number of columns"
            )
        raise UserError(f"{path} line {bad.number}: '{_first_text(bad, delimiter)}' is not a number; use numbers only")
    with np.errstate(over="ignore", invalid="ignore"):  # the store refuses infinite values
        return parsed.reshape(len(texts), width).astype(np.float32)


def _read_directory(path: Path) -> Source:
    tables = _tables(path)
    targets = [file for name, file in tables if _LABELS.fullmatch(name)]
    views = [(name, file) for name, file in tables if file not in targets]
    if not targets or not views:
        raise UserError(f"{path} needs a file for each view and a label file named {_NAMES} (.csv, .txt, .npy, .npz)")
    for found in (targets, [file for name, file in views if [other for other, _ in views].count(name) > 1]):
        if len(found) > 1:
            raise UserError(f"{path}: {' and '.join(file.name for file in found)} are duplicates; remove one")
    labels = _read_labels(targets[0])
    source = Source([_read_view(file) for _, file in views], labels, [*(file for _, file in views), *targets])
    source.view_names = [name for name, _ in views]
    _check_row_counts(source, [str(file) for _, file in views], str(targets[0]))
    return source


def _read_archive(path: Path) -> Source:
    arrays = _load(path)
    targets = [name for name in arrays if _LABELS.fullmatch(name)]
    if len(targets) != 1:
        found = f"the labels {' and '.join(targets)}" if targets else f"only {', '.join(arrays) or 'nothing'}"
        raise UserError(f"{path} has {found}; save exactly one label array, named {_NAMES}")
    names = sorted((name for name in arrays if name not in targets and np.ndim(arrays[name]) == 2), key=_natural)
    if not names:
        raise UserError(f"{path} has no two-dimensional array besides the labels; add the views, (samples, width) each")
    views: list[Values] = [_matrix(arrays[name], f"{path} array {name}") for name in names]
    labels = _column(arrays[targets[0]], f"{path} array {targets[0]}")
    source = Source(views, labels, [path], names)
    _check_row_counts(source, [f"{path} array {name}" for name in names], f"array {targets[0]}")
    return source


def _tables(path: Path) -> list[tuple[str, Path]]:
    """Return the stems and paths of the tables in a directory, in natural order."""
    found = [(match[1], file) for file in path.glob("*") if (match := _FILE.fullmatch(file.name)) and file.is_file()]
    return sorted(((n, f) for n, f in found if not _IGNORED.fullmatch(n)), key=lambda item: (_natural(item[0]), item))


def _natural(name: str) -> list[tuple[int, str]]:
    """Return the sort key for natural order: view2 before view10."""
    return [(int(part), "") if part.isdecimal() else (-1, part.lower()) for part in re.split(r"(\d+)", name)]


def _check_row_counts(source: Source, places: Sequence[str], labels: str) -> None:
    for view, place in zip(source.views, places, strict=True):
        if view.shape[0] != len(source.labels):
            row_count, label_count = count(view.shape[0], "row"), count(len(source.labels), "label")
            raise UserError(
                f"{place} has {row_count}, {labels} has {label_count}; give one row and one label for each sample"
            )


def _read_view(path: Path) -> Values:
    if path.suffix.lower() not in (".npy", ".npz"):
        return _read_text(path)
    arrays = _load(path)
    if arrays.keys() >= _SPARSE:
        return _sparse(path, arrays)
    return _matrix(_single(path, arrays), str(path))


def _read_text(path: Path) -> np.ndarray:
    """Read a text table with an optional header."""
    texts = _lines_without_bom(path)
    if not texts:
        raise UserError(f"{path} is empty; give one line of numbers for each sample")
    delimiter = next((mark for mark in (b";", b",") if mark in texts[-1].text), b"")
    first = texts[0].text.split(delimiter or None)
    if len(texts) > 1 and not any(map(_is_number, first)):
        if b"" in first:
            raise UserError(f"{path} line 1 has an unnamed column, probably row numbers; save the table without them")
        del texts[0]
    elif len(first) > 3 and first == [b"%d" % i for i in range(len(first))]:
        raise UserError(f"{path} line 1 is 0, 1, 2, ..., the column numbers of a data frame; save it without a header")
    return parse_table(path, texts, len(first), delimiter)


def _read_labels(path: Path) -> np.ndarray:
    if path.suffix.lower() in (".npy", ".npz"):
        return _column(_single(path, _load(path)), str(path))
    texts = [line.text.strip(b"\"'") for line in _lines_without_bom(path)]
    if len(texts) > 1 and (_LABELS.fullmatch(texts[0].decode(errors="replace")) or _only_first_is_text(texts)):
        del texts[0]
    if not texts:
        raise UserError(f"{path} is empty; give one label per line")
    values = parse_numbers(b" ".join(texts))
    if (values is not None and len(values) != len(texts)) or all(re.search(rb"[,;\t]", text) for text in texts):
        raise UserError(f"{path} has more than one column ('{excerpt(texts[0])}'); give one label per line")
    return _column(np.array(texts) if values is None else values, str(path))


def _lines_without_bom(path: Path) -> list[Line]:
    texts = list(read_lines(path))
    if texts and texts[0].text.startswith(b"\xef\xbb\xbf"):  # the byte order mark that some spreadsheets write
        texts[0] = Line(texts[0].number, texts[0].text[3:])
    return texts


def _is_number(text: bytes) -> bool:
    return text.strip() != b"" and parse_numbers(text.strip()) is not None


def _only_first_is_text(texts: Sequence[bytes]) -> bool:
    return not _is_number(texts[0]) and parse_numbers(b" ".join(texts[1:])) is not None


def _first_text(line: Line, delimiter: bytes) -> str:
    return excerpt(next((field for field in line.text.split(delimiter or None) if not _is_number(field)), line.text))


def _load(path: Path) -> dict[str, np.ndarray]:
    """Load the arrays of a file by name; the array of a .npy file has the name of the file."""
    pickle = "has Python objects (a pickle), which can run code and are never loaded; save plain arrays"
    try:
        with open(path, "rb") as file:
            start = file.read(6)
            if start[:1] == b"\x80":
                raise UserError(f"{path} {pickle}")
            if start != b"\x93NUMPY" and start[:2] != b"PK":
                raise ValueError("wrong first bytes")
            file.seek(0)
            loaded = np.load(file, allow_pickle=False)
            arrays = {path.stem: loaded} if isinstance(loaded, np.ndarray) else dict(loaded)
        return {name: array for name, array in arrays.items() if isinstance(array, np.ndarray)}
    except UserError:
        raise
    except Exception as error:  # NumPy and zipfile raise almost anything on damaged files
        if "Object arrays" in str(error):
            raise UserError(f"{path} {pickle}") from None
        reason = printable(str(error)) or type(error).__name__
        raise UserError(
            f"{path} is not a NumPy file, or damaged ({reason}); save it again with numpy.save or savez"
        ) from error


def _single(path: Path, arrays: dict[str, np.ndarray]) -> np.ndarray:
    if len(arrays) != 1:
        raise UserError(
            f"{path} has {len(arrays)} arrays ({', '.join(arrays)}); in a directory of views, save one array or one "
            "CSR or CSC matrix per file"
        )
    return next(iter(arrays.values()))


def _matrix(values: np.ndarray, where: str) -> np.ndarray:
    if values.ndim != 2 or values.dtype.kind not in "biuf":
        raise UserError(
            f"{where} is {values.dtype} of shape {values.shape}; a view is a numeric matrix with one row per sample"
        )
    return values


def _column(values: np.ndarray, where: str) -> np.ndarray:
    """Return labels as a vector: integers if all are whole numbers, else unchanged."""
    if not values.size or values.size != max(values.shape, default=0) or values.dtype.kind not in "biufUS":
        raise UserError(
            f"{where} is {values.dtype} of shape {values.shape}; labels are one number or string per sample"
        )
    values = values.ravel()
    if values.dtype.kind == "S":
        return np.array([text.decode(errors="replace") for text in values])
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise UserError(f"{where} has a NaN or infinite label; give every sample a class")
    whole = values.dtype.kind == "f" and (values % 1 == 0).all() and np.abs(values).max() < 2**53
    return values.astype(np.int64) if whole else values


def _sparse(path: Path, arrays: dict[str, np.ndarray]) -> csr_matrix:
    try:
        form = {"csr": csr_matrix, "csc": csc_matrix}[arrays["format"].astype(str).item()]
        parts = (arrays["data"], arrays["indices"], arrays["indptr"])
        if parts[0].dtype.kind not in "biuf" or any(part.dtype.kind not in "iu" for part in parts[1:]):
            raise ValueError("not numeric")
        values = form(parts, shape=tuple(arrays["shape"]))
        values.check_format(full_check=True)  # an index out of range would crash scipy
    except (LookupError, ValueError, TypeError, OverflowError) as error:
        raise UserError(
            f"{path} is not a valid CSR or CSC matrix ({error}); save it again with scipy.sparse"
        ) from error
    return values.tocsr()
