"""Presets of datasets, and defaults as the help shows them."""

from mfedpba_mpi.config.presets import PRESETS, default_of, preset_of
from mfedpba_mpi.config.run_config import make_config
from mfedpba_mpi.data.catalog import CATALOG


def test_presets_equal_the_papers_table_but_for_the_learning_rate_chosen_on_validation_rows():
    config = make_config({"dataset": "caltech101"})
    assert (config.rounds, config.feature_dim, config.lr, config.epochs, config.batch_size) == (400, 64, 0.1, 2, 12)
    assert (config.params.lambda_1, config.params.lambda_2) == (0.01, 5.0)
    assert (config.params.server_lr, config.params.server_epochs) == (0.01, 10)
    assert set(PRESETS) == {*CATALOG, "synthetic"}


def test_a_variant_of_a_dataset_has_its_preset():
    assert make_config({"dataset": "reuters_1200"}).feature_dim == PRESETS["reuters"]["feature_dim"]


def test_a_path_follows_the_preset_of_its_dataset_and_other_names_have_none():
    assert preset_of("some/where/mfeat.h5") == PRESETS["mfeat"]
    assert preset_of("mine.h5") == preset_of("mine") == {}


def test_the_help_shows_a_default_or_that_it_depends_on_the_dataset():
    assert default_of("lr", 0.01) == default_of("lambda_1", 0.01) == "by dataset"
    assert default_of("epochs", 2) == "2"
    assert default_of("alpha", None) == default_of("families", ()) == default_of("scratch", "") == ""
