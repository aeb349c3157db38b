"""Plain tables are read as views and labels; errors name the file and line."""

import gzip
import pickle
import re
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import coo_matrix, csc_matrix, csr_matrix, issparse, save_npz

from mfedpba_mpi.data.readers import tables
from mfedpba_mpi.data.readers.source import Source
from mfedpba_mpi.errors import UserError

VALUES = np.array([[1, 2.5], [-3, 4], [5, 6e2]])


class Evil:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.path,))


def read(path: Path) -> Source:
    assert tables.recognises(path)
    return tables.read(path, path / "scratch")


def one_view(path: Path, name: str, text: str | bytes) -> Source:
    """Read a directory with `text` as the only view, of three samples."""
    (path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    np.save(path / "y.npy", [0, 1, 0])
    return read(path)


@pytest.mark.parametrize(
    "text",
    [
        "1,2.5\n-3,4\n5,6e2\n",
        "1, 2.5\r\n -3 ,4\r\n5,6e2",
        "1;2.5\n-3;4\n5;6e2\n",
        "1\t2.5\n-3\t4\n5\t6e2\n",
        "  1   2.5\n-3 4\n\n5 6e2\n",
        "left,right\n1,2.5\n-3,4\n5,6e2\n",
        '"a b";"c"\n1;2.5\n-3;4\n5;6e2\n',
        "a b\n1 2.5\n-3 4\n5 6e2\n",
        "\ufeff1,2.5\n-3,4\n5,6e2\n",
    ],
)
def test_text_may_have_any_delimiter_and_a_header(tmp_path: Path, text: str) -> None:
    source = one_view(tmp_path, "view.csv", text)
    np.testing.assert_array_equal(source.views[0], VALUES.astype(np.float32))
    assert source.view_names == ["view"]


def test_all_file_types_are_read_in_natural_order(tmp_path: Path) -> None:
    sparse = csr_matrix(VALUES * [0, 1])
    (tmp_path / "view10.tsv").write_text("1\t2\n3\t4\n5\t6\n")
    (tmp_path / "view9.csv.gz").write_bytes(gzip.compress(b"1,2\n3,4\n5,7\n"))
    np.save(tmp_path / "view2.npy", VALUES)
    np.savez(tmp_path / "view1.npz", any_name=VALUES + 1)
    save_npz(tmp_path / "sparse.npz", sparse)
    save_npz(tmp_path / "Column.npz", csc_matrix(sparse))
    (tmp_path / "LABELS.txt").write_text("7\n8\n7\n")
    for other in ("README.txt", "License.txt", ".hidden.csv", "notes.md"):
        (tmp_path / other).write_text("words\n")
    (tmp_path / "more.csv").mkdir()
    source = read(tmp_path)
    assert source.view_names == ["Column", "sparse", "view1", "view2", "view9", "view10"]
    assert [issparse(view) for view in source.views] == [True, True, False, False, False, False]
    assert isinstance(source.views[0], csr_matrix)
    for m, expected in enumerate([VALUES * [0, 1], VALUES * [0, 1], VALUES + 1, VALUES]):
        view = source.views[m]
        np.testing.assert_array_equal(view.toarray() if issparse(view) else view, expected)
    assert [view[2, 1] for view in source.views[4:]] == [7, 6]
    assert source.labels.tolist() == [7, 8, 7]
    names = ["Column.npz", "sparse.npz", "view1.npz", "view2.npy", "view9.csv.gz", "view10.tsv", "LABELS.txt"]
    assert source.files == [tmp_path / name for name in names]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1\n2\n1\n", [1, 2, 1]),
        ("1.0\n2.00e+00\n1\n", [1, 2, 1]),
        ("class\n1\n2\n1\n", [1, 2, 1]),
        ("digit\n1\n2\n1\n", [1, 2, 1]),
        ("cat\ngrand piano\ncat", ["cat", "grand piano", "cat"]),
        ('"Label"\n"cat"\n"a, b"\n"cat"\n', ["cat", "a, b", "cat"]),
        ("été\n1\nété\n", ["été", "1", "été"]),
        ("0.5\n1\n0.5\n", [0.5, 1, 0.5]),
    ],
)
def test_labels_in_text(tmp_path: Path, text: str, expected: list[object]) -> None:
    np.save(tmp_path / "view.npy", VALUES)
    (tmp_path / "y.csv").write_text(text)
    labels = read(tmp_path).labels
    assert labels.tolist() == expected
    assert labels.dtype.kind == {int: "i", float: "f", str: "U"}[type(expected[0])]


