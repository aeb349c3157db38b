"""Every common layout of a MATLAB file gives the same views and labels, in every version of the format."""

import struct
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from scipy.sparse import csc_matrix, csr_matrix, issparse

from mfedpba_mpi.data.readers import mat
from mfedpba_mpi.data.readers.source import Source
from mfedpba_mpi.errors import UserError
from tests.data.readers.matfiles import cell, write

A = np.arange(18).reshape(6, 3) / 4 - 1
B = np.array([[0, 0, 1, 0], [2, 0, 0, 0], [0, 0, 0, 0], [0, 3, 0, 4], [0, 0, 0, 5], [6, 0, 7, 0]]) / 2
S = csc_matrix(B)
LABELS = np.array([1, 0, 2, 0, 1, 2])
Y = LABELS[:, None]
ONE_HOT = np.array([[0, 1, 0], [1, 0, 0], [0, 0, 1], [1, 0, 0], [0, 1, 0], [0, 0, 1]])
VERSIONS = ("5", "7", "7.3")


def read(path: Path) -> Source:
    return mat.read(path, path.parent / "scratch")


def dense(values: Any) -> np.ndarray:
    return values if isinstance(values, np.ndarray) else values.toarray()


LAYOUTS: dict[str, dict[str, Any]] = {
    "a row of cells": dict(X=cell(A, S), Y=Y),
    "a column of cells, a row of labels": dict(fea=cell(A, S).T, gt=Y.T),
    "upper and lower case": dict(DATA=cell(A, S), True_Label=Y),
    "every cell in a cell": dict(X=cell(cell(A), cell(S)), gnd=Y),
    "all cells in a cell": dict(X=cell(cell(A, S)), truth=Y),
    "numbers from 1": dict(x1=A, x2=S, y=Y),
    "numbers from 0": dict(X0=A, X1=S, label=Y),
    "numbers after _": dict(view_1=A, view_2=S, labels=Y),
    "numbers after another name": dict(msr1=A, msr2=S, truth=Y, n2=np.eye(2), index1=Y + 1, index2=Y + 2),
    "cells of another name": dict(stuff=cell(A, S), gt=Y, splits=cell(Y + 1, Y + 2), notes=cell("a", "b")),
    "samples in columns": dict(X=cell(A.T, S.T), Y=Y),
    "samples in columns in one view": dict(X=cell(A, S.T), Y=Y),
    "all within a struct": dict(dataset=dict(X=cell(A, S), Y=Y)),
    "cells within a struct": dict(X=dict(data=cell(A, S)), Y=Y),
    "whole labels of type double": dict(X=cell(A, S), Y=Y.astype(float)),
    "labels of type uint8": dict(X=cell(A, S), Y=Y.astype(np.uint8)),
    "sparse labels": dict(X=cell(A, S), Y=csc_matrix(Y.astype(float))),
    "one-hot labels": dict(X=cell(A, S), Y=ONE_HOT.astype(float)),
    "one-hot labels in columns": dict(X=cell(A, S), Y=ONE_HOT.T.astype(bool)),
    "sparse one-hot labels": dict(X=cell(A, S), Y=csc_matrix(ONE_HOT.astype(float))),
    "labels in a cell": dict(data=cell(A, S), truelabel=cell(Y)),
    "labels for each view": dict(data=cell(A, S), truelabel=cell(Y, Y.T)),
    "numbered labels": dict(X1=A, X2=S, Y1=Y, Y2=Y),
    "labels that fit, beside others": dict(X=cell(A, S), Y=Y[:4], gt=Y),
    "labels beside text": dict(X=cell(A, S), label="made in 2009", gt=Y),
    "a part for training and one for tests": dict(
        x1_train=A[:4], x2_train=S[:4], gt_train=Y[:4], x1_test=A[4:], x2_test=S[4:], gt_test=Y[4:]
    ),
    "indices of a split": dict(X=cell(A, S), Y=Y, idx_train=Y[:4], idx_test=Y[:2], y_train=Y[:4], y_test=Y[4:]),
}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_all_layouts_in_all_versions_give_the_same_views_and_labels(tmp_path: Path, layout: str, version: str) -> None:
    path = write(tmp_path / "file.mat", version, **LAYOUTS[layout])
    source = read(path)
    first, second = source.views
    assert isinstance(first, np.ndarray)
    assert isinstance(second, csr_matrix)
    np.testing.assert_array_equal(first, A)
    np.testing.assert_array_equal(second.toarray(), B)
    np.testing.assert_array_equal(source.labels, LABELS)
    assert source.labels.dtype == np.int64
    assert (source.files, source.view_names, source.class_names, source.classes) == ([path], [], None, 0)


