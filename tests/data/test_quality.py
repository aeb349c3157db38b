"""The quality statistics distinguish a good file from a scrambled one."""

from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from mfedpba_mpi.data.catalog import Dataset, Modality
from mfedpba_mpi.data.quality import Quality, linear_accuracy, measure_quality
from mfedpba_mpi.data.store import FeatureStore, write_store


def quality_of(tmp_path: Path, dense: np.ndarray, labels: np.ndarray) -> list[Quality]:
    """Quality statistics of a store with the same values in a dense and a sparse modality."""
    width = dense.shape[1]
    info = Dataset(
        "own", len(labels), int(labels.max()) + 1, (Modality("D", "I", width), Modality("S", "L", width, True))
    )
    write_store(tmp_path / "own.h5", info, labels, [dense, csr_matrix(dense)], "real", {})
    return list(measure_quality(FeatureStore(tmp_path / "own.h5")))


def test_counts_match_a_small_case_by_hand(tmp_path: Path) -> None:
    dense = np.array([[0, 2, -1], [0, 2, 3], [0, 2, -1], [0, 2, 4.5]] * 2, np.float32)
    dense[4:, 2] += [0, 10, 0, 10]
    for quality in quality_of(tmp_path, dense, np.arange(8) % 2):
        assert quality.nonzero == pytest.approx(16 / 24)
        assert (quality.low, quality.high) == (-1, 14.5)
        assert quality.constant_columns == 2
        assert quality.duplicate_rows == 3


def test_linear_accuracy_is_high_and_drops_to_chance_for_shuffled_labels(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(400) % 4
    values = (np.eye(4)[labels] @ rng.normal(size=(4, 10)) + 0.1 * rng.normal(size=(400, 10))).astype(np.float32)
    for quality in quality_of(tmp_path, values, labels):
        assert quality.accuracy > 0.95
    for quality in quality_of(tmp_path, values, rng.permutation(labels)):
        assert quality.accuracy <= quality.chance < 0.4


def test_constant_values_are_no_better_than_chance(tmp_path: Path) -> None:
    for value in (0, 7):
        for quality in quality_of(tmp_path, np.full((40, 3), value, np.float32), np.arange(40) % 4):
            assert quality.constant_columns == 3
            assert quality.accuracy <= quality.chance


def test_with_more_columns_than_rows_the_solution_is_that_of_the_normal_equations() -> None:
    rng = np.random.default_rng(1)
    X, labels = rng.normal(size=(30, 50)), np.arange(30) % 3
    train, test = np.arange(20), np.arange(20, 30)
    scaled = (X - X[train].mean(axis=0)) / X[train].std(axis=0)
    Y = np.eye(3)[labels[train]]
    ridge = 0.03 * np.trace(scaled[train] @ scaled[train].T) / 20
    W = np.linalg.solve(scaled[train].T @ scaled[train] + ridge * np.eye(50), scaled[train].T @ (Y - Y.mean(axis=0)))
    expected = np.mean((scaled[test] @ W + Y.mean(axis=0)).argmax(axis=1) == labels[test])
    assert linear_accuracy(X, labels, train, test) == expected


@pytest.mark.parametrize(
    ("name", "expected"), [("mfeat", [78, 98, 92, 91, 81, 59]), ("reuters_1200", [78, 75, 74, 75, 77])]
)
def test_real_views_have_the_published_accuracy(
    shared_data: Path, tmp_path: Path, name: str, expected: list[int]
) -> None:
    from mfedpba_mpi.data.importing import import_dataset

    store = import_dataset(name, shared_data / f"{name}.h5", tmp_path / "out.h5")
    assert [100 * quality.accuracy for quality in measure_quality(store)] == pytest.approx(expected, abs=6)
