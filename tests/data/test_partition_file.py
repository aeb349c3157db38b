"""Partitions as files: what is written is read back, and what cannot be a partition is refused in one line."""

import json

import h5py
import numpy as np
import pytest

from mfedpba_mpi import Partition
from mfedpba_mpi.data.catalog import Dataset, Modality
from mfedpba_mpi.data.partition import split
from mfedpba_mpi.data.partition_file import deal_from_file, read_partition_file
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
def test_what_is_saved_is_read_back(tmp_path, suffix, test, names):
    mine = Partition.of(OWNER, OWNED, test, names)
    path = tmp_path / f"mine{suffix}"
    mine.save(path)
    found = read_partition_file(path, INFO)
    assert same(found, mine)
    assert found.digest == mine.digest
    assert found.is_split == (test is not None)


def test_arrays_say_who_owns_what():
    mine = Partition.of(OWNER, OWNED, TEST)
    assert mine.modalities == ((0, 2), (1,))
    assert [rows.tolist() for rows in mine.train] == [[1, 2, 5, 8], [0, 3, 6, 7]]
    assert [rows.tolist() for rows in mine.test] == [[10, 11], [9]]


def test_a_csv_file_is_what_people_write(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("\ufeffsample, client,modalities\r\n3,1,b\r\n\r\n7,0,c a\r\n2,0,a c\r\n5,1,1\r\n", encoding="utf-8")
    found = read_partition_file(path, INFO)
    assert found.modalities == ((0, 2), (1,))
    assert [rows.tolist() for rows in found.train] == [[2, 7], [3, 5]]
    assert not found.is_split


def test_modalities_with_blanks_or_commas_in_their_names_survive_csv(tmp_path):
    for names in (("1", "a b", "c"), ("x,y", 'q"', "z")):
        info = Dataset("toy", 12, 3, tuple(Modality(name, "I", 5) for name in names))
        mine = Partition.of(OWNER, OWNED, TEST, names)
        mine.save(tmp_path / "mine.csv")
        assert same(read_partition_file(tmp_path / "mine.csv", info), mine)


def test_rows_without_a_set_are_split_by_the_seed_and_validation_splits_training_rows(tmp_path):
    Partition.of(OWNER, OWNED).save(tmp_path / "rows.csv")
    Partition.of(OWNER, OWNED, TEST).save(tmp_path / "sets.csv")
    dealt = deal_from_file(tmp_path / "rows.csv", INFO, LABELS, 5, 0.0)
    for k in range(2):
        train, test = split(LABELS, np.flatnonzero(k == OWNER), 0.25, generator(5, "split", k))
        assert (dealt.train[k].tolist(), dealt.test[k].tolist()) == (train.tolist(), test.tolist())
    held = deal_from_file(tmp_path / "sets.csv", INFO, LABELS, 5, 0.25)
    for k in range(2):
        assert sorted([*held.train[k], *held.test[k]]) == np.flatnonzero((k == OWNER) & ~TEST).tolist()
        assert len(held.test[k]) == 1


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "its first line is ''; it must be client,sample,set,modalities"),
        ("client;sample;set;modalities\n", "its first line is 'client;sample;set;modalities'"),
        ("client,client,sample,modalities\n", "its first line is"),
        (HEADER, "has no clients"),
        (HEADER + "0,1,train\n", "line 2: 3 values for 4 columns"),
        (HEADER + "0,1,train,a\nx,1,train,a\n", "line 3: client is 'x'; it must be a whole number"),
        (HEADER + "0,-1,train,a\n", "line 2: sample is '-1'; it must be a whole number"),
        (HEADER + "0," + "9" * 30 + ",train,a\n", "line 2: sample is '9999"),
        (HEADER + "0,1,dev,a\n", "line 2: set is 'dev'; it must be train or test"),
        (HEADER + "0,1,train,a d\n", "line 2: no modality 'd'; there are: a, b, c"),
        (HEADER + "0,1,test,a\n0,2,train,b\n", "line 3: client 0 has other modalities than in its lines before"),
        (HEADER + "0,1,test,\n", "client 0 has no modality; give it one of a, b, c"),
        (HEADER + "0,1,test,a\n2,2,train,b\n", "there is no client 1; number the clients from 0 without gaps"),
        (HEADER + "0,1,test,a\n0,12,train,a\n", "client 0 has sample 12, but toy has samples 0 to 11"),
        (HEADER + "0,1,test,a\n1,1,train,b\n", "sample 1 is in clients 0 and 1; a sample belongs to one client"),
        (HEADER + "0,1,test,a\n0,1,train,a\n", "client 0 has sample 1 twice"),
        (HEADER + "0,1,train,a\n", "no line has test as its set; leave the column out"),
        (HEADER + "0,1,test,a\n0,2,test,a\n", "client 0 has 0 training and 2 test samples; it needs at least 2 and 1"),
        (HEADER + "0,1,train,a\n0,2,train,a\n1,3,test,a\n", "client 0 has 2 training and 0 test samples"),
        (HEADER + '0,1,train,"a\n', "cannot read the partition"),
    ],
)
def test_what_is_no_partition_is_refused_in_one_line(tmp_path, content, words):
    path = tmp_path / "mine.csv"
    path.write_text(content)
    with pytest.raises(UserError) as caught:
        deal_from_file(path, INFO, LABELS, 0, 0.0)
    message = str(caught.value)
    assert words in message
    assert "mine.csv" in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"train_offsets": np.array([0, 9, 8])}, "its offsets do not divide 8 rows among 2 clients"),
        ({"train_offsets": np.array([0, 8], np.uint8)}, "its offsets do not divide"),
        ({"train_rows": np.linspace(0, 1, 8)}, "not lists of whole numbers"),
        ({"modalities": np.array([[1, 0, 2], [0, 1, 0]])}, "modalities is not"),
        ({"modalities": OWNED[:, :2]}, "is for the modalities 0, 1, the dataset has a, b, c"),
        ({"modalities": np.zeros((0, 3), bool), "train_offsets": np.zeros(1, int), "test_offsets": np.zeros(1, int),
          "train_rows": np.zeros(0, int), "test_rows": np.zeros(0, int)}, "has no clients"),
        ({"train_rows": np.array([1, 2, 5, 8, 0, 3, 6, 2**64 - 1], np.uint64)}, "has sample -1, but toy has samples"),
        ({"train_rows": None}, "cannot be read"),
    ],
)  # fmt: skip
def test_hdf5_that_is_no_partition_is_refused_in_one_line(tmp_path, changes, words):
    path = tmp_path / "mine.h5"
    arrays = Partition.of(OWNER, OWNED, TEST).arrays() | changes
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            if array is not None:
                file[f"partition/{name}"] = array
    with pytest.raises(UserError) as caught:
        read_partition_file(path, INFO)
    assert words in str(caught.value)
    assert "mine.h5" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["mine.csv", "mine.h5"])