def test_version_4_is_read(tmp_path: Path) -> None:
    source = read(write(tmp_path / "file.mat", "4", x1=A, x2=S, y=Y.astype(float)))
    np.testing.assert_array_equal(source.views[0], A)
    np.testing.assert_array_equal(source.views[1].toarray(), B)
    np.testing.assert_array_equal(source.labels, LABELS)
    assert source.details == {"matlab": "version 4", "views": "x1, x2", "labels": "y"}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("dtype", [np.float32, np.int16, np.uint8, bool])
def test_all_numeric_types_become_floats(tmp_path: Path, version: str, dtype: type) -> None:
    values = (A > 0).astype(dtype)
    source = read(write(tmp_path / "file.mat", version, X=cell(values, csc_matrix(B > 0)), Y=Y))
    np.testing.assert_array_equal(source.views[0], values)
    np.testing.assert_array_equal(source.views[1].toarray(), B > 0)
    assert source.views[0].dtype == np.float32
    assert source.views[1].dtype.kind == "f"


@pytest.mark.parametrize("version", VERSIONS)
def test_sparse_matrices_may_be_empty(tmp_path: Path, version: str) -> None:
    source = read(write(tmp_path / "file.mat", version, X=cell(A, csc_matrix((6, 4))), Y=Y))
    assert source.views[1].shape == (6, 4)
    assert source.views[1].nnz == 0


@pytest.mark.parametrize("version", VERSIONS)
def test_one_matrix_is_one_view(tmp_path: Path, version: str) -> None:
    source = read(write(tmp_path / "file.mat", version, X=A.T, Y=Y))
    assert len(source.views) == 1
    np.testing.assert_array_equal(source.views[0], A)


def test_cell_arrays_have_priority_over_a_single_matrix(tmp_path: Path) -> None:
    source = read(write(tmp_path / "file.mat", "7", X=np.hstack([A, B]), data=cell(A, B), Y=Y))
    assert source.details["views"] == "data{1..2}"


@pytest.mark.parametrize("version", VERSIONS)
def test_the_first_of_three_dimensions_is_the_view(tmp_path: Path, version: str) -> None:
    source = read(write(tmp_path / "file.mat", version, X=np.stack([A, A + 1]), Y=Y))
    np.testing.assert_array_equal(source.views, [A, A + 1])
    assert source.details["views"] == "X(1..2,:,:)"


def test_train_and_test_arrays_of_three_dimensions_are_joined(tmp_path: Path) -> None:
    views = np.stack([A, A + 1])
    parts = dict(x_train=views[:, :4], y_train=Y[:4].T, x_test=views[:, 4:], y_test=Y[4:].T)
    source = read(write(tmp_path / "file.mat", "7", **parts))
    np.testing.assert_array_equal(source.views, views)
    np.testing.assert_array_equal(source.labels, LABELS)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_field_names_of_a_struct_are_the_view_names(tmp_path: Path, version: str) -> None:
    source = read(write(tmp_path / "file.mat", version, X=dict(hog=A, gist=S, note="text", Y=Y)))
    assert source.view_names == ["hog", "gist"]
    np.testing.assert_array_equal(source.views[0], A)
    np.testing.assert_array_equal(source.views[1].toarray(), B)
    np.testing.assert_array_equal(source.labels, LABELS)


def test_an_array_of_structs_is_read_like_a_cell_array(tmp_path: Path) -> None:
    views = np.array([[(A,), (B,)]], dtype=[("values", object)])
    source = read(write(tmp_path / "file.mat", "5", set=views, Y=Y))
    np.testing.assert_array_equal(source.views[0], A)
    np.testing.assert_array_equal(source.views[1], B)


@pytest.mark.parametrize("version", VERSIONS)
def test_details_record_the_variables_used(tmp_path: Path, version: str) -> None:
    cells = read(write(tmp_path / "file.mat", version, X=cell(A, S), Y=Y, other=np.eye(2)))
    number = "7.3" if version == "7.3" else "5 to 7.2"
    assert cells.details == {"matlab": f"version {number}", "views": "X{1..2}", "labels": "Y"}
    parts = read(write(tmp_path / "file.mat", version, **LAYOUTS["a part for training and one for tests"]))
    assert parts.details["views"] == "x1_train, x2_train; x1_test, x2_test"
    assert parts.details["labels"] == "gt_train; gt_test"


def test_numbered_views_are_in_numeric_order(tmp_path: Path) -> None:
    numbered = {f"x{i}": A + i for i in (10, 9, 11, 1)}
    source = read(write(tmp_path / "file.mat", "7", **numbered, y=Y))
    assert [view[0, 0] for view in source.views] == [0, 8, 9, 10]
    assert source.details["views"] == "x1, x9, x10, x11"


