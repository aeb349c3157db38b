"""Sealed HDF5 files: any damage is detected, and HDF5 tools can read them."""

from pathlib import Path

import h5py
import pytest

from mfedpba_mpi.data.seal import BLOCK, open_image, seal


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with h5py.File(tmp_path / "plain.h5", "w") as file:
        file["x"] = [1, 2, 3]
    path = tmp_path / "sealed.h5"
    path.write_bytes(seal((tmp_path / "plain.h5").read_bytes()))
    return path


def test_a_sealed_file_is_read_by_us_and_by_plain_h5py(path: Path) -> None:
    for file in (open_image(path), h5py.File(path)):
        with file:
            assert file["x"][()].tolist() == [1, 2, 3]


def test_changes_of_the_opened_image_leave_the_file_unchanged(path: Path) -> None:
    before = path.read_bytes()
    with open_image(path) as file:
        file["x"][0] = 7
        file.flush()
        image = file.id.get_file_image()
    assert path.read_bytes() == before
    path.write_bytes(seal(image))
    with open_image(path) as file:
        assert file["x"][0] == 7


@pytest.mark.parametrize("position", [0, BLOCK - 1, BLOCK, -1])
def test_a_flipped_bit_anywhere_is_detected(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="wrong checksum"):
        open_image(path)


@pytest.mark.parametrize("size", [0, 100, BLOCK, -1])
def test_a_truncated_file_is_detected(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ValueError, match="wrong checksum"):
        open_image(path)
