"""HDF5 files with X0, X1, ... and y."""

import re
from pathlib import Path

import h5py
import numpy as np
import pytest
from scipy.sparse import csr_matrix

from mfedpba_mpi.data.readers import h5
from mfedpba_mpi.errors import UserError


def make_source(path: Path, **changes: object) -> Path:
    """Six samples of two classes: a dense view of width 3 and a sparse one of width 4."""
    with h5py.File(path, "w") as file:
        sparse = csr_matrix(np.arange(24.0).reshape(6, 4) % 5)
        for name in ("data", "indices", "indptr"):
            file[f"X1/{name}"] = getattr(sparse, name)
        file["X1/shape"] = sparse.shape
        file["X0"] = np.arange(18.0).reshape(6, 3)
        file["y"] = np.arange(6) % 2
        file.attrs.update(source="nowhere", view_names=["first", "second"])
        for name, value in changes.items():
            del file[name]
            if value is not None:
                file[name] = value
    return path


def test_views_labels_names_and_attributes_are_read(tmp_path: Path) -> None:
    path = make_source(tmp_path / "source.h5")
    found = h5.read(path, tmp_path)
    np.testing.assert_array_equal(found.views[0], np.arange(18).reshape(6, 3))
    np.testing.assert_array_equal(found.views[1].toarray(), np.arange(24).reshape(6, 4) % 5)
    assert found.labels.tolist() == [0, 1, 0, 1, 0, 1]
    assert (found.view_names, found.files) == (["first", "second"], [path])
    assert found.details == {"source": "nowhere", "view_names": "first, second"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y": None}, "views X0, X1"),
        ({"X0": None}, "views X0, X1"),
        ({"X0": None, "X1": None}, "views X0, X1"),
        ({"X0": np.zeros(6)}, "X0 is not a numeric matrix"),
        ({"X0": np.array([[b"a"] * 3] * 6)}, "X0 is not a numeric matrix"),
        ({"X1/indices": np.full(19, 99)}, "views X0, X1"),
    ],
)
def test_an_invalid_file_is_a_user_error(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    source = make_source(tmp_path / "source.h5", **changes)
    with pytest.raises(UserError, match=re.escape(message)):
        h5.read(source, tmp_path)


def test_a_truncated_file_is_a_user_error(tmp_path: Path) -> None:
    source = make_source(tmp_path / "source.h5")
    source.write_bytes(source.read_bytes()[:1500])
    with pytest.raises(UserError, match="truncated"):
        h5.read(source, tmp_path)


def test_a_link_to_another_file_is_not_followed(tmp_path: Path) -> None:
    make_source(tmp_path / "other.h5")
    source = make_source(tmp_path / "source.h5", X0=h5py.ExternalLink("other.h5", "/X0"))
    with pytest.raises(UserError, match="X0 is a link to another file"):
        h5.read(source, tmp_path)
