"""Synthetic stand-ins have the catalog's shapes, are reproducible, and can be learnt."""

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mfedpba_mpi.data import synthetic
from mfedpba_mpi.data.catalog import CATALOG, Dataset
from mfedpba_mpi.data.scratch import Scratch
from mfedpba_mpi.data.store import FeatureStore
from mfedpba_mpi.data.synthetic import RECIPES, cache_name, class_sizes, ensure_synthetic, free_form, synthesize
from mfedpba_mpi.errors import UserError


def small(name: str, samples: int = 240) -> Dataset:
    return replace(CATALOG[name], samples=samples)


def nearest_mean_accuracy(values: np.ndarray, labels: np.ndarray) -> float:
    """Accuracy of a nearest-mean classifier on the second half, with class means from the first."""
    half = len(labels) // 2
    means = np.stack([values[:half][labels[:half] == c].mean(axis=0) for c in range(labels.max() + 1)])
    distance = (means**2).sum(axis=1) - 2 * values[half:] @ means.T
    return float((distance.argmin(axis=1) == labels[half:]).mean())


@pytest.mark.parametrize("name", CATALOG)
def test_shapes_match_the_catalog(name: str) -> None:
    info, labels, values = synthesize(small(name))
    assert info == small(name)
    assert np.array_equal(np.unique(labels), np.arange(info.classes))
    for modality, x in zip(info.modalities, values, strict=True):
        assert x.shape == (info.samples, modality.width)
        assert x.dtype == np.float32
        assert isinstance(x, np.ndarray) != modality.sparse


def test_the_full_youtube_stand_in_is_generated_quickly() -> None:
    start = time.process_time()
    info, labels, _ = synthesize("youtube")
    assert info == CATALOG["youtube"]
    assert time.process_time() - start < 10  # about 1 s on an idle machine
    assert np.array_equal(np.bincount(labels), np.full(10, 200))


@pytest.mark.parametrize("name", CATALOG)
def test_the_same_seed_gives_the_same_bytes_and_another_seed_does_not(name: str) -> None:
    def digest(seed: int) -> list[bytes]:
        _, labels, values = synthesize(small(name, 120), seed)
        return [labels.tobytes(), *(x.tobytes() if isinstance(x, np.ndarray) else x.data.tobytes() for x in values)]

    assert digest(0) == digest(0)
    assert digest(0) != digest(1)


def test_values_are_rounded_to_multiples_of_1_1024() -> None:
    _, _, values = synthesize(small("mfeat"))
    for x in values:
        assert np.array_equal(x * 1024, np.rint(x * 1024))


def test_class_sizes_resemble_the_real_ones() -> None:
    caltech = class_sizes(CATALOG["caltech101"], RECIPES["caltech101"].skew)
    assert caltech.sum() == 9144
    assert 30 <= caltech.min() <= 45
    assert 750 <= caltech.max() <= 850
    mild = class_sizes(CATALOG["nus-wide"], RECIPES["nus-wide"].skew)
    assert 1.2 < mild.max() / mild.min() < 2


def test_texts_are_sparse_with_a_zipf_like_vocabulary() -> None:
    _, _, values = synthesize(small("reuters", 1000))
    for x in values:
        assert 80 < x.nnz / 1000 < 95
        assert x.has_sorted_indices
        assert x.data.min() > 0
        frequency = np.sort(np.bincount(x.indices, minlength=x.shape[1]))[::-1]
        assert frequency[0] > 20 * frequency[500] > 0


def test_modalities_share_the_noise_of_a_sample() -> None:
    """Within a class, distances between samples correlate across modalities."""
    _, labels, values = synthesize(replace(small("mfeat", 2000), classes=2))
    rows = np.flatnonzero(labels == 0)[:200]
    distances = [np.linalg.norm(x[rows[::2]] - x[rows[1::2]], axis=1) for x in (values[1], values[3])]
    assert np.corrcoef(distances)[0, 1] > 0.3


@pytest.mark.parametrize("name", ["youtube", "mfeat", "nus-wide"])
def test_classes_are_learnable_and_modalities_differ_in_difficulty(name: str) -> None:
    info, labels, values = synthesize(small(name, 1000))
    accuracy = [nearest_mean_accuracy(x, labels) for x in values]
    assert max(accuracy) > 2.5 / info.classes
    assert max(accuracy) - min(accuracy) > 0.1


def test_more_noise_lowers_the_accuracy(monkeypatch: pytest.MonkeyPatch) -> None:
    accuracy = []
    for noise in (0.3, 1.0, 3.0):
        monkeypatch.setitem(RECIPES, "nus-wide", replace(RECIPES["nus-wide"], noise=noise))
        _, labels, values = synthesize(small("nus-wide", 1000))
        accuracy.append(np.mean([nearest_mean_accuracy(x, labels) for x in values]))
    assert accuracy[0] > accuracy[1] + 0.1 > accuracy[2] + 0.2


def test_the_file_name_of_a_free_shape_contains_the_shape(tmp_path: Path) -> None:
    info = free_form(60, 3, (6, 10, 4, 5, 7))
    assert [m.type for m in info.modalities] == ["I", "L", "A", "T", "I"]
    path = ensure_synthetic(info, Scratch(tmp_path))
    assert path == tmp_path / "synthetic" / "synthetic-n60-c3-d6x10x4x5x7.h5"
    store = FeatureStore(path)
    assert (store.info, store.origin) == (info, "synthetic")


@pytest.mark.parametrize("shape", [(2, 3, (4,)), (10, 1, (4,)), (10, 2, ()), (10, 2, (4, 0))])
def test_an_invalid_shape_is_a_user_error(shape: tuple[int, int, tuple[int, ...]]) -> None:
    with pytest.raises(UserError, match="are not a valid shape"):
        free_form(*shape)


def test_an_unknown_name_is_a_user_error() -> None:
    with pytest.raises(UserError, match=r"unknown dataset 'yuotube' \(did you mean 'youtube'\?\)"):
        synthesize("yuotube")


def test_a_stand_in_is_created_once_and_recreated_if_damaged_or_outdated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []
    write = synthetic.write_synthetic

    def counting(info: Dataset, path: Path) -> None:
        written.append(cache_name(info))
        write(info, path)

    monkeypatch.setattr(synthetic, "write_synthetic", counting)
    info = free_form(30, 2, (4,))
    path = ensure_synthetic(info, Scratch(tmp_path))
    ensure_synthetic(info, Scratch(tmp_path))
    assert len(written) == 1
    path.write_bytes(path.read_bytes()[:100])
    ensure_synthetic(info, Scratch(tmp_path))
    assert len(written) == 2
    monkeypatch.setitem(RECIPES, "synthetic", replace(RECIPES["synthetic"], noise=9.0))
    ensure_synthetic(info, Scratch(tmp_path))
    assert len(written) == 3
