"""UCI Reuters RCV1/RCV2 Multilingual (rcv1rcv2aminigoutte): the 18758 documents originally written in English.

The download has a directory for each language, EN, FR, GR, IT, SP, with the documents written in or translated into
that language. ``EN/Index_EN-EN``, ``FR/Index_EN-FR``, ``GR/Index_EN-GR``, ``IT/Index_EN-IT``, ``SP/Index_EN-SP`` are
five versions of the English documents. Line i of each is the same document, ``LABEL index:value ...``, with one of the
labels C15, CCAT, E21, ECAT, GCAT, M11. Files of other source languages (``Index_FR-EN``) are not read.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from mfedpba_mpi.data.catalog import CATALOG
from mfedpba_mpi.data.readers.source import Source
from mfedpba_mpi.data.readers.text import excerpt, find_files, parse_rows, read_lines, require_files, split_label
from mfedpba_mpi.errors import UserError

FORMAT = "UCI Reuters multilingual: a directory with Index_EN-EN, Index_EN-FR, Index_EN-GR, Index_EN-IT, Index_EN-SP"
_LANGUAGES = ["EN", "FR", "GR", "IT", "SP"]
_NAMES = [f"Index_EN-{language}" for language in _LANGUAGES]
_REMEDY = "the five files must have the same documents in the same order, download them again"


def recognises(path: Path) -> bool:
    """Whether any of the five index files is there."""
    return bool(find_files(path, _NAMES))


def read(path: Path, scratch: Path) -> Source:
    """Read the five versions of the English documents; `scratch` is unused."""
    files = require_files(path, _NAMES)
    views, labels = [], list[bytes]()
    for file, modality in zip(files, CATALOG["reuters"].modalities, strict=True):
        documents = [split_label(file, line) for line in read_lines(file)]
        labels = labels or [label for label, _ in documents]
        for label, (other, line) in zip(labels, documents, strict=False):
            if other != label:
                expected = f"{files[0].name} has {excerpt(label)}"
                raise UserError(f"{file} line {line.number} has the label {excerpt(other)}, {expected}; {_REMEDY}")
        if not labels or len(documents) != len(labels):
            expected = f", {files[0].name} has {len(labels)}" if labels else ""
            raise UserError(f"{file} has {len(documents)} documents{expected}; {_REMEDY}")
        views.append(parse_rows(file, [line for _, line in documents], modality.width))
    return Source(views, np.array([label.decode(errors="replace") for label in labels]), files, _LANGUAGES)
