"""Harmony: a round of each stage calculated by hand, clusters, and complete runs."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from mfedpba_mpi.methods.harmony import default_clusters, stage1_rounds_of
from tests.methods.hand import Data
from tests.methods.harmony.loops import assert_close, head, linear_extractors

# Client 0 owns modalities 0 and 1, client 1 only modality 0; no client has class 2.
TWO = (
    Data({0: [(3, 0), (0, 3)], 1: [(6, 0), (0, 6)]}, [0, 1]),
    Data({0: [(0, 3), (0, 9)]}, [1, 1]),
)
# h = [W b]. At h = 0 every softmax is 1/3, so with lr = 1 and all samples in one batch the step is
# h_c = mean_i ([y_i = c] - 1/3) (z_i, 1). For features (a, 0) of class 0 and (0, a) of class 1:
#   h_0 = ((2/3)(a, 0, 1) - (1/3)(0, a, 1)) / 2 = (a/3, -a/6, 1/6),  h_1 = (-a/6, a/3, 1/6),  h_2 = (-a/6, -a/6, -1/3).
ZERO = torch.zeros(3, 3)
H_3 = [[1, -1 / 2, 1 / 6], [-1 / 2, 1, 1 / 6], [-1 / 2, -1 / 2, -1 / 3]]
H_6 = [[2, -1, 1 / 6], [-1, 2, 1 / 6], [-1, -1, -1 / 3]]
H_9 = [[3, -3 / 2, 1 / 6], [-3 / 2, 3, 1 / 6], [-3 / 2, -3 / 2, -1 / 3]]
# Client 1's features have mean (0, 6) and class 1: h_0 = h_2 = -(0, 6, 1) / 3, h_1 = (2/3)(0, 6, 1).
H_1 = [[0, -2, -1 / 3], [0, 4, 2 / 3], [0, -2, -1 / 3]]


def test_a_round_of_stage_1_by_hand(make_federation):
    method, clients, server = make_federation("harmony", TWO, 2, lr=1.0, batch_size=8, rounds=3)
    uploads = {k: client.update(1, 0, {"start": ZERO}) for k, client in enumerate(clients)}
    assert_close(uploads[0]["heads"], [H_3, H_6])
    assert_close(uploads[1]["heads"], [H_1])
    replies = server.step(1, 0, uploads)
    # modality 0: (H_3 + H_1) / 2; modality 1 has one owner
    mean = [[1 / 2, -5 / 4, -1 / 12], [-1 / 4, 5 / 2, 5 / 12], [-1 / 4, -5 / 4, -1 / 3]]
    assert_close(replies[0]["mean"], [mean, H_6])
    assert_close(replies[1]["mean"], [mean])
    P_h = 3 * 2 + 3
    assert [method.upload(1, 0, k).payload_bytes for k in (0, 1)] == [4 * 2 * P_h, 4 * P_h]
    assert [method.reply(1, 0, k).payload_bytes for k in (0, 1)] == [4 * 2 * P_h, 4 * P_h]
    assert method.first().payload_bytes == 4 * P_h
    assert server.first_message()["start"].shape == (3, 3)
    assert clients[0].losses["ce"] == pytest.approx(np.log(3))


def test_a_round_of_stage_2_by_hand(make_federation):
    """At h = 0 the extractors have no gradient and the bias is 0, so both clients are in one cluster."""
    method, clients, server = make_federation(
        "harmony", TWO, 2, lr=1.0, batch_size=8, rounds=4, harmony={"stage1_rounds": 1}
    )
    linear_extractors(clients)
    uploads = {k: client.update(2, 0, {"start": ZERO}) for k, client in enumerate(clients)}
    assert_close(uploads[0]["delta"], H_9)  # fused features (9, 0) and (0, 9)
    assert_close(uploads[1]["delta"], H_1)
    assert uploads[0]["bias"].tolist() == [0, 0]
    assert uploads[1]["bias"].tolist() == [0]
    replies = server.step(2, 0, uploads)
    mean = [[3 / 2, -7 / 4, -1 / 12], [-3 / 4, 7 / 2, 5 / 12], [-3 / 4, -7 / 4, -1 / 3]]  # (H_9 + H_1) / 2
    for k in (0, 1):
        assert_close(replies[k]["delta"], mean)
    P_h = 3 * 2 + 3
    assert [method.upload(2, 0, k).payload_bytes for k in (0, 1)] == [4 * (P_h + 2), 4 * (P_h + 1)]
    assert [method.reply(2, 0, k).payload_bytes for k in (0, 1)] == [4 * P_h, 4 * P_h]
    assert method.replies_differ(1, 0)
    assert method.replies_differ(2, 0)


def test_clusters_by_hand(make_federation):
    """Columns / maximum: (1, .5), (.75, 0), (0, 1), (.25, .75): clients 0 and 1 are similar, and 2 and 3."""
    both, one = {0: [(1, 1)], 1: [(1, 1)]}, {0: [(1, 1)]}
    clients = [Data(own, [0]) for own in (both, one, both, both)]
    settings = {"stage1_rounds": 1, "clusters": 2}
    _, _, server = make_federation("harmony", clients, 2, rounds=2, harmony=settings)
    bias = ([0.04, 0.01], [0.03], [0.0, 0.02], [0.01, 0.015])
    uploads = {k: {"delta": torch.full((3, 3), float(10**k)), "bias": torch.tensor(b)} for k, b in enumerate(bias)}
    replies = server.step(2, 0, uploads)
    assert [replies[k]["delta"][0, 0].item() for k in range(4)] == [5.5, 5.5, 550, 550]
    a, b, c, d = server.record["cluster"]
    assert a == b != c == d
    assert_close(server.record["modality_bias"], [[0.04, 0.01], [0.03, np.nan], [0, 0.02], [0.01, 0.015]])


def test_a_reply_is_applied_once_and_after_the_evaluation_of_its_round(make_federation):
    _, clients, _ = make_federation("harmony", TWO, 2, lr=1.0, batch_size=8, rounds=5, harmony={"stage1_rounds": 1})
    linear_extractors(clients)
    client = clients[0]
    inbox = {"start": ZERO}
    client.update(2, 0, inbox)
    client.evaluate(2, inbox)
    assert_close(head(client.model.classifier), H_9)  # the trained weights
    inbox |= {"delta": torch.ones(3, 3)}
    for t in (3, 4):  # evaluated, but not a participant
        client.evaluate(t, inbox)
        assert_close(head(client.model.classifier), np.ones((3, 3)))  # h_k(before) = 0, plus delta = 1
    client.config = replace(client.config, lr=1e-30)
    upload = client.update(5, 0, inbox)
    client.evaluate(5, inbox)
    assert_close(head(client.model.classifier), np.ones((3, 3)))
    assert_close(upload["delta"], np.zeros((3, 3)))


def test_bias_is_the_cosine_distance_of_all_parameters(make_federation):
    _, clients, _ = make_federation("harmony", TWO, 2, lr=1.0, batch_size=8, rounds=3, harmony={"stage1_rounds": 1})
    linear_extractors(clients, seed=1)
    client = clients[0]
    client.predict(2, torch.zeros(2, 1, 2), {"start": ZERO})  # enters stage 2
    first, second = client.model.extractors
    start = torch.cat([first.weight.flatten(), first.bias]).double()
    with torch.no_grad():
        first.weight += torch.tensor([[0.0, 1e-4], [2e-4, 0.0]])
    now = torch.cat([first.weight.flatten(), first.bias]).double()
    expected = 1 - (start @ now / (start.norm() * now.norm())).item()
    found = client._bias()
    assert found[0].item() == pytest.approx(expected, rel=1e-4)
    assert 0 < expected < 1e-7  # below the resolution of a cosine in float32
    assert found[1] == 0
    with torch.no_grad():
        second.weight *= -1
        second.bias *= -1
    assert client._bias()[1].item() == pytest.approx(2)


def test_stages_and_clusters_by_default(tiny):
    T1 = {T: stage1_rounds_of(tiny(method="harmony", rounds=T)) for T in (1, 2, 3, 4, 5, 100, 400)}
    assert T1 == {1: 1, 2: 1, 3: 2, 4: 3, 5: 3, 100: 67, 400: 267}
    assert stage1_rounds_of(tiny(method="harmony", rounds=9, harmony={"stage1_rounds": 2})) == 2
    assert [default_clusters(K) for K in (2, 10, 11, 20, 21, 50, 100)] == [2, 2, 3, 3, 3, 5, 7]


@pytest.fixture
def finished(finished):
    return lambda **changes: finished(**{"families": "DNN", "epochs": 1, **changes})


def payload(run, T1, C=3, d=8):
    """Payload (up, down) in bytes (T, K) by the formula; 0 for clients that do not participate."""
    part = run.rounds["participants"]
    stage_1 = (np.arange(1, len(part) + 1) <= T1)[:, None]
    owned, P_h = run.partition["modalities"].sum(axis=1), d * C + C
    return 4 * part * np.where(stage_1, owned * P_h, P_h + owned), 4 * part * np.where(stage_1, owned * P_h, P_h)


def test_an_extractor_without_weights_has_bias_zero(finished, own_family):
    class Cut(torch.nn.Module):
        def forward(self, x):
            return x[:, :6]

    own_family("Cut", "ILAT", lambda *_: Cut())
    bias = finished(families="Cut", feature_dim=6).rounds["modality_bias"][-1]
    assert (bias[~np.isnan(bias)] == 0).all()
    assert not np.isnan(bias).all()


@pytest.mark.parametrize("fusion", ["sum", "separate"])
@pytest.mark.parametrize(
    "changes", [{"partition": "m2", "families": ""}, {"clients": 14, "alpha": 0.05, "participation": 0.07}]
)
def test_a_run_is_finite_and_its_payload_equals_the_formula(finished, fusion, changes):
    run = finished(fusion=fusion, rounds=6, **changes)
    up, down = payload(run, T1=4)
    np.testing.assert_array_equal(run.rounds["bytes_up"], up)
    np.testing.assert_array_equal(run.rounds["bytes_down"], down)
    part = run.rounds["participants"]
    assert np.isfinite(run.rounds["loss_ce"][part]).all()
    assert ((run.rounds["cluster"] >= 0) == (part & (np.arange(6) >= 4)[:, None])).all()
    owned = run.partition["modalities"]
    np.testing.assert_array_equal(
        np.isfinite(run.rounds["modality_bias"]), owned[None] & (run.rounds["cluster"] >= 0)[..., None]
    )
    if "participation" in changes:
        assert (part.sum(axis=1) == 1).all()
        counts = run.partition["counts"]
        assert (counts == 0).any()
        assert ((counts > 0).sum(axis=1) == 1).any()  # a client with one class
        assert (counts.sum(axis=1) < 12).any()  # less than a batch


def test_the_transition_to_stage_2(finished):
    """Stage 1 does not train the fusion classifier; evaluation in stage 2 uses it."""
    one = finished(rounds=3, harmony={"stage1_rounds": 3})
    assert not (one.rounds["cluster"] >= 0).any()
    two = finished(rounds=3, harmony={"stage1_rounds": 2})
    assert (two.rounds["cluster"][2] >= 0).all()
    np.testing.assert_array_equal(one.rounds["loss_ce"][:2], two.rounds["loss_ce"][:2])
    assert (one.rounds["loss_ce"][2] != two.rounds["loss_ce"][2]).all()
    assert one.rounds["bytes_up"][2, 0] == 4 * 2 * 27
    assert two.rounds["bytes_up"][2, 0] == 4 * (27 + 2)


def test_unchanged_extractors_have_bias_zero(finished):
    still = finished(rounds=4, harmony={"encoder_lr_factor": 0})
    assert (still.rounds["modality_bias"][3][still.partition["modalities"]] == 0).all()
    assert (still.rounds["cluster"][3] == 0).all()
    moving = finished(rounds=4)
    assert (moving.rounds["modality_bias"][3][moving.partition["modalities"]] > 0).all()


def test_unimodal_clients_can_be_excluded_from_stage_2(finished):
    run = finished(clients=8, alpha=1.0, partition="m1+", rounds=4, harmony={"stage2_clients": "multimodal"})
    several = run.partition["modalities"].sum(axis=1) > 1
    assert several.any()
    assert not several.all()
    for name in ("bytes_up", "bytes_down"):
        assert (run.rounds[name][:3] > 0).all()
        assert ((run.rounds[name][3] > 0) == several).all()
    assert ((run.rounds["cluster"][3] >= 0) == several).all()
    assert np.isfinite(run.rounds["loss_ce"]).all()
    unimodal = finished(partition="m1", harmony={"stage2_clients": "multimodal"})
    assert not unimodal.rounds["bytes_up"][2].any()
    assert not unimodal.rounds["bytes_down"][2].any()


def test_results_do_not_depend_on_the_evaluation_interval(finished):
    settings = {"clients": 6, "alpha": 0.5, "participation": 0.34, "rounds": 6}
    often, rarely = finished(**settings), finished(eval_every=4, **settings)
    assert often.final["client_sha256"] == rarely.final["client_sha256"]
    for t in (3, 5):
        np.testing.assert_array_equal(often.rounds["correct"][t], rarely.rounds["correct"][t])
