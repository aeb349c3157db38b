"""Helpers of the text readers: find files by name, read plain or gzipped lines, parse numbers and svmlight rows.

An svmlight line is ``LABEL index:value index:value ...`` with indices from 1; omitted indices are zero.
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

_MAX_DEPTH = 4  # directory levels to search
_MAX_LINE = 2**26  # bytes of a line
_REMEDY = "download or unpack the file again"


class Line(NamedTuple):
    """A stripped line and its number in the file, from 1."""

    number: int
    text: bytes


def files_below(path: Path, pattern: str) -> list[Path]:
    """List the files at most four levels below `path` with matching names (without ``.gz``), by depth and path."""
    found = []
    for directory, children, names in os.walk(path):
        depth = len(Path(directory).relative_to(path).parts)
        if depth == _MAX_DEPTH:
            children.clear()
        found += [(depth, Path(directory, name)) for name in names if re.fullmatch(pattern, name.removesuffix(".gz"))]
    return [file for _, file in sorted(found)]


def find_files(path: Path, names: Sequence[str]) -> dict[str, Path]:
    """Find files by name below `path`, plain or with ``.gz``; among several of one name, the one nearest to `path`."""
    files = files_below(path, "|".join(map(re.escape, names)))
    return {file.name.removesuffix(".gz"): file for file in reversed(files)}


def require_files(path: Path, names: Sequence[str]) -> list[Path]:
    """Find all files of these names below `path`; raise a UserError that lists the missing ones."""
    found = find_files(path, names)
    if missing := [name for name in names if name not in found]:
        raise UserError(f"{path} lacks {', '.join(missing)}; give the directory of the complete unpacked download")
    return [found[name] for name in names]


@contextmanager
def open_bytes(path: Path) -> Iterator[IO[bytes]]:
    """Open a file in binary mode, decompressing ``.gz``; read errors become a UserError."""
    try:
        with cast(IO[bytes], gzip.open(path) if path.suffix == ".gz" else open(path, "rb")) as file:
            yield file
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"cannot read {path} ({error}); {_REMEDY}") from error


def read_lines(path: Path) -> Iterator[Line]:
    """Read all non-blank lines."""
    with open_bytes(path) as file:
        for number, line in enumerate(iter(lambda: file.readline(_MAX_LINE), b""), 1):
            if len(line) == _MAX_LINE:
                raise UserError(f"{path} line {number} is longer than {_MAX_LINE} bytes; {_REMEDY}")
            if text := line.strip():
                yield Line(number, text)


def parse_numbers(text: bytes, separator: str = " ") -> np.ndarray | None:
    """Parse `text` as a list of numbers; return None if it contains anything else."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", DeprecationWarning)  # older NumPy only warns about invalid text
            return np.fromstring(text.strip(), sep=separator)
    except (ValueError, DeprecationWarning):
        return None


def split_label(path: Path, line: Line) -> tuple[bytes, Line]:
    """Split an svmlight line into its label and the rest."""
    label, *rest = line.text.split(None, 1)
    if b":" in label:
        raise UserError(f"{path} line {line.number} starts with '{excerpt(label)}' instead of a label; {_REMEDY}")
    return label, Line(line.number, rest[0] if rest else b"")


def parse_rows(path: Path, texts: Sequence[Line], width: int) -> csr_matrix:
    """Parse ``index:value ...`` lines into a float32 CSR matrix; `width` columns, or more if an index is larger."""
    pairs = _parse_pairs([line.text for line in texts])
    if pairs is None:
        bad = next(line for line in texts if _parse_pairs([line.text]) is None)
        raise UserError(f"{path} line {bad.number} is not a row of index:value ('{excerpt(bad.text)}'); {_REMEDY}")
    indices = pairs[:, 0].astype(np.int32) - 1
    indptr = np.cumsum([0, *(line.text.count(b":") for line in texts)])
    with np.errstate(over="ignore", invalid="ignore"):  # the store refuses infinite values
        values = pairs[:, 1].astype(np.float32)
    return csr_matrix((values, indices, indptr), shape=(len(texts), max(width, int(indices.max(initial=-1)) + 1)))


def excerpt(text: bytes) -> str:
    """Return the first 40 bytes of `text`, escaped, for an error message."""
    return ascii(text[:40].decode(errors="replace"))[1:-1] + ("..." if len(text) > 40 else "")


def _parse_pairs(texts: Sequence[bytes]) -> np.ndarray | None:
    """Parse index:value pairs into (n, 2); return None if the texts contain anything else."""
    text = b" ".join(b" ".join(texts).split())
    if not text:
        return np.empty((0, 2))
    marks = np.frombuffer(text, np.uint8)
    marks = marks[(marks == ord(":")) | (marks == ord(" "))]
    values = parse_numbers(text.replace(b":", b" "))
    if values is None or len(values) != len(marks) + 1 or len(values) % 2:
        return None
    index = values[::2]
    paired = (marks[::2] == ord(":")).all() and (marks[1::2] == ord(" ")).all()
    return values.reshape(-1, 2) if paired and ((index >= 1) & (index < 2**31) & (index % 1 == 0)).all() else None
