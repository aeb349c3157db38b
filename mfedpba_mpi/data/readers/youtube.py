"""UCI YouTube Multiview Video Games: about 120000 videos, from which a subset of the catalog's size is drawn.

The directories ``train`` (or ``training``), ``validation`` and ``test`` have a file ``FAMILY.txt`` for each of 13
families of features. Its lines are ``LABEL index:value ...`` with labels 1..31 (31: none of the 30 games). Lines that
start with ``#`` are comments; ``#I 12345`` gives the instance id of the next line. Not every video has every family, so
families are joined by directory and id, or by the count of lines where a file has no ids. Where an id comes twice in a
file, its first line counts.

The subset is ours, as the paper only gives its size: videos with all six families below and a label 1..30; of these the
ten labels with most videos (ties: the smaller label); of these 2000, evenly over the labels, drawn from the stream
``(0, "youtube subset")``. They stay in the order of the files.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from mfedpba_mpi.data.catalog import CATALOG
from mfedpba_mpi.data.readers.source import Source, draw_evenly, drawn_words
from mfedpba_mpi.data.readers.text import files_below, labelled, lines, rows, shown
from mfedpba_mpi.errors import UserError
from mfedpba_mpi.rng import generator

FORMAT = "UCI YouTube Multiview Video Games: a directory with train, validation and test, which hold audio_mfcc.txt ..."
_INFO = CATALOG["youtube"]
_FAMILIES = [
    "audio_mfcc",
    "audio_spectrogram_stream",
    "audio_volume_stream",
    "vision_cuboids_histogram",
    "vision_hist_motion_estimate",
    "vision_hog_features",
]
_PARTS = {"train": "train", "training": "train", "validation": "validation", "test": "test"}  # as they are called here
_GAMES = 30


def recognises(path: Path) -> bool:
    """Any of the six families' files."""
    return bool(_find(path))


def read(path: Path, scratch: Path) -> Source:
    """The six families of the training, validation and test parts; `scratch` is not used."""
    found = _find(path)
    parts = [part for part in dict.fromkeys(_PARTS.values()) if part in found]
    for part in parts:
        if missing := [family for family in _FAMILIES if family not in found[part]]:
            raise UserError(
                f"{path}: the directory {part} lacks {', '.join(missing)} (.txt); unpack the whole download"
            )
    files = [found[part][family] for part in parts for family in _FAMILIES]
    videos = [video for part in parts for video in _join([found[part][family] for family in _FAMILIES])]
    labels = np.array([label for label, _ in videos])
    if not videos:
        raise UserError(f"{path}: no video has all of {', '.join(_FAMILIES)} and a label 1..{_GAMES}; unpack all files")
    games, counts = np.unique(labels, return_counts=True)
    games = np.sort(games[np.lexsort((games, -counts))[: _INFO.classes]])
    chosen = np.flatnonzero(np.isin(labels, games))
    available = len(chosen)
    chosen = chosen[draw_evenly(labels[chosen], _INFO.samples, generator(0, "youtube subset"))]
    views = [_view([videos[i][1][m] for i in chosen], modality.width) for m, modality in enumerate(_INFO.modalities)]
    details = {
        "subset": f"of {len(labels)} videos with all six families and a label 1..{_GAMES} in {', '.join(parts)}: the "
        f"{_INFO.classes} labels with most videos ({', '.join(map(str, games))}); of these {available} videos "
        f"{drawn_words(available, _INFO.samples)}"
    }
    return Source(views, labels[chosen], files, _FAMILIES, [f"game {game}" for game in games], details=details)


def _find(path: Path) -> dict[str, dict[str, Path]]:
    """The files by directory and family."""
    found: dict[str, dict[str, Path]] = {}
    for file in files_below(path, rf"({'|'.join(_FAMILIES)})\.txt"):
        if part := _PARTS.get(file.parent.name.lower()):
            found.setdefault(part, {}).setdefault(file.name.split(".")[0], file)
    return found


def _join(files: list[Path]) -> list[tuple[int, list[tuple[Path, int]]]]:
    """The videos in all `files` that show a game, in the order of the first: labels, and each file with the line."""
    scans = [_scan(file) for file in files]
    joined = []
    for key, (label, _) in scans[0].items():
        if all(key in scan for scan in scans):
            place = [(file, scan[key][1]) for file, scan in zip(files, scans, strict=True)]
            for scan, (file, number) in zip(scans, place, strict=True):
                if scan[key][0] != label:
                    there = f"{files[0].name} has {label} for the same video"
                    raise UserError(f"{file} line {number} has the label {scan[key][0]}, {there}; download both again")
            if label <= _GAMES:
                joined.append((label, place))
    return joined


def _scan(file: Path) -> dict[bytes | int, tuple[int, int]]:
    """Label and line number of every video of a file by its id, or by its position in a file without ids."""
    found: list[tuple[bytes | None, int, int]] = []
    name = None
    for line in lines(file):
        first, *rest = line.text.split(None, 1)
        if first == b"#I" and rest:
            name = rest[0]
        elif not first.startswith(b"#"):
            if not (first.isdigit() and 1 <= int(first) <= _GAMES + 1):
                is_no = f"starts with '{shown(first)}', which is no label 1..{_GAMES + 1}"
                raise UserError(f"{file} line {line.number} {is_no}; download it again")
            found.append((name, int(first), line.number))
            name = None
    if all(name is None for name, _, _ in found):
        return {i: (label, number) for i, (_, label, number) in enumerate(found)}
    scanned: dict[bytes | int, tuple[int, int]] = {}
    for name, label, number in found:
        if name is None:
            raise UserError(f"{file} line {number} has no #I with an id before it, other lines have; download it again")
        scanned.setdefault(name, (label, number))
    return scanned


def _view(places: list[tuple[Path, int]], width: int) -> np.ndarray:
    """The rows at these files and line numbers."""
    values = np.zeros((len(places), width), np.float32)
    for file in dict.fromkeys(file for file, _ in places):
        positions = {number: i for i, (other, number) in enumerate(places) if other == file}
        texts = [labelled(file, line)[1] for line in lines(file) if line.number in positions]
        part = rows(file, texts, width)
        if part.shape[1] > width:
            number = texts[part[:, width:].getnnz(1).argmax()].number
            raise UserError(f"{file} line {number} has an index beyond the {width} of this family; download it again")
        values[[positions[line.number] for line in texts]] = part.toarray()
    return values
