"""UCI Reuters RCV1/RCV2 Multilingual (rcv1rcv2aminigoutte), the 18758 documents first written in English.

The download has a directory for each language, EN, FR, GR, IT, SP, with the documents written in it or translated into
it. ``EN/Index_EN-EN``, ``FR/Index_EN-FR``, ``GR/Index_EN-GR``, ``IT/Index_EN-IT``, ``SP/Index_EN-SP`` are the English
documents in five versions; line i of each is the same document, ``LABEL index:value ...``, with one of the labels C15,
CCAT, E21, ECAT, GCAT, M11. The files from other languages (``Index_FR-EN``) are not read.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from mfedpba_mpi.data.catalog import CATALOG
from mfedpba_mpi.data.readers.source import Source
from mfedpba_mpi.data.readers.text import find, find_all, labelled, lines, rows, shown
from mfedpba_mpi.errors import UserError

FORMAT = "UCI Reuters multilingual: a directory with Index_EN-EN, Index_EN-FR, Index_EN-GR, Index_EN-IT, Index_EN-SP"
_LANGUAGES = ["EN", "FR", "GR", "IT", "SP"]
_NAMES = [f"Index_EN-{language}" for language in _LANGUAGES]
_REMEDY = "the five files must hold the same documents in the same order, download them again"


def recognises(path: Path) -> bool:
    """Any of the five languages' files."""
    return bool(find(path, _NAMES))


def read(path: Path, scratch: Path) -> Source:
    """The five languages of UCI's index of the English documents; `scratch` is not used."""
    files = find_all(path, _NAMES)
    views, labels = [], list[bytes]()
    for file, modality in zip(files, CATALOG["reuters"].modalities, strict=True):
        documents = [labelled(file, line) for line in lines(file)]
        labels = labels or [label for label, _ in documents]
        for label, (other, line) in zip(labels, documents, strict=False):
            if other != label:
                there = f"{files[0].name} has {shown(label)}"
                raise UserError(f"{file} line {line.number} has the label {shown(other)}, {there}; {_REMEDY}")
        if not labels or len(documents) != len(labels):
            there = f", {files[0].name} has {len(labels)}" if labels else ""
            raise UserError(f"{file} has {len(documents)} documents{there}; {_REMEDY}")
        views.append(rows(file, [line for _, line in documents], modality.width))
    return Source(views, np.array([label.decode(errors="replace") for label in labels]), files, _LANGUAGES)
