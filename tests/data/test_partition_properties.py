"""Properties of partitions for random labels and clients: disjoint, complete, never too small, reproducible."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mfedpba_mpi.config.run_config import MIN_SAMPLES, fit_to_data, make_config
from mfedpba_mpi.data.catalog import Dataset, Modality
from mfedpba_mpi.data.partition import TEST_SHARE, make_partition, modality_sets, split
from mfedpba_mpi.errors import UserError
from mfedpba_mpi.rng import generator
from tests.properties import examples

SEEDS = st.integers(0, 2**63 - 1)
ALPHAS = st.none() | st.sampled_from([5e-324, 1e-3, 0.1, 0.5, 1e6]) | st.floats(0, 1e6, exclude_min=True)
VALIDATION = st.just(0.0) | st.sampled_from([5e-324, 0.1, 0.3]) | st.floats(0, 0.3)
KINDS = st.sampled_from(["m1", "m2", "m1+"])
SIZES = {"m1": lambda M: {1}, "m2": lambda M: {2}, "m1+": lambda M: set(range(1, M + 1))}


@st.composite
def labels_of(draw, least: int = 0, most: int = 300) -> np.ndarray:
    """Labels with classes of any size, also empty or with one sample; sorted, as files often are, or not."""
    N = draw(st.integers(least, most))
    classes = draw(st.integers(1, max(1, N)) | st.integers(1, 5))
    rng = generator(draw(SEEDS), "labels")
    labels = (
        np.minimum(rng.geometric(1 / classes, N) - 1, classes - 1)
        if draw(st.booleans())
        else rng.integers(classes, size=N)
    )
    return np.sort(labels) if draw(st.booleans()) else labels


@st.composite
def partitions(draw) -> tuple:
    """Arguments of `make_partition` that `fit_to_data` accepts."""
    kind, K, min_samples = draw(KINDS), draw(st.integers(1, 12)), draw(st.integers(MIN_SAMPLES, 12))
    M = draw(st.integers(2 if kind == "m2" else 1, 8))
    labels = draw(labels_of(K * min_samples, K * min_samples + draw(st.sampled_from([0, 1, 50, 400]))))
    return labels, M, K, kind, draw(ALPHAS), draw(SEEDS), min_samples


@examples(200)
@given(partitions())
def test_every_row_belongs_to_one_client_as_a_training_or_test_row(arguments):
    labels, partition = arguments[0], make_partition(*arguments)
    rows = np.concatenate([*partition.train, *partition.test])
    assert sorted(rows.tolist()) == list(range(len(labels)))


@examples(200)
@given(partitions())
def test_every_client_has_enough_training_rows_and_some_test_rows(arguments):
    _, _, K, *_, min_samples = arguments
    partition = make_partition(*arguments)
    assert len(partition.modalities) == len(partition.train) == len(partition.test) == K
    for train, test in zip(partition.train, partition.test, strict=True):
        n = len(train) + len(test)
        assert n >= min_samples
        assert 1 <= len(test) <= round(TEST_SHARE * n)


@examples(100)
@given(partitions(), VALIDATION)
def test_a_validation_share_is_taken_from_the_training_rows(arguments, share):
    whole, held = make_partition(*arguments), make_partition(*arguments, share)
    assert held.modalities == whole.modalities
    for k in range(len(whole.train)):
        kept = [*held.train[k], *held.test[k]]
        assert sorted(kept) == (sorted(whole.train[k]) if share else sorted([*whole.train[k], *whole.test[k]]))
        assert len(held.train[k]) > len(held.test[k]) >= 1


@examples(200)
@given(KINDS, st.integers(1, 10), st.integers(1, 20), SEEDS)
def test_modality_sets_have_valid_sizes_and_cover_all_modalities_if_there_are_enough_clients(kind, M, K, seed):
    M += kind == "m2"
    sets = modality_sets(M, K, kind, generator(seed, "modalities"))
    assert len(sets) == K
    assert {len(own) for own in sets} <= SIZES[kind](M)
    assert all(list(own) == sorted(set(own)) for own in sets)
    owned = {m for own in sets for m in own}
    assert owned <= set(range(M))
    assert K < M or owned == set(range(M))


@examples(50)
@given(partitions(), VALIDATION)
def test_the_same_seed_gives_the_same_partition(arguments, share):
    one, two = (make_partition(*arguments, share) for _ in range(2))
    assert one.modalities == two.modalities
    for a, b in ((one.train, two.train), (one.test, two.test)):
        assert [rows.tolist() for rows in a] == [rows.tolist() for rows in b]


@examples(200)
@given(labels_of(2, 60), st.floats(0, 0.3), SEEDS)
def test_a_split_takes_the_share_of_each_class_or_one_more_and_leaves_training_rows(labels, share, seed):
    rows = generator(seed, "rows").permutation(len(labels))[: max(2, len(labels) // 2)]
    train, test = split(labels, rows, share, generator(seed, "split"))
    assert sorted([*train, *test]) == sorted(rows)
    counts, taken = (np.bincount(labels[part], minlength=labels.max() + 1) for part in (rows, test))
    if counts.max() > 1:
        assert not taken[counts == 1].any()
        assert (taken < counts)[counts > 0].all()
        assert (np.floor(share * counts) <= taken).all()
        assert (taken <= np.floor(share * counts) + 1).all()
    assert 1 <= len(test) <= max(1, round(share * len(rows)))


@examples(100)
@given(labels_of(most=60), st.integers(1, 8), KINDS, ALPHAS, SEEDS)
def test_too_many_clients_are_refused(labels, K, kind, alpha, seed):
    if len(labels) >= K * MIN_SAMPLES:
        K = len(labels) // MIN_SAMPLES + 1
    with pytest.raises(UserError, match=f"clients: {K} is too many for {len(labels)} samples"):
        make_partition(labels, 2, K, kind, alpha, seed, MIN_SAMPLES)


@examples(100)
@given(labels_of(), st.integers(1, 6), st.integers(0, 40), KINDS | st.just(""), ALPHAS, VALIDATION, SEEDS)
def test_a_run_gets_a_valid_partition_or_a_clear_error(labels, M, K, kind, alpha, share, seed):
    info = Dataset("toy", len(labels), 300, tuple(Modality(f"I{m}", "I", 4) for m in range(M)))
    given_some = {name: value for name, value in {"clients": K, "partition": kind}.items() if value}
    config = make_config({"dataset": "toy.h5", "alpha": alpha, "validation": share, "seed": seed, **given_some})
    if (kind == "m2" and M == 1) or len(labels) < MIN_SAMPLES * (K or M):
        with pytest.raises(UserError, match=r"^(clients: .* is too many|partition: m2 needs two modalities)"):
            fit_to_data(config, info)
        return
    fitted = fit_to_data(config, info)
    partition = make_partition(
        labels, M, fitted.clients, fitted.partition, fitted.alpha, fitted.seed, MIN_SAMPLES, fitted.validation
    )
    assert len(partition.train) == (K or M)
    rows = np.concatenate([*partition.train, *partition.test]).tolist()
    assert len(set(rows)) == len(rows) <= len(labels)
