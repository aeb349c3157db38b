"""Input rows on the device, compared with NumPy and SciPy."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from mfedpba_mpi.models.inputs import SparseRows, modality_rows


def sparse_matrix(rows: int = 30, width: int = 50) -> sp.csr_array:
    """A CSR matrix with an empty first, middle and last row."""
    dense = sp.random_array((rows, width), density=0.2, rng=np.random.default_rng(0), format="csr").toarray()
    dense[[0, rows // 2, -1]] = 0
    return sp.csr_array(dense.astype(np.float32))


def test_dense_rows_are_standardised_by_the_training_rows() -> None:
    x = np.random.default_rng(0).normal(3, 2, (20, 6)).astype(np.float32)
    x[:15, 2] = 0.1  # constant in training only
    rows = modality_rows(x, 15).batch(0, 20).numpy()
    train = x[:15].astype(np.float64)
    deviation = train.std(0)
    deviation[2] = 1
    assert rows.dtype == np.float32
    np.testing.assert_allclose(rows, (x - train.mean(0)) / deviation, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(rows[:15].mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(rows[15:, 2], x[15:, 2] - 0.1, rtol=1e-5)


def test_sparse_rows_are_scaled_to_one_norm_and_empty_rows_stay_zero() -> None:
    x = sparse_matrix()
    dense = modality_rows(x, 20).dense().numpy()
    norms = np.linalg.norm(x.toarray(), axis=1, keepdims=True)
    np.testing.assert_allclose(dense, x.toarray() / np.where(norms == 0, 1, norms) * 50**0.5 / 2, rtol=1e-6)
    assert not dense[[0, 15, -1]].any()


def test_no_normalisation() -> None:
    x = sparse_matrix()
    np.testing.assert_array_equal(modality_rows(x, 20, "none").dense().numpy(), x.toarray())
    np.testing.assert_array_equal(modality_rows(x.toarray(), 20, "none").batch(0, 30).numpy(), x.toarray())


@pytest.mark.parametrize("as_type", [sp.csr_matrix, sp.csr_array])
def test_sparse_batches_equal_scipy_rows(as_type: type) -> None:
    x = as_type(sparse_matrix())
    order = np.random.default_rng(1).permutation(30)
    taken = modality_rows(x, 20, "none").take(order)
    assert len(taken) == 30
    for start, stop in ((0, 12), (12, 24), (24, 30), (29, 30), (5, 5)):
        batch = taken.batch(start, stop)
        assert isinstance(batch, SparseRows)
        assert len(batch) == stop - start
        assert int(batch.offsets[0]) == 0
        assert int(batch.offsets[-1]) == len(batch.indices)
        np.testing.assert_array_equal(batch.dense().numpy(), x.toarray()[order[start:stop]])
    np.testing.assert_array_equal(taken.batch(3, 20).take(np.array([4, 4, 0])).dense(), x.toarray()[order[[7, 7, 3]]])


def test_dense_batches_are_views_of_the_rows_in_order() -> None:
    x = np.arange(60, dtype=np.float32).reshape(10, 6)
    taken = modality_rows(x, 8, "none").take(np.array([3, 1, 9, 0]))
    np.testing.assert_array_equal(taken.batch(1, 3).numpy(), x[[1, 9]])
    assert taken.batch(0, 2).data_ptr() == taken.batch(0, 4).data_ptr()


def test_duplicate_entries_are_summed_and_the_input_matrix_is_unchanged() -> None:
    x = sp.csr_array((np.float32([1, 2, 3]), [4, 4, 0], [0, 2, 3]), shape=(2, 5))
    np.testing.assert_array_equal(modality_rows(x, 2, "none").dense().numpy(), [[0, 0, 0, 0, 3], [3, 0, 0, 0, 0]])
    assert x.data.tolist() == [1, 2, 3]


def test_tensors_are_allocated_by_torch() -> None:
    x = np.ones((9, 7), np.float32)
    rows = modality_rows(x, 8, "none")
    x[:] = 0
    assert bool((rows.batch(0, 9) == 1).all())
    taken = modality_rows(sparse_matrix(), 20).take(np.arange(30))
    for tensor in (rows.batch(0, 9), taken.indices, taken.values, taken.offsets):
        assert tensor.data_ptr() % 64 == 0


def test_rows_can_move_to_another_device() -> None:
    rows = modality_rows(sparse_matrix(), 20)
    moved = rows.to(torch.device("meta"))
    assert moved.values.device.type == "meta"
    assert len(moved) == len(rows)


@pytest.mark.parametrize("sparse", [True, False])
def test_products_of_the_rows_of_each_batch(sparse: bool) -> None:
    x = sparse_matrix()
    rows = modality_rows(x if sparse else x.toarray(), 20, "none")
    order = np.random.default_rng(2).permutation(30)
    cuts = [(0, 12), (12, 24), (24, 29)]  # the last row is dropped
    for (start, stop), found in zip(cuts, rows.batch_products(torch.tensor(order), cuts), strict=True):
        batch = x.toarray()[order[start:stop]]
        np.testing.assert_allclose(found, batch @ batch.T, rtol=1e-5, atol=1e-6)
    (found,) = rows.batch_products(torch.tensor(order), [(0, 7)])
    np.testing.assert_allclose(found, x.toarray()[order[:7]] @ x.toarray()[order[:7]].T, rtol=1e-5, atol=1e-6)
    assert rows.keeps_gram
    assert not modality_rows(x.toarray()[:, :14], 20, "none").keeps_gram
