"""Partitions are disjoint and complete, every modality has an owner, shares and skew are as specified."""

import numpy as np
import pytest

from mfedpba_mpi.data.partition import deal_samples, make_partition, modality_sets, split
from mfedpba_mpi.rng import generator


def _labels(n: int = 600, classes: int = 5) -> np.ndarray:
    return generator(0, "labels").integers(0, classes, n)


@pytest.mark.parametrize("kind", ["m1", "m2", "m1+"])
@pytest.mark.parametrize(("K", "alpha"), [(6, None), (20, 0.5), (60, 0.1)])
def test_every_sample_belongs_to_exactly_one_client(kind, K, alpha):
    partition = make_partition(_labels(), 6, K, kind, alpha, seed=3, min_samples=8)
    rows = np.concatenate([*partition.train, *partition.test])
    assert sorted(rows) == list(range(600))
    assert all(len(a) + len(b) >= 8 for a, b in zip(partition.train, partition.test, strict=True))
    assert all(len(test) >= 1 for test in partition.test)


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize(("kind", "sizes"), [("m1", {1}), ("m2", {2}), ("m1+", {1, 2, 3, 4, 5, 6})])
def test_every_modality_has_an_owner(kind, sizes, seed):
    sets = modality_sets(6, 6, kind, generator(seed, "modalities"))
    assert set().union(*sets) == set(range(6))
    assert {len(s) for s in sets} <= sizes
    assert all(list(s) == sorted(set(s)) for s in sets)


def test_m1_assigns_the_modalities_round_robin():
    assert modality_sets(3, 7, "m1", generator(0, "modalities")) == ((0,), (1,), (2,), (0,), (1,), (2,), (0,))


def test_shares_are_equal_for_m1_and_run_from_one_to_two_otherwise():
    rng = generator(1, "samples")
    assert [len(r) for r in deal_samples(_labels(), 6, "m1", None, 8, rng)] == [100] * 6
    uneven = sorted(len(r) for r in deal_samples(_labels(), 6, "m2", None, 8, rng))
    assert uneven == pytest.approx(600 * np.linspace(1, 2, 6) / 9, abs=1)


def test_dirichlet_skews_the_labels_of_the_clients():
    labels = _labels(5000)
    spread = {}
    for alpha in (0.1, 100.0):
        rows = deal_samples(labels, 10, "m1+", alpha, 8, generator(2, "samples"))
        shares = np.stack([np.bincount(labels[r], minlength=5) / len(r) for r in rows])
        spread[alpha] = shares.std(axis=0).mean()
    assert spread[0.1] > 5 * spread[100.0]


def test_the_split_is_stratified_and_keeps_single_samples_for_training():
    labels = np.repeat([0, 1, 2, 3], [40, 20, 8, 1])
    train, test = split(labels, np.arange(69), 0.25, generator(0, "split"))
    assert np.bincount(labels[test], minlength=4).tolist() == [10, 5, 2, 0]
    assert sorted([*train, *test]) == list(range(69))


def test_a_client_of_single_samples_is_still_tested():
    train, test = split(np.arange(8), np.arange(8), 0.25, generator(0, "split"))
    assert (len(train), len(test)) == (6, 2)


def test_the_partition_depends_on_the_seed_alone():
    a, b, c = (make_partition(_labels(), 6, 6, "m1+", None, seed, 8) for seed in (1, 1, 2))
    assert a.modalities == b.modalities
    assert all(np.array_equal(x, y) for x, y in zip(a.train, b.train, strict=True))
    assert any(not np.array_equal(x, y) for x, y in zip(a.train, c.train, strict=True))


def test_validation_rows_come_from_the_training_rows_and_test_rows_are_unused():
    whole = make_partition(_labels(), 6, 6, "m2", None, 3, 8)
    held = make_partition(_labels(), 6, 6, "m2", None, 3, 8, validation=0.2)
    assert held.modalities == whole.modalities
    for k in range(6):
        assert sorted([*held.train[k], *held.test[k]]) == sorted(whole.train[k])
        assert len(held.test[k]) == round(0.2 * len(whole.train[k]))
