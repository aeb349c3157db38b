"""FedPall: a round calculated by hand, and complete runs."""

import math

import numpy as np
import pytest

from mfedpba_mpi.errors import RunError
from mfedpba_mpi.methods.heads import HeadClient
from tests.methods.fedpall.parts import TWO, assert_close, play


def test_a_round_by_hand(hand):
    inbox = {}
    means, mixed = play(hand, 1, inbox)
    first = hand.clients[0]

    # h_0 = h_G = 0, so p - y = (-2/3, 1/3, 1/3) for z = (3, 4), and W -= 0.3 (p - y) z^T. W_3 = 0: D is constant.
    assert_close(first.model.classifier.weight, [[0.6, 0.8], [-0.3, -0.4], [-0.3, -0.4]])
    assert_close(first.model.classifier.bias, [0.2, -0.1, -0.1])
    for client in hand.clients:
        assert_close(list(client.losses.values()), [math.log(3), 0, 0])

    # p_0 = (3, 4) has the direction (0.6, 0.8) and weight 1, (-3, 4) has the direction (-0.6, 0.8) and weight 3:
    # Pbar_0 = ((0.6 - 1.8) / 4, 0.8). Only client 1 has class 2: (-2.3, 0) has the direction (-1, 0).
    assert_close(means[0]["p"][0], [3, 4])
    assert_close(means[1]["p"][[0, 2]], [[-3, 4], [-2.3, 0]])
    assert_close(inbox["Pbar"][[0, 2]], [[-0.3, 0.8], [-1, 0]])
    assert inbox["Pbar_present"].tolist() == [1, 0, 1]

    # v = (z + Pbar_y) / 2
    assert_close(mixed[0]["V"], [[1.35, 2.4]])
    assert_close(mixed[1]["V"], [[-1.65, 0.9], [-1.65, 2.4], [-1.65, 3.9], [-1.65, 0]])
    assert mixed[0]["y"].tolist() == [0]
    assert mixed[1]["y"].tolist() == [0, 0, 0, 2]

    # h_G(v) = 0, so dCE/db = 1/3 - (4, 0, 1) / 5. The v of class 0 sum to (-3.6, 9.6), those of class 2 to (-1.65, 0),
    # all to (-5.25, 9.6): dCE/dW = ((-1.75, 3.2) - (-3.6, 9.6)) / 5, (-1.75, 3.2) / 5, ((-1.75, 3.2) - (-1.65, 0)) / 5.
    assert_close(inbox["W"], [[-0.37, 1.28], [0.35, -0.64], [0.02, -0.64]])
    assert_close(inbox["b"], [7 / 15, -1 / 3, -2 / 15])
    assert hand.server.record["server_ce"] == pytest.approx(math.log(3))

    # W_1 v = 1.35 and four times -1.65: mean -1.05, deviations 2.4 and -0.6, variance 7.2 / 5 = 1.2^2, so BatchNorm and
    # relu give 2, 0, 0, 0, 0. Of these the mean is 0.4, the variance 3.2 / 5 = 0.8^2, and again a_2 = 2, 0, 0, 0, 0.
    # Running means become 0.1 mean, running variances 0.9 + 0.1 times the unbiased 7.2 / 4 and 3.2 / 4.
    # D = 0, so dCE/dW_3 = (1/2 - 1) 2 / 5 and 1/2 2 / 5; gradients of earlier layers are 0, because W_3 = 0.
    assert_close(inbox["D_W3"], [[0.2], [-0.2]], 1e-4)
    assert_close(
        [inbox["D_mean1"], inbox["D_var1"], inbox["D_mean2"], inbox["D_var2"]], [[-0.105], [1.08], [0.04], [0.98]], 1e-4
    )
    assert_close(inbox["D_W1"], [[1, 0]])
    assert_close([inbox[f"D_{name}"].item() for name in ("W2", "gamma1", "gamma2", "beta1", "beta2")], [1, 1, 1, 0, 0])
    assert hand.server.record["server_disc"] == pytest.approx(math.log(2))


def test_the_next_round_by_hand(hand):
    """Client 0 with z = (3, 4) starts from the classifier, prototypes and discriminator of the round above."""
    inbox = {}
    play(hand, 1, inbox)
    first = hand.clients[0]
    first.update(2, 0, inbox)
    # h_G(z) = (4.01 + 7/15, -1.51 - 1/3, -2.5 - 2/15); cosines 0.46 / sqrt(0.73) = 0.538390 and -0.6, T = 3;
    # D: (3 + 0.105) / sqrt(1.08) = 2.987787, (2.987787 - 0.04) / sqrt(0.98) = 2.977716, logits +-0.595543.
    ce = math.log(1 + math.exp(-1.843333 - 4.476667) + math.exp(-2.633333 - 4.476667))
    nce = math.log(1 + math.exp((-0.6 - 0.538390) / 3))
    adv = math.log(math.cosh(0.595543))
    assert_close(list(first.losses.values()), [ce, adv, nce], 1e-4)
    assert_close([adv, nce], [0.167749, 0.521308], 1e-5)


