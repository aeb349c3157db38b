"""Data frames against the arrays of the log, read with plain h5py."""

import json
from dataclasses import replace

import h5py
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from mfedpba_mpi.records.frames import axes_of


def rounds_of(run):
    """/rounds by plain h5py."""
    with h5py.File(run.path) as file:
        return {name: data[()] for name, data in file["rounds"].items()}


@pytest.fixture
def sparse(made):
    """A run of as many clients as modalities, of which some take part, evaluated every other round."""
    return made(participation=0.5, eval_every=2, rounds=5)


def test_a_row_for_each_round_and_client_has_the_values_of_the_log(sparse):
    frame, rounds = sparse.frame().set_index(["round", "client"]), rounds_of(sparse)
    T, K = rounds["accuracy"].shape
    assert frame.index.tolist() == [(t, k) for t in range(1, T + 1) for k in range(K)]
    names = {"accuracy", "correct", "tested", "loss_ce", "loss_fea", "loss_logit", "seconds_client"}
    names |= {"bytes_up", "bytes_down", "wire_up", "wire_down"}
    assert set(frame.columns) >= names | {"participant"}
    for name in names:
        values = rounds[name].astype(float)
        if name in ("correct", "tested"):
            values[values == -1] = np.nan
        assert_array_equal(frame[name].astype(float).to_numpy().reshape(T, K), values, name)
    assert_array_equal(frame["participant"].to_numpy().reshape(T, K), rounds["participants"])
    assert not frame["participant"].all()


def test_a_row_a_round_sums_and_averages_over_clients(sparse):
    frame, rounds = sparse.rounds_frame(), rounds_of(sparse)
    for t, row in frame.iterrows():
        there = [k for k in range(3) if rounds["participants"][t, k]]
        assert (row["round"], row["participants"]) == (t + 1, len(there))
        assert row["bytes_up"] == sum(rounds["bytes_up"][t])
        assert row["wire_down"] == sum(rounds["wire_down"][t])
        assert row["loss_ce"] == pytest.approx(sum(rounds["loss_ce"][t, k] for k in there) / len(there))
        assert row["server_rec"] == rounds["server_rec"][t]
        assert row["seconds_total"] == rounds["seconds_total"][t]
        assert row["gw_iterations"] == rounds["gw_iterations"][t]
        if t in (1, 3, 4):
            assert row["accuracy"] == sum(rounds["correct"][t]) / sum(rounds["tested"][t])
            assert row["accuracy_client_mean"] == pytest.approx(sum(rounds["accuracy"][t]) / 3)
    assert_allclose(frame["accuracy"].dropna(), sparse.average())
    assert_allclose(frame["accuracy_client_mean"].dropna(), sparse.client_mean())


def test_another_way_to_predict_is_averaged_as_accuracy_is(made):
    run = made(method="fedproto")
    rounds = rounds_of(run)
    right = (rounds["accuracy_classifier"] * rounds["tested"]).sum(axis=1)
    assert_allclose(run.rounds_frame()["accuracy_classifier"], right / rounds["tested"].sum(axis=1))


def test_what_was_not_evaluated_is_missing_and_integers_stay_integers(sparse):
    for frame in (sparse.frame(), sparse.rounds_frame()):
        unseen = frame["round"].isin([1, 3])
        for name in ("accuracy", "correct", "tested"):
            assert_array_equal(frame[name].isna(), unseen, name)
        types = frame.dtypes.astype(str)
        assert types[["round", "accuracy", "correct", "tested", "bytes_up"]].tolist() == [
            "int64", "float64", "Int64", "Int64", "Int64"
        ]  # fmt: skip
        assert types[["synthetic", "validation"]].tolist() == ["bool", "bool"]


def test_a_row_a_client_says_what_it_has(sparse):
    frame = sparse.clients_frame()
    with h5py.File(sparse.path) as file:
        names, part = json.loads(file.attrs["modalities"]), file["partition"]
        for k, row in frame.iterrows():
            owned = [names[m] for m in range(3) if part["modalities"][k, m]]
            families = [network["family"] for network in json.loads(part["architectures"].asstr()[k])]
            assert row["modalities"].split(", ") == owned
            assert [network.split()[0] for network in row["networks"].split(", ")] == families
            assert row["train"] == sum(part["counts"][k]) == part["train_offsets"][k + 1] - part["train_offsets"][k]
            assert row["test"] == part["test_offsets"][k + 1] - part["test_offsets"][k]
            assert row["classes"] == np.count_nonzero(part["counts"][k])
            assert (row["client"], row["rank"]) == (k, part["rank"][k])
            assert row["accuracy"] == file["rounds/accuracy"][4, k]