SQUARE = np.arange(36).reshape(6, 6)


@pytest.mark.parametrize(
    ("views", "orientation"),
    [
        ((A.T, SQUARE, B.T), "samples in columns"),
        ((A, SQUARE, B.T), "samples in columns of X{3}"),
        ((A, SQUARE), None),
        ((SQUARE,), None),
    ],
)
@pytest.mark.parametrize("version", VERSIONS)
def test_a_square_view_is_oriented_like_the_others(
    tmp_path: Path, version: str, views: tuple[np.ndarray, ...], orientation: str | None
) -> None:
    source = read(write(tmp_path / "file.mat", version, X=cell(*views), Y=Y))
    assert source.details.get("orientation") == orientation
    square = next(view for view in source.views if view.shape == (6, 6))
    np.testing.assert_array_equal(square, SQUARE.T if orientation == "samples in columns" else SQUARE)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("texts", [cell("b", "a", "c", "a", "b", "c"), np.array(["b", "a", "c", "a", "b", "c"])])
def test_labels_may_be_strings(tmp_path: Path, version: str, texts: np.ndarray) -> None:
    source = read(write(tmp_path / "file.mat", version, X=cell(A, S), Y=texts, categories=cell("x", "y", "z")))
    assert source.labels.tolist() == ["b", "a", "c", "a", "b", "c"]
    assert source.class_names is None


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("views", "classes"), [("feanames", "categories"), ("view_names", "class_names")])
def test_view_and_class_names_are_read(tmp_path: Path, version: str, views: str, classes: str) -> None:
    names = {views: cell("hög", "gist").T, classes: cell("cat", "dog", "bird")}
    source = read(write(tmp_path / "file.mat", version, X=cell(A, S), Y=Y + 1, **names))
    assert source.view_names == ["hög", "gist"]
    assert source.class_names == ["cat", "dog", "bird"]


def test_name_lists_of_the_wrong_length_are_ignored(tmp_path: Path) -> None:
    names = dict(names=cell("a", "b", "c"), classes=cell("cat", "dog"), feature_names=cell("a", Y))
    source = read(write(tmp_path / "file.mat", "7", X=cell(A, S), Y=Y, **names))
    assert source.view_names == []
    assert source.class_names is None


INVALID: dict[str, tuple[dict[str, Any], str]] = {
    "no labels": (
        dict(X=cell(A, S), note="text", s=dict(a=Y, b=Y), z=Y),
        r"no labels named Y, gt, .* found; the file has "
        r"X \(2 cells\), note \(text\), s \(a struct of a, b\), z \(6 x 1\)",
    ),
    "no views": (
        dict(Y=Y, names=cell("a", "b"), q=S, z=A),
        r"no views found for the 6 labels in Y: .* named X, fea, .*; the file has "
        r"Y \(6 x 1\), names \(2 strings\), q \(6 x 4 sparse\), z \(6 x 3\)",
    ),
    "two variables that could be the views": (
        dict(Y=Y, a1=A, a2=S, b=cell(A, S)),
        r"the views could be b\{1..2\} or a1, a2; rename",
    ),
    "a view with too few samples": (
        dict(X=cell(A, S[:5]), Y=Y),
        r"view X\{2\} is 5 x 4 sparse, but neither dimension is 6, the number of labels in Y",
    ),
    "an empty cell": (dict(X=cell(A, np.zeros((0, 0))), Y=Y), r"view X\{2\} is 0 x 0"),
    "a numbered view with too few samples": (dict(x1=A, x2=S[:5], Y=Y), "view x2 is 5 x 4 sparse"),
    "text in a view": (dict(X=cell(A, "text"), Y=Y), r"X\{2\} is not a numeric matrix but text"),
    "cells in a cell": (dict(X=cell(A, cell(A, S)), Y=Y), r"X\{2\} is not a numeric matrix but 2 cells"),
    "images in a cell": (dict(X=cell(np.zeros((6, 2, 2)), A), Y=Y), r"X\{1\} is not a numeric matrix but 6 x 2 x 2"),
    "complex numbers": (dict(X=cell(A, B + 1j), Y=Y), r"X\{2\} has complex numbers"),
    "different labels for the views": (dict(X=cell(A, S), Y=cell(Y, Y[::-1])), r"the labels Y\{1..2\} differ"),
    "several classes per sample": (
        dict(X=cell(A, S), Y=ONE_HOT | ONE_HOT[::-1]),
        "the labels Y are 6 x 3; save a vector",
    ),
    "fractional labels": (dict(X=cell(A, S), Y=Y / 2), r"Y\(1\) is 0.5; labels must be integers or strings"),
    "labels with NaN": (dict(X=cell(A, S), Y=np.where(Y == 2, np.nan, Y)), r"Y\(3\) is nan"),
    "empty labels": (dict(X=cell(A, S), Y=np.zeros((0, 1))), "the labels Y are|view"),
    "parts that differ": (
        dict(x1_train=A[:4], gt_train=Y[:4], x1_test=B[4:], gt_test=Y[4:]),
        "x1_train and x1_test differ in number or width",
    ),
    "nothing": ({}, "the file has nothing"),
}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("problem", INVALID)
def test_invalid_files_are_refused_with_one_line(tmp_path: Path, version: str, problem: str) -> None:
    variables, message = INVALID[problem]
    path = write(tmp_path / "file.mat", version, **variables)
    with pytest.raises(UserError, match=message) as error:
        read(path)
    assert str(error.value).startswith(f"{path}: ")
    assert "\n" not in str(error.value)


