"""NUS-WIDE as its authors give it out, from which a subset of the catalog's size is drawn.

``Low_Level_Features`` has the features as text, one image a line: CH (64 numbers), CORR (144), CM55 (225), BoW (500),
the catalog's I1, I2, I3, L. ``Groundtruth`` has a file of lines 0 or 1 for each of 81 concepts. Two layouts exist::

    split   Train_Normalized_CH.dat ...  BoW_Train_int.dat  TrainTestLabels/Labels_<concept>_Train.txt   and Test
    whole   Normalized_CH.dat ...        BoW_int.dat        AllLabels/Labels_<concept>.txt

Split files are preferred, and read train first, then test. Where neither layout is complete, whole files are brought
into the order of the split ones by ``ImageList/Imagelist.txt``, ``TrainImagelist.txt`` and ``TestImagelist.txt``.

The subset is ours, as the paper only gives its size: the ten concepts with most images (ties by name), the images with
exactly one of these, and of them 5000, evenly over the concepts, drawn from the stream ``(0, "nus-wide subset")``. The
draw follows the order of the images, so it gives others where only whole files are there; the details say which. The
paper speaks of 8 classes and of 10; ten is what its table of datasets and the catalog have.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mfedpba_mpi.data.catalog import CATALOG
from mfedpba_mpi.data.readers.source import Source, draw_evenly, drawn_words
from mfedpba_mpi.data.readers.tables import table
from mfedpba_mpi.data.readers.text import files_below, lines, opened, shown
from mfedpba_mpi.errors import UserError
from mfedpba_mpi.rng import generator

FORMAT = "NUS-WIDE: a directory with Low_Level_Features (CH, CORR, CM55, BoW) and Groundtruth, as text"
_INFO = CATALOG["nus-wide"]
_FEATURES = ["Normalized_CH.dat", "Normalized_CORR.dat", "Normalized_CM55.dat", "BoW_int.dat"]
_LIST = "Imagelist.txt"
_SPLIT, _WHOLE = ("Train", "Test"), ("",)
_PART = r"^(Train|Test)_?|_(Train|Test)(?=[_.])"  # of the name of a split file; the rest is the name of the whole one
_REMEDY = "every line is an image, download them again"


def recognises(path: Path) -> bool:
    """Any of the feature files."""
    return any(feature in _find(path) for feature in _FEATURES)


def read(path: Path, scratch: Path) -> Source:
    """The four features of the images with exactly one of the ten concepts; `scratch` is not used."""
    found = _find(path)
    names = sorted(name[len("Labels_") : -len(".txt")] for name in found if name.startswith("Labels_"))
    if len(names) < _INFO.classes:
        raise UserError(f"{path} has labels of {len(names)} concepts; unpack Groundtruth there, which has 81")
    texts = _Texts(path, found, [*_FEATURES, *(f"Labels_{name}.txt" for name in names)])
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
        f"{len(single)} images with exactly one of these {drawn_words(len(single), _INFO.samples)}",
    }
    view_names = ["CH", "CORR", "CM55", "BoW"]
    return Source(views, labels[drawn], texts.read, view_names, np.unique(labels[drawn]).tolist(), details=details)


def _find(path: Path) -> dict[str, dict[str, Path]]:
    """The files by their name in the whole layout and their part: Train, Test or nothing."""
    features = r"((Train|Test)_)?Normalized_(CH|CORR|CM55)\.dat|BoW_((Train|Test)_)?int\.dat"
    found: dict[str, dict[str, Path]] = {}
    for file in files_below(path, rf"{features}|Labels_.+\.txt|(Train|Test)?{_LIST}"):
        name = file.name.removesuffix(".gz")
        part = re.search(_PART, name)
        parts = found.setdefault(re.sub(_PART, "", name), {})
        parts.setdefault(part[1] or part[2] if part else "", file)
    return found


class _Texts:
    """The files of `names` in one order of the images; `read` are those read so far."""

    def __init__(self, path: Path, found: dict[str, dict[str, Path]], names: Sequence[str]) -> None:
        self.read: list[Path] = []
        self._sizes: dict[str, tuple[int, Path]] = {}  # by part: its number of images, and the file it was seen in
        # for each image of the split files its row in whole ones, if both are used
        self._order: np.ndarray | None = None

        def complete(name: str, parts: Sequence[str]) -> bool:
            return all(part in found.get(name, {}) for part in parts)

        if missing := [name for name in names if not (complete(name, _SPLIT) or complete(name, _WHOLE))]:
            listed = ", ".join(missing[:4]) + (f" and {len(missing) - 4} more" if len(missing) > 4 else "")
            raise UserError(f"{path} lacks {listed} (whole, or Train and Test); unpack all of NUS-WIDE there")
        layout = next((parts for parts in (_SPLIT, _WHOLE) if all(complete(name, parts) for name in names)), None)
        self.images = "all in one list" if layout == _WHOLE else "train, then test"
        chosen = {name: layout or (_SPLIT if complete(name, _SPLIT) else _WHOLE) for name in names}
        self._files = {name: {part: found[name][part] for part in parts} for name, parts in chosen.items()}
        if layout is None:
            if not complete(_LIST, _WHOLE + _SPLIT):
                raise UserError(
                    f"{path} has some files whole and some as Train and Test only; to join them it needs "
                    f"ImageList/{_LIST}, TrainImagelist.txt and TestImagelist.txt"
                )
            self._order = self._match(found[_LIST])

    def labels(self, name: str) -> np.ndarray:
        """Whether each image shows the concept."""
        values = []
        for part, file in self._files[name].items():
            with opened(file) as content:
                texts = content.read().split()
            if wrong := set(texts) - {b"0", b"1"}:
                number = next(i for i, text in enumerate(texts, 1) if text in wrong)
                raise UserError(f"{file} line {number} is '{shown(texts[number - 1])}', not 0 or 1; download it again")
            self._check(part, file, len(texts))
            values.append(np.array(texts) == b"1")
        order = self._order_of(name)
        return np.concatenate(values) if order is None else values[0][order]

    def rows(self, name: str, images: np.ndarray, width: int) -> np.ndarray:
        """The features of some images."""
        order = self._order_of(name)
        wanted, inverse = np.unique(images if order is None else order[images], return_inverse=True)
        keep = set(wanted.tolist())
        values = []
        row = -1
        for part, file in self._files[name].items():
            kept, before = [], row
            for line in lines(file):
                row += 1
                if row in keep:
                    kept.append(line)
            self._check(part, file, row - before)
            values.append(table(file, kept, width))
        return np.concatenate(values)[inverse]

    def _order_of(self, name: str) -> np.ndarray | None:
        return self._order if "" in self._files[name] else None

    def _check(self, part: str, file: Path, count: int) -> None:
        """Note the file as read; a UserError where it has another number of images than others of its part."""
        self.read.append(file)
        known, other = self._sizes.setdefault(part, (count, file))
        if count != known:
            raise UserError(f"{file} has {count} lines, {other} has {known}; {_REMEDY}")

    def _match(self, lists: dict[str, Path]) -> np.ndarray:
        """The order, from the lists of images."""
        row: dict[bytes, int] = {}
        order = []
        for part in _WHOLE + _SPLIT:
            images = list(lines(lists[part]))
            self._check(part, lists[part], len(images))
            for i, (number, text) in enumerate(images):
                image = b"/".join(re.split(rb"[\\/]+", text)[-2:])
                if not part:
                    row[image] = i
                elif image in row:
                    order.append(row[image])
                else:
                    raise UserError(f"{lists[part]} line {number}: '{shown(text)}' is not in {lists['']}; {_REMEDY}")
        return np.array(order, np.int64)
