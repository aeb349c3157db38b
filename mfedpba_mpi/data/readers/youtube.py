"""UCI YouTube Multiview Video Games: about 120000 videos, from which a subset of the catalog's size is drawn.

The directories ``train`` (or ``training``), ``validation`` and ``test`` have a file ``FAMILY.txt`` for each of 13
feature families. Its lines are ``LABEL index:value ...`` with labels 1..31 (31: none of the 30 games). Lines starting
with ``#`` are comments; ``#I 12345`` is the instance id of the next line. Not every video has every family, so families
are joined by directory and id, or by line position if a file has no ids. If an id occurs twice in a file, the first
line is used.

The paper gives only the size of its subset, so this subset is our choice: videos with all six families below and a
label 1..30; the ten labels with most videos (ties: the smaller label); 2000 of these videos, drawn evenly over the
labels from the stream ``(0, "youtube subset")``. They keep the order of the files.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from mfedpba_mpi.data.catalog import CATALOG
from mfedpba_mpi.data.readers.source import Source, describe_draw, draw_evenly
from mfedpba_mpi.data.readers.text import excerpt, files_below, parse_rows, read_lines, split_label
from mfedpba_mpi.errors import UserError
from mfedpba_mpi.rng import generator

FORMAT = "UCI YouTube Multiview Video Games: a directory with train, validation and test, each with audio_mfcc.txt ..."
_INFO = CATALOG["youtube"]
_FAMILIES = [
    "audio_mfcc",
    "audio_spectrogram_stream",
    "audio_volume_stream",
    "vision_cuboids_histogram",
    "vision_hist_motion_estimate",
    "vision_hog_features",
]
_PARTS = {"train": "train", "training": "train", "validation": "validation", "test": "test"}  # directory name -> part
_GAMES = 30


def recognises(path: Path) -> bool:
    """Whether a file of any of the six families is there."""
    return bool(_find(path))


def read(path: Path, scratch: Path) -> Source:
    """Read the six families of the training, validation and test parts, and draw the subset; `scratch` is unused."""
    found = _find(path)
    parts = [part for part in dict.fromkeys(_PARTS.values()) if part in found]
    for part in parts:
        if missing := [family for family in _FAMILIES if family not in found[part]]:
            raise UserError(
                f"{path}: the directory {part} lacks {', '.join(missing)} (.txt); unpack the complete download"
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
        f"{describe_draw(available, _INFO.samples)}"
    }
    return Source(views, labels[chosen], files, _FAMILIES, [f"game {game}" for game in games], details=details)


def _find(path: Path) -> dict[str, dict[str, Path]]:
    """Find the files by part and family."""
    found: dict[str, dict[str, Path]] = {}
    for file in files_below(path, rf"({'|'.join(_FAMILIES)})\.txt"):
        if part := _PARTS.get(file.parent.name.lower()):
            found.setdefault(part, {}).setdefault(file.name.split(".")[0], file)
    return found


def _join(files: list[Path]) -> list[tuple[int, list[tuple[Path, int]]]]:
    """Join the videos that are in all `files` and show a game: label, and (file, line number) of each family.

    They are in the order of the first file.
    """
    scans = [_scan(file) for file in files]
    joined = []
    for key, (label, _) in scans[0].items():
        if all(key in scan for scan in scans):
            places = [(file, scan[key][1]) for file, scan in zip(files, scans, strict=True)]
            for scan, (file, number) in zip(scans, places, strict=True):
                if scan[key][0] != label:
                    other = f"{files[0].name} has {label} for the same video"
                    raise UserError(f"{file} line {number} has the label {scan[key][0]}, {other}; download both again")
            if label <= _GAMES:
                joined.append((label, places))
    return joined


def _scan(file: Path) -> dict[bytes | int, tuple[int, int]]:
    """Return the label and line number of every video of a file by id, or by position if the file has no ids."""
    found: list[tuple[bytes | None, int, int]] = []
    name = None
    for line in read_lines(file):
        first, *rest = line.text.split(None, 1)
        if first == b"#I" and rest:
            name = rest[0]
        elif not first.startswith(b"#"):
            if not (first.isdigit() and 1 <= int(first) <= _GAMES + 1):
                raise UserError(
                    f"{file} line {line.number} starts with '{excerpt(first)}' instead of a label 1..{_GAMES + 1}; "
                    "download it again"
                )
            found.append((name, int(first), line.number))
            name = None
    if all(name is None for name, _, _ in found):
        return {i: (label, number) for i, (_, label, number) in enumerate(found)}
    scanned: dict[bytes | int, tuple[int, int]] = {}
    for name, label, number in found:
        if name is None:
            raise UserError(f"{file} line {number} has no id (#I) before it, but other lines have; download it again")
        scanned.setdefault(name, (label, number))
    return scanned


def _view(places: list[tuple[Path, int]], width: int) -> np.ndarray:
    """Read the rows at these files and line numbers, (len(places), width) float32."""
    values = np.zeros((len(places), width), np.float32)
    for file in dict.fromkeys(file for file, _ in places):
        positions = {number: i for i, (other, number) in enumerate(places) if other == file}
        texts = [split_label(file, line)[1] for line in read_lines(file) if line.number in positions]
        part = parse_rows(file, texts, width)
        if part.shape[1] > width:
            number = texts[part[:, width:].getnnz(1).argmax()].number
            raise UserError(
                f"{file} line {number} has an index beyond the width {width} of this family; download it again"
            )
        values[[positions[line.number] for line in texts]] = part.toarray()
    return values