def test_a_matlab_object_in_version_7_3_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "file.mat", "7.3", X=cell(A, S), Y=np.zeros((1, 6), np.uint32))
    with h5py.File(path, "r+") as file:
        file["Y"].attrs.update({"MATLAB_class": np.bytes_("categorical"), "MATLAB_object_decode": np.int32(3)})
    with pytest.raises(UserError, match="the labels Y are a MATLAB object of class categorical; save a vector"):
        read(path)


def test_a_matlab_object_in_version_7_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "file.mat", "5", X=cell(A, S))
    inner = write(tmp_path / "inner.mat", "5", y=np.zeros((6, 1), np.uint32)).read_bytes()[128:]
    texts = b"".join(struct.pack("<ii", 1, len(text)) + text.ljust(8, b"\0") for text in (b"Y", b"MCOS", b"string"))
    opaque = struct.pack("<iiii", 6, 8, 17, 0) + texts + inner
    path.write_bytes(path.read_bytes() + struct.pack("<ii", 14, len(opaque)) + opaque)
    with pytest.raises(UserError, match="the labels Y are a MATLAB object of class string; save a vector"):
        read(path)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_truncated_file_is_refused(tmp_path: Path, version: str) -> None:
    path = write(tmp_path / "file.mat", version, X=cell(A, S), Y=Y)
    content = path.read_bytes()
    for size in np.linspace(1, len(content) - 1, 40, dtype=int):
        path.write_bytes(content[:size])
        with pytest.raises(UserError, match=r"file\.mat") as error:
            read(path)
        assert "\n" not in str(error.value)


def test_a_damaged_file_is_read_or_refused_with_one_line(tmp_path: Path) -> None:
    path = write(tmp_path / "file.mat", "7", X=cell(A, S), Y=Y)
    content, rng, messages = path.read_bytes(), np.random.default_rng(0), []
    for _ in range(100):
        damaged = bytearray(content)
        damaged[rng.integers(len(content))] ^= 1 << rng.integers(8)
        path.write_bytes(damaged)
        try:
            read(path)
        except UserError as error:
            messages.append(str(error))
    assert len(messages) > 50
    assert not any("\n" in message for message in messages)


def test_files_are_recognised_by_suffix_or_first_bytes(tmp_path: Path) -> None:
    assert mat.recognises(write(tmp_path / "a.MAT", "4", X=A))
    for version in VERSIONS:
        path = write(tmp_path / "a.mat", version, X=A)
        assert mat.recognises(path)
        assert mat.recognises(path.rename(tmp_path / "data"))
    (tmp_path / "text").write_text("text")
    (tmp_path / "directory.mat").mkdir()
    for name in ("text", "directory.mat", "missing"):
        assert not mat.recognises(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "views", "labels", "sparse"),
    [("Reuters-1200.mat", "X{1..5}", "y", False), ("Reuters-fea-gt.mat", "fea{1..5}", "gt", True)],
)
def test_real_files_have_the_same_values_as_in_hdf5(
    shared_data: Path, name: str, views: str, labels: str, sparse: bool
) -> None:
    source = read(shared_data / "raw" / name)
    assert source.details == {"matlab": "version 5 to 7.2", "views": views, "labels": labels}
    with h5py.File(shared_data / "reuters_1200.h5") as file:
        for m, view in enumerate(source.views):
            group = file[f"X{m}"]
            expected = csr_matrix((group["data"][()], group["indices"][()], group["indptr"][()]), shape=group["shape"])
            assert issparse(view) == sparse
            np.testing.assert_allclose(dense(view), expected.toarray(), rtol=1e-5)  # fea has fewer digits
        np.testing.assert_array_equal(np.unique(source.labels, return_inverse=True)[1], file["y"][()])
    assert len(source.views) == 5
