"""Plain tables: CSV and other text, NPY, NPZ.

A directory has one file a view (.csv, .tsv, .txt, also with .gz; .npy; .npz with one array, or as made by
`scipy.sparse.save_npz`) and one file of labels, called y, label(s), gt, gnd, truth, target(s) or class(es). Views come
in natural order of their names (view2 before view10); readme and licence files are no views. A single .npz has all as
arrays: the labels under one of these names, the views under any others; what is not two-dimensional is left out.

Text has one sample a line, numbers with commas, semicolons, tabs or blanks between them; a first line without any
number is a header. Labels are one a line, numbers or texts. Arrays of Python objects are pickles and never loaded.
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
from mfedpba_mpi.data.readers.text import Line, lines, numbers, shown
from mfedpba_mpi.data.store import Values
from mfedpba_mpi.errors import UserError

FORMAT = "tables: a directory with a .csv, .tsv, .txt, .npy or .npz file for each view and one of labels; or one .npz"
_LABELS = re.compile(r"y|labels?|gt|gnd|truth|targets?|class(es)?", re.IGNORECASE)
_NAMES = "y, label, labels, gt, gnd, truth, target, targets, class or classes"
_NO_VIEW = re.compile(r"\..*|readme.*|licen[cs]e.*", re.IGNORECASE)
_FILE = re.compile(r"(.+)\.(npy|npz|(?:csv|tsv|txt)(?:\.gz)?)", re.IGNORECASE)
_SPARSE = {"format", "shape", "data", "indices", "indptr"}


def recognises(path: Path) -> bool:
    """An .npz file, or a directory of tables and one of labels."""
    if path.is_file():
        return path.suffix.lower() == ".npz"
    tables = _tables(path)
    return len(tables) > 1 and any(_LABELS.fullmatch(name) for name, _ in tables)


def read(path: Path, scratch: Path) -> Source:
    """A view for each matrix of an archive, or for each table of a directory; `scratch` is not used."""
    return _directory(path) if path.is_dir() else _archive(path)


def table(path: Path, texts: Sequence[Line], width: int, delimiter: bytes = b"") -> np.ndarray:
    """Lines of `width` numbers each as a float32 matrix; without a delimiter there are blanks between them."""

    def values(some: Sequence[Line]) -> np.ndarray | None:
        found = numbers((delimiter or b" ").join(line.text for line in some), f" {delimiter.decode()} ")
        return found if found is not None and len(found) == len(some) * width else None

    def fields(line: Line) -> int:
        return line.text.count(delimiter) + 1 if delimiter else len(line.text.split())

    whole = values(texts) if all(fields(line) == width for line in texts) else None
    if whole is None:
        bad = next(line for line in texts if fields(line) != width or values([line]) is None)
        if fields(bad) != width:
            raise UserError(
                f"{path} line {bad.number} has {count(fields(bad), 'column')} instead of {width}; make all lines alike"
            )
        raise UserError(f"{path} line {bad.number}: '{_first_text(bad, delimiter)}' is no number; give numbers only")
    with np.errstate(over="ignore", invalid="ignore"):  # the store refuses what becomes infinite
        return whole.reshape(len(texts), width).astype(np.float32)


def _directory(path: Path) -> Source:
    tables = _tables(path)
    targets = [file for name, file in tables if _LABELS.fullmatch(name)]
    views = [(name, file) for name, file in tables if file not in targets]
    if not targets or not views:
        raise UserError(f"{path} needs a file for each view and one of labels, named {_NAMES} (.csv, .txt, .npy, .npz)")
    for found in (targets, [file for name, file in views if [other for other, _ in views].count(name) > 1]):
        if len(found) > 1:
            raise UserError(f"{path}: {' and '.join(file.name for file in found)} are for the same thing; remove one")
    labels = _labels(targets[0])
    source = Source([_view(file) for _, file in views], labels, [*(file for _, file in views), *targets])
    source.view_names = [name for name, _ in views]
    _same_rows(source, [str(file) for _, file in views], str(targets[0]))
    return source


def _archive(path: Path) -> Source:
    arrays = _load(path)
    targets = [name for name in arrays if _LABELS.fullmatch(name)]
    if len(targets) != 1:
        found = f"{' and '.join(targets)} for labels" if targets else f"only {', '.join(arrays) or 'nothing'}"
        raise UserError(f"{path} holds {found}; give it one array of labels, named {_NAMES}")
    names = sorted((name for name in arrays if name not in targets and np.ndim(arrays[name]) == 2), key=_natural)
    if not names:
        raise UserError(f"{path} holds no two-dimensional array but the labels; add the views, (samples, width) each")
    views: list[Values] = [_matrix(arrays[name], f"{path} array {name}") for name in names]
    labels = _column(arrays[targets[0]], f"{path} array {targets[0]}")
    source = Source(views, labels, [path], names)
    _same_rows(source, [f"{path} array {name}" for name in names], f"array {targets[0]}")
    return source


def _tables(path: Path) -> list[tuple[str, Path]]:
    """Stems and paths of the tables in a directory, in natural order."""
    found = [(match[1], file) for file in path.glob("*") if (match := _FILE.fullmatch(file.name)) and file.is_file()]
    return sorted(((n, f) for n, f in found if not _NO_VIEW.fullmatch(n)), key=lambda item: (_natural(item[0]), item))


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (-1, part.lower()) for part in re.split(r"(\d+)", name)]


def _same_rows(source: Source, places: Sequence[str], labels: str) -> None:
    for view, place in zip(source.views, places, strict=True):
        if view.shape[0] != len(source.labels):
            here, there = count(view.shape[0], "row"), count(len(source.labels), "label")
            raise UserError(f"{place} has {here}, {labels} has {there}; give one row and one label for each sample")


def _view(path: Path) -> Values:
    if path.suffix.lower() not in (".npy", ".npz"):
        return _text(path)
    arrays = _load(path)
    if arrays.keys() >= _SPARSE:
        return _sparse(path, arrays)
    return _matrix(_single(path, arrays), str(path))


def _text(path: Path) -> np.ndarray:
    """A table with an optional header."""
    texts = _lines(path)
    if not texts:
        raise UserError(f"{path} is empty; give one line of numbers for each sample")
    delimiter = next((mark for mark in (b";", b",") if mark in texts[-1].text), b"")
    first = texts[0].text.split(delimiter or None)
    if len(texts) > 1 and not any(map(_is_number, first)):
        if b"" in first:
            raise UserError(f"{path} line 1 has a column without a name, as row numbers have; save it without these")
        del texts[0]
    elif len(first) > 3 and first == [b"%d" % i for i in range(len(first))]:
        raise UserError(f"{path} line 1 is 0, 1, 2, ..., the column numbers of a data frame; save it without a header")
    return table(path, texts, len(first), delimiter)


def _labels(path: Path) -> np.ndarray:
    if path.suffix.lower() in (".npy", ".npz"):
        return _column(_single(path, _load(path)), str(path))
    texts = [line.text.strip(b"\"'") for line in _lines(path)]
    if len(texts) > 1 and (_LABELS.fullmatch(texts[0].decode(errors="replace")) or _only_first_is_text(texts)):
        del texts[0]
    if not texts:
        raise UserError(f"{path} is empty; give one label a line")
    values = numbers(b" ".join(texts))
    if (values is not None and len(values) != len(texts)) or all(re.search(rb"[,;\t]", text) for text in texts):
        raise UserError(f"{path} has more than one column ('{shown(texts[0])}'); give one label a line")
    return _column(np.array(texts) if values is None else values, str(path))


def _lines(path: Path) -> list[Line]:
    texts = list(lines(path))
    if texts and texts[0].text.startswith(b"\xef\xbb\xbf"):  # as some spreadsheets start a file
        texts[0] = Line(texts[0].number, texts[0].text[3:])
    return texts


def _is_number(text: bytes) -> bool:
    return text.strip() != b"" and numbers(text.strip()) is not None


def _only_first_is_text(texts: Sequence[bytes]) -> bool:
    return not _is_number(texts[0]) and numbers(b" ".join(texts[1:])) is not None


def _first_text(line: Line, delimiter: bytes) -> str:
    return shown(next((field for field in line.text.split(delimiter or None) if not _is_number(field)), line.text))


def _load(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a file by name; that of a .npy by the file's own."""
    pickle = "holds Python objects (a pickle), which could run code and is never loaded; save plain arrays"
    try:
        with open(path, "rb") as file:
            start = file.read(6)
            if start[:1] == b"\x80":
                raise UserError(f"{path} {pickle}")
            if start != b"\x93NUMPY" and start[:2] != b"PK":
                raise ValueError("it does not start as one")
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
            f"{path} is no NumPy file, or damaged ({reason}); save it again with numpy.save or savez"
        ) from error


