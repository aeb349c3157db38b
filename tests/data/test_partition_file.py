"""Partition files round-trip, and invalid ones are refused with one line."""

import json

import h5py
import numpy as np
import pytest

from mfedpba_mpi import Partition
from mfedpba_mpi.data.catalog import Dataset, Modality
from mfedpba_mpi.data.partition import split
from mfedpba_mpi.data.partition_file import load_partition, read_partition_file
from mfedpba_mpi.errors import UserError
from mfedpba_mpi.rng import generator

INFO = Dataset("toy", 12, 3, (Modality("a", "I", 5), Modality("b", "T", 7), Modality("c", "A", 4)))
LABELS = np.arange(12) % 3
OWNER = np.array([1, 0, 0, 1, -1, 0, 1, 1, 0, 1, 0, 0])
TEST = np.arange(12) >= 9
OWNED = np.array([[1, 0, 1], [0, 1, 0]], bool)
HEADER = "client,sample,set,modalities\n"


def same(a, b):
    return a.modalities == b.modalities and all(
        np.array_equal(x, y) for x, y in zip((*a.train, *a.test), (*b.train, *b.test), strict=True)
    )


@pytest.mark.parametrize("suffix", [".csv", ".h5"])
@pytest.mark.parametrize("test", [TEST, None])
@pytest.mark.parametrize("names", [("a", "b", "c"), ()])
def test_a_saved_partition_is_read_back(tmp_path, suffix, test, names):
    partition = Partition.of(OWNER, OWNED, test, names)
    path = tmp_path / f"mine{suffix}"
    partition.save(path)
    found = read_partition_file(path, INFO)
    assert same(found, partition)
    assert found.digest == partition.digest
    assert found.is_split == (test is not None)


def test_a_partition_is_built_from_arrays():
    partition = Partition.of(OWNER, OWNED, TEST)
    assert partition.modalities == ((0, 2), (1,))
    assert [rows.tolist() for rows in partition.train] == [[1, 2, 5, 8], [0, 3, 6, 7]]
    assert [rows.tolist() for rows in partition.test] == [[10, 11], [9]]


def test_a_handwritten_csv_file_is_read(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("\ufeffsample, client,modalities\r\n3,1,b\r\n\r\n7,0,c a\r\n2,0,a c\r\n5,1,1\r\n", encoding="utf-8")
    found = read_partition_file(path, INFO)
    assert found.modalities == ((0, 2), (1,))
    assert [rows.tolist() for rows in found.train] == [[2, 7], [3, 5]]
    assert not found.is_split


def test_modality_names_with_blanks_or_commas_round_trip_through_csv(tmp_path):
    for names in (("1", "a b", "c"), ("x,y", 'q"', "z")):
        info = Dataset("toy", 12, 3, tuple(Modality(name, "I", 5) for name in names))
        partition = Partition.of(OWNER, OWNED, TEST, names)
        partition.save(tmp_path / "mine.csv")
        assert same(read_partition_file(tmp_path / "mine.csv", info), partition)


def test_rows_without_a_set_are_split_by_the_seed_and_validation_splits_training_rows(tmp_path):
    Partition.of(OWNER, OWNED).save(tmp_path / "rows.csv")
    Partition.of(OWNER, OWNED, TEST).save(tmp_path / "sets.csv")
    dealt = load_partition(tmp_path / "rows.csv", INFO, LABELS, 5, 0.0)
    for k in range(2):
        train, test = split(LABELS, np.flatnonzero(k == OWNER), 0.25, generator(5, "split", k))
        assert (dealt.train[k].tolist(), dealt.test[k].tolist()) == (train.tolist(), test.tolist())
    held = load_partition(tmp_path / "sets.csv", INFO, LABELS, 5, 0.25)
    for k in range(2):
        assert sorted([*held.train[k], *held.test[k]]) == np.flatnonzero((k == OWNER) & ~TEST).tolist()
        assert len(held.test[k]) == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "the first line is ''; it must be client,sample,set,modalities"),
        ("client;sample;set;modalities\n", "the first line is 'client;sample;set;modalities'"),
        ("client,client,sample,modalities\n", "the first line is"),
        (HEADER, "has no clients"),
        (HEADER + "0,1,train\n", "line 2: 3 values for 4 columns"),
        (HEADER + "0,1,train,a\nx,1,train,a\n", "line 3: client is 'x'; it must be an integer >= 0"),
        (HEADER + "0,-1,train,a\n", "line 2: sample is '-1'; it must be an integer >= 0"),
        (HEADER + "0," + "9" * 30 + ",train,a\n", "line 2: sample is '9999"),
        (HEADER + "0,1,dev,a\n", "line 2: set is 'dev'; it must be train or test"),
        (HEADER + "0,1,train,a d\n", "line 2: unknown modality 'd'; choose from: a, b, c"),
        (HEADER + "0,1,test,a\n0,2,train,b\n", "line 3: client 0 has other modalities in an earlier line"),
        (HEADER + "0,1,test,\n", "client 0 has no modality; give it one of a, b, c"),
        (HEADER + "0,1,test,a\n2,2,train,b\n", "client 1 is missing; number the clients from 0 without gaps"),
        (HEADER + "0,1,test,a\n0,12,train,a\n", "client 0 has sample 12, but toy has samples 0 to 11"),
        (HEADER + "0,1,test,a\n1,1,train,b\n", "clients 0 and 1 both have sample 1; assign it to one client"),
        (HEADER + "0,1,test,a\n0,1,train,a\n", "client 0 has sample 1 twice"),
        (HEADER + "0,1,train,a\n", "no sample is in the test set; omit the column `set`"),
        (HEADER + "0,1,test,a\n0,2,test,a\n", "client 0 has 0 training and 2 test samples; it needs at least 2 and 1"),
        (HEADER + "0,1,train,a\n0,2,train,a\n1,3,test,a\n", "client 0 has 2 training and 0 test samples"),
        (HEADER + '0,1,train,"a\n', "cannot read the partition"),
    ],
)
def test_an_invalid_csv_file_is_refused_with_one_line(tmp_path, content, message):
    path = tmp_path / "mine.csv"
    path.write_text(content)
    with pytest.raises(UserError) as caught:
        load_partition(path, INFO, LABELS, 0, 0.0)
    assert message in str(caught.value)
    assert "mine.csv" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_offsets": np.array([0, 9, 8])}, "the offsets do not divide 8 rows among 2 clients"),
        ({"train_offsets": np.array([0, 8], np.uint8)}, "the offsets do not divide"),
        ({"train_rows": np.linspace(0, 1, 8)}, "not lists of integers"),
        ({"modalities": np.array([[1, 0, 2], [0, 1, 0]])}, "modalities is not"),
        ({"modalities": OWNED[:, :2]}, "is for the modalities 0, 1, but the dataset has a, b, c"),
        ({"modalities": np.zeros((0, 3), bool), "train_offsets": np.zeros(1, int), "test_offsets": np.zeros(1, int),
          "train_rows": np.zeros(0, int), "test_rows": np.zeros(0, int)}, "has no clients"),
        ({"train_rows": np.array([1, 2, 5, 8, 0, 3, 6, 2**64 - 1], np.uint64)}, "has sample -1, but toy has samples"),
        ({"train_rows": None}, "cannot read"),
    ],
)  # fmt: skip
def test_an_invalid_hdf5_file_is_refused_with_one_line(tmp_path, changes, message):
    path = tmp_path / "mine.h5"
    arrays = Partition.of(OWNER, OWNED, TEST).arrays() | changes
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            if array is not None:
                file[f"partition/{name}"] = array
    with pytest.raises(UserError) as caught:
        read_partition_file(path, INFO)
    assert message in str(caught.value)
    assert "mine.h5" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["mine.csv", "mine.h5"])
