"""The six files of UCI Multiple Features are read as six views; the labels follow from the line order."""

import gzip
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest

from mfedpba_mpi.data.readers import mfeat
from mfedpba_mpi.errors import UserError

WIDTHS = {"fou": 76, "fac": 216, "kar": 64, "pix": 240, "zer": 47, "mor": 6}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete download; the first number of a line is its row, the others are the width."""
    path = tmp_path_factory.mktemp("made") / "mfeat"
    path.mkdir()
    for name, width in WIDTHS.items():
        rest = f"  {width}" * (width - 1)
        (path / f"mfeat-{name}").write_text("".join(f"   {row}.5 {rest} \n" for row in range(2000)))
    (path / "mfeat.info").write_text("about the data\n")
    return path


@pytest.fixture
def download(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "mfeat"))


def test_views_are_in_the_order_of_the_catalog(made: Path) -> None:
    assert mfeat.recognises(made)
    source = mfeat.read(made, made)
    assert source.view_names == list(WIDTHS)
    assert [view.shape for view in source.views] == [(2000, width) for width in WIDTHS.values()]
    for view, width in zip(source.views, WIDTHS.values(), strict=True):
        np.testing.assert_array_equal(view[:, 0], np.arange(2000) + 0.5)
        assert (view[:, 1:] == width).all()
    assert source.files == [made / f"mfeat-{name}" for name in WIDTHS]


def test_each_digit_has_200_consecutive_rows(made: Path) -> None:
    labels = mfeat.read(made, made).labels
    assert [labels[i] for i in (0, 199, 200, 399, 400, 1999)] == [0, 0, 1, 1, 2, 9]
    assert np.bincount(labels).tolist() == [200] * 10


def test_gz_files_and_the_parent_directory_are_accepted(download: Path, tmp_path: Path) -> None:
    plain = download / "mfeat-mor"
    (download / "mfeat-mor.gz").write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()
    assert mfeat.recognises(tmp_path)
    source = mfeat.read(tmp_path, tmp_path)
    assert source.files[5] == download / "mfeat-mor.gz"
    assert source.views[5][3, 0] == 3.5


def test_other_directories_and_files_are_not_recognised(tmp_path: Path) -> None:
    (tmp_path / "mfeat.info").write_text("x")
    assert not mfeat.recognises(tmp_path)
    assert not mfeat.recognises(tmp_path / "mfeat.info")


def test_a_missing_file_is_reported(download: Path) -> None:
    (download / "mfeat-kar").unlink()
    assert mfeat.recognises(download)
    with pytest.raises(UserError, match="lacks mfeat-kar"):
        mfeat.read(download, download)


def test_a_truncated_file_is_reported_with_its_line_count(download: Path) -> None:
    file = download / "mfeat-zer"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:1999]))
    with pytest.raises(UserError, match="mfeat-zer has 1999 lines instead of 2000"):
        mfeat.read(download, download)


@pytest.mark.parametrize(
    ("line", "message"),
    [("1 2 3 4 5", "line 3 has 5 columns instead of 6"), ("1 2 3 x 5 6", "line 3: 'x' is not a number")],
)
def test_an_invalid_line_is_reported(download: Path, line: str, message: str) -> None:
    file = download / "mfeat-mor"
    content = file.read_text().splitlines()
    content[2] = line
    file.write_text("\n".join(content))
    with pytest.raises(UserError, match=f"mfeat-mor {message}"):
        mfeat.read(download, download)


def test_real_values_are_read_exactly(shared_data: Path, tmp_path: Path) -> None:
    with h5py.File(shared_data / "mfeat.h5") as file:
        views, labels = [file[f"X{m}"][()] for m in range(6)], file["y"][()]
    for name, view in zip(WIDTHS, views, strict=True):
        np.savetxt(tmp_path / f"mfeat-{name}", view, fmt="%.9g")
    source = mfeat.read(tmp_path, tmp_path)
    np.testing.assert_array_equal(source.labels, labels)
    for found, view in zip(source.views, views, strict=True):
        np.testing.assert_array_equal(found, view)
