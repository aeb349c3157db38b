"""Imports into a store: views are matched with the catalog, labels are encoded, failures leave no partial files."""

import hashlib
import re
from pathlib import Path

import h5py
import numpy as np
import pytest

from mfedpba_mpi.data.catalog import CATALOG, base_of
from mfedpba_mpi.data.importing import digest, encode_labels, import_dataset, match_views
from mfedpba_mpi.data.readers.source import Source
from mfedpba_mpi.data.store import FeatureStore
from mfedpba_mpi.errors import UserError

HERE = Path("source")


def make_npz(path: Path, **changes: np.ndarray) -> Path:
    """Six samples of two classes with views of widths 3 and 4."""
    arrays = {"X0": np.arange(18.0).reshape(6, 3), "X1": np.ones((6, 4)), "y": np.arange(6) % 2} | changes
    np.savez(path, **arrays)
    return path


def found_of(widths: list[int], names: list[str] | None = None) -> Source:
    return Source([np.zeros((6, w)) for w in widths], np.arange(6) % 2, [], view_names=names or [])


def test_a_custom_dataset_keeps_all_views_unchanged(tmp_path: Path) -> None:
    source = make_npz(tmp_path / "source.npz")
    store = import_dataset("own", source, tmp_path / "own.h5", types=["A", "T"])
    assert (store.info.name, store.info.samples, store.info.classes, store.origin) == ("own", 6, 2, "real")
    assert [(m.name, m.type, m.width) for m in store.info.modalities] == [("X0", "A", 3), ("X1", "T", 4)]
    np.testing.assert_array_equal(store.modality(0), np.arange(18).reshape(6, 3))


def test_the_provenance_names_the_file_and_its_digest(tmp_path: Path) -> None:
    source = make_npz(tmp_path / "source.npz")
    provenance = import_dataset("own", source, tmp_path / "own.h5", types=[]).provenance
    assert provenance["file"] == "source.npz"
    assert provenance["sha256"] == hashlib.sha256(source.read_bytes()).hexdigest()