@pytest.mark.parametrize("labels", [[1.0, 2, 1], [[1], [2], [1]], [[1, 2, 1]], ["a", "b", "a"], [b"a", b"b", b"a"]])
def test_labels_as_an_array(tmp_path: Path, labels: list[object]) -> None:
    np.save(tmp_path / "view.npy", VALUES)
    np.savez(tmp_path / "gnd.npz", anything=np.array(labels))
    found = read(tmp_path).labels
    assert found.tolist() in ([1, 2, 1], ["a", "b", "a"])
    assert found.dtype.kind in "iU"


def test_labels_and_views_are_read_from_a_single_archive(tmp_path: Path) -> None:
    path = tmp_path / "all.npz"
    np.savez(path, X10=VALUES + 2, X2=VALUES + 1, Y=[3, 4, 3], n_classes=2, names=np.array(["a", "b"]))
    source = read(path)
    assert source.view_names == ["X2", "X10"]
    np.testing.assert_array_equal(source.views[0], VALUES + 1)
    np.testing.assert_array_equal(source.views[1], VALUES + 2)
    assert source.labels.tolist() == [3, 4, 3]
    assert source.files == [path]


def test_only_a_directory_with_labels_and_an_archive_are_recognised(tmp_path: Path) -> None:
    np.save(tmp_path / "view.npy", VALUES)
    assert not tables.recognises(tmp_path)
    assert not tables.recognises(tmp_path / "view.npy")
    assert not tables.recognises(tmp_path / "missing")
    (tmp_path / "view.npy").rename(tmp_path / "y.npy")
    assert not tables.recognises(tmp_path)
    with pytest.raises(UserError, match="needs a file for each view and a label file named y, label"):
        tables.read(tmp_path, tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("\n \n", "is empty"),
        ("1,2\n3,x\n5,6\n", "line 2: 'x' is not a number"),
        ("a,b\n1,2\n\n3,\n5,6\n", "line 4: '' is not a number"),
        ("1,2\n3,4,5\n5,6\n", "line 2 has 3 columns instead of 2"),
        ("1 2\n3\n5 6\n", "line 2 has 1 column instead of 2"),
        ("1,b\n1,2\n3,4\n", "line 1: 'b' is not a number"),
        ("1,5;2\n1,5;3\n1,5;4\n", "line 1: '1,5' is not a number"),
        ("1,2 3\n3,4\n5,6\n", "line 1: '1,2 3' is not a number"),
        ("words only\n", "line 1: 'words' is not a number"),
        (",a,b\n0,1,2\n1,3,4\n2,5,6\n", "line 1 has an unnamed column"),
        (",0,1\n0,1,2\n1,3,4\n2,5,6\n", "line 1: '' is not a number"),
        ("0,1,2,3\n5,5,5,5\n6,6,6,6\n7,7,7,7\n", "line 1 is 0, 1, 2, ..., the column numbers of a data frame"),
        ("1,2\n3,4\n", "has 2 rows, "),
        (b"\x00\xff\x01", "line 1: "),
    ],
)
def test_invalid_text_is_reported_with_its_line(tmp_path: Path, text: str | bytes, message: str) -> None:
    with pytest.raises(UserError, match=re.escape(f"view.csv {message}")):
        one_view(tmp_path, "view.csv", text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("0,1\n1,0\n0,1\n", "more than one column ('0,1')"),
        ("0 1\n1 0\n0 1\n", "more than one column ('0 1')"),
        ("0\nnan\n1\n", "NaN or infinite"),
    ],
)
def test_invalid_label_files_are_refused(tmp_path: Path, text: str, message: str) -> None:
    np.save(tmp_path / "view.npy", VALUES)
    (tmp_path / "y.csv").write_text(text)
    with pytest.raises(UserError, match=re.escape(message)):
        read(tmp_path)


def test_different_numbers_of_rows_and_labels_are_reported(tmp_path: Path) -> None:
    np.save(tmp_path / "view.npy", VALUES)
    (tmp_path / "y.txt").write_text("1\n2\n1\n2\n")
    with pytest.raises(UserError, match=r"view\.npy has 3 rows, .*y\.txt has 4 labels"):
        read(tmp_path)
    np.savez(tmp_path / "all.npz", X0=VALUES, y=[1, 2])
    with pytest.raises(UserError, match=r"all\.npz array X0 has 3 rows, array y has 2 labels"):
        read(tmp_path / "all.npz")


def test_duplicate_files_are_refused(tmp_path: Path) -> None:
    for file in ("y.npy", "labels.npy", "view.npy"):
        np.save(tmp_path / file, VALUES)
    with pytest.raises(UserError, match=r"labels\.npy and y\.npy are duplicates; remove one"):
        read(tmp_path)
    (tmp_path / "labels.npy").rename(tmp_path / "view.csv")
    with pytest.raises(UserError, match=r"view\.csv and view\.npy are duplicates"):
        read(tmp_path)


