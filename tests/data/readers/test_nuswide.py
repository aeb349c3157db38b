"""All layouts of NUS-WIDE give the images with exactly one of the ten largest concepts."""

import gzip
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from mfedpba_mpi.data.readers import nuswide
from mfedpba_mpi.errors import UserError

WIDTHS = {"CH": 64, "CORR": 144, "CM55": 225, "BoW": 500}
TRAIN = 25
TEN = [f"c{k}" for k in range(10)]
# 40 images: image i shows concept i % 10; the last two show several of the ten.
SHOWN: list[set[str]] = [{f"c{i % 10}"} for i in range(38)] + [{"c0", "c1"}, {"c2", "c3", "rare"}]
SHOWN[0] = {"c0", "z"}  # z is not one of the ten
SINGLE = list(range(38))
MIXED = np.random.default_rng(0).permutation(40)  # row of image i in the whole files


def label_file(concept: str, images: list[int]) -> str:
    return "".join(f"{int(concept in SHOWN[i])}\n" for i in images)


def feature_file(width: int, images: list[int]) -> str:
    """Image i has the features i, width, width, ..."""
    return "".join(f"{i} {' '.join([str(width)] * (width - 1))} \n" for i in images)


def name(feature: str, part: str) -> str:
    part = part and f"{part}_"
    return f"BoW_{part}int.dat" if feature == "BoW" else f"{part}Normalized_{feature}.dat"


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def write_features(root: Path, parts: dict[str, list[int]], features: tuple[str, ...] = tuple(WIDTHS)) -> None:
    for feature in features:
        for part, images in parts.items():
            write(root / "Low_Level_Features" / name(feature, part), feature_file(WIDTHS[feature], images))


def write_labels(root: Path, parts: dict[str, list[int]]) -> None:
    for concept in [*TEN, "z", "rare", "Training"]:
        for part, images in parts.items():
            file = f"TrainTestLabels/Labels_{concept}_{part}.txt" if part else f"AllLabels/Labels_{concept}.txt"
            write(root / "Groundtruth" / file, label_file(concept, images))


def write_lists(root: Path, parts: dict[str, list[int]]) -> None:
    for part, images in parts.items():
        write(root / "ImageList" / f"{part}Imagelist.txt", "".join(f"sky\\{i:04}.jpg\r\n" for i in images))


SPLIT = {"Train": list(range(TRAIN)), "Test": list(range(TRAIN, 40))}
WHOLE = {"": np.argsort(MIXED).tolist()}


@pytest.fixture
def split(tmp_path: Path) -> Path:
    root = tmp_path / "NUS-WIDE"
    write_features(root, SPLIT)
    write_labels(root, SPLIT)
    return root


def assert_right(root: Path, order: list[int]) -> None:
    assert nuswide.recognises(root)
    source = nuswide.read(root, root)
    assert source.view_names == list(WIDTHS)
    expected = [i for i in order if i in SINGLE]
    assert source.labels.tolist() == [f"c{i % 10}" for i in expected]
    assert source.class_names == TEN
    for view, width in zip(source.views, WIDTHS.values(), strict=True):
        assert (view.shape, view.dtype) == ((38, width), np.float32)
        np.testing.assert_array_equal(view[:, 0], expected)
        assert (view[:, 1:] == width).all()
    assert len(set(source.files)) == len(source.files)
    assert all(file.is_file() for file in source.files)
    assert f"the 10 of 13 concepts with most images ({', '.join(TEN)})" in source.details["subset"]
    assert "all, as there are no more than 5000" in source.details["subset"]


def test_split_files_are_read_train_first(split: Path) -> None:
    assert_right(split, list(range(40)))
    source = nuswide.read(split, split)
    assert len(source.files) == 2 * (4 + 13)
    assert source.details["order of images"] == "train, then test"


def test_whole_files_are_read_in_their_order(tmp_path: Path) -> None:
    write_features(tmp_path, WHOLE)
    write_labels(tmp_path, WHOLE)
    assert_right(tmp_path, WHOLE[""])
    source = nuswide.read(tmp_path, tmp_path)
    assert len(source.files) == 4 + 13
    assert source.details["order of images"] == "all in one list"


def test_split_files_are_preferred(split: Path) -> None:
    write_features(split, WHOLE)
    write_labels(split, WHOLE)
    assert_right(split, list(range(40)))


def test_a_complete_layout_is_used(split: Path) -> None:
    write_features(split, WHOLE)
    write_labels(split, WHOLE)
    (split / "Low_Level_Features" / "BoW_Test_int.dat").unlink()
    assert_right(split, WHOLE[""])


@pytest.mark.parametrize("labels", [SPLIT, WHOLE])
def test_a_mixed_download_is_joined_by_the_image_lists(tmp_path: Path, labels: dict[str, list[int]]) -> None:
    write_features(tmp_path, WHOLE, ("CH", "CORR", "CM55"))
    write_features(tmp_path, SPLIT, ("BoW",))
    write_labels(tmp_path, labels)
    with pytest.raises(
        UserError, match=r"some files only whole and some only as Train and Test.*ImageList/Imagelist\.txt"
    ):
        nuswide.read(tmp_path, tmp_path)
    write_lists(tmp_path, SPLIT | WHOLE)
    assert_right(tmp_path, list(range(40)))
    assert tmp_path / "ImageList" / "TestImagelist.txt" in nuswide.read(tmp_path, tmp_path).files


