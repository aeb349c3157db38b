"""UCI Multiple Features: six files ``mfeat-fou``, ``-fac``, ``-kar``, ``-pix``, ``-zer``, ``-mor``.

Each has 2000 lines of numbers separated by blanks, for the same digits in the same order. There is no label file: the
first 200 lines are the digit 0, the next 200 the digit 1, and so on.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from mfedpba_mpi.data.catalog import CATALOG
from mfedpba_mpi.data.readers.source import Source
from mfedpba_mpi.data.readers.tables import parse_table
from mfedpba_mpi.data.readers.text import find_files, read_lines, require_files
from mfedpba_mpi.errors import UserError

FORMAT = "UCI Multiple Features: a directory with mfeat-fou, -fac, -kar, -pix, -zer and -mor"
_INFO = CATALOG["mfeat"]
_NAMES = [f"mfeat-{modality.name}" for modality in _INFO.modalities]


def recognises(path: Path) -> bool:
    """Whether any of the six UCI files is there."""
    return bool(find_files(path, _NAMES))


def read(path: Path, scratch: Path) -> Source:
    """Read the six UCI text files; `scratch` is unused."""
    files = require_files(path, _NAMES)
    views = []
    for file, modality in zip(files, _INFO.modalities, strict=True):
        texts = list(read_lines(file))
        if len(texts) != _INFO.samples:
            raise UserError(f"{file} has {len(texts)} lines instead of {_INFO.samples}; download it again")
        views.append(parse_table(file, texts, modality.width))
    labels = np.repeat(np.arange(_INFO.classes), _INFO.samples // _INFO.classes)
    return Source(views, labels, files, [modality.name for modality in _INFO.modalities])
