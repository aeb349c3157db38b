"""Complete runs in one process: what they log, the effect of settings, and non-finite losses."""

import numpy as np
import pytest
import torch

from mfedpba_mpi.errors import RunError


def test_a_run_logs_every_round_under_fixed_names(finished):
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


def test_the_first_round_has_no_alignment(finished):
    rounds = finished().rounds
    assert (rounds["loss_fea"][0] == 0).all()
    assert (rounds["loss_logit"][0] == 0).all()
    assert (rounds["loss_fea"][1:] > 0).all()
    assert (rounds["loss_logit"][1:] > 0).all()


def test_the_same_seed_gives_the_same_bits_and_another_seed_does_not(finished):
    a, b, c = finished(), finished(eval_every=1), finished(seed=1)
    assert a.final["client_sha256"] == b.final["client_sha256"]
    assert a.final["server_sha256"] == b.final["server_sha256"]
    assert a.final["client_sha256"] != c.final["client_sha256"]


def test_fusion_separate_tests_samples_times_modalities(finished):
    by_sample, by_item = finished(fusion="sum"), finished(fusion="separate")
    np.testing.assert_array_equal(by_item.rounds["tested"], 2 * by_sample.rounds["tested"])


@pytest.mark.parametrize("family", ["DNN", "CNN2D", "CNN1D", "TextCNN", "Resmodel"])
def test_every_family_trains(finished, family):
    """Modalities are of the types I, L, A, T in turn; DNN is used where the family does not support the type."""
    run = finished(families=f"DNN,{family}", dims=(6, 7, 8, 9), rounds=2)
    assert np.isfinite(run.rounds["loss_ce"]).all()


def test_clients_may_lack_classes_and_rounds_may_lack_modalities(finished):
    """Many clients with few samples: most lack classes, and in a round with one participant modalities are absent."""
    run = finished(clients=14, alpha=0.05, participation=0.07, rounds=4)
    assert (run.rounds["participants"].sum(axis=1) == 1).all()
    assert (run.partition["counts"] == 0).any()
    assert np.isfinite(run.rounds["server_rec"]).all()
    assert not run.final["P_present"].all()
    assert not run.final["P_G"][run.final["P_present"] == 0].any()


@pytest.mark.parametrize("term", ["rec", "con", "align"])
def test_a_server_term_can_be_omitted(finished, term):
    full, less = finished(), finished(mfedpba={"without": term})
    assert not less.rounds[f"server_{term}"].any()
    assert full.final["server_sha256"] != less.final["server_sha256"]


def test_equal_averaging_changes_the_logit_prototypes(finished):
    assert not np.array_equal(finished().final["I_G"], finished(mfedpba={"logit_weights": "equal"}).final["I_G"])


def test_a_non_finite_loss_ends_the_run_and_names_client_and_round(finished):
    with pytest.raises(RunError, match=r"client \d, round \d+: .*not finite"):
        finished(lr=1e18, method="local", rounds=5)


def test_a_non_finite_server_term_is_named(finished, monkeypatch):
    monkeypatch.setattr("mfedpba_mpi.methods.mfedpba.server.contrastive_loss", lambda *_: torch.tensor(float("nan")))
    with pytest.raises(RunError, match="server, round 1, step 1: L_con is not finite"):
        finished()