def test_an_image_missing_from_the_whole_list_is_reported(tmp_path: Path) -> None:
    write_features(tmp_path, WHOLE, ("CH", "CORR", "CM55"))
    write_features(tmp_path, SPLIT, ("BoW",))
    write_labels(tmp_path, SPLIT)
    write_lists(tmp_path, SPLIT | WHOLE | {"Test": [*range(TRAIN, 39), 77]})
    with pytest.raises(UserError, match=r"TestImagelist\.txt line 15: '.*0077\.jpg' is not in "):
        nuswide.read(tmp_path, tmp_path)


def test_gz_files_and_the_parent_directory_are_accepted(split: Path) -> None:
    for file in list(split.rglob("*.dat")) + list(split.rglob("*.txt")):
        Path(f"{file}.gz").write_bytes(gzip.compress(file.read_bytes()))
        file.unlink()
    assert_right(split.parent, list(range(40)))


def test_5000_images_are_drawn_evenly(tmp_path: Path) -> None:
    shown = np.random.default_rng(1).permutation(np.repeat(np.arange(11), [900, 700, *[500] * 7, 300, 299]))
    rest = {feature: " 0" * (width - 1) for feature, width in WIDTHS.items()}
    for feature in WIDTHS:
        text = "".join(f"{i}{rest[feature]}\n" for i in range(len(shown)))
        write(tmp_path / "Low_Level_Features" / name(feature, ""), text)
    for k in range(11):
        labels = "\n".join((shown == k).astype(int).astype(str))
        write(tmp_path / "Groundtruth" / f"Labels_{'abcdefghijk'[k]}.txt", labels)
    source = nuswide.read(tmp_path, tmp_path)
    # j has only 300 instead of 500, the seven classes of 500 are exhausted, so a and b give 600 each
    assert Counter(source.labels.tolist()) == {"a": 600, "b": 600, **dict.fromkeys("cdefghi", 500), "j": 300}
    images = source.views[3][:, 0].astype(int)
    assert (np.diff(images) > 0).all()
    np.testing.assert_array_equal(source.labels, np.array(list("abcdefghijk"))[shown[images]])
    for view in source.views:
        np.testing.assert_array_equal(view[:, 0], images)
    assert "5000 drawn evenly" in source.details["subset"]


def test_ties_are_broken_by_name(split: Path) -> None:
    for part, images in SPLIT.items():
        write(split / "Groundtruth" / "TrainTestLabels" / f"Labels_c8a_{part}.txt", label_file("c8", images))
    source = nuswide.read(split, split)  # c8, c8a and c9 have three images each; c8a takes the last place
    assert source.class_names == [concept for concept in TEN if concept not in ("c8", "c9")]
    assert "c7, c8, c8a)" in source.details["subset"]


def test_other_directories_are_not_recognised(tmp_path: Path) -> None:
    write_labels(tmp_path, WHOLE)
    assert not nuswide.recognises(tmp_path)


@pytest.mark.parametrize(
    ("removed", "message"),
    [
        ("Test_Normalized_CORR.dat", "lacks Normalized_CORR.dat (whole, or Train and Test)"),
        ("Labels_c3_Test.txt", "lacks Labels_c3.txt (whole"),
        ("Labels_*", "has labels of 0 concepts; unpack Groundtruth"),
    ],
)
def test_missing_files_are_reported(split: Path, removed: str, message: str) -> None:
    for file in split.rglob(removed):
        file.unlink()
    with pytest.raises(UserError, match=re.escape(message)):
        nuswide.read(split, split)


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        (
            "Low_Level_Features/Train_Normalized_CH.dat",
            feature_file(63, SPLIT["Train"]),
            "line 1 has 63 columns instead",
        ),
        ("Low_Level_Features/Train_Normalized_CH.dat", feature_file(64, SPLIT["Train"][:9]), "has 9 lines"),
        ("Low_Level_Features/BoW_Test_int.dat", "", "has 0 lines"),
        ("Low_Level_Features/BoW_Test_int.dat", feature_file(500, [*SPLIT["Test"], 40]), "has 16 lines"),
        ("Low_Level_Features/BoW_Test_int.dat", "x " + feature_file(500, SPLIT["Test"]), "line 1 has 501 columns"),
        (
            "Low_Level_Features/BoW_Test_int.dat",
            feature_file(500, SPLIT["Test"]).replace("30 ", "o "),
            "line 6: 'o' is",
        ),
        ("Groundtruth/TrainTestLabels/Labels_c4_Test.txt", "0\n1\n", "has 2 lines, "),
        ("Groundtruth/TrainTestLabels/Labels_c4_Test.txt", "0\n-1\n" * 20, "line 2 is '-1', not 0 or 1"),
    ],
)
def test_an_invalid_file_is_reported_with_its_count_or_line(split: Path, file: str, text: str, message: str) -> None:
    write(split / file, text)
    with pytest.raises(UserError, match=re.escape(f"{Path(file).name} {message}")):
        nuswide.read(split, split)
