"""Finding the store of a dataset: a real file, a registered dataset, or a synthetic stand-in."""

from dataclasses import replace
from pathlib import Path

import pytest

from mfedpba_mpi import RunConfig, plugins, simulate
from mfedpba_mpi.data.catalog import CATALOG
from mfedpba_mpi.data.sources import describe, find_store, is_synthetic, open_dataset, resolve, stale_store
from mfedpba_mpi.data.store import write_store
from mfedpba_mpi.data.synthetic import synthesize
from mfedpba_mpi.errors import SyntheticDataWarning, UserError
from tests.test_plugins import DATASET, invoke

pytestmark = pytest.mark.usefixtures("unload_plugins")
SETTINGS = {"dataset": "synthetic", "samples": 120, "classes": 3, "dims": (6, 10), "feature_dim": 8, "rounds": 2}
MFEAT = {"dataset": "mfeat", "method": "local", "rounds": 1, "partition": "m1", "families": ("DNN",)}


def test_a_real_file_has_priority_over_the_stand_in(tmp_path: Path) -> None:
    config = RunConfig.of(dataset="mine_real")
    info, labels, values = synthesize(replace(CATALOG["mfeat"], name="mine_real", samples=60), seed=3)
    write_store(tmp_path / "mine_real.h5", info, labels, values, "real", {"source": "a test"})
    assert describe(config, tmp_path) == info
    assert not is_synthetic(config, tmp_path)
    store = find_store(config, tmp_path)
    assert store is not None
    assert store.path == open_dataset(config, tmp_path).path == tmp_path / "mine_real.h5"


def test_a_free_form_dataset_is_described_without_files_and_created_when_opened(tmp_path: Path) -> None:
    config = RunConfig.of(**SETTINGS)
    assert [modality.width for modality in describe(config, tmp_path).modalities] == [6, 10]
    assert is_synthetic(config, tmp_path)
    assert find_store(config, tmp_path) is None
    assert list(tmp_path.iterdir()) == []
    opened = open_dataset(config, tmp_path)
    assert (opened.info, opened.origin) == (describe(config, tmp_path), "synthetic")
    found = find_store(config, tmp_path)
    assert found is not None
    assert found.path == opened.path


def test_clients_and_partition_are_filled_in_from_the_dataset(tmp_path: Path) -> None:
    resolved = resolve(RunConfig.of(**SETTINGS), tmp_path)
    assert (resolved.clients, resolved.partition) == (2, "m2")


def test_a_missing_store_given_by_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none\.h5 does not exist; give the path of a store"):
        describe(RunConfig.of(dataset="none.h5"), tmp_path)


def test_a_stand_in_gives_a_warning_even_if_quiet_and_an_error_without_allow_synthetic(tmp_path):
    with pytest.warns(SyntheticDataWarning, match=r"mfeat: using synthetic data, no mfeat\.h5 in"):
        run = simulate(RunConfig.of(**MFEAT), tmp_path / "out", tmp_path, quiet=True)
    assert run.synthetic
    with pytest.raises(UserError, match=r"there is no mfeat\.h5 in .* synthetic data are not allowed"):
        simulate(RunConfig.of(**MFEAT, allow_synthetic=False), tmp_path / "two", tmp_path, quiet=True)
    by_path = RunConfig.of(**{**MFEAT, "dataset": str(tmp_path / "synthetic/mfeat.h5")}, allow_synthetic=False)
    with pytest.raises(UserError, match=r"mfeat\.h5 is synthetic, and synthetic data are not allowed"):
        simulate(by_path, tmp_path / "two", tmp_path)
    with pytest.raises(UserError, match="synthetic is synthetic"):
        simulate(RunConfig.of(**SETTINGS, allow_synthetic=False), tmp_path / "two", tmp_path)


def test_a_registered_dataset_is_stored_at_first_use(plugin, tmp_path):
    own = plugin(DATASET)
    assert "registered, stored at first use" in invoke("data", "list", "--plugin", own, "--data-dir", tmp_path)
    config = RunConfig.of(dataset="mine")
    assert [m.width for m in describe(config, tmp_path).modalities] == [5, 3]
    assert not (tmp_path / "mine.h5").exists()
    store = open_dataset(config, tmp_path)
    assert (store.path, store.origin, len(store.fingerprint)) == (tmp_path / "mine.h5", "real", 64)
    assert store.modality(1).shape == (64, 3)
    made = store.path.stat().st_mtime_ns
    assert open_dataset(config, tmp_path).path.stat().st_mtime_ns == made
    plugins.load(plugin(DATASET.replace("64", "80"), "other.py"))
    with pytest.raises(UserError, match=r"mine.h5 differs in shape from the registered dataset mine; delete it"):
        describe(config, tmp_path)
    with pytest.raises(UserError, match=r"unknown dataset 'mien' \(did you mean 'mine'\?\)"):
        describe(RunConfig.of(dataset="mien"), tmp_path / "empty")


def test_a_store_created_by_an_earlier_version_of_its_plugin_gives_a_warning(plugin, tmp_path, unload_plugins):
    plugins.load(plugin(DATASET))
    config = RunConfig.of(dataset="mine")
    assert stale_store(config, open_dataset(config, tmp_path)) == ""
    unload_plugins()
    plugins.load(plugin(DATASET + "# changed"))
    text = stale_store(config, open_dataset(config, tmp_path))
    assert "mine.h5 was created by an earlier version of the file that registers mine" in text
    run = simulate(RunConfig.of(dataset="mine", rounds=1), tmp_path / "out", tmp_path, quiet=True)
    assert (0, text) in run.warnings
