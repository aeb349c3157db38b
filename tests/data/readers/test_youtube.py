"""Videos with all six families are joined by id, and a subset of the ten largest games is drawn."""

import gzip
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from mfedpba_mpi.data.readers import youtube
from mfedpba_mpi.errors import UserError

WIDTHS = {
    "audio_mfcc": 2000,
    "audio_spectrogram_stream": 1024,
    "audio_volume_stream": 64,
    "vision_cuboids_histogram": 512,
    "vision_hist_motion_estimate": 64,
    "vision_hog_features": 647,
}
Rows = list[tuple[int | None, int, str]]  # id, label, pairs


def write(directory: Path, family: str, rows: Rows) -> Path:
    """A file of the download with its header of comments."""
    directory.mkdir(parents=True, exist_ok=True)
    texts = [f"#I {name}\n{label} {pairs}\n" if name else f"{label} {pairs}\n" for name, label, pairs in rows]
    path = directory / f"{family}.txt"
    path.write_text("# Instances of one family\n#Is this a comment? Yes.\n" + "".join(texts))
    return path


def write_all(directory: Path, rows: Rows) -> None:
    for family in WIDTHS:
        write(directory, family, rows)


def test_videos_are_joined_by_directory_and_id(tmp_path: Path) -> None:
    for m, family in enumerate(WIDTHS, 1):
        train: Rows = [(name, label, f"1:{name}.5 {10 + m}:{m}") for name, label in ((11, 3), (12, 7), (13, 3))]
        write(tmp_path / "train", family, train[::-1] if m % 2 else train)
        write(tmp_path / "test", family, [(11, 7, "2:4")])
    write(tmp_path / "train", "text_tag_unigrams", [(11, 3, "999999:1")])
    assert youtube.recognises(tmp_path)
    source = youtube.read(tmp_path, tmp_path)
    assert source.view_names == list(WIDTHS)
    assert source.labels.tolist() == [3, 7, 3, 7]  # in the order of audio_mfcc
    assert source.class_names == ["game 3", "game 7"]
    for m, (view, width) in enumerate(zip(source.views, WIDTHS.values(), strict=True), 1):
        assert (view.shape, view.dtype) == ((4, width), np.float32)
        np.testing.assert_array_equal(view[:, 0], [13.5, 12.5, 11.5, 0])
        np.testing.assert_array_equal(view[:, 9 + m], [m, m, m, 0])
        assert view.sum() == 37.5 + 3 * m + 4
    assert source.files == [tmp_path / part / f"{family}.txt" for part in ("train", "test") for family in WIDTHS]
    assert "all, as there are no more than 2000" in source.details["subset"]


def test_videos_without_a_family_or_a_game_are_dropped(tmp_path: Path) -> None:
    write_all(tmp_path / "train", [(1, 2, "1:1"), (2, 31, "1:2"), (3, 4, "1:3"), (4, 2, "1:4")])
    write(tmp_path / "train", "vision_hog_features", [(4, 2, "1:4"), (2, 31, "1:2"), (1, 2, "1:1")])
    source = youtube.read(tmp_path, tmp_path)
    assert source.labels.tolist() == [2, 2]
    assert [view[:, 0].tolist() for view in source.views] == [[1, 4]] * 6


def test_without_ids_lines_are_joined_by_position(tmp_path: Path) -> None:
    write_all(tmp_path / "training", [(None, 5, "1:1"), (None, 6, "1:2")])
    file = write(tmp_path / "training", "audio_mfcc", [(None, 5, "3:1"), (None, 6, "3:2")])
    file.write_text(file.read_text().replace("6 3:2", "# a comment in between\n\n6 3:2"))
    source = youtube.read(tmp_path, tmp_path)
    assert source.labels.tolist() == [5, 6]
    assert source.views[0][:, 2].tolist() == [1, 2]


