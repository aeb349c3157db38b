"""Multi-view datasets in MATLAB files, in the layouts in which they are usually published.

Variables are identified by name (`matlab` loads the file), ignoring case and ``_``:

* Views: a cell array ``X{1..V}`` (``fea``, ``data``, ...; see VIEWS), a struct with a field for each view, an array
  (V, N, width), numbered matrices ``x1, x2, ...``, or one matrix ``X``. A cell array, a struct or numbered matrices of
  another name are used if all of them match the number of labels and no other variable does.
* Labels: a vector, a cell array of strings, a one-hot matrix, or a cell array with the same vector for each view,
  named ``Y``, ``gt``, ... (see LABELS).
* Samples may be in rows or columns; the number of labels decides, for each view.
* ``feanames``, ``categories`` etc. are names of views and classes if the number of strings matches.
* ``x1_train``, ``x1_test``, ..., ``gt_train``, ``gt_test``: the two parts are concatenated.

All of these may also be fields of a struct.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

import numpy as np
from scipy.sparse import coo_matrix, csr_matrix, issparse, vstack

from mfedpba_mpi.data.catalog import printable
from mfedpba_mpi.data.readers.matlab import Object, Value, load
from mfedpba_mpi.data.readers.source import Source
from mfedpba_mpi.data.store import Values
from mfedpba_mpi.errors import UserError

FORMAT = "MATLAB .mat of any version: views in a cell array or in numbered matrices, and labels"

VIEWS = ("X", "fea", "data", "views", "view", "features", "feature", "feat", "Xs")
LABELS = ("Y", "gt", "gnd", "truth", "label", "labels", "truelabel", "gtruth", "groundtruth", "target", "targets")
VIEW_NAMES = ("feanames", "viewnames", "featurenames", "names")
CLASS_NAMES = ("categories", "classnames", "classes")


def recognises(path: Path) -> bool:
    """Whether the suffix or the first bytes are those of a MAT-file (version 4 has no signature)."""
    if path.suffix.lower() == ".mat":
        return not os.path.isdir(path)
    try:
        with open(path, "rb") as file:
            return file.read(7) == b"MATLAB "
    except OSError:
        return False


def read(path: Path, scratch: Path) -> Source:
    """Read the views and labels of a MATLAB file; `scratch` is unused."""
    version, variables = load(path)
    try:
        return _interpret(path, version, variables)
    except UserError as error:
        raise UserError(f"{path}: {printable(str(error))}") from None


@dataclass
class _Candidate:
    """A variable, or several numbered ones, that could be the views or the labels."""

    name: str  # normalised by `_fold`
    part: str  # "", "_train" or "_test"
    title: str  # for messages
    cells: dict[str, Value]  # by MATLAB expression, e.g. X{1}
    struct: bool = False


@dataclass
class _Found:
    """Views and labels with the same number of samples."""

    views: _Candidate
    labels: _Candidate
    matrices: dict[str, Values]  # samples in rows
    values: np.ndarray  # the labels
    transposed: list[str]  # keys of the matrices that had samples in columns


def _interpret(path: Path, version: str, variables: dict[str, Value]) -> Source:
    candidates = list(_candidates(variables))
    listing = ", ".join(f"{key} ({_describe(value)})" for key, value in variables.items()) or "nothing"
    labelled = {candidate.part for candidate in _named(candidates, LABELS)}
    parts = ("_train", "_test") if labelled == {"_train", "_test"} else ("",)
    found = [_find([c for c in candidates if c.part == part], listing) for part in parts]
    views, labels = _join(found), np.concatenate([part.values for part in found])
    fields = [key.rpartition(".")[2] for key in found[0].matrices] if found[0].views.struct else []
    details = {
        "matlab": f"version {version}",
        "views": "; ".join(part.views.title for part in found),
        "labels": "; ".join(part.labels.title for part in found),
    }
    if transposed := [key for part in found for key in part.transposed]:
        all_views = len(transposed) == len(views) * len(parts)
        details["orientation"] = "samples in columns" + ("" if all_views else f" of {', '.join(transposed)}")
    view_names = _find_names(candidates, VIEW_NAMES, len(views)) or fields
    class_names = None if labels.dtype.kind == "U" else _find_names(candidates, CLASS_NAMES, len(np.unique(labels)))
    return Source(views, labels, [path], view_names, class_names, details=details)


def _candidates(variables: Mapping[str, Value]) -> Iterator[_Candidate]:
    """Yield every variable, every field of a struct, and every group of numbered matrices."""
    numbered: dict[tuple[str, str], dict[int, str]] = {}
    flat = dict(_flatten(variables))
    for key, value in flat.items():
        base, number, part = _split_name(key)
        name = _fold(base + number)
        if isinstance(value, list):
            cells: dict[str, Value] = {f"{key}{{{i}}}": cell for i, cell in enumerate(value, 1)}
            yield _Candidate(name, part, f"{key}{{1..{len(cells)}}}" if len(cells) > 1 else f"{key}{{1}}", cells)
        elif isinstance(value, dict):
            cells = {f"{key}.{field}": item for field, item in value.items() if _is_matrix(item)}
            yield _Candidate(name, part, ", ".join(cells), cells, struct=True)
        elif isinstance(value, np.ndarray) and value.ndim == 3:
            cells = {f"{key}({i},:,:)": matrix for i, matrix in enumerate(value, 1)}
            yield _Candidate(name, part, f"{key}(1..{len(cells)},:,:)", cells)
        else:
            yield _Candidate(name, part, key, {key: value})
            if number and _is_matrix(value):
                numbered.setdefault((base, part), {})[int(number)] = key
    for (base, part), keys in numbered.items():
        cells = {keys[i]: flat[keys[i]] for i in sorted(keys)}
        yield _Candidate(_fold(base), part, ", ".join(cells), cells)


def _flatten(variables: Mapping[str, Value], within: str = "") -> Iterator[tuple[str, Value]]:
    for key, value in variables.items():
        yield within + key, value
    for key, value in variables.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{within}{key}.")


def _split_name(key: str) -> tuple[str, str, str]:
    """Split ``x12_train`` into ``x``, ``12``, ``_train``."""
    start, _, part = key.rpartition("_")
    if part.lower() not in ("train", "test"):
        start, part = key, ""
    base = start.rstrip("0123456789")
    return base, start[len(base) :], part and f"_{part.lower()}"


def _find(candidates: list[_Candidate], listing: str) -> _Found:
    """Find the first matching labels and views, in the order of names in LABELS and VIEWS, or raise a UserError."""
    labels, problems = [], []
    for candidate in _named(candidates, LABELS):
        try:
            labels.append((candidate, _labels(candidate)))
        except UserError as error:
            problems.append(error)
    if not labels and problems:
        raise problems[0]
    if not labels:
        raise UserError(
            f"no labels named {', '.join(LABELS)} (in any case) found; the file has {listing}; rename the labels to Y"
        )
    known = sorted(_named(candidates, VIEWS), key=lambda c: c.title in c.cells)  # single matrices last
    for label, values in labels:
        for candidate in known:
            if matrices := _matching(candidate, label, len(values)):
                return _orient(candidate, label, matrices, values)
    label, values = labels[0]
    others = [
        (candidate, matrices)
        for candidate in candidates
        if len(candidate.cells) > 1
        and candidate.name not in map(_fold, LABELS)
        and (matrices := _matching(candidate, label, len(values)))
        and any(1 not in matrix.shape for matrix in matrices.values())
    ]
    if len(others) == 1:
        return _orient(others[0][0], label, others[0][1], values)
    if others:
        titles = " or ".join(candidate.title for candidate, _ in others)
        raise UserError(f"the views could be {titles}; rename the right ones to X")
    for candidate in known:
        for key, cell in candidate.cells.items():
            _check_view(key, cell, label, len(values))
    raise UserError(
        f"no views found for the {len(values)} labels in {label.title}: expected a cell array, a struct, numbered "
        f"matrices or one matrix named {', '.join(VIEWS)} (in any case); the file has {listing}; rename the views to X"
    )


def _named(candidates: list[_Candidate], names: tuple[str, ...]) -> list[_Candidate]:
    return [candidate for name in map(_fold, names) for candidate in candidates if candidate.name == name]


def _matching(candidate: _Candidate, label: _Candidate, samples: int) -> dict[str, Values]:
    """Return the matrices if all have a dimension of `samples`, else an empty dict; labels in a struct are ignored."""
    cells = {key: cell for key, cell in candidate.cells.items() if key not in label.cells}
    matrices = {key: cell for key, cell in cells.items() if _is_matrix(cell) and samples in cell.shape}
    return matrices if len(matrices) == len(cells) else {}


def _check_view(key: str, value: Value, label: _Candidate, samples: int) -> None:
    """Raise a UserError if `value` cannot be a view of `samples` samples."""
    if isinstance(value, np.ndarray | csr_matrix) and value.dtype.kind == "c":
        raise UserError(f"{key} has complex numbers; save real numbers, for example abs({key})")
    if not _is_matrix(value):
        raise UserError(f"{key} is not a numeric matrix but {_describe(value)}; save each view as a matrix")
    if samples not in value.shape:
        raise UserError(
            f"view {key} is {_describe(value)}, but neither dimension is {samples}, the number of labels in "
            f"{label.title}; save all samples in every view"
        )


def _orient(candidate: _Candidate, label: _Candidate, matrices: dict[str, Values], values: np.ndarray) -> _Found:
    """Transpose views with samples in columns; a square view is transposed if all other views are."""
    square = (len(values), len(values))
    in_columns = {key: matrix.shape[0] != len(values) for key, matrix in matrices.items() if matrix.shape != square}
    others = bool(in_columns) and all(in_columns.values())
    transposed = [key for key in matrices if in_columns.get(key, others)]
    rows = {key: _floats(matrix.T if key in transposed else matrix) for key, matrix in matrices.items()}
    return _Found(candidate, label, rows, values, transposed)


def _floats(values: Values) -> Values:
    values = values.astype(np.result_type(values.dtype, np.float32), copy=False)
    return csr_matrix(values) if issparse(values) else values


def _join(found: list[_Found]) -> list[Values]:
    """Return the views, with the train and test parts concatenated."""
    parts = [list(part.matrices.values()) for part in found]
    if len(parts) == 1:
        return parts[0]
    if len({tuple(view.shape[1] for view in part) for part in parts}) > 1:
        titles = " and ".join(part.views.title for part in found)
        raise UserError(f"{titles} differ in number or width; save the same views in both parts")
    return [
        vstack(views, format="csr") if any(map(issparse, views)) else np.concatenate(views)
        for views in zip(*parts, strict=True)
    ]


def _labels(candidate: _Candidate) -> np.ndarray:
    """Return the labels; raise a UserError if they are invalid or differ between views."""
    texts = [cell for cell in candidate.cells.values() if isinstance(cell, str)]
    if len(texts) == len(candidate.cells) > 1:
        return np.array(texts)
    vectors = [_vector(key, cell) for key, cell in candidate.cells.items()]
    if not vectors:
        raise UserError(f"the labels {candidate.title} are empty; save a vector with one number per sample")
    if not all(np.array_equal(vectors[0], vector) for vector in vectors):
        raise UserError(f"the labels {candidate.title} differ; save the same labels for all views")
    return vectors[0]


def _vector(key: str, value: Value) -> np.ndarray:
    """Return labels as integers, from a row, a column or a one-hot matrix (samples in rows or columns)."""
    if _is_matrix(value) and 1 in value.shape:
        vector = np.ravel(value if isinstance(value, np.ndarray) else value.toarray())
        broken = np.flatnonzero(~(np.abs(vector) < 2**53) | (np.rint(vector) != vector))
        if len(broken):
            raise UserError(f"{key}({broken[0] + 1}) is {vector[broken[0]]}; labels must be integers or strings")
        return vector.astype(np.int64)
    if _is_matrix(value) and 0 not in value.shape:
        for matrix in (coo_matrix(value), coo_matrix(value.T)):
            matrix.eliminate_zeros()
            order = np.argsort(matrix.row)
            if (matrix.data == 1).all() and np.array_equal(matrix.row[order], np.arange(matrix.shape[0])):
                return matrix.col[order].astype(np.int64)
    raise UserError(
        f"the labels {key} are {_describe(value)}; save a vector of numbers, a cell array of strings, or a "
        "one-hot matrix"
    )


def _find_names(candidates: list[_Candidate], names: tuple[str, ...], count: int) -> list[str] | None:
    """Return the first list of `count` strings stored under one of these names."""
    for candidate in _named(candidates, names):
        texts = [cell for cell in candidate.cells.values() if isinstance(cell, str)]
        if len(texts) == len(candidate.cells) == count:
            return texts
    return None


def _is_matrix(value: Value) -> TypeGuard[Values]:
    return isinstance(value, np.ndarray | csr_matrix) and value.ndim == 2 and value.dtype.kind in "biuf"


def _fold(key: str) -> str:
    """Normalise a name: ``S.Class_Names`` to ``classnames``."""
    return key.rpartition(".")[2].lower().replace("_", "")


def _describe(value: Value) -> str:
    """Describe the type and size of a value for messages."""
    if isinstance(value, Object):
        return f"a MATLAB object of class {value.kind}"
    if isinstance(value, str):
        return "text"
    if isinstance(value, dict):
        return f"a struct of {', '.join(value)}"
    if isinstance(value, list):
        return f"{len(value)} {'strings' if value and all(isinstance(item, str) for item in value) else 'cells'}"
    return " x ".join(map(str, value.shape)) + (" sparse" if issparse(value) else "")
