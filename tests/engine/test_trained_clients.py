"""Predictions in the log, and trained clients from the last checkpoint: both are those that the accuracies count."""

import shutil

import numpy as np
import pytest

from mfedpba_mpi import RunConfig, load_clients, load_run, simulate
from mfedpba_mpi.engine.digests import client_sha256
from mfedpba_mpi.errors import UserError

SETTINGS = {"dataset": "synthetic", "samples": 120, "classes": 3, "dims": (6, 10), "feature_dim": 8, "rounds": 2}


@pytest.mark.parametrize(
    "settings",
    [{"method": "mfedpba"}, {"method": "fedproto", "fusion": "separate"}, {"method": "fedmvp"}],
    ids=lambda settings: settings["method"],
)
def test_predictions_give_the_logged_accuracy_and_come_back_from_the_checkpoint(settings, tmp_path):
    run = simulate(RunConfig.of(**SETTINGS, **settings), tmp_path / "out", tmp_path, quiet=True)
    frame = run.predictions()
    hits = (frame["true"] == frame["predicted"]).groupby(frame["client"])
    assert hits.sum().tolist() == run.rounds["correct"][-1].tolist()
    assert hits.size().tolist() == run.rounds["tested"][-1].tolist()
    if settings["method"] == "fedproto":
        assert frame["modality"].notna().all()
        classifier = (frame["true"] == frame["predicted_classifier"]).groupby(frame["client"]).mean()
        np.testing.assert_allclose(classifier, run.rounds["accuracy_classifier"][-1])
    else:
        assert frame["modality"].isna().all()

    clients = load_clients(run)
    assert [client_sha256(client._client).hex() for client in clients] == run.final["client_sha256"]
    for client in clients:
        assert not client.model.training
        assert client.test_rows.tolist() == frame["row"][frame["client"] == client.k].drop_duplicates().tolist()
        if settings["method"] != "fedmvp":  # predicts by what it was last sent, which is newer than that evaluation
            expected = frame["predicted"][frame["client"] == client.k]
            assert client.predict(client.test_rows).ravel().tolist() == expected.tolist()
        assert client.predict([0, 5]).shape[-1] == 2


def test_true_classes_are_those_of_the_store(made):
    run = made()
    assert run.predictions()["true"].nunique() == 3
    counts = run.partition["counts"].sum(axis=0) + np.bincount(run.final["test_labels"], minlength=3)
    assert counts.tolist() == [40, 40, 40]


def test_without_a_checkpoint_or_before_the_end_there_is_a_clear_error(tmp_path):
    run = simulate(RunConfig.of(**SETTINGS, method="local"), tmp_path / "out", tmp_path, quiet=True)
    shutil.rmtree(tmp_path / "out/checkpoints")
    with pytest.raises(UserError, match="has no checkpoint to load the clients from"):
        load_clients(tmp_path / "out")
    run.final.pop("predicted")
    with pytest.raises(UserError, match="has no predictions"):
        run.predictions()
    assert load_run(tmp_path / "out").predictions().shape[0] == run.rounds["tested"][-1].sum()


def test_rows_that_are_none_are_refused(tmp_path):
    simulate(RunConfig.of(**SETTINGS, method="local"), tmp_path / "out", tmp_path, quiet=True)
    client = load_clients(tmp_path / "out")[0]
    for rows in ([-1], [120], [1.5], 0, [[0]]):
        with pytest.raises(UserError, match=r"rows: expected row numbers of .*, integers from 0 to 119"):
            client.predict(rows)
    assert client.predict([]).shape == (0,)