def test_gz_files_and_the_parent_directory_are_accepted(tmp_path: Path) -> None:
    write_all(tmp_path / "a" / "dir_data" / "Validation", [(1, 2, "1:1"), (2, 3, "1:4")])
    for file in tmp_path.rglob("*.txt"):
        Path(f"{file}.gz").write_bytes(gzip.compress(file.read_bytes()))
        file.unlink()
    assert youtube.recognises(tmp_path)
    source = youtube.read(tmp_path, tmp_path)
    assert source.views[0][:, 0].tolist() == [1, 4]
    assert "in validation:" in source.details["subset"]


def test_other_directories_are_not_recognised(tmp_path: Path) -> None:
    write_all(tmp_path / "elsewhere", [(1, 2, "1:1")])
    assert not youtube.recognises(tmp_path)


def test_the_ten_largest_games_share_2000_videos_evenly(tmp_path: Path) -> None:
    sizes = {label: 210 + 10 * (label % 3) for label in range(1, 10)} | {20: 150, 21: 150, 30: 149, 31: 900}
    labels = np.random.default_rng(0).permutation([label for label, size in sizes.items() for _ in range(size)])
    rows: Rows = [(1000 + i, label, f"{1 + i % 64}:{i}") for i, label in enumerate(labels)]
    half = len(rows) // 2
    write_all(tmp_path / "train", rows[:half])
    write_all(tmp_path / "test", rows[half:])
    source = youtube.read(tmp_path, tmp_path)
    expected = {label: 205 + (label <= 5) for label in range(1, 10)} | {20: 150}  # game 20 has only 150 instead of 200
    assert Counter(source.labels.tolist()) == expected
    assert source.class_names == [f"game {label}" for label in [*range(1, 10), 20]]
    numbers = source.views[2].max(1).astype(int)  # the video's number, written as its value
    assert (np.diff(numbers) > 0).all()  # in the order of the files
    np.testing.assert_array_equal(source.labels, labels[numbers])
    for view in source.views:
        np.testing.assert_array_equal(view[np.arange(2000), numbers % 64], numbers)
    again = youtube.read(tmp_path, tmp_path)
    np.testing.assert_array_equal(again.views[2], source.views[2])
    assert "2000 drawn evenly" in source.details["subset"]
    assert "(1, 2, 3, 4, 5, 6, 7, 8, 9, 20)" in source.details["subset"]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([(1, 2, "1:1"), (2, 3, "65:1")], r"train/audio_volume_stream\.txt line 6 has an index beyond the width 64"),
        ([(1, 2, "1:1"), (2, 3, "1:x")], r"audio_volume_stream\.txt line 6 is not a row of index:value"),
        ([(1, 2, "1:1"), (2, 4, "1:1")], r"audio_volume_stream\.txt line 6 has the label 4, audio_mfcc\.txt has 3"),
        (
            [(1, 2, "1:1"), (2, 32, "1:1")],
            r"audio_volume_stream\.txt line 6 starts with '32' instead of a label 1\.\.31",
        ),
        ([(1, 2, "1:1"), (None, 3, "1:1")], r"audio_volume_stream\.txt line 5 has no id \(#I\)"),
        ([(8, 2, "1:1"), (9, 3, "1:1")], "no video has all of audio_mfcc"),
        ([(None, 2, "1:1"), (None, 3, "1:1")], "no video has all of audio_mfcc"),
    ],
)
def test_an_invalid_file_is_reported_with_file_and_line(tmp_path: Path, rows: Rows, message: str) -> None:
    write_all(tmp_path / "train", [(1, 2, "1:1"), (2, 3, "1:1")])
    write(tmp_path / "train", "audio_volume_stream", rows)
    with pytest.raises(UserError, match=message):
        youtube.read(tmp_path, tmp_path)


def test_missing_families_are_reported_with_their_directory(tmp_path: Path) -> None:
    write_all(tmp_path / "train", [(1, 2, "1:1")])
    write(tmp_path / "test", "audio_mfcc", [(1, 2, "1:1")])
    with pytest.raises(UserError, match="the directory test lacks audio_spectrogram_stream, audio_volume_stream, "):
        youtube.read(tmp_path, tmp_path)