def test_payload_equals_the_formula(hand, make_federation):
    method = hand.method
    C, d, K, h = 3, 2, 2, 1
    P_D = h * d + h * h + h * K + 4 * h
    assert [method.upload(1, 0, k).payload_bytes for k in (0, 1)] == [4 * C * d] * 2
    assert [method.upload(1, 1, k).payload_bytes for k in (0, 1)] == [4 * n * (d + 1) for n in (1, 4)]
    assert method.reply(1, 0, 0).payload_bytes == 4 * C * d
    assert method.reply(1, 1, 0).payload_bytes == 4 * (C * d + C + P_D + 4 * h) == 88
    assert method.first().payload_bytes == 88
    prototypes = make_federation("fedpall", TWO, 2, fedpall={"upload": "prototypes"}).method
    assert sum(prototypes.upload(1, phase, 0).payload_bytes for phase in (0, 1)) == 4 * 2 * C * d
    items = make_federation("fedpall", TWO, 2, fusion="separate").method
    assert [items.upload(1, 1, k).payload_bytes for k in (0, 1)] == [4 * n * (d + 1) for n in (3, 2 * 4)]
    assert items.reply(1, 1, 0).payload_bytes == 4 * (C * d + C + (64 * d + 64 * 64 + 64 * K + 256) + 256)


def floats(run, K, h=64, upload="samples", items=1, C=3, d=8):
    """Floats (up (K,), down) per round by the formula."""
    mixed = C * d if upload == "prototypes" else run.partition["counts"].sum(axis=1) * items * (d + 1)
    return C * d + mixed, C * d + (C * d + C) + (h * d + h * h + h * K + 4 * h) + 4 * h


@pytest.mark.parametrize("upload", ["samples", "prototypes"])
@pytest.mark.parametrize("fusion", ["sum", "separate"])
def test_a_run_is_finite_and_its_payload_equals_the_formula(finished, fusion, upload):
    run = finished(fusion=fusion, partition="m1+", fedpall={"upload": upload, "disc_hidden": 16})
    owned = run.partition["modalities"].sum(axis=1)
    up, down = floats(run, K=3, h=16, upload=upload, items=owned if fusion == "separate" else 1)
    assert (run.rounds["bytes_up"] == 4 * up).all()
    assert (run.rounds["bytes_down"] == 4 * down).all()
    assert (run.rounds["wire_down"] == 4 * (down + 3)).all()  # the mask of present classes
    for name in ("loss_ce", "loss_adv", "loss_nce", "server_ce", "server_disc"):
        assert np.isfinite(run.rounds[name]).all(), name
        assert (run.rounds[name][1:] > 0).all(), name
    assert (run.rounds["loss_nce"][0] == 0).all()
    assert run.rounds["server_ce"].shape == (3,)


@pytest.mark.parametrize("upload", ["samples", "prototypes"])
def test_absent_classes_short_batches_and_a_single_participant(finished, upload):
    run = finished(clients=14, alpha=0.05, participation=0.07, rounds=4, fedpall={"upload": upload})
    participated, counts = run.rounds["participants"], run.partition["counts"]
    assert (participated.sum(axis=1) == 1).all()
    assert (counts == 0).any()
    assert (counts.sum(axis=1) < 12).any()
    up, down = floats(run, K=14, upload=upload)
    np.testing.assert_array_equal(run.rounds["bytes_up"], 4 * up * participated)
    np.testing.assert_array_equal(run.rounds["bytes_down"], 4 * down * participated)
    assert np.isfinite(run.rounds["server_ce"]).all()
    assert np.isfinite(run.rounds["loss_nce"][participated]).all()
    last = counts[participated[-1]][0]
    np.testing.assert_array_equal(run.final["Pbar_present"], last > 0)


@pytest.mark.parametrize("fusion", ["sum", "separate"])
def test_without_extra_terms_and_global_classifier_it_equals_local(finished, fusion, monkeypatch):
    monkeypatch.setattr(HeadClient, "begin", lambda self, inbox: None)
    off = finished(fusion=fusion, fedpall={"mu": 0, "beta": 0, "rho": 0})
    local = finished(method="local", fusion=fusion)
    for name in ("E", "I"):
        np.testing.assert_allclose(off.final[name], local.final[name], rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(off.rounds["correct"], local.rounds["correct"])
    assert not off.rounds["loss_adv"].any()
    assert not off.rounds["loss_nce"].any()


def test_results_depend_on_the_seed_only(finished):
    a, b, c = finished(), finished(eval_every=3), finished(seed=1)
    assert a.final["client_sha256"] == b.final["client_sha256"]
    assert a.final["server_sha256"] == b.final["server_sha256"]
    assert a.final["server_sha256"] != c.final["server_sha256"]


def test_without_server_epochs_the_networks_do_not_change(finished):
    one, three = finished(rounds=1, fedpall={"server_epochs": 0}), finished(fedpall={"server_epochs": 0})
    assert one.final["server_sha256"] == three.final["server_sha256"]
    assert not three.rounds["server_ce"].any()


def test_non_finite_values_raise(finished):
    with pytest.raises(RunError, match=r"server, round \d+: L_ce .*not finite"):
        finished(fedpall={"server_lr": 1e38})
    with pytest.raises(RunError, match=r"client \d, round \d+: .*not finite"):
        finished(lr=1e18, fedpall={"server_lr": 0.01})
