"""The five versions of the English documents are read as five sparse views."""

import gzip
from itertools import pairwise
from pathlib import Path

import h5py
import numpy as np
import pytest
from scipy.sparse import csr_matrix

from mfedpba_mpi.data.readers import reuters
from mfedpba_mpi.errors import UserError

WIDTHS = {"EN": 21531, "FR": 24892, "GR": 34251, "IT": 15506, "SP": 11547}


@pytest.fixture
def download(tmp_path: Path) -> Path:
    """Three documents; the first value of a view is the language's number, 1 to 5."""
    path = tmp_path / "rcv1rcv2aminigoutte"
    for number, language in enumerate(WIDTHS, 1):
        directory = path / language
        directory.mkdir(parents=True)
        (directory / f"Index_EN-{language}").write_text(f"CCAT 1:{number} 3:0.25 \nC15 2:-1.5 \nCCAT 11547:7\n")
        (directory / f"Index_FR-{language}").write_text("M11 1:9\n")
    return path


def test_five_versions_of_the_documents_are_read(download: Path) -> None:
    assert reuters.recognises(download)
    source = reuters.read(download, download)
    assert source.view_names == list(WIDTHS)
    assert source.labels.tolist() == ["CCAT", "C15", "CCAT"]
    assert source.files == [download / language / f"Index_EN-{language}" for language in WIDTHS]
    for number, (view, width) in enumerate(zip(source.views, WIDTHS.values(), strict=True), 1):
        assert isinstance(view, csr_matrix)
        assert (view.shape, view.dtype) == ((3, width), np.float32)
        assert view.nnz == 4
        assert (view[0, 0], view[0, 2], view[1, 1], view[2, 11546]) == (number, 0.25, -1.5, 7)


def test_a_larger_index_widens_the_view(download: Path) -> None:
    (download / "SP" / "Index_EN-SP").write_text("CCAT 1:1\nC15 11550:1\nCCAT 1:1\n")
    assert [view.shape[1] for view in reuters.read(download, download).views] == [*list(WIDTHS.values())[:4], 11550]


def test_gzipped_files_in_one_subdirectory_are_accepted(download: Path, tmp_path: Path) -> None:
    flat = tmp_path / "elsewhere" / "flat"
    flat.mkdir(parents=True)
    for language in WIDTHS:
        content = (download / language / f"Index_EN-{language}").read_bytes()
        (flat / f"Index_EN-{language}.gz").write_bytes(gzip.compress(content))
    assert reuters.recognises(flat.parent)
    assert [view[0, 0] for view in reuters.read(flat.parent, flat).views] == [1, 2, 3, 4, 5]


def test_other_directories_are_not_recognised(tmp_path: Path) -> None:
    (tmp_path / "Index_FR-EN").write_text("M11 1:9\n")
    assert not reuters.recognises(tmp_path)


@pytest.mark.parametrize(
    ("language", "content", "message"),
    [
        ("EN", "", "Index_EN-EN has 0 documents"),
        ("GR", "CCAT 1:1\nM11 2:1\nCCAT 3:1\n", "Index_EN-GR line 2 has the label M11, Index_EN-EN has C15"),
        ("GR", "CCAT 1:1\nC15 2:1\n", "Index_EN-GR has 2 documents, Index_EN-EN has 3"),
        ("IT", "CCAT 1:1\nC15 2:1\nCCAT 3:1\nCCAT 3:1\n", "Index_EN-IT has 4 documents, Index_EN-EN has 3"),
        ("FR", "CCAT 1:1\nC15 2:1 3:\nCCAT 3:1\n", "Index_EN-FR line 2 is not a row of index:value"),
        ("FR", "CCAT 1:1\n2:1 3:1\nCCAT 3:1\n", "Index_EN-FR line 2 starts with '2:1' instead of a label"),
    ],
)
def test_an_invalid_file_is_reported_with_file_and_line(
    download: Path, language: str, content: str, message: str
) -> None:
    (download / language / f"Index_EN-{language}").write_text(content)
    with pytest.raises(UserError, match=message):
        reuters.read(download, download)


def test_a_missing_language_is_reported(download: Path) -> None:
    (download / "IT" / "Index_EN-IT").unlink()
    with pytest.raises(UserError, match="lacks Index_EN-IT"):
        reuters.read(download, download)


def test_real_values_are_read_exactly(shared_data: Path, tmp_path: Path) -> None:
    topics = np.array(["C15", "CCAT", "E21", "ECAT", "GCAT", "M11"])
    views = []
    with h5py.File(shared_data / "reuters_600.h5") as file:
        labels = topics[file["y"][()]]
        for m, language in enumerate(WIDTHS):
            data, indices, indptr = (file[f"X{m}/{part}"][()] for part in ("data", "indices", "indptr"))
            views.append((data, indices, indptr))
            pairs = [f"{i + 1}:{value:.9g}" for i, value in zip(indices, data, strict=True)]
            parts = [pairs[start:end] for start, end in pairwise(indptr)]
            content = "".join(f"{label} {' '.join(part)}\n" for label, part in zip(labels, parts, strict=True))
            (tmp_path / f"Index_EN-{language}").write_text(content)
    source = reuters.read(tmp_path, tmp_path)
    np.testing.assert_array_equal(source.labels, labels)
    assert [view.shape for view in source.views] == [(600, width) for width in WIDTHS.values()]
    for found, (data, indices, indptr) in zip(source.views, views, strict=True):
        np.testing.assert_array_equal(found.data, data)
        np.testing.assert_array_equal(found.indices, indices)
        np.testing.assert_array_equal(found.indptr, indptr)
