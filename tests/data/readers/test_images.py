"""A directory of class directories is read as three views; cached descriptors are not computed again."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
from PIL import Image

from mfedpba_mpi.data.readers import images
from mfedpba_mpi.data.readers.source import Source
from mfedpba_mpi.errors import UserError

CLASSES = ["Zebra", "ant", "ant_lion"]


class Started(Exception):
    """Raised instead of starting workers."""


def no_workers(*_: object) -> None:
    raise Started


def paint(path: Path, seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(256, size=(6, 8, 3), dtype=np.uint8)
    Image.fromarray(pixels).resize((80, 60)).save(path)


@pytest.fixture(scope="module")
def painted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with images in `photos`, which were read with the scratch directory `scratch`."""
    home = tmp_path_factory.mktemp("painted")
    for label, name in enumerate(CLASSES):
        for i, file in enumerate(["b.PNG", "a.jpg", "c.jpeg"]):
            paint(home / "photos" / name / file, 10 * label + i)
    for clutter in (".hidden/a.png", "ant/._a.jpg"):
        paint(home / "photos" / clutter, 99)
    (home / "photos" / "empty").mkdir()
    for clutter in ("README.txt", "ant/notes.txt"):
        (home / "photos" / clutter).write_text("no image")
    images.read(home / "photos", home / "scratch")
    return home


@pytest.fixture
def home(painted: Path, tmp_path: Path) -> Path:
    """A copy of `painted`."""
    return shutil.copytree(painted, tmp_path / "home")


@pytest.fixture
def read_again(home: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Source]:
    """A function that reads the copy, and raises an exception if anything is not cached."""
    monkeypatch.setattr(images, "ProcessPoolExecutor", no_workers)
    return lambda: images.read(home / "photos", home / "scratch")


def test_classes_and_samples_are_sorted_by_name(read_again: Callable[[], Source], home: Path) -> None:
    source = read_again()
    assert source.class_names == CLASSES
    assert source.classes == 3
    assert source.labels.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    files = [f"{name}/{file}" for name in CLASSES for file in ("a.jpg", "b.PNG", "c.jpeg")]
    assert [file.relative_to(home / "photos").as_posix() for file in source.files] == files


def test_the_views_are_the_descriptors_of_the_files(read_again: Callable[[], Source]) -> None:
    source = read_again()
    assert source.view_names == ["HOG", "GIST", "LBP"]
    assert [(view.shape, view.dtype) for view in source.views] == [((9, w), np.float16) for w in (1984, 512, 928)]
    for row in (0, 4, 8):
        described = images.describe(source.files[row]).astype(np.float16)
        np.testing.assert_array_equal(np.concatenate([view[row] for view in source.views]), described)


def test_the_parent_of_the_caltech_directory_is_accepted(read_again: Callable[[], Source], home: Path) -> None:
    (home / "photos").rename(home / "101_ObjectCategories")
    paint(home / "Annotations" / "a.png", 0)
    assert images.recognises(home)
    assert images.read(home, home / "scratch").class_names == CLASSES


def test_a_changed_file_is_described_again(read_again: Callable[[], Source], home: Path) -> None:
    os.utime(home / "photos" / "ant" / "a.jpg", (0, 0))
    with pytest.raises(Started):
        read_again()


def test_another_revision_describes_everything_again(
    read_again: Callable[[], Source], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "REVISION", images.REVISION + 1)
    with pytest.raises(Started):
        read_again()


@pytest.mark.parametrize("size", [0, 50, 5000])
def test_a_damaged_part_is_described_again(size: int, read_again: Callable[[], Source], home: Path) -> None:
    part = next((home / "scratch").iterdir())
    part.write_bytes(part.read_bytes()[:size])
    with pytest.raises(Started):
        read_again()


def test_a_part_with_a_flipped_bit_is_described_again(read_again: Callable[[], Source], home: Path) -> None:
    part = next((home / "scratch").iterdir())
    content = bytearray(part.read_bytes())
    content[777] ^= 1
    part.write_bytes(content)
    with pytest.raises(Started):
        read_again()


def test_an_interruption_keeps_the_finished_parts(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, scratch, save_part = images.read(home / "photos", home / "scratch"), home / "new", images._save_part
    saved: list[Path] = []

    def save_one(file: Path, rows: np.ndarray) -> None:
        if saved:
            raise KeyboardInterrupt
        saved.append(file)
        save_part(file, rows)

    monkeypatch.setattr(images, "_save_part", save_one)
    with pytest.raises(KeyboardInterrupt):
        images.read(home / "photos", scratch)
    assert [*scratch.iterdir()] == saved
    time = saved[0].stat().st_mtime_ns
    monkeypatch.setattr(images, "_save_part", save_part)
    source = images.read(home / "photos", scratch)
    assert saved[0].stat().st_mtime_ns == time
    assert len([*scratch.iterdir()]) == 3
    for view, right in zip(source.views, expected.views, strict=True):
        np.testing.assert_array_equal(view, right)


def test_a_broken_image_is_reported_and_the_import_works_without_it(home: Path) -> None:
    broken = home / "photos" / "ant" / "z.jpg"
    broken.write_bytes(b"no image")
    with pytest.raises(
        UserError, match=r"cannot read the image .*ant/z\.jpg \(not an image\); get it again or remove it"
    ):
        images.read(home / "photos", home / "scratch")
    broken.unlink()
    assert len(images.read(home / "photos", home / "scratch").labels) == 9


def test_an_unwritable_scratch_directory_is_reported(home: Path) -> None:
    with pytest.raises(UserError, match=r"cannot write .*README\.txt.*check free space"):
        images.read(home / "photos", home / "photos" / "README.txt")


def test_only_directories_with_class_directories_are_recognised(painted: Path, tmp_path: Path) -> None:
    assert images.recognises(painted / "photos")
    assert not images.recognises(painted / "photos" / "ant")  # images, but no class directories
    assert not images.recognises(painted / "photos" / "ant" / "a.jpg")
    assert not images.recognises(tmp_path / "missing")
    assert not images.recognises(tmp_path)


def test_a_directory_without_class_directories_is_refused(painted: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"ant has no directories with \.jpg, \.jpeg, \.png files"):
        images.read(painted / "photos" / "ant", tmp_path)


def test_each_view_of_photographs_separates_the_classes(shared_data: Path, tmp_path: Path) -> None:
    folder = shared_data / "raw" / "caltech101_images"
    source = images.read(folder, tmp_path)
    with h5py.File(shared_data / "caltech101.h5") as file:
        order = [name.decode() for name in file["files"][()]]
        names = [name.decode() for name in file["class_names"][()]]
    positions = [order.index(file.relative_to(folder).as_posix()) for file in source.files]
    assert positions == sorted(positions)
    assert source.class_names == [name for name in names if (folder / name).is_dir()]
    for view in source.views:
        X = view.astype(float)
        sums, sizes = np.eye(10)[:, source.labels] @ X, np.bincount(source.labels)
        hits = 0
        for x, c in zip(X, source.labels, strict=True):
            centroids = (sums - np.eye(10)[c][:, None] * x) / (sizes - np.eye(10)[c])[:, None]
            hits += np.linalg.norm(centroids - x, axis=1).argmin() == c
        assert hits / 80 > 0.5  # chance is 0.1