def test_the_digest_of_several_files_is_that_of_the_sha256sum_listing(tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(b"2")
    (tmp_path / "a").write_bytes(b"1")
    lines = "".join(f"{hashlib.sha256(text).hexdigest()}  {name}\n" for text, name in ((b"1", "a"), (b"2", "b")))
    expected = hashlib.sha256(lines.encode()).hexdigest()
    assert digest([tmp_path / "b", tmp_path / "a"], tmp_path) == expected


@pytest.mark.parametrize(
    ("dataset", "widths", "names", "order", "how"),
    [
        (
            "caltech101",
            [48, 40, 254, 1984, 512, 928],
            ["gabor", "wm", "cen", "hog", "gist", "lbp"],
            [3, 4, 5],
            "name",
        ),
        ("caltech101", [48, 40, 254, 1984, 512, 928], None, [3, 4, 5], "width"),
        ("caltech101", [928, 512, 1984], None, [2, 1, 0], "width"),
        ("caltech101", [10, 20, 30], ["LBP", "Hog", "GIST"], [1, 2, 0], "name"),
        ("caltech101", [20, 10, 30], ["GIST20", "HOG10", "LBP30"], [1, 0, 2], "name"),
        ("caltech101", [10, 20, 30], None, [0, 1, 2], "order"),
        ("youtube", [2000, 1024, 64, 512, 64, 647], None, [0, 1, 2, 3, 4, 5], "order"),
        ("youtube", [64, 647, 2000, 64, 512, 1024], None, [2, 5, 0, 4, 3, 1], "width"),
        ("nus-wide", [64, 225, 144, 73, 128, 500], None, [0, 2, 1, 5], "width"),
        ("nus-wide", [64, 225, 144, 500], ["CH", "CM", "CORR", "BoW"], [0, 2, 1, 3], "name"),
        ("reuters", [2000] * 5, None, [0, 1, 2, 3, 4], "order"),
    ],
)
def test_views_are_matched_by_name_then_order_then_width(
    dataset: str, widths: list[int], names: list[str] | None, order: list[int], how: str
) -> None:
    assert match_views(CATALOG[dataset], found_of(widths, names), HERE) == (order, how)


def test_views_that_cannot_be_matched_are_refused() -> None:
    with pytest.raises(UserError, match=r"2 views of widths 10, 20, which cannot.*1984, 512, 928.*data import custom"):
        match_views(CATALOG["caltech101"], found_of([10, 20]), HERE)


@pytest.mark.parametrize(
    ("labels", "codes", "names"),
    [
        ([0, 1, 2, 1], [0, 1, 2, 1], None),
        ([1.0, 2.0, 3.0, 2.0], [0, 1, 2, 1], None),
        ([7, -2, 7, 30], [1, 0, 1, 2], ["-2", "7", "30"]),
        (["dog", "cat", "dog", "emu"], [1, 0, 1, 2], ["cat", "dog", "emu"]),
        ([b"M11", b"C15", b"C15", b"M11"], [1, 0, 0, 1], ["C15", "M11"]),
    ],
)
def test_labels_of_any_base_become_0_to_c(labels: list[object], codes: list[int], names: list[str] | None) -> None:
    source = Source([], np.array(labels), [])
    found, classes, class_names = encode_labels(source, HERE)
    assert (found.tolist(), classes, class_names) == (codes, len(set(labels)), names)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0.5, 1.0, 1.0], "labels must be integers or strings"),
        ([np.nan, 1.0, 1.0], "labels must be integers or strings"),
        ([1e300, 1.0, 1.0], "labels must be integers or strings"),
        ([3, 3, 3], "3 samples have 1 distinct labels"),
        ([3, 4, 5], "3 samples have 3 distinct labels"),
    ],
)
def test_invalid_labels_are_refused(labels: list[float], message: str) -> None:
    with pytest.raises(UserError, match=message):
        encode_labels(Source([], np.array(labels), []), HERE)


@pytest.mark.parametrize(("classes", "labels"), [(10**9, [0, 1, 0]), (2, [0, 2, 0])])
def test_a_number_of_classes_that_contradicts_the_labels_is_refused(classes: int, labels: list[int]) -> None:
    with pytest.raises(UserError, match=f"{HERE} has {classes} classes for 3 samples, and the largest label is"):
        encode_labels(Source([], np.array(labels), [], classes=classes), HERE)


def test_a_catalog_name_requires_the_shape_of_the_catalog(tmp_path: Path) -> None:
    arrays = {f"X{m}": np.ones((6, modality.width)) for m, modality in enumerate(CATALOG["mfeat"].modalities)}
    np.savez(tmp_path / "source.npz", y=np.arange(6) % 2, **arrays)
    with pytest.raises(UserError, match=r"mfeat has 2000 samples.*the file has 6 samples, 2 classes.*mfeat_6"):
        import_dataset("mfeat", tmp_path / "source.npz", tmp_path / "mfeat.h5")
    store = import_dataset("mfeat_6", tmp_path / "source.npz", tmp_path / "mfeat_6.h5")
    assert store.info.modalities == CATALOG["mfeat"].modalities
    assert not (tmp_path / "mfeat.h5").exists()


def test_a_variant_is_as_sparse_as_its_catalog_entry(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    views = {f"X{m}": rng.integers(0, 2, (6, 3)) for m in range(5)}
    np.savez(tmp_path / "source.npz", y=np.arange(6) % 2, **views)
    store = import_dataset("reuters_6", tmp_path / "source.npz", tmp_path / "out.h5")
    assert [(m.type, m.sparse) for m in store.info.modalities] == [("L", True)] * 5
    np.testing.assert_array_equal(store.modality(4).toarray(), views["X4"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"X0": np.full((6, 3), np.nan)}, "source.npz: modality X0 of own: NaN"),
        ({"X1": np.array([["a"] * 4] * 6)}, "X1"),
        ({"X0": np.zeros((5, 3))}, "5"),
        ({"X0": np.array([[{}] * 3] * 6)}, "pickle"),
    ],
)
def test_an_invalid_source_leaves_no_files(tmp_path: Path, changes: dict[str, np.ndarray], message: str) -> None:
    source = make_npz(tmp_path / "source.npz", **changes)
    with pytest.raises(UserError, match=re.escape(message)):
        import_dataset("own", source, tmp_path / "out" / "own.h5", types=[])
    assert not list((tmp_path / "out").glob("*"))


