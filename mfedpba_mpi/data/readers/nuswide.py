"""NUS-WIDE as published by its authors, from which a subset of the catalog's size is drawn.

``Low_Level_Features`` has the features as text, one image per line: CH (64 numbers), CORR (144), CM55 (225), BoW (500),
which are I1, I2, I3, L in the catalog. ``Groundtruth`` has a file with lines 0 or 1 for each of 81 concepts. There are
two layouts::

    split   Train_Normalized_CH.dat ...  BoW_Train_int.dat  TrainTestLabels/Labels_<concept>_Train.txt   and Test
    whole   Normalized_CH.dat ...        BoW_int.dat        AllLabels/Labels_<concept>.txt

Split files are preferred, and read train first, then test. If neither layout is complete, whole files are reordered
like the split ones by ``ImageList/Imagelist.txt``, ``TrainImagelist.txt`` and ``TestImagelist.txt``.

The paper gives only the size of its subset, so this subset is our choice: the ten concepts with most images (ties by
name), the images with exactly one of these concepts, and 5000 of them, drawn evenly over the concepts from the stream
``(0, "nus-wide subset")``. The draw depends on the order of the images, so whole files alone give another subset; the
details record which. The paper mentions both 8 and 10 classes; its table of datasets and the catalog have 10.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mfedpba_mpi.data.catalog import CATALOG
from mfedpba_mpi.data.readers.source import Source, describe_draw, draw_evenly
from mfedpba_mpi.data.readers.tables import parse_table
from mfedpba_mpi.data.readers.text import excerpt, files_below, open_bytes, read_lines
from mfedpba_mpi.errors import UserError
from mfedpba_mpi.rng import generator

FORMAT = "NUS-WIDE: a directory with Low_Level_Features (CH, CORR, CM55, BoW) and Groundtruth, as text"
_INFO = CATALOG["nus-wide"]
_FEATURES = ["Normalized_CH.dat", "Normalized_CORR.dat", "Normalized_CM55.dat", "BoW_int.dat"]
_LIST = "Imagelist.txt"
_SPLIT, _WHOLE = ("Train", "Test"), ("",)
_PART = r"^(Train|Test)_?|_(Train|Test)(?=[_.])"  # without it, the name of a split file is that of the whole one
_REMEDY = "each file must have one line per image, download them again"


def recognises(path: Path) -> bool:
    """Whether any of the feature files is there."""
    return any(feature in _find(path) for feature in _FEATURES)


def read(path: Path, scratch: Path) -> Source:
    """Read the four features of the drawn images with exactly one of the ten concepts; `scratch` is unused."""
    found = _find(path)
    names = sorted(name[len("Labels_") : -len(".txt")] for name in found if name.startswith("Labels_"))
    if len(names) < _INFO.classes:
        raise UserError(f"{path} has labels of {len(names)} concepts; unpack Groundtruth, which has 81, into it")
    texts = _Files(path, found, [*_FEATURES, *(f"Labels_{name}.txt" for name in names)])
    positive = np.array([texts.labels(f"Labels_{name}.txt") for name in names])
    top = np.sort(np.argsort(-positive.sum(1), kind="stable")[: _INFO.classes])
    concepts = np.array(names)[top]
    single = np.flatnonzero(positive[top].sum(0) == 1)
    if not len(single):
        raise UserError(f"{path}: no image has exactly one of {', '.join(concepts)}; unpack Groundtruth again")
    labels = concepts[positive[top][:, single].argmax(0)]
    drawn = draw_evenly(labels, _INFO.samples, generator(0, "nus-wide subset"))
    views = [
        texts.rows(feature, single[drawn], modality.width)
        for feature, modality in zip(_FEATURES, _INFO.modalities, strict=True)
    ]
    details = {
        "order of images": texts.images,
        "subset": f"the {len(top)} of {len(names)} concepts with most images ({', '.join(concepts)}); of the "
        f"{len(single)} images with exactly one of these {describe_draw(len(single), _INFO.samples)}",
    }
    view_names = ["CH", "CORR", "CM55", "BoW"]
    return Source(views, labels[drawn], texts.read, view_names, np.unique(labels[drawn]).tolist(), details=details)


def _find(path: Path) -> dict[str, dict[str, Path]]:
    """Find the files by their name in the whole layout and their part: Train, Test or "" (whole)."""
    features = r"((Train|Test)_)?Normalized_(CH|CORR|CM55)\.dat|BoW_((Train|Test)_)?int\.dat"
    found: dict[str, dict[str, Path]] = {}
    for file in files_below(path, rf"{features}|Labels_.+\.txt|(Train|Test)?{_LIST}"):
        name = file.name.removesuffix(".gz")
        part = re.search(_PART, name)
        parts = found.setdefault(re.sub(_PART, "", name), {})
        parts.setdefault(part[1] or part[2] if part else "", file)
    return found


class _Files:
    """Reads the files of `names` in a common order of the images; `read` lists the files read so far."""

    def __init__(self, path: Path, found: dict[str, dict[str, Path]], names: Sequence[str]) -> None:
        self.read: list[Path] = []
        self._sizes: dict[str, tuple[int, Path]] = {}  # by part: number of images, and the file it was counted in
        self._order: np.ndarray | None = (
            None  # row in the whole files of each image of the split ones, if both are used
        )

        def complete(name: str, parts: Sequence[str]) -> bool:
            return all(part in found.get(name, {}) for part in parts)

        if missing := [name for name in names if not (complete(name, _SPLIT) or complete(name, _WHOLE))]:
            listed = ", ".join(missing[:4]) + (f" and {len(missing) - 4} more" if len(missing) > 4 else "")
            raise UserError(f"{path} lacks {listed} (whole, or Train and Test); unpack all of NUS-WIDE into it")
        layout = next((parts for parts in (_SPLIT, _WHOLE) if all(complete(name, parts) for name in names)), None)
        self.images = "all in one list" if layout == _WHOLE else "train, then test"
        chosen = {name: layout or (_SPLIT if complete(name, _SPLIT) else _WHOLE) for name in names}
        self._files = {name: {part: found[name][part] for part in parts} for name, parts in chosen.items()}
        if layout is None:
            if not complete(_LIST, _WHOLE + _SPLIT):
                raise UserError(
                    f"{path} has some files only whole and some only as Train and Test; joining them needs "
                    f"ImageList/{_LIST}, TrainImagelist.txt and TestImagelist.txt"
                )
            self._order = self._match_lists(found[_LIST])

    def labels(self, name: str) -> np.ndarray:
        """Read whether each image shows the concept."""
        values = []
        for part, file in self._files[name].items():
            with open_bytes(file) as content:
                texts = content.read().split()
            if wrong := set(texts) - {b"0", b"1"}:
                number = next(i for i, text in enumerate(texts, 1) if text in wrong)
                raise UserError(
                    f"{file} line {number} is '{excerpt(texts[number - 1])}', not 0 or 1; download it again"
                )
            self._check_count(part, file, len(texts))
            values.append(np.array(texts) == b"1")
        order = self._order_of(name)
        return np.concatenate(values) if order is None else values[0][order]

    def rows(self, name: str, images: np.ndarray, width: int) -> np.ndarray:
        """Read the features of some images, (len(images), width)."""
        order = self._order_of(name)
        wanted, inverse = np.unique(images if order is None else order[images], return_inverse=True)
        keep = set(wanted.tolist())
        values = []
        row = -1
        for part, file in self._files[name].items():
            kept, before = [], row
            for line in read_lines(file):
                row += 1
                if row in keep:
                    kept.append(line)
            self._check_count(part, file, row - before)
            values.append(parse_table(file, kept, width))
        return np.concatenate(values)[inverse]

    def _order_of(self, name: str) -> np.ndarray | None:
        return self._order if "" in self._files[name] else None

    def _check_count(self, part: str, file: Path, count: int) -> None:
        """Record the file as read; raise a UserError if its number of images differs from other files of its part."""
        self.read.append(file)
        known, other = self._sizes.setdefault(part, (count, file))
        if count != known:
            raise UserError(f"{file} has {count} lines, {other} has {known}; {_REMEDY}")

    def _match_lists(self, lists: dict[str, Path]) -> np.ndarray:
        """Return the rows in the whole files of the images of the split files, by the image lists."""
        row: dict[bytes, int] = {}
        order = []
        for part in _WHOLE + _SPLIT:
            images = list(read_lines(lists[part]))
            self._check_count(part, lists[part], len(images))
            for i, (number, text) in enumerate(images):
                image = b"/".join(re.split(rb"[\\/]+", text)[-2:])
                if not part:
                    row[image] = i
                elif image in row:
                    order.append(row[image])
                else:
                    raise UserError(f"{lists[part]} line {number}: '{excerpt(text)}' is not in {lists['']}; {_REMEDY}")
        return np.array(order, np.int64)