def test_plans_are_the_modalities_also_with_a_client_a_modality(made):
    run = made()
    trace = rounds_of(run)["gw_trace"]
    frame = run.modalities_frame().query("quantity == 'gw_trace'")
    wide = frame.pivot(index="round", columns="modality", values="value")[run.attributes["modalities"]]
    assert frame["client"].isna().all()
    assert_array_equal(wide.to_numpy(), trace)
    assert "gw_trace" not in run.frame()


def test_what_clients_have_for_modalities_has_a_row_where_there_is_a_value(made):
    run = made(method="harmony", rounds=4)
    bias, names = rounds_of(run)["modality_bias"], run.attributes["modalities"]
    frame = run.modalities_frame().query("quantity == 'modality_bias'")
    expected = {
        (t + 1, k, names[m]): bias[t, k, m] for t, k, m in np.ndindex(bias.shape) if not np.isnan(bias[t, k, m])
    }
    rows = zip(frame["round"], frame["client"], frame["modality"], frame["value"], strict=True)
    assert {(t, k, m): value for t, k, m, value in rows} == expected
    assert len(frame) == len(expected) > 0


@pytest.mark.parametrize(("K", "M"), [(4, 3), (3, 3), (1, 1), (2, 5)])
def test_shape_tells_what_an_array_is_and_a_name_only_where_shapes_agree(K, M):
    assert axes_of("new", (), K, M) == ()
    assert axes_of("new", (K,), K, M) == axes_of("loss_new", (K,), K, M) == ("client",)
    assert axes_of("gw_new", (M,), K, M) == ("modality",)
    assert axes_of("new", (M,), K, M) == (("client",) if K == M else ("modality",))
    assert axes_of("gw_new", (K,), K, M) == (("modality",) if K == M else ("client",))
    assert axes_of("new", (K, M), K, M) == axes_of("gw_new", (K, M), K, M) == ("client", "modality")
    assert axes_of("new", (7,), K, M) is axes_of("new", (M, K, 2), K, M) is None


def test_an_array_of_a_new_method_appears_by_itself(made):
    run = made(clients=4)  # T = M = 3
    news = {
        "new_number": np.array([1.5, 2.5, 3.5]), "new_clients": np.arange(12).reshape(3, 4) - 1,
        "new_modalities": np.arange(9.0).reshape(3, 3), "new_both": np.arange(36.0).reshape(3, 4, 3),
        "new_other": np.zeros((3, 9)),
    }  # fmt: skip
    run = replace(run, rounds=run.rounds | news)
    assert run.rounds_frame()["new_number"].tolist() == [1.5, 2.5, 3.5]
    assert run.frame()["new_clients"].tolist() == [pd.NA, *range(11)]
    long = run.modalities_frame()
    assert long.query("quantity == 'new_modalities'")["value"].tolist() == list(range(9))
    last = long.query("quantity == 'new_both'").iloc[-1]
    assert (last["round"], last["client"], last["modality"], last["value"]) == (
        3,
        3,
        run.attributes["modalities"][2],
        35,
    )
    assert all(frame.attrs["left_out"] == ["new_other"] for frame in (run.frame(), run.rounds_frame(), long))


def test_an_array_that_is_no_longer_written_is_missing_from_there_on(made):
    run = made()
    short = {"loss_early": np.ones((1, 3)), "cluster": np.ones((2, 3), int), "server_early": np.ones(2)}
    run = replace(run, rounds=run.rounds | short)
    assert run.frame()["loss_early"].isna().tolist() == [False] * 3 + [True] * 6
    assert run.frame()["cluster"].isna().tolist() == [False] * 6 + [True] * 3
    assert run.rounds_frame()["server_early"].isna().tolist() == [False, False, True]


def test_a_run_before_its_first_round_has_frames_without_rows(made):
    run = made()
    begun = replace(run, rounds={}, final={})
    for name in ("frame", "rounds_frame", "modalities_frame"):
        before, after = getattr(begun, name)(), getattr(run, name)()
        assert len(before) == 0
        assert before.dtypes.to_dict().items() <= after.dtypes.to_dict().items()
        assert before.attrs == after.attrs
    clients = begun.clients_frame()
    assert len(clients) == 3
    assert clients["accuracy"].isna().all()


def test_every_frame_says_what_its_numbers_are_worth(made):
    run = made(validation=0.2, seed=5)
    real = replace(run, attributes=run.attributes | {"data_origin": "real"})
    for name in ("frame", "rounds_frame", "clients_frame", "modalities_frame"):
        frame = getattr(run, name)()
        assert len(frame)
        assert frame["synthetic"].all()
        assert frame["validation"].all()
        said = frame.attrs
        assert (said["method"], said["dataset"], said["seed"]) == ("mfedpba", "synthetic", 5)
        assert (said["data_origin"], said["synthetic"]) == ("synthetic", True)
        assert said["remark"] == "synthetic data, validation rows"
        assert not getattr(real, name)()["synthetic"].any()
        assert getattr(real, name)().attrs["remark"] == "validation rows"
