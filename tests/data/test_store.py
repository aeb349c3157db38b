"""Feature stores round-trip, and invalid or damaged ones raise clear errors."""

import os
import re
from pathlib import Path

import h5py
import numpy as np
import pytest
from scipy.sparse import csr_matrix, random_array

from mfedpba_mpi.data import store as store_module
from mfedpba_mpi.data.catalog import Dataset, Modality
from mfedpba_mpi.data.store import FeatureStore, locate, write_store
from mfedpba_mpi.errors import UserError
from tests.data.damage import zero_first_chunk

N = 40
INFO = Dataset("toy", N, 3, (Modality("a", "I", 5), Modality("b", "L", 300, sparse=True)), "A toy.")


def contents() -> tuple[np.ndarray, list[np.ndarray | csr_matrix]]:
    rng = np.random.default_rng(0)
    text = csr_matrix(random_array((N, 300), density=0.02, rng=rng, dtype=np.float32))
    return np.arange(N) % 3, [rng.standard_normal((N, 5)).astype(np.float32), text]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "toy.h5"
    write_store(path, INFO, *contents(), "real", {"source": "dice"}, ["x", "y", "ü"])
    return path


def test_a_store_round_trips(path: Path) -> None:
    labels, (dense, sparse) = contents()
    store = FeatureStore(path)
    assert store.info == INFO
    assert (store.origin, store.provenance, store.class_names) == ("real", {"source": "dice"}, ("x", "y", "ü"))
    np.testing.assert_array_equal(store.labels(), labels)
    assert store.labels().dtype == np.int64
    np.testing.assert_array_equal(store.modality(0), dense)
    assert (store.modality(1) != sparse).nnz == 0


@pytest.mark.parametrize(("given", "kept"), [("float16", "float16"), ("float32", "float32"), ("float64", "float32")])
def test_dense_precision_is_kept_up_to_float32(tmp_path: Path, given: str, kept: str) -> None:
    labels, (dense, _) = contents()
    info = Dataset("toy", N, 3, INFO.modalities[:1])
    write_store(tmp_path / "toy.h5", info, labels, [dense.astype(given)], "real", {})
    assert FeatureStore(tmp_path / "toy.h5").modality(0).dtype == kept


def test_an_all_zero_sparse_modality_is_accepted(tmp_path: Path) -> None:
    info = Dataset("toy", N, 3, INFO.modalities[1:])
    write_store(tmp_path / "toy.h5", info, contents()[0], [csr_matrix((N, 300))], "real", {})
    assert FeatureStore(tmp_path / "toy.h5").modality(0).nnz == 0


def test_the_fingerprint_depends_on_the_values_and_not_the_provenance(path: Path, tmp_path: Path) -> None:
    labels, values = contents()
    other = tmp_path / "other.h5"
    write_store(other, INFO, labels, values, "real", {"source": "coins"}, ["x", "y", "ü"])
    assert FeatureStore(other).fingerprint == FeatureStore(path).fingerprint
    values[0][3, 3] += 1
    write_store(other, INFO, labels, values, "real", {}, ["x", "y", "ü"])
    assert FeatureStore(other).fingerprint != FeatureStore(path).fingerprint


def _spoil_labels(labels: np.ndarray, values: list) -> None:
    labels[0] = 3


def _spoil_dense(labels: np.ndarray, values: list) -> None:
    values[0][0, 0] = np.nan


def _spoil_sparse(labels: np.ndarray, values: list) -> None:
    values[1].data[0] = np.inf


def _drop_rows(labels: np.ndarray, values: list) -> None:
    values[0] = values[0][:-1]


def _drop_modality(labels: np.ndarray, values: list) -> None:
    values.pop()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_spoil_labels, "expected numbers in 0..2, got 0..3"),
        (_spoil_dense, "modality a of toy: NaN or infinite"),
        (_spoil_sparse, "modality b of toy: NaN or infinite"),
        (_drop_rows, "expected 40 x 5 values, got (39, 5)"),
        (_drop_modality, "expected values of 2 modalities, got 1"),
    ],
)
def test_invalid_contents_are_refused_and_leave_no_file(tmp_path: Path, spoil, message: str) -> None:
    labels, values = contents()
    spoil(labels, values)
    with pytest.raises(UserError, match=re.escape(message)):
        write_store(tmp_path / "toy.h5", INFO, labels, values, "real", {})
    assert not list(tmp_path.iterdir())


def test_an_interrupted_write_keeps_the_old_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = path.read_bytes()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(store_module.os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_store(path, INFO, *contents(), "real", {})
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == ["toy.h5"]


def test_an_unwritable_path_is_a_user_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"cannot write .*toy\.h5.*; check free space and permissions"):
        write_store(tmp_path / "file" / "toy.h5", INFO, *contents(), "real", {})


def test_a_flipped_bit_never_gives_wrong_data(path: Path) -> None:
    """After any bit flip, reading raises an error or returns the right values."""
    labels, (dense, sparse) = contents()
    good = path.read_bytes()
    detected = 0
    flips = range(0, len(good), 97)
    for position in flips:
        bad = bytearray(good)
        bad[position] ^= 0x10
        path.write_bytes(bad)
        try:
            store = FeatureStore(path)
            found, first, second = store.labels(), store.modality(0), store.modality(1)
        except UserError:
            detected += 1
            continue
        np.testing.assert_array_equal(found, labels)
        np.testing.assert_array_equal(first, dense)
        assert (second != sparse).nnz == 0
    assert detected > len(flips) // 4  # the others hit unused space or data that is not read


