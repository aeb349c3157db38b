"""MAT-files of all versions are loaded as the same Python types, and invalid files are refused."""

import pickle
from pathlib import Path

import h5py
import numpy as np
import pytest
from scipy.sparse import csc_matrix, csr_matrix

from mfedpba_mpi.data.readers.matlab import Object, load
from mfedpba_mpi.errors import UserError
from tests.data.readers.matfiles import cell, write

A = np.arange(6.0).reshape(3, 2)
S = csc_matrix([[0, 0, 1], [2, 0, 0]])


@pytest.mark.parametrize("version", ["5", "7", "7.3"])
def test_every_version_gives_the_same_types(tmp_path: Path, version: str) -> None:
    variables = dict(
        a=A, s=S, text="größe", cells=cell(A, "word"), fields=dict(x=A, note="text"), none=np.zeros((0, 3))
    )
    found_version, found = load(write(tmp_path / "file.mat", version, **variables))
    assert found_version == ("7.3" if version == "7.3" else "5 to 7.2")
    assert set(found) == set(variables)
    np.testing.assert_array_equal(found["a"], A)
    assert isinstance(found["s"], csr_matrix)
    np.testing.assert_array_equal(found["s"].toarray(), S.toarray())
    assert found["text"] == "größe"
    assert isinstance(found["cells"], list)
    np.testing.assert_array_equal(found["cells"][0], A)
    assert found["cells"][1] == "word"
    assert found["fields"]["note"] == "text"
    np.testing.assert_array_equal(found["fields"]["x"], A)
    assert found["none"].shape == (0, 3)


def test_a_value_that_only_matlab_can_read_is_an_object(tmp_path: Path) -> None:
    path = write(tmp_path / "file.mat", "7.3", y=np.zeros((1, 6), np.uint32))
    with h5py.File(path, "r+") as file:
        file["y"].attrs.update({"MATLAB_class": np.bytes_("table"), "MATLAB_object_decode": np.int32(3)})
    assert load(path)[1] == {"y": Object("table")}


@pytest.mark.parametrize(
    "content",
    [b"", b"X,Y\n1,2\n" * 50, pickle.dumps({"X": list(range(99))}), b"PK\3\4" + bytes(200)],
    ids=["empty", "text", "pickle", "zip"],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file.mat"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"file\.mat is not a MAT-file"):
        load(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"missing\.mat does not exist"):
        load(tmp_path / "missing.mat")


def test_a_sparse_index_out_of_range_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "file.mat", "7.3", x=S)
    with h5py.File(path, "r+") as file:
        file["x/ir"][0] = 10**9
    with pytest.raises(UserError, match="cannot read"):
        load(path)
