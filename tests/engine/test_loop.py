"""The round loop in one process: what a run writes, what each setting changes, and when it stops."""

import numpy as np
import pytest
import torch

from mfedpba_mpi.comm.layout import Layout
from mfedpba_mpi.errors import RunError
from mfedpba_mpi.methods.base import Client
from mfedpba_mpi.methods.mfedpba import MFedPBAMethod, MFedPBAServer
from mfedpba_mpi.methods.params import METHODS


def test_a_run_writes_every_round_under_the_fixed_names(finished):
    run = finished()
    T, K = 3, 3
    per_client = (
        "accuracy",
        "correct",
        "tested",
        "loss_ce",
        "loss_fea",
        "loss_logit",
        "bytes_up",
        "bytes_down",
        "participants",
    )
    for name in per_client:
        assert run.rounds[name].shape == (T, K), name
    for name in ("rec", "con", "align"):
        assert np.isfinite(run.rounds[f"server_{name}"]).all()
    for name in ("train", "server", "comm", "eval", "total"):
        assert run.rounds[f"seconds_{name}"].shape == (T,)
    assert (run.status, run.synthetic, run.attributes["method"]) == ("complete", True, "mfedpba")
    np.testing.assert_allclose(run.rounds["accuracy"], run.rounds["correct"] / run.rounds["tested"])
    assert len(run.final["client_sha256"]) == K
    assert run.final["P_G"].shape == (3, 3, 8)
    assert run.final["E"].shape == (6, 3, 8)  # m2: two modalities each
    assert run.final["plan"].shape == (3, 3, 3)


def test_payload_is_the_closed_formula(finished):
    run = finished(partition="m1+")
    C, d, M = 3, 8, 3
    owned = run.partition["modalities"].sum(axis=1)
    assert (run.rounds["bytes_up"] == 4 * C * (owned * d + C)).all()
    assert (run.rounds["bytes_down"] == 4 * C * (M * d + C)).all()
    metrics, presence = 8 * 5, 4 * (M * C + C)
    assert (run.rounds["wire_up"] == run.rounds["bytes_up"] + metrics).all()
    assert (run.rounds["wire_down"] == run.rounds["bytes_down"] + presence).all()


def test_the_first_round_has_no_alignment(finished):
    rounds = finished().rounds
    assert (rounds["loss_fea"][0] == 0).all()
    assert (rounds["loss_logit"][0] == 0).all()
    assert (rounds["loss_fea"][1:] > 0).all()
    assert (rounds["loss_logit"][1:] > 0).all()


def test_the_same_seed_gives_the_same_bits_and_another_does_not(finished):
    a, b, c = finished(), finished(eval_every=1), finished(seed=1)
    assert a.final["client_sha256"] == b.final["client_sha256"]
    assert a.final["server_sha256"] == b.final["server_sha256"]
    assert a.final["client_sha256"] != c.final["client_sha256"]


@pytest.mark.parametrize("fusion", ["sum", "concat", "separate"])
def test_local_is_mfedpba_with_both_weights_zero(finished, fusion):
    local = finished(method="local", fusion=fusion)
    off = finished(mfedpba={"lambda_1": 0, "lambda_2": 0}, fusion=fusion)
    without = finished(mfedpba={"without": "fea,logit"}, fusion=fusion)
    for other in (off, without):
        assert local.final["client_sha256"] == other.final["client_sha256"]
        np.testing.assert_array_equal(local.rounds["correct"], other.rounds["correct"])
    assert not local.rounds["bytes_up"].any()
    assert not local.rounds["bytes_down"].any()


def test_separate_counts_samples_times_modalities(finished):
    by_sample, by_item = finished(fusion="sum"), finished(fusion="separate")
    np.testing.assert_array_equal(by_item.rounds["tested"], 2 * by_sample.rounds["tested"])


@pytest.mark.parametrize("family", ["DNN", "CNN2D", "CNN1D", "TextCNN", "Resmodel"])
def test_every_family_trains(finished, family):
    """Modalities are of the types I, L, A, T in turn; DNN fills in where the family does not serve the type."""
    run = finished(families=f"DNN,{family}", dims=(6, 7, 8, 9), rounds=2)
    assert np.isfinite(run.rounds["loss_ce"]).all()


