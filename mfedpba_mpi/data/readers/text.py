"""What the readers of text share: files found by name, lines plain or gzipped, numbers in bulk, svmlight rows.

An svmlight line is ``LABEL index:value index:value ...`` with indices from 1; what is not named is zero.
"""

from __future__ import annotations

import gzip
import os
import re
import warnings
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple, cast

import numpy as np
from scipy.sparse import csr_matrix

from mfedpba_mpi.errors import UserError

_DEPTH = 4  # directories below the one given
_LONGEST = 2**26  # characters of a line
_REMEDY = "download or unpack the file again"


class Line(NamedTuple):
    """A line without the blanks around it, and its number in the file, from 1."""

    number: int
    text: bytes


def files_below(path: Path, pattern: str) -> list[Path]:
    """Files at most four directories below `path` whose names, less ``.gz``, match; nearest first, plain before .gz."""
    found = []
    for directory, children, names in os.walk(path):
        depth = len(Path(directory).relative_to(path).parts)
        if depth == _DEPTH:
            children.clear()
        found += [(depth, Path(directory, name)) for name in names if re.fullmatch(pattern, name.removesuffix(".gz"))]
    return [file for _, file in sorted(found)]


def find(path: Path, names: Sequence[str]) -> dict[str, Path]:
    """The files of these names below `path`, plain or with ``.gz``; of several of one name the nearest."""
    files = files_below(path, "|".join(map(re.escape, names)))
    return {file.name.removesuffix(".gz"): file for file in reversed(files)}


def find_all(path: Path, names: Sequence[str]) -> list[Path]:
    """The files of these names below `path`, or a UserError that lists those missing."""
    found = find(path, names)
    if missing := [name for name in names if name not in found]:
        raise UserError(f"{path} lacks {', '.join(missing)}; give the directory of the whole download, unpacked")
    return [found[name] for name in names]


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """The bytes of a file, unpacked if it ends in ``.gz``; what goes wrong while reading is a UserError."""
    try:
        with cast(IO[bytes], gzip.open(path) if path.suffix == ".gz" else open(path, "rb")) as file:
            yield file
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path} cannot be read ({error}); {_REMEDY}") from error


def lines(path: Path) -> Iterator[Line]:
    """All lines but the blank ones."""
    with opened(path) as file:
        for number, line in enumerate(iter(lambda: file.readline(_LONGEST), b""), 1):
            if len(line) == _LONGEST:
                raise UserError(f"{path} line {number} is longer than {_LONGEST} characters; {_REMEDY}")
            if text := line.strip():
                yield Line(number, text)


def numbers(text: bytes, separator: str = " ") -> np.ndarray | None:
    """All numbers of `text`, or None where something else is among them."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", DeprecationWarning)  # what older NumPy says of text among numbers
            return np.fromstring(text.strip(), sep=separator)
    except (ValueError, DeprecationWarning):
        return None


def labelled(path: Path, line: Line) -> tuple[bytes, Line]:
    """The label of an svmlight line, and the rest."""
    label, *rest = line.text.split(None, 1)
    if b":" in label:
        raise UserError(f"{path} line {line.number} starts with '{shown(label)}' where a label should be; {_REMEDY}")
    return label, Line(line.number, rest[0] if rest else b"")


def rows(path: Path, texts: Sequence[Line], width: int) -> csr_matrix:
    """``index:value ...`` of each line as a float32 row; `width` columns, or more where an index is larger."""
    pairs = _pairs([line.text for line in texts])
    if pairs is None:
        bad = next(line for line in texts if _pairs([line.text]) is None)
        raise UserError(f"{path} line {bad.number} is no row of index:value ('{shown(bad.text)}'); {_REMEDY}")
    indices = pairs[:, 0].astype(np.int32) - 1
    indptr = np.cumsum([0, *(line.text.count(b":") for line in texts)])
    with np.errstate(over="ignore", invalid="ignore"):  # the store refuses what becomes infinite
        values = pairs[:, 1].astype(np.float32)
    return csr_matrix((values, indices, indptr), shape=(len(texts), max(width, int(indices.max(initial=-1)) + 1)))


def shown(text: bytes) -> str:
    """The beginning of `text`, fit for an error message."""
    return ascii(text[:40].decode(errors="replace"))[1:-1] + ("..." if len(text) > 40 else "")


def _pairs(texts: Sequence[bytes]) -> np.ndarray | None:
    """(n, 2) indices and values, or None where the texts hold anything else."""
    text = b" ".join(b" ".join(texts).split())
    if not text:
        return np.empty((0, 2))
    marks = np.frombuffer(text, np.uint8)
    marks = marks[(marks == ord(":")) | (marks == ord(" "))]
    values = numbers(text.replace(b":", b" "))
    if values is None or len(values) != len(marks) + 1 or len(values) % 2:
        return None
    index = values[::2]
    paired = (marks[::2] == ord(":")).all() and (marks[1::2] == ord(" ")).all()
    return values.reshape(-1, 2) if paired and ((index >= 1) & (index < 2**31) & (index % 1 == 0)).all() else None