@pytest.mark.parametrize("name", ["labels", "class_names", "modalities/0/values", "modalities/1/data"])
def test_a_zeroed_chunk_is_detected(path: Path, name: str) -> None:
    zero_first_chunk(path, name)
    with pytest.raises(UserError, match=f"wrong checksum of {name.rpartition('/')[2]}"):
        _ = FeatureStore(path).labels(), FeatureStore(path).modality(0), FeatureStore(path).modality(1)


def test_an_early_store_without_crc32_is_read(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        for name in ("labels", "class_names", "modalities/0/values"):
            del file[name].attrs["crc32"]
    np.testing.assert_array_equal(FeatureStore(path).modality(0), contents()[1][0])


@pytest.mark.parametrize("share", [0, 0.1, 0.5, 0.99])
def test_a_truncated_file_is_a_user_error_that_names_it(path: Path, share: float) -> None:
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    with pytest.raises(UserError, match=re.escape(str(path))) as caught:
        FeatureStore(path)
    assert "\n" not in str(caught.value)


def test_foreign_and_missing_files_are_user_errors(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "foreign.h5", "w") as file:
        file["X0"] = np.zeros((3, 2))
    with pytest.raises(UserError, match="not in the format mfedpba-features"):
        FeatureStore(tmp_path / "foreign.h5")
    with pytest.raises(UserError, match="does not exist"):
        FeatureStore(tmp_path / "missing.h5")
    with pytest.raises(UserError, match="cannot read"):
        FeatureStore(tmp_path)


def test_another_version_is_refused(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        file.attrs["version"] = 2
    with pytest.raises(UserError, match="has format version 2, this program reads version 1"):
        FeatureStore(path)


def test_real_data_has_priority_over_the_stand_in(tmp_path: Path) -> None:
    assert locate("toy", tmp_path) is None
    (tmp_path / "synthetic").mkdir()
    for place in (tmp_path / "synthetic" / "toy.h5", tmp_path / "toy.h5"):
        place.touch()
        assert locate("toy", tmp_path) == place
    assert locate(str(tmp_path / "toy.h5"), Path("elsewhere")) == tmp_path / "toy.h5"
    with pytest.raises(UserError, match=r"invalid dataset name '\.\./toy'"):
        locate("../toy", tmp_path)


def _foreign_link(file: h5py.File, elsewhere: Path) -> None:
    del file["labels"]
    file["labels"] = h5py.ExternalLink(str(elsewhere), "/labels")


def _foreign_values(file: h5py.File, elsewhere: Path) -> None:
    del file["labels"]
    file.create_dataset("labels", shape=(N,), dtype=np.int64, external=[(str(elsewhere), 0, 8 * N)])


def _virtual_values(file: h5py.File, elsewhere: Path) -> None:
    del file["labels"]
    layout = h5py.VirtualLayout((N,), np.int64)
    layout[:] = h5py.VirtualSource(str(elsewhere), "/labels", (N,))
    file.create_virtual_dataset("labels", layout)


@pytest.mark.parametrize("spoil", [_foreign_link, _foreign_values, _virtual_values])
def test_a_store_that_links_to_another_file_is_refused(path: Path, tmp_path: Path, spoil) -> None:
    elsewhere = tmp_path / "elsewhere.h5"
    elsewhere.write_bytes(path.read_bytes())
    with h5py.File(path, "r+") as file:
        spoil(file, elsewhere)
    with pytest.raises(UserError, match="labels is a link to another file"):
        FeatureStore(path)


def test_an_unknown_modality_type_in_a_store_is_refused(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        file["modalities/0"].attrs["type"] = "X"
    with pytest.raises(UserError, match=rf"cannot read .*{path.name}.* \(modality a: unknown type 'X'"):
        FeatureStore(path)


def test_a_dataset_name_with_a_path_is_refused(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        file.attrs["name"] = "../../toy"
    with pytest.raises(UserError, match=r"cannot read .*toy\.h5: .*'\.\./\.\./toy'"):
        FeatureStore(path)


def test_terminal_control_characters_are_removed(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        file.attrs["note"] = "a\x1b[2J\x07b\u202e\nc"
        file["provenance"].attrs["x\x1by"] = "\x9b1m"
    store = FeatureStore(path)
    assert store.info.note == "a [2J b  c"
    assert store.provenance == {"source": "dice", "x y": " 1m"}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [("labels", 3, "labels are not all in 0..2"), ("modalities/1/indices", 300, "indices must be < 300")],
)
def test_numbers_out_of_range_are_refused(path: Path, name: str, value: int, message: str) -> None:
    with h5py.File(path, "r+") as file:
        file[name][0] = value
        del file[name].attrs["crc32"]
    store = FeatureStore(path)
    with pytest.raises(UserError, match=message):
        _ = store.labels(), store.modality(1)


def test_a_claimed_size_of_petabytes_is_a_user_error(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        del file["labels"]
        file.create_dataset("labels", shape=(2**50,), dtype=np.int64, chunks=(1024,))
    with pytest.raises(UserError, match=r"cannot read .*toy\.h5: .*Unable to allocate"):
        FeatureStore(path).labels()