def test_a_file_that_is_missing_a_directory_or_something_else_is_refused(tmp_path, name):
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
    with pytest.raises(UserError, match=r"is for the modalities x, y, z, the dataset has a, b, c"):
        read_partition_file(tmp_path / "mine.h5", INFO)


def test_a_log_that_was_measured_on_validation_rows_is_refused(tmp_path):
    Partition.of(OWNER, OWNED, TEST).save(tmp_path / "run.h5")
    with h5py.File(tmp_path / "run.h5", "a") as file:
        file.attrs["config"] = json.dumps({"validation": 0.2})
    with pytest.raises(UserError, match=r"log of a run with --validation"):
        read_partition_file(tmp_path / "run.h5", INFO)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((OWNER, OWNED[0]), "modalities has the shape"),
        ((OWNER, OWNED + 2), "modalities has the shape"),
        ((OWNER + 1, OWNED), r"owner must be whole numbers \(N,\) from -1, nobody, to 1"),
        ((OWNER.astype(float), OWNED), "owner must be whole numbers"),
        ((OWNER, OWNED, TEST[:5]), "test must be true and false for each of the 12 samples"),
        ((OWNER, OWNED, OWNER < -1), "test has no sample of any client"),
        ((OWNER, OWNED, TEST, ("a",)), "1 names for 3 modalities"),
    ],
)
def test_arrays_that_are_no_partition_are_refused(arguments, words):
    with pytest.raises(UserError, match=words):
        Partition.of(*arguments)


def test_a_partition_is_saved_as_csv_or_hdf5_only(tmp_path):
    with pytest.raises(UserError, match=r"ends neither in \.csv nor in \.h5"):
        Partition.of(OWNER, OWNED).save(tmp_path / "mine.json")