def test_missing_files_directories_and_other_formats_are_refused(tmp_path, name):
    path = tmp_path / name
    with pytest.raises(UserError, match=name):
        read_partition_file(path, INFO)
    path.write_bytes(b"\xff\xfe\x00 no text")
    with pytest.raises(UserError, match=name):
        read_partition_file(path, INFO)
    path.unlink()
    path.mkdir()
    with pytest.raises(UserError, match=name):
        read_partition_file(path, INFO)


def test_a_partition_of_other_modalities_is_refused(tmp_path):
    Partition.of(OWNER, OWNED, TEST, ("x", "y", "z")).save(tmp_path / "mine.h5")
    with pytest.raises(UserError, match=r"is for the modalities x, y, z, but the dataset has a, b, c"):
        read_partition_file(tmp_path / "mine.h5", INFO)


def test_the_log_of_a_run_with_validation_is_refused(tmp_path):
    Partition.of(OWNER, OWNED, TEST).save(tmp_path / "run.h5")
    with h5py.File(tmp_path / "run.h5", "a") as file:
        file.attrs["config"] = json.dumps({"validation": 0.2})
    with pytest.raises(UserError, match=r"log of a run with --validation"):
        read_partition_file(tmp_path / "run.h5", INFO)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((OWNER, OWNED[0]), "modalities has shape"),
        ((OWNER, OWNED + 2), "modalities has shape"),
        ((OWNER + 1, OWNED), r"owner must be \(N,\) integers from -1 \(left out\) to 1"),
        ((OWNER.astype(float), OWNED), r"owner must be \(N,\) integers"),
        ((OWNER, OWNED, TEST[:5]), "test must be a boolean for each of the 12 samples"),
        ((OWNER, OWNED, OWNER < -1), "no client has a test sample"),
        ((OWNER, OWNED, TEST, ("a",)), "1 names for 3 modalities"),
    ],
)
def test_invalid_arrays_are_refused(arguments, message):
    with pytest.raises(UserError, match=message):
        Partition.of(*arguments)


def test_a_partition_is_saved_as_csv_or_hdf5_only(tmp_path):
    with pytest.raises(UserError, match=r"does not end in \.csv or \.h5"):
        Partition.of(OWNER, OWNED).save(tmp_path / "mine.json")
