"""FedTGP, compared with calculations by hand, autograd in double precision, and loops."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from mfedpba_mpi.errors import RunError
from mfedpba_mpi.methods.fedtgp import TrainablePrototypes, adaptive_margin
from tests.methods.hand import Data

# Client 0 owns modalities 0 and 1; its fused features are (1, 1), (-1, -1) of class 0 and (3, 4) of class 1.
# Client 1 owns modality 1 and has only class 0, with mean (0, 0). No client has class 2.
TWO = [
    Data({0: [(1, 0), (-3, 0), (3, 2)], 1: [(0, 1), (2, -1), (0, 2)]}, [0, 0, 1]),
    Data({1: [(1, 2), (-1, -2)]}, [0, 0]),
]
C, d = 3, 2


def set_network(network, e, A1, a1, A2, a2):
    names = ("embedding.weight", "inner.weight", "inner.bias", "outer.weight", "outer.bias")
    with torch.no_grad():
        for name, value in zip(names, (e, A1, a1, A2, a2), strict=True):
            network.get_parameter(name).copy_(torch.as_tensor(value, dtype=torch.float32))


def uploads_of(clients, t=1, inbox=None):
    return {k: client.update(t, 0, inbox or {}) for k, client in enumerate(clients)}


def distance(a, b):
    return math.sqrt(sum((x - y) ** 2 for x, y in zip(a, b, strict=True)))


def test_a_round_by_hand(make_federation):
    """One server step with learning rate 0.3 from Phat = e = (3, 0), (0, 4), (5, 5), A1 = A2 = 1, a1 = a2 = 0.

    Uploads: (0, 0) of class 0 twice and (3, 4) of class 1. ||avg_0 - avg_1|| = 5, so delta = min(5, 1) = 1.
    Distances to Phat_0 and Phat_1: 3 and 4, 3 and 4, 4 and 3. With the margin all are 4, so s = 1/2, and each p_j moves
    its own Phat towards itself and the other one away, with weight 1/2 over 3.
    """
    options = {"server_epochs": 1, "server_lr": 0.3, "margin": 1.0}
    method, clients, server = make_federation("fedtgp", TWO, modalities=2, fedtgp=options)
    eye = [[1, 0], [0, 1]]
    set_network(server.network, [[3, 0], [0, 4], [5, 5]], eye, [0, 0], eye, [0, 0])
    uploads = uploads_of(clients)
    torch.testing.assert_close(uploads[0]["P"][:2], torch.tensor([[0.0, 0.0], [3.0, 4.0]]))
    torch.testing.assert_close(uploads[1]["P"][:1], torch.tensor([[0.0, 0.0]]))
    reply = server.step(1, 0, uploads)
    # dPhat_0 = ((1, 0) - (0, -1) / 2) / 3 = (1/3, 1/6) and dPhat_1 = (-(0, 1) + (-1, 0) / 2) / 3 = (-1/6, -1/3).
    # da2 = (1/6, -1/6), dA2 = dPhat_0 (3, 0) + dPhat_1 (0, 4) = [[1, -2/3], [1/2, -4/3]]
    # Through the ReLU: (1/3, 0) of e_0 and (0, -1/3) of e_1; da1 = (1/3, -1/3), dA1 = [[1, 0], [0, -4/3]].
    expected = {
        "embedding.weight": [[2.9, 0], [0, 4.1], [5, 5]],
        "inner.weight": [[0.7, 0], [0, 1.4]],
        "inner.bias": [-0.1, 0.1],
        "outer.weight": [[0.7, 0.2], [-0.15, 1.4]],
        "outer.bias": [-0.05, 0.05],
        "uploaded": [True, True, False],
    }
    for name, value in server.network.state_dict().items():
        torch.testing.assert_close(value, torch.tensor(expected.pop(name)), check_dtype=False)
    assert not expected
    # Hidden: (1.93, 0.1), (0, 5.84), (3.4, 7.1).
    Phat = [(1.321, -0.0995), (1.118, 8.226), (3.75, 9.48)]
    torch.testing.assert_close(reply["P_G"], torch.tensor(Phat))
    assert reply["P_present"].tolist() == [True, True, False]
    # The loss after the step; the margin applies to the own class.
    near, far = distance((0, 0), Phat[0]) + 1, distance((0, 0), Phat[1])
    own, other = distance((3, 4), Phat[1]) + 1, distance((3, 4), Phat[0])
    loss = (2 * math.log(1 + math.exp(near - far)) + math.log(1 + math.exp(own - other))) / 3
    assert server.record == {"server_tgp": pytest.approx(loss, rel=1e-5), "server_margin": 1.0}
    # The client's prototype loss, over three samples x two features.
    clients[0].update(2, 0, reply)
    squares = [distance(z, Phat[c]) ** 2 for z, c in (((1, 1), 0), ((-1, -1), 0), ((3, 4), 1))]
    assert clients[0].losses["proto"] == pytest.approx(sum(squares) / 6, rel=1e-5)
    # (4, 10) is nearest to Phat_2, but class 2 is absent.
    Z = torch.tensor([[[4.0, 10.0], [1.0, 0.0]]])
    assert clients[1].predict(1, Z, reply)[0].tolist() == [[1, 0]]
    for k in range(2):
        assert method.upload(1, 0, k).payload_bytes == 4 * C * d
        assert method.reply(1, 0, k).payload_bytes == 4 * C * d
        assert method.upload(1, 0, k).wire_bytes == 4 * C * d
        assert method.reply(1, 0, k).wire_bytes == 4 * (C * d + C)
    assert method.predictors == ("prototype", "classifier")
    assert method.predicts_from_reply


def test_a_step_equals_autograd():
    """Five classes, one of them excluded; the hidden width differs from d."""
    g = torch.Generator().manual_seed(1)
    classes, width, hidden, b = 5, 4, 7, 9
    network = TrainablePrototypes(classes, width, hidden)
    p, y = torch.randn(b, width, generator=g), torch.randint(0, 4, (b,), generator=g)
    values = [torch.randn(shape, generator=g) for shape in ((5, 4), (7, 4), (7,), (4, 7), (4,))]
    set_network(network, *values)
    e, A1, a1, A2, a2 = leaves = [value.double().requires_grad_() for value in values]
    loss = torch.zeros((), dtype=torch.float64)
    for j in range(b):
        D = []
        for c in range(4):
            Phat_c = A2 @ torch.relu(A1 @ e[c] + a1) + a2
            D.append((p[j].double() - Phat_c).norm() + (0.7 if c == y[j] else 0.0))
        loss = loss + (D[int(y[j])] + torch.logsumexp(-torch.stack(D), 0)) / b
    margin = 0.7 * torch.eye(classes)
    margin[:, 4] = math.inf
    network.step(p, nn.functional.one_hot(y, classes).float(), margin[y], lr=0.2)
    gradients = torch.autograd.grad(loss, leaves)
    for found, leaf, gradient in zip(network.parameters(), leaves, gradients, strict=True):
        torch.testing.assert_close(found, (leaf - 0.2 * gradient).float(), rtol=1e-5, atol=1e-6)


def test_every_epoch_uses_every_prototype_once(make_federation, monkeypatch):
    g = np.random.default_rng(2)
    data = [Data({0: g.normal(size=(6, d))}, [0, 0, 1, 1, 2, 2]) for _ in range(3)]
    _, clients, server = make_federation("fedtgp", data, modalities=1, fedtgp={"server_epochs": 4, "server_batch": 4})
    uploads, batches = uploads_of(clients), []
    monkeypatch.setattr(
        server.network, "step", lambda p, one_hot, margin, lr: batches.append((p.clone(), one_hot.argmax(1), lr))
    )
    server.step(1, 0, uploads)
    assert [len(p) for p, _, _ in batches] == [4, 4, 1] * 4
    assert {lr for _, _, lr in batches} == {0.01}  # that of the clients
    expected = sorted((*uploads[k]["P"][c].tolist(), c) for k in range(3) for c in range(3))
    orders = []
    for epoch in range(4):
        part = batches[3 * epoch : 3 * epoch + 3]
        rows = [(*z.tolist(), int(c)) for p, y, _ in part for z, c in zip(p, y, strict=True)]
        assert sorted(rows) == expected
        orders.append(tuple(rows))
    assert len(set(orders)) > 1


def loop_margin(average, present, tau_m):
    """As published: undefined gaps are 1e9, then replaced by the smallest gap."""
    classes = [c for c in range(len(average)) if present[c]]
    gaps = [min((distance(average[c], average[o]) for o in classes if o != c), default=1e9) for c in classes]
    gaps += [1e9] * (len(average) - len(classes))
    smallest = min(gaps)
    return min(max(smallest if gap > 1e8 else gap for gap in gaps), tau_m)


@pytest.mark.parametrize("present", ["11111", "10110", "01000", "00011"])
@pytest.mark.parametrize("tau_m", [0.0, 1.0, 100.0])
def test_the_margin_equals_the_published_one(present, tau_m):
    """With one class there is no gap, and the margin is tau_m."""
    average = torch.randn(5, 4, generator=torch.Generator().manual_seed(3)) * 3
    mask = torch.tensor([bit == "1" for bit in present])
    delta = adaptive_margin(average, mask, tau_m)
    assert delta == pytest.approx(loop_margin(average.tolist(), mask.tolist(), tau_m), rel=1e-6)
    assert delta <= tau_m


def test_loss_and_step_are_finite_if_prototypes_coincide(make_federation):
    """All Phat_c equal the one prototype that all clients upload."""
    data = [Data({0: [(7.3, 9.1)] * 3}, [0, 1, 2])] * 2
    _, clients, server = make_federation("fedtgp", data, modalities=1, fedtgp={"server_epochs": 20})
    uploads = uploads_of(clients)
    zero = torch.zeros(d, d)
    set_network(server.network, torch.zeros(C, d), zero, torch.zeros(d), zero, uploads[0]["P"][0])
    reply = server.step(1, 0, uploads)
    assert reply["P_G"].isfinite().all()
    assert server.record["server_margin"] == 0
    assert server.record["server_tgp"] == pytest.approx(math.log(3))
    torch.testing.assert_close(reply["P_G"], uploads[0]["P"])  # the gradient is 0 at distance 0


def test_a_step_is_finite_if_the_published_distance_is_nan():
    """Phat is at distance 1e-5 from the prototypes, and |p|^2 - 2 p.c + |c|^2 in float32 is negative."""
    g = torch.Generator().manual_seed(4)
    p = torch.randn(12, 48, generator=g).mul(3)
    p[:] = p[0]
    network = TrainablePrototypes(10, 48, 48)
    set_network(network, 1e-5 * torch.randn(10, 48, generator=g), torch.eye(48), torch.zeros(48), torch.eye(48), p[0])
    Phat = network()
    published = (p**2).sum(1, keepdim=True) - 2 * p @ Phat.T + (Phat**2).sum(1)
    assert published.min() < 0
    y = torch.arange(12) % 10
    network.step(p, nn.functional.one_hot(y, 10).float(), torch.zeros(12, 10), lr=0.01)
    assert all(value.isfinite().all() for value in network.parameters())
    assert not torch.equal(network(), Phat)


def test_training_reduces_the_loss_and_separates_classes(make_federation):
    """The class distance is 5, so with margin 1 the loss can decrease to about log(1 + exp(1 - 5)) = 0.018."""
    options = {"server_lr": 0.1, "server_epochs": 50, "margin": 1.0}
    _, clients, server = make_federation("fedtgp", TWO, modalities=2, fedtgp=options)
    uploads = uploads_of(clients)
    for t in range(1, 6):
        Phat = server.step(t, 0, uploads)["P_G"].tolist()
    assert server.record["server_tgp"] < 0.1
    assert distance(Phat[0], (0, 0)) + 1 < distance(Phat[1], (0, 0))
    assert distance(Phat[1], (3, 4)) + 1 < distance(Phat[0], (3, 4))


def test_without_server_epochs_prototypes_do_not_change(make_federation):
    _, clients, server = make_federation("fedtgp", TWO, modalities=2, fedtgp={"server_epochs": 0})
    before = server.network().clone()
    for t in (1, 2):
        assert torch.equal(server.step(t, 0, uploads_of(clients))["P_G"], before)
    assert math.isfinite(server.record["server_tgp"])


def test_uploaded_classes_stay_present_and_others_are_not_trained(make_federation):
    _, clients, server = make_federation("fedtgp", TWO, modalities=2)
    uploads = uploads_of(clients)
    e = server.network.embedding.weight
    start = e.clone()
    assert server.step(1, 0, {1: uploads[1]})["P_present"].tolist() == [True, False, False]  # one class, one client
    assert torch.equal(e, start)  # with one class the loss is constant
    assert server.record == {"server_tgp": 0.0, "server_margin": 6.25}  # 100 sqrt(2 / 512)
    assert server.step(2, 0, uploads)["P_present"].tolist() == [True, True, False]
    assert not torch.equal(e[1], start[1])
    before = e[1].clone()
    assert server.step(3, 0, {1: uploads[1]})["P_present"].tolist() == [True, True, False]
    assert not torch.equal(e[1], before)  # not uploaded in this round, but still a negative class
    assert torch.equal(e[2], start[2])


def test_the_state_dict_is_complete(make_federation):
    _, clients, server = make_federation("fedtgp", TWO, modalities=2)
    uploads = uploads_of(clients)
    server.step(1, 0, {0: uploads[0]})
    other = make_federation("fedtgp", TWO, modalities=2).server
    for name, value in other.state_dict().items():
        value.copy_(server.state_dict()[name])
    one, two = server.step(2, 0, {1: uploads[1]}), other.step(2, 0, {1: uploads[1]})
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert all(torch.equal(value, other.state_dict()[name]) for name, value in server.state_dict().items())


def test_server_defaults(make_federation):
    server = make_federation("fedtgp", TWO, modalities=2, lr=0.07, batch_size=5).server
    assert (server.lr, server.batch, server.network.inner.out_features) == (0.07, 5, d)
    options = {"server_lr": 0.5, "server_batch": 3, "hidden": 9}
    server = make_federation("fedtgp", TWO, modalities=2, lr=0.07, batch_size=5, fedtgp=options).server
    assert (server.lr, server.batch, server.network.inner.out_features) == (0.5, 3, 9)


def test_a_non_finite_loss_raises(make_federation):
    _, clients, server = make_federation("fedtgp", TWO, modalities=2)
    server.network.outer.bias.fill_(torch.nan)
    with pytest.raises(RunError, match="server, round 7: L_tgp is not finite"):
        server.step(7, 0, uploads_of(clients))


@pytest.mark.parametrize("fusion", ["sum", "separate"])
def test_a_run(finished, fusion):
    rounds = finished(fusion=fusion, partition="m1+", families="DNN", fedtgp={"margin": 0.01}).rounds
    assert (rounds["bytes_up"] == 4 * 3 * 8).all()
    assert (rounds["bytes_down"] == 4 * 3 * 8).all()
    assert (rounds["loss_proto"][0] == 0).all()
    assert (rounds["loss_proto"][1:] > 0).all()
    assert np.isfinite(rounds["server_tgp"]).all()
    assert (rounds["server_margin"] <= 0.01).all()
    np.testing.assert_array_equal(rounds["accuracy"], rounds["accuracy_prototype"])
    assert np.isfinite(rounds["accuracy_classifier"]).all()


def test_with_lambda_zero_it_equals_local(finished):
    local, off = finished(method="local"), finished(fedtgp={"lam": 0, "predict": "classifier"})
    assert local.final["client_sha256"] == off.final["client_sha256"]
    np.testing.assert_array_equal(local.rounds["correct"], off.rounds["correct"])
    np.testing.assert_array_equal(off.rounds["accuracy"], off.rounds["accuracy_classifier"])


@pytest.mark.parametrize("fusion", ["sum", "separate"])
def test_absent_classes_and_single_participants(finished, fusion):
    """Some clients have fewer samples than a batch or only one class; one participant per round."""
    changes = dict(clients=14, alpha=0.05, participation=0.07, rounds=5, families="DNN,Resmodel")
    run = finished(fedtgp={"lam": 1}, fusion=fusion, **changes)
    counts, participated = run.partition["counts"], run.rounds["participants"]
    assert (participated.sum(axis=1) == 1).all()
    assert (counts.sum(axis=1) < 12).any()
    assert ((counts > 0).sum(axis=1) == 1).any()
    assert np.isfinite(run.rounds["loss_proto"][participated]).all()
    assert np.isfinite(run.rounds["server_tgp"]).all()
    ever = (counts[participated.any(axis=0)] > 0).any(axis=0)
    np.testing.assert_array_equal(run.final["P_present"], ever)
