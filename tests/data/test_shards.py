"""Shards return every client's rows, and reading one client does not depend on the others."""

from multiprocessing import get_context
from pathlib import Path

import h5py
import numpy as np
import pytest
from scipy.sparse import csr_matrix

from mfedpba_mpi.data.catalog import Dataset, Modality
from mfedpba_mpi.data.partition import Partition, make_partition
from mfedpba_mpi.data.shards import ClientData, has_shards, read_clients, read_partition, write_shards
from mfedpba_mpi.data.store import FeatureStore, write_store
from mfedpba_mpi.errors import UserError
from tests.data.damage import zero_first_chunk

N, K = 1200, 20


@pytest.fixture
def store(tmp_path: Path) -> FeatureStore:
    rng = np.random.default_rng(0)
    wide, narrow = rng.standard_normal((N, 400)).astype(np.float16), rng.standard_normal((N, 6)).astype(np.float32)
    text = csr_matrix(np.where(rng.random((N, 500)) < 0.2, rng.random((N, 500)), 0))
    modalities = (Modality("a", "I", 400), Modality("b", "I", 6), Modality("c", "L", 500, sparse=True))
    info = Dataset("toy", N, 4, modalities)
    write_store(tmp_path / "toy.h5", info, rng.integers(4, size=N), [wide, narrow, text], "synthetic", {})
    return FeatureStore(tmp_path / "toy.h5")


@pytest.fixture
def partition(store: FeatureStore) -> Partition:
    return make_partition(store.labels(), 3, K, "m1+", 0.5, 0, 8)


@pytest.fixture
def path(store: FeatureStore, partition: Partition, tmp_path: Path) -> Path:
    path = tmp_path / "shards.h5"
    write_shards(path, store, partition, "a key")
    return path


def dense(values: np.ndarray | csr_matrix) -> np.ndarray:
    return values if isinstance(values, np.ndarray) else values.toarray()


def assert_right(client: ClientData, k: int, store: FeatureStore, partition: Partition) -> None:
    rows = np.concatenate([partition.train[k], partition.test[k]])
    assert client.n_train == len(partition.train[k])
    np.testing.assert_array_equal(client.labels, store.labels()[rows])
    assert tuple(client.values) == partition.modalities[k]
    for m, values in client.values.items():
        assert values.dtype == np.float32
        np.testing.assert_array_equal(dense(values), dense(store.modality(m)[rows]))


def test_every_client_gets_its_rows_of_its_modalities(path: Path, store: FeatureStore, partition: Partition) -> None:
    for k, client in enumerate(read_clients(path, range(K))):
        assert_right(client, k, store, partition)


def test_clients_may_be_read_in_any_order(path: Path) -> None:
    seventh, third = read_clients(path, [7, 3])
    np.testing.assert_array_equal(seventh.labels, read_clients(path, [7])[0].labels)
    np.testing.assert_array_equal(third.labels, read_clients(path, [3])[0].labels)


def test_the_partition_can_be_rebuilt(path: Path, partition: Partition) -> None:
    rebuilt = read_partition(path)
    assert rebuilt.modalities == partition.modalities
    for part, original in ((rebuilt.train, partition.train), (rebuilt.test, partition.test)):
        for rows, expected in zip(part, original, strict=True):
            np.testing.assert_array_equal(rows, expected)


def test_a_client_is_read_even_if_all_other_chunks_are_damaged(
    path: Path, store: FeatureStore, partition: Partition
) -> None:
    k = next(k for k in range(5, K) if partition.modalities[k] == (0, 1, 2) or 0 in partition.modalities[k])
    with h5py.File(path) as file:
        values, offsets = file["modalities/0/values"], file["modalities/0/offsets"][()]
        rows = values.chunks[0]
        needed = range(offsets[k] // rows, (offsets[k + 1] - 1) // rows + 1)
        chunks = [values.id.get_chunk_info(i) for i in range(values.id.get_num_chunks())]
    others = [chunk for chunk in chunks if chunk.chunk_offset[0] // rows not in needed]
    assert len(needed) <= (offsets[k + 1] - offsets[k]) // rows + 2
    assert len(others) > len(needed)
    with open(path, "r+b") as file:
        for chunk in others:
            file.seek(chunk.byte_offset)
            file.write(b"\xff" * 64)
    assert_right(*read_clients(path, [k]), k, store, partition)
    with pytest.raises(UserError, match="delete it"):
        read_clients(path, range(K))


def test_there_are_no_hdf5_objects_per_client(path: Path) -> None:
    names: list[str] = []
    with h5py.File(path) as file:
        file.visit(names.append)
        assert file["modalities/0/values"].chunks[0] * 400 * 2 >= 2**13  # chunks are not tiny
    assert len(names) <= K


@pytest.mark.parametrize("name", ["offsets", "train", "owned", "labels", "modalities/0/values", "modalities/2/data"])
def test_a_zeroed_chunk_is_detected(path: Path, name: str) -> None:
    zero_first_chunk(path, name)
    with pytest.raises(UserError, match="wrong checksum of "):
        read_clients(path, range(K))


def test_several_processes_read_at_the_same_time(path: Path, store: FeatureStore, partition: Partition) -> None:
    with get_context("spawn").Pool(2) as pool:
        for k, (client,) in enumerate(pool.starmap(read_clients, [(path, [k]) for k in range(4)])):
            assert_right(client, k, store, partition)


def test_shards_are_identified_by_their_key(path: Path, tmp_path: Path) -> None:
    assert has_shards(path, "a key")
    assert not has_shards(path, "another key")
    assert not has_shards(tmp_path / "missing.h5", "a key")
    path.write_bytes(path.read_bytes()[:1000])
    assert not has_shards(path, "a key")


def test_a_store_is_not_accepted_as_shards(store: FeatureStore) -> None:
    with pytest.raises(UserError, match="not in the format mfedpba-shards"):
        read_clients(store.path, [0])


def test_an_interrupted_write_leaves_no_file(
    store: FeatureStore, partition: Partition, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = FeatureStore.modality

    def fails_at_the_last(self: FeatureStore, m: int) -> np.ndarray | csr_matrix:
        if m == 2:
            raise KeyboardInterrupt
        return read(self, m)

    monkeypatch.setattr(FeatureStore, "modality", fails_at_the_last)
    with pytest.raises(KeyboardInterrupt):
        write_shards(tmp_path / "new" / "shards.h5", store, partition, "a key")
    assert not list((tmp_path / "new").iterdir())