def _single(path: Path, arrays: dict[str, np.ndarray]) -> np.ndarray:
    if len(arrays) != 1:
        holds = f"{len(arrays)} arrays ({', '.join(arrays)})"
        raise UserError(f"{path} holds {holds}; in a directory of views a file holds one array or one sparse matrix")
    return next(iter(arrays.values()))


def _matrix(values: np.ndarray, where: str) -> np.ndarray:
    if values.ndim != 2 or values.dtype.kind not in "biuf":
        raise UserError(
            f"{where} is {values.dtype} of shape {values.shape}; a view is a matrix of numbers, a row a sample"
        )
    return values


def _column(values: np.ndarray, where: str) -> np.ndarray:
    """Labels as whole numbers where they are such, else as they are."""
    if not values.size or values.size != max(values.shape, default=0) or values.dtype.kind not in "biufUS":
        raise UserError(f"{where} is {values.dtype} of shape {values.shape}; labels are one number or text a sample")
    values = values.ravel()
    if values.dtype.kind == "S":
        return np.array([text.decode(errors="replace") for text in values])
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise UserError(f"{where} has a label that is NaN or infinite; give every sample a class")
    whole = values.dtype.kind == "f" and (values % 1 == 0).all() and np.abs(values).max() < 2**53
    return values.astype(np.int64) if whole else values


def _sparse(path: Path, arrays: dict[str, np.ndarray]) -> csr_matrix:
    try:
        form = {"csr": csr_matrix, "csc": csc_matrix}[arrays["format"].astype(str).item()]
        parts = (arrays["data"], arrays["indices"], arrays["indptr"])
        if parts[0].dtype.kind not in "biuf" or any(part.dtype.kind not in "iu" for part in parts[1:]):
            raise ValueError("not made of numbers")
        values = form(parts, shape=tuple(arrays["shape"]))
        values.check_format(full_check=True)  # before an index out of range crashes something
    except (LookupError, ValueError, TypeError, OverflowError) as error:
        raise UserError(f"{path} is no sound CSR or CSC matrix ({error}); save it again with scipy.sparse") from error
    return values.tocsr()