def test_partial_participation(finished):
    run = finished(participation=0.5, clients=4, rounds=6, eval_every=2)
    took_part = run.rounds["participants"]
    assert (took_part.sum(axis=1) == 2).all()
    assert took_part.any(axis=0).sum() > 2
    assert (np.isnan(run.rounds["loss_ce"]) == ~took_part).all()
    assert ((run.rounds["bytes_up"] > 0) == took_part).all()
    assert run.evaluated.tolist() == [2, 4, 6]
    assert (run.rounds["tested"][0] == -1).all()
    assert np.isnan(run.rounds["accuracy"][0]).all()


def test_gradients_are_logged_of_those_who_took_part(finished):
    run = finished(participation=0.5, clients=4, rounds=6, eval_every=2, track_gradients=True)
    assert (np.isnan(run.rounds["gradient_norm2"]) == ~run.rounds["participants"]).all()
    assert np.nanmin(run.rounds["gradient_norm2"]) > 0
    assert "gradient_norm2" not in finished().rounds


def test_the_last_round_is_evaluated_whatever_eval_every_says(finished):
    assert finished(eval_every=2).evaluated.tolist() == [2, 3]


def test_absent_classes_and_modalities_are_no_trouble(finished):
    """Many clients of few samples: most lack classes, and in a round with one participant modalities are absent too."""
    run = finished(clients=14, alpha=0.05, participation=0.07, rounds=4)
    assert (run.rounds["participants"].sum(axis=1) == 1).all()
    assert (run.partition["counts"] == 0).any()
    assert np.isfinite(run.rounds["server_rec"]).all()
    assert not run.final["P_present"].all()
    assert not run.final["P_G"][run.final["P_present"] == 0].any()


@pytest.mark.parametrize("term", ["rec", "con", "align"])
def test_a_server_term_can_be_left_out(finished, term):
    full, less = finished(), finished(mfedpba={"without": term})
    assert not less.rounds[f"server_{term}"].any()
    assert full.final["server_sha256"] != less.final["server_sha256"]


def test_equal_averaging_changes_the_logit_prototypes(finished):
    assert not np.array_equal(finished().final["I_G"], finished(mfedpba={"equal_average": True}).final["I_G"])


def test_a_non_finite_loss_stops_the_run_and_is_named(finished):
    with pytest.raises(RunError, match=r"client \d, round \d+: .*not finite"):
        finished(lr=1e18, method="local", rounds=5)


@pytest.mark.parametrize("method", [name for name in METHODS if name != "local"])
def test_a_non_finite_upload_is_named(finished, monkeypatch, method):
    def diverge(self, *_):
        for parameter in self.model.parameters():
            parameter.data.fill_(torch.nan)

    monkeypatch.setattr(Client, "train", diverge)
    with pytest.raises(RunError, match=r"client 0, round 1: its \w+ is not finite; lower --lr"):
        finished(method=method)


def test_a_non_finite_server_term_is_named(finished, monkeypatch):
    monkeypatch.setattr("mfedpba_mpi.methods.mfedpba.server.contrastive_loss", lambda *_: torch.tensor(float("nan")))
    with pytest.raises(RunError, match="server, round 1, step 1: L_con is not finite"):
        finished()


def test_what_is_broadcast_has_a_name_that_the_log_has_not(finished, monkeypatch):
    monkeypatch.setattr(MFedPBAMethod, "reply", lambda *_: Layout({"E": (3, 8)}))
    with pytest.raises(TypeError, match="MFedPBAMethod broadcasts E, a reserved name in the log's /final; rename it"):
        finished()


def test_a_first_message_that_nobody_makes_is_refused(finished, monkeypatch):
    monkeypatch.setattr(MFedPBAMethod, "first", lambda _: Layout({"W": (3, 8)}))
    with pytest.raises(ValueError, match="message has \\[\\], its layout \\['W'\\]"):
        finished()


def test_an_error_says_where_it_happened(finished, monkeypatch):
    def broken(self, t, phase, uploads):
        raise ZeroDivisionError

    monkeypatch.setattr(MFedPBAServer, "step", broken)
    with pytest.raises(RunError, match="round 1, server: ZeroDivisionError") as error:
        finished()
    assert isinstance(error.value.__cause__, ZeroDivisionError)