def test_pickles_are_never_loaded(tmp_path: Path) -> None:
    touched = tmp_path / "touched"
    objects = np.array([Evil(touched), None], dtype=object)
    never = re.escape("has Python objects (a pickle), which can run code and are never loaded; save plain arrays")
    np.savez(tmp_path / "all.npz", X0=objects, y=[0, 1])
    with pytest.raises(UserError, match=rf"all\.npz {never}"):
        read(tmp_path / "all.npz")
    np.save(tmp_path / "y.npy", [0, 1])
    (tmp_path / "all.npz").unlink()
    np.save(tmp_path / "view.npy", objects)
    with pytest.raises(UserError, match=rf"view\.npy {never}"):
        read(tmp_path)
    (tmp_path / "view.npy").write_bytes(pickle.dumps(objects))
    with pytest.raises(UserError, match=rf"view\.npy {never}"):
        read(tmp_path)
    assert not touched.exists()


@pytest.mark.parametrize("name", ["view.npy", "view.npz"])
def test_damaged_files_are_user_errors(tmp_path: Path, name: str) -> None:
    (np.save if name.endswith("npy") else np.savez)(tmp_path / name, VALUES)
    content = (tmp_path / name).read_bytes()
    for damaged in (b"", b"words", content[: len(content) // 2], content[:-10]):
        with pytest.raises(UserError, match=f"{name} is not a NumPy file, or damaged"):
            one_view(tmp_path, name, damaged)


def test_views_that_are_not_numeric_matrices_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "y.npy", [0, 1, 0])
    for values in (VALUES[:, 0], VALUES[None], VALUES.astype(str), VALUES * 1j):
        np.save(tmp_path / "view.npy", values)
        with pytest.raises(UserError, match=r"view\.npy is .* of shape .*a numeric matrix"):
            read(tmp_path)
    (tmp_path / "view.npy").unlink()
    np.savez(tmp_path / "view.npz", a=VALUES, b=VALUES)
    with pytest.raises(UserError, match=r"view\.npz has 2 arrays \(a, b\)"):
        read(tmp_path)


@pytest.mark.parametrize("labels", [np.eye(3), np.array(3), np.array([]), np.array([1j, 2, 3])])
def test_invalid_label_arrays_are_refused(tmp_path: Path, labels: np.ndarray) -> None:
    np.savez(tmp_path / "all.npz", X0=VALUES, y=labels)
    with pytest.raises(UserError, match=r"array y is .* of shape .*labels are one number or string per sample"):
        read(tmp_path / "all.npz")


def test_the_error_for_an_incomplete_archive_lists_its_arrays(tmp_path: Path) -> None:
    for arrays, message in (
        ({"X0": VALUES, "X1": VALUES}, "has only X0, X1; save exactly one label array"),
        ({"X0": VALUES, "y": [1, 2, 1], "gt": [1, 2, 1]}, "has the labels y and gt"),
        ({"y": [1, 2, 1], "n": 3}, "has no two-dimensional array besides the labels"),
    ):
        np.savez(tmp_path / "all.npz", **arrays)
        with pytest.raises(UserError, match=message):
            read(tmp_path / "all.npz")


@pytest.mark.parametrize(
    "change",
    [
        {"indices": np.array([0, 99, 0, 1, 0, 1])},
        {"indices": np.array([0.0, 1, 0, 1, 0, 1])},
        {"indptr": np.array([0, 2])},
        {"data": np.array(["a"] * 6)},
        {"format": np.array(b"bsr")},
        {"format": np.array([b"csr", b"csr"])},
        {"shape": np.array(3)},
        {"shape": np.array([3, -2])},
    ],
)
def test_an_invalid_sparse_matrix_is_a_user_error(tmp_path: Path, change: dict[str, np.ndarray]) -> None:
    valid = csr_matrix(VALUES)
    parts = {"data": valid.data, "indices": valid.indices, "indptr": valid.indptr}
    np.savez(tmp_path / "view.npz", **{"format": np.array(b"csr"), "shape": np.array([3, 2]), **parts, **change})
    np.save(tmp_path / "y.npy", [0, 1, 0])
    with pytest.raises(UserError, match=r"view\.npz is not a valid CSR or CSC matrix"):
        read(tmp_path)


def test_other_sparse_formats_are_refused(tmp_path: Path) -> None:
    save_npz(tmp_path / "view.npz", coo_matrix(VALUES))
    np.save(tmp_path / "y.npy", [0, 1, 0])
    with pytest.raises(UserError, match=r"view\.npz has 5 arrays \(row, col, format, shape, data\)"):
        read(tmp_path)
