"""Files with X0, X1, ... and y become feature stores, or an error that says what is wrong with them."""

import hashlib
import re
from pathlib import Path

import h5py
import numpy as np
import pytest
from scipy.sparse import csr_matrix

from mfedpba_mpi.data.catalog import CATALOG
from mfedpba_mpi.data.importers import import_file
from mfedpba_mpi.data.store import FeatureStore
from mfedpba_mpi.errors import UserError


def make_source(path: Path, **changes: object) -> Path:
    """Six samples of two classes: a dense view of width 3 and a sparse one of width 4."""
    with h5py.File(path, "w") as file:
        sparse = csr_matrix(np.arange(24.0).reshape(6, 4) % 5)
        for name in ("data", "indices", "indptr"):
            file[f"X1/{name}"] = getattr(sparse, name)
        file["X1/shape"] = sparse.shape
        file["X0"] = np.arange(18.0).reshape(6, 3)
        file["y"] = np.arange(6) % 2
        file.attrs.update(source="nowhere", view_names=["first", "second"])
        for name, value in changes.items():
            del file[name]
            if value is not None:
                file[name] = value
    return path


def test_a_small_file_comes_through(tmp_path: Path) -> None:
    source = make_source(tmp_path / "source.h5")
    import_file("own", source, tmp_path / "own.h5")
    store = FeatureStore(tmp_path / "own.h5")
    assert (store.info.samples, store.info.classes, store.origin) == (6, 2, "real")
    described = [(m.name, m.type, m.width, m.sparse) for m in store.info.modalities]
    assert described == [("first", "I", 3, False), ("second", "I", 4, True)]
    np.testing.assert_array_equal(store.modality(0), np.arange(18).reshape(6, 3))
    np.testing.assert_array_equal(store.modality(1).toarray(), np.arange(24).reshape(6, 4) % 5)


def test_the_provenance_names_the_file_its_digest_and_its_attributes(tmp_path: Path) -> None:
    source = make_source(tmp_path / "source.h5")
    import_file("own", source, tmp_path / "own.h5")
    assert FeatureStore(tmp_path / "own.h5").provenance == {
        "file": "source.h5",
        "sha256": hashlib.sha256(source.read_bytes()).hexdigest(),
        "source": "nowhere",
        "view_names": "first, second",
    }


def test_types_follow_the_catalog_entry_the_name_starts_with(tmp_path: Path) -> None:
    source = make_source(tmp_path / "source.h5")
    import_file("reuters_tiny", source, tmp_path / "out.h5")
    assert [m.type for m in FeatureStore(tmp_path / "out.h5").info.modalities] == ["L", "L"]


def test_a_catalog_name_asks_for_the_catalogs_shape(tmp_path: Path) -> None:
    source = make_source(tmp_path / "source.h5")
    with pytest.raises(UserError, match=r"mfeat has 2000 samples.*the file has 6 samples, 2 classes.*mfeat_6"):
        import_file("mfeat", source, tmp_path / "mfeat.h5")
    assert not (tmp_path / "mfeat.h5").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y": None}, "views X0, X1"),
        ({"X0": None}, "views X0, X1"),
        ({"X0": None, "X1": None}, "views X0, X1"),
        ({"y": np.arange(6) % 2 + 0.5}, "whole numbers"),
        ({"y": np.arange(6) % 2 - 1}, "0..0, got -1..0"),
        ({"X0": np.full((6, 3), np.nan)}, "NaN"),
        ({"X0": np.zeros((5, 3))}, "expected 6 x 3 values, got (5, 3)"),
        ({"X0": np.zeros(6)}, "X0 is no matrix of numbers"),
        ({"X0": np.array([[b"a"] * 3] * 6)}, "X0 is no matrix of numbers"),
        ({"X1/indices": np.full(19, 99)}, "views X0, X1"),
    ],
)
def test_a_wrong_file_is_a_user_error(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    source = make_source(tmp_path / "source.h5", **changes)
    with pytest.raises(UserError, match=re.escape(message)):
        import_file("own", source, tmp_path / "own.h5")
    assert not (tmp_path / "own.h5").exists()


def test_other_formats_and_names_that_are_no_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"only \.h5 files"):
        import_file("own", tmp_path / "source.mat", tmp_path / "own.h5")
    with pytest.raises(UserError, match="does not exist"):
        import_file("own", tmp_path / "source.h5", tmp_path / "own.h5")
    with pytest.raises(UserError, match="cannot name a dataset"):
        import_file("../own", tmp_path / "source.h5", tmp_path / "own.h5")


def test_the_real_mfeat_fits_the_catalog(shared_data: Path, tmp_path: Path) -> None:
    import_file("mfeat", shared_data / "mfeat.h5", tmp_path / "mfeat.h5")
    store = FeatureStore(tmp_path / "mfeat.h5")
    assert store.info == CATALOG["mfeat"]
    assert store.origin == "real"
    with h5py.File(shared_data / "mfeat.h5") as file:
        np.testing.assert_array_equal(store.modality(5), file["X5"][()])


def test_the_real_reuters_subset_keeps_its_own_name(shared_data: Path, tmp_path: Path) -> None:
    source = shared_data / "reuters_600.h5"
    with pytest.raises(UserError, match="reuters_600"):
        import_file("reuters", source, tmp_path / "reuters.h5")
    import_file("reuters_600", source, tmp_path / "reuters_600.h5")
    info = FeatureStore(tmp_path / "reuters_600.h5").info
    assert (info.samples, info.modalities) == (600, CATALOG["reuters"].modalities)