def test_an_interruption_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("mfedpba_mpi.data.store.put_rows", interrupt)
    source = make_npz(tmp_path / "source.npz")
    with pytest.raises(KeyboardInterrupt):
        import_dataset("own", source, tmp_path / "out" / "own.h5", types=[])
    assert not list((tmp_path / "out").iterdir())


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("data.pkl", b"", "pickle, which can run code"),
        ("data.mat", b"\x80\x04\x95", "pickle, which can run code"),
        ("data.zip", b"PK", "unpack it"),
        ("data.xyz", b"?", "has an unknown format; supported: "),
        ("data.npz", b"PK, but no more", "data.npz"),
    ],
)
def test_unsupported_files_are_refused(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        import_dataset("mfeat", tmp_path / name, tmp_path / "mfeat.h5")


def test_invalid_names_types_and_missing_sources_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"invalid dataset name '\.\./own'"):
        import_dataset("../own", tmp_path, tmp_path / "own.h5")
    with pytest.raises(UserError, match="does not exist"):
        import_dataset("mfeat", tmp_path / "source.h5", tmp_path / "mfeat.h5")
    with pytest.raises(UserError, match=r"unknown dataset 'mfaet' \(did you mean 'mfeat'\?\).*custom --name mfaet"):
        import_dataset("mfaet", tmp_path, tmp_path / "mfaet.h5")
    with pytest.raises(UserError, match="2 views; give 2 of I, L, A, T"):
        import_dataset("own", make_npz(tmp_path / "source.npz"), tmp_path / "own.h5", types=["I", "L", "X"])


def test_variants_are_recognised_by_their_names() -> None:
    for name, base in {"reuters_1200": "reuters", "nus-wide-8": "nus-wide", "mfeat": "mfeat"}.items():
        assert base_of(name) == CATALOG[base]
    assert base_of("mfeatures") is None


def test_the_real_mfeat_matches_the_catalog(shared_data: Path, tmp_path: Path) -> None:
    store = import_dataset("mfeat", shared_data / "mfeat.h5", tmp_path / "mfeat.h5")
    assert store.info == CATALOG["mfeat"]
    with h5py.File(shared_data / "mfeat.h5") as file:
        np.testing.assert_array_equal(store.modality(5), file["X5"][()])


def test_the_real_reuters_subset_needs_its_own_name(shared_data: Path, tmp_path: Path) -> None:
    source = shared_data / "reuters_600.h5"
    with pytest.raises(UserError, match="reuters_600"):
        import_dataset("reuters", source, tmp_path / "reuters.h5")
    store = import_dataset("reuters_600", source, tmp_path / "reuters_600.h5")
    assert (store.info.samples, store.info.modalities) == (600, CATALOG["reuters"].modalities)


def test_the_same_data_as_mat_and_h5_give_the_same_store(shared_data: Path, tmp_path: Path) -> None:
    stores = [
        import_dataset("reuters_1200", shared_data / source, tmp_path / f"{number}.h5")
        for number, source in enumerate(["reuters_1200.h5", "raw/Reuters-1200.mat", "raw/Reuters-fea-gt.mat"])
    ]
    assert len({store.info.modalities for store in stores}) == 1
    for store in stores[1:]:
        np.testing.assert_array_equal(FeatureStore(store.path).labels(), stores[0].labels())
        assert abs(store.modality(3) - stores[0].modality(3)).max() < 1e-4  # the files round differently
