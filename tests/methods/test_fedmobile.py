"""FedMobile, compared with a round calculated by hand, layers and optimizers of torch, and loops over coalitions."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mfedpba_mpi.errors import RunError
from mfedpba_mpi.methods import fedmobile
from mfedpba_mpi.methods.fedmobile import aggregation_weights, shapley, utilities
from tests.methods.hand import Data

M, C, d, NOISE, HIDDEN = 3, 4, 5, 3, 6
OWNED = [(1,), (0, 2), (0, 1, 2), (0,)]  # the third client has all modalities


def payload(C, d, M, noise, hidden):
    """Payload (up, down) in bytes."""
    P_h = d * C + C
    P_G = (noise + C + M) * hidden + hidden + 2 * hidden + hidden * d + d + 2 * hidden
    return 4 * (P_h + 1), 4 * (P_h + P_G)


# A round by hand


def test_a_round_by_hand(make_federation):
    """Client 0 has one of two modalities, no client has class 2; h_G = 0, lr = 0.1, one batch.

    R_0(z) = relu(z). The generator is not trained and gives unit vectors: G(y, m, eps) = e_y for y = 0, 1, up to
    BatchNorm's eps of 1e-5.
    """
    clients = [
        Data({0: [[3, 0], [0, 3]]}, [0, 1]),
        Data({0: [[1, 0], [0, 1], [1, 0], [0, 1]], 1: [[2, 0], [0, 2], [2, 0], [0, 2]]}, [0, 1, 0, 1]),
    ]
    parameters = {"generator_steps": 0, "noise": 1, "hidden": 2}
    method, (first, second), server = make_federation("fedmobile", clients, modalities=2, lr=0.1, fedmobile=parameters)
    for layer in (first.model.R[0], first.model.R[2]):
        nn.init.eye_(layer.weight)
        nn.init.zeros_(layer.bias)
    for value in (*server.head.parameters(), *(server.w[name] for name in ("B1", "c1", "c2"))):
        nn.init.zeros_(value)
    server.w["B1"][:, 1:3] = torch.eye(2)  # the inputs are one noise value, then the classes
    nn.init.eye_(server.w["B2"])
    start = server.first_message()

    # Items zt + r: client 0 has (6, 0) and (0, 6), client 1 (3, 0) and (0, 3), twice. p = 1/3, so that with items s e_y
    #   dW = mean (p - y) (zt + r)' = s/2 [[-2/3, 1/3], [1/3, -2/3], [1/3, 1/3]],   db = (-1/6, -1/6, 1/3).
    # With W = 0 the gradient of R_0 is 0.
    uploads = {0: first.update(1, 0, start), 1: second.update(1, 0, start)}
    np.testing.assert_allclose(uploads[0]["W"], [[0.2, -0.1], [-0.1, 0.2], [-0.1, -0.1]], atol=1e-6)
    np.testing.assert_allclose(uploads[1]["W"], [[0.1, -0.05], [-0.05, 0.1], [-0.05, -0.05]], atol=1e-6)
    for upload in uploads.values():
        np.testing.assert_allclose(upload["b"], [1 / 60, 1 / 60, -1 / 30], atol=1e-6)
    assert torch.equal(first.model.R[2].weight, torch.eye(2))
    assert first.losses == {"ce": pytest.approx(math.log(3)), "rec": 0, "gen": 0}

    # The correct logit of client 0 exceeds the others by 1.8 and 1.85 with R_0, and by 0.9 and 0.95 without:
    #   ce_on = ln(1 + e^-1.8 + e^-1.85) = 0.279551, ce_off = 0.584063, l_0 = 0.304512 / 0.584063.
    assert uploads[0]["l"].item() == pytest.approx(0.521369, abs=1e-5)
    assert uploads[1]["l"] == 0

    # On v = e_y the margins are 0.3 and 0.35 (client 0), 0.15 and 0.2 (client 1), 0.2 and 0.25 (both, weights 2 : 4):
    #   U = -ln 3 = -1.098612, -0.894252, -0.985607, -0.954562; phi = 0.117703, 0.026348 (mean of the marginal gains).
    v, y = torch.eye(2), torch.tensor([0, 1])
    W, b = (torch.stack([uploads[k][name] for k in (0, 1)]) for name in ("W", "b"))
    U = utilities(W, b, torch.tensor([2.0, 4.0]), np.array([0, 1]), v, y)
    np.testing.assert_allclose(U, [-1.098612, -0.894252, -0.985607, -0.954562], atol=2e-6)
    np.testing.assert_allclose(shapley(U), [0.117703, 0.026348], atol=2e-6)

    # Client 0 has the larger phi and l: a ~ 2 x 2 x 2 and 4 x 1 x 1, that is 2/3 and 1/3; W_G = 5/3 W_1.
    reply = server.step(1, 0, uploads)
    np.testing.assert_allclose(reply["W"], np.array([[2, -1], [-1, 2], [-1, -1]]) / 12, atol=1e-6)
    np.testing.assert_allclose(reply["b"], [1 / 60, 1 / 60, -1 / 30], atol=1e-6)
    assert all(torch.equal(reply[name], start[name]) for name in server.w)
    assert not reply["taught"].any()

    # Round 2, as if the generator had been trained on modality 1. The margins of h_G are 1.5 and 1.55 on the items of
    # client 0, and 0.25 and 0.3 on e_y. r = (3, 0) differs from g = (1, 0) by 2 in one of two elements.
    first.update(2, 0, {**reply, "taught": torch.tensor([0.0, 1.0])})
    assert first.losses["ce"] == pytest.approx(math.log(1 + math.exp(-1.5) + math.exp(-1.55)), abs=1e-5)
    assert first.losses["rec"] == pytest.approx(2, abs=1e-4)
    assert first.losses["gen"] == pytest.approx(math.log(1 + math.exp(-0.25) + math.exp(-0.3)), abs=1e-5)

    assert method.upload(1, 0, 0).payload_bytes == 4 * (9 + 1)
    assert method.reply(1, 0, 0).payload_bytes == 4 * (9 + 28)  # w: 6 x 2 + 2, 2 x 2, 2 x 2 + 2, 2 x 2
    assert payload(3, 2, 2, 1, 2) == (40, 148)
    assert method.first().shapes == method.reply(1, 0, 0).shapes
    assert method.reply(1, 0, 0).wire_bytes == 148 + 4 * 2


# Contributions


def loop_shapley(U, J):
    """Mean marginal gain over all orders of the players."""
    phi = np.zeros(J)
    orders = list(itertools.permutations(range(J)))
    for order in orders:
        S = 0
        for j in order:
            phi[j] += U[S | 1 << j] - U[S]
            S |= 1 << j
    return phi / len(orders)


@pytest.mark.parametrize("J", [1, 2, 3, 5])
def test_shapley_values_are_mean_marginal_gains_and_efficient(J):
    U = np.random.default_rng(J).normal(size=2**J)
    np.testing.assert_allclose(shapley(U), loop_shapley(U, J), atol=1e-12)
    assert shapley(U).sum() == pytest.approx(U[-1] - U[0])


def test_shapley_values_of_an_additive_utility():
    gains = np.array([0.5, -1.0, 2.0])
    U = np.array([sum(g for j, g in enumerate(gains) if S >> j & 1) for S in range(8)])
    np.testing.assert_allclose(shapley(U), gains)


def test_utilities_equal_loops_over_coalitions():
    g = torch.Generator().manual_seed(1)
    K, Q, J = 9, 20, 7  # 127 coalitions: more than one batch
    W, b, v = (torch.randn(*shape, generator=g) for shape in ((K, C, d), (K, C), (Q, d)))
    y = torch.randint(0, C, (Q,), generator=g)
    n, clusters = torch.arange(1.0, K + 1), np.array([0, 3, 1, 2, 6, 5, 4, 3, 0])
    U = utilities(W, b, n, clusters, v, y)
    assert len(U) == 2**J
    assert U[0] == pytest.approx(-math.log(C))
    for S in range(1, 2**J):
        inside = [k for k in range(K) if S >> clusters[k] & 1]
        share = [n[k] / sum(n[j] for j in inside) for k in inside]
        mean_W = sum(a * W[k] for a, k in zip(share, inside, strict=True))
        mean_b = sum(a * b[k] for a, k in zip(share, inside, strict=True))
        assert U[S] == pytest.approx(-F.cross_entropy(v @ mean_W.T + mean_b, y).item(), rel=1e-4)


def test_equal_contributions_give_weights_proportional_to_samples():
    n, same = np.array([6.0, 10.0, 4.0]), np.full(3, 0.3)
    np.testing.assert_allclose(aggregation_weights(n, same, same), [0.3, 0.5, 0.2])
    # minmax(phi) = 0, 1/2, 1 and minmax(l) = 1, 0, 0: 6 x 1 x 2, 10 x 1.5 x 1, 4 x 2 x 1
    np.testing.assert_allclose(
        aggregation_weights(n, np.array([-1, 0, 1]), np.array([0.5, 0, 0])), np.array([12, 15, 8]) / 35
    )


# Client and generator, compared with layers of torch


def torch_generator(w):
    """The generator as an nn.Sequential."""
    first, norm, second = nn.Linear(*w["B1"].shape[::-1]), nn.BatchNorm1d(len(w["c1"])), nn.Linear(*w["B2"].shape[::-1])
    named = ((first, "B1", "c1"), (norm, "bn_scale", "bn_shift"), (second, "B2", "c2"))
    for layer, weight, bias in named:
        layer.weight.data, layer.bias.data = w[weight].clone(), w[bias].clone()
    norm.running_mean, norm.running_var = w["bn_mean"].clone(), w["bn_var"].clone()
    return nn.Sequential(first, norm, nn.ReLU(), second)


@pytest.fixture
def federation(make_federation):
    """A function that builds clients with modalities OWNED and random data; no client has class 3."""

    def build(batch_size=100, lr=0.1, fusion="sum", seed=0, **parameters):
        rng = np.random.default_rng(5)
        data = []
        for k, owned in enumerate(OWNED):
            values = {m: rng.normal(size=(5 + k, d)).tolist() for m in owned}
            data.append(Data(values, rng.integers(0, 3, 5 + k).tolist()))
        settings = {"noise": NOISE, "hidden": HIDDEN, "draws": 40, **parameters}
        return make_federation(
            "fedmobile", data, M, C, d, batch_size=batch_size, lr=lr, fusion=fusion, seed=seed, fedmobile=settings
        )

    return build


@pytest.fixture
def fixed_draws(monkeypatch):
    """A function that replaces the generator's random inputs: a draw of n returns the first n of the given rows."""

    def replace(y, m, eps):
        x = torch.cat([eps, torch.eye(C)[y], torch.eye(M)[m]], 1)
        monkeypatch.setattr(fedmobile.GeneratorInputs, "draw", lambda self, n: (y[:n], m[:n], x[:n]))
        monkeypatch.setattr(
            fedmobile.GeneratorInputs,
            "inputs",
            lambda self, y, m: torch.cat([eps[: len(y)], torch.eye(C)[y], torch.eye(M)[m]], 1),
        )
        return x

    return replace


@pytest.mark.parametrize("fusion", ["sum", "separate"])
@pytest.mark.parametrize("k", range(len(OWNED)))
def test_a_client_step_equals_autograd(federation, fixed_draws, fusion, k):
    """The generator is not trained on modality 0, so that is excluded; client 1 then reconstructs modality 1."""
    _, clients, server = federation(fusion=fusion, lambda_r=0.7, lambda_g=0.4)
    client = clients[k]
    g = torch.Generator().manual_seed(k)
    start = {name: value + 0.1 * torch.rand(value.shape, generator=g) for name, value in server.first_message().items()}
    start["taught"] = torch.tensor([0.0, 1.0, 1.0])
    n = len(client.train_labels)
    y_drawn = torch.randint(0, 3, (20,), generator=g)
    m_drawn = torch.randint(1, 3, (20,), generator=g)
    eps = torch.rand(20, NOISE, generator=g)
    fixed_draws(y_drawn, m_drawn, eps)

    G = torch_generator(start).eval()
    order = client.epoch(1, 0)
    Z = torch.stack([x.batch(0, n) for x in order.xs])
    zt = Z.sum(0, keepdim=True) if fusion == "sum" else Z
    W, b = start["W"].clone().requires_grad_(), start["b"].clone().requires_grad_()
    R = {name: p.detach().clone().requires_grad_() for name, p in client.model.named_parameters() if name[0] == "R"}
    missing = [m for m in range(M) if m not in OWNED[k]]
    assert bool(R) == bool(missing)
    terms = {"ce": [], "rec": [], "gen": []}
    sources = [m for m in missing if m > 0]
    for item in zt:
        for i in range(n):
            r = torch.zeros(d)
            if missing:
                hidden = torch.relu(R["R.0.weight"] @ item[i] + R["R.0.bias"])
                r = R["R.2.weight"] @ hidden + R["R.2.bias"]
            terms["ce"].append(F.cross_entropy(W @ (item[i] + r) + b, order.y[i]))
            if sources:
                inputs = [
                    torch.cat([eps[j * n + i], torch.eye(C)[order.y[i]], torch.eye(M)[m]])
                    for j, m in enumerate(sources)
                ]
                teacher = G(torch.stack(inputs)).mean(0).detach()
                terms["rec"].append(((r - teacher) ** 2).mean())
    for i in range(n):
        v = G(torch.cat([eps[i], torch.eye(C)[y_drawn[i]], torch.eye(M)[m_drawn[i]]])[None])[0].detach()
        terms["gen"].append(F.cross_entropy(W @ v + b, y_drawn[i]))
    means = {name: torch.stack(values).mean() if values else torch.zeros(()) for name, values in terms.items()}
    leaves = [W, b, *R.values()]
    gradients = torch.autograd.grad(means["ce"] + 0.7 * means["rec"] + 0.4 * means["gen"], leaves)

    upload = client.update(1, 0, start)
    after = {"W": upload["W"], "b": upload["b"]}
    after |= {name: p.detach() for name, p in client.model.named_parameters() if name in R}
    for leaf, gradient, found in zip(leaves, gradients, after.values(), strict=True):
        np.testing.assert_allclose(found, (leaf - 0.1 * gradient).detach(), rtol=1e-4, atol=1e-6)
    for name, value in means.items():
        assert client.losses[name] == pytest.approx(value.item(), rel=1e-4), name

    # the contribution l_k of the trained network
    ce = {"off": [], "on": []}
    for item in zt:
        for i in range(n):
            ce["off"].append(F.cross_entropy(upload["W"] @ item[i] + upload["b"], order.y[i]))
            token = client.model.R(item[i]) if missing else 0
            ce["on"].append(F.cross_entropy(upload["W"] @ (item[i] + token) + upload["b"], order.y[i]))
    off, on = (torch.stack(values).mean().item() for values in ce.values())
    assert upload["l"].item() == pytest.approx(max(0.0, off - on) / off, rel=1e-3, abs=1e-6)
    assert bool(upload["l"] == 0) or bool(missing)


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_the_generator_is_distilled_from_the_owners_of_each_modality(federation, fixed_draws, optimizer):
    """Two rounds of three steps; in the second only clients 0 and 3 participate, and neither owns modality 2."""
    steps, B = 3, 6
    server = federation(batch_size=B, generator_steps=steps, generator_optimizer=optimizer, generator_lr=0.02).server
    g = torch.Generator().manual_seed(3)
    G = torch_generator(server.first_message())
    optimizer_class = torch.optim.Adam if optimizer == "adam" else torch.optim.SGD
    reference_optimizer = optimizer_class(G.parameters(), lr=0.02)
    for t, active in ((1, [0, 1, 2, 3]), (2, [0, 3])):
        uploads = {
            k: {
                "W": torch.randn(C, d, generator=g),
                "b": torch.randn(C, generator=g),
                "l": torch.zeros(()),
            }
            for k in active
        }
        y = torch.randint(0, 3, (40,), generator=g)
        m = torch.randint(0, M if t == 1 else 2, (40,), generator=g)
        x = fixed_draws(y, m, torch.rand(40, NOISE, generator=g))
        losses = []
        for s in range(steps):
            rows = range(s * B, s * B + B)
            v = G(x[s * B : s * B + B])
            logits = []
            for i, row in enumerate(rows):
                owners = [k for k in active if int(m[row]) in OWNED[k]]
                total = sum(5 + k for k in owners)
                logits.append(sum((5 + k) / total * (uploads[k]["W"] @ v[i] + uploads[k]["b"]) for k in owners))
            loss = F.cross_entropy(torch.stack(logits), y[s * B : s * B + B])
            reference_optimizer.zero_grad()
            loss.backward()
            reference_optimizer.step()
            losses.append(loss.item())
        reply = server.step(t, 0, uploads)
        expected = dict(
            zip(("B1", "c1", "bn_scale", "bn_shift", "B2", "c2"), G.parameters(), strict=True),
            bn_mean=G[1].running_mean,
            bn_var=G[1].running_var,
        )
        for name, value in expected.items():
            # BatchNorm subtracts c1 again, so its gradient is rounding noise, which Adam scales to steps of up to lr
            drift = steps * t * 0.02 if optimizer == "adam" and name in ("c1", "bn_mean") else 0
            np.testing.assert_allclose(reply[name], value.detach(), rtol=1e-4, atol=1e-5 + 2 * drift, err_msg=name)
        assert server.record["server_gen"] == pytest.approx(np.mean(losses), rel=1e-3)
        assert reply["taught"].tolist() == [1, 1, 1]


def test_the_generator_is_trained_on_modalities_of_participants_only(federation):
    server = federation(generator_steps=2).server
    assert server.first_message()["taught"].tolist() == [0, 0, 0]
    upload = {"W": torch.zeros(C, d), "b": torch.zeros(C), "l": torch.tensor(0.0)}
    assert server.step(1, 0, {3: upload})["taught"].tolist() == [1, 0, 0]
    assert server.step(2, 0, {0: upload})["taught"].tolist() == [1, 1, 0]


def test_generator_inputs_are_drawn_from_existing_classes_and_given_modalities(federation):
    problem = federation().method.problem
    draws = fedmobile.GeneratorInputs(problem, torch.tensor([True, False, True]), "test", 1)
    y, m, x = draws.draw(3000)
    counts = sum(spec.counts for spec in problem.clients)
    assert counts[3] == 0
    np.testing.assert_allclose(np.bincount(y, minlength=C) / 3000, counts / counts.sum(), atol=0.04)
    np.testing.assert_allclose(np.bincount(m, minlength=M) / 3000, [0.5, 0, 0.5], atol=0.04)
    assert torch.equal(x[:, NOISE : NOISE + C].argmax(1), y)
    assert torch.equal(x[:, NOISE + C :].argmax(1), m)
    assert 0 <= x[:, :NOISE].min() < 0.01 < 0.99 < x[:, :NOISE].max() <= 1
    again = fedmobile.GeneratorInputs(problem, torch.tensor([True, False, True]), "test", 1).draw(3000)
    other = fedmobile.GeneratorInputs(problem, torch.tensor([True, False, True]), "test", 2).draw(3000)
    assert torch.equal(again[2], x)
    assert not torch.equal(other[2], x)


@pytest.mark.parametrize("fusion", ["sum", "separate"])
def test_a_client_with_all_modalities_has_no_student_network(federation, fusion):
    _, clients, server = federation(fusion=fusion)
    assert [hasattr(client.model, "R") for client in clients] == [True, True, False, True]
    start = {**server.first_message(), "taught": torch.ones(M)}
    assert clients[2].update(1, 0, start)["l"] == 0
    assert clients[2].losses["rec"] == 0
    assert clients[2].losses["gen"] > 0
    Z = torch.randn(3, 4, d)
    plain = clients[2].model.logits(Z).argmax(-1)
    assert torch.equal(clients[2].predict(1, Z, start)[0], plain)


@pytest.mark.parametrize("fusion", ["sum", "separate"])
def test_predictions_use_the_reconstructed_token(federation, fusion):
    client = federation(fusion=fusion).clients[1]
    Z = torch.randn(2, 50, d)
    items = [Z[0] + Z[1]] if fusion == "sum" else list(Z)
    with torch.no_grad():
        expected = torch.stack([client.model.classifier(z + client.model.R(z)).argmax(-1) for z in items])
    assert torch.equal(client.predict(1, Z, {})[0], expected)


def test_the_state_dicts_are_complete(federation):
    """A federation restored from the state after round 1 of another one continues bit-identically."""

    def play(t, clients, server, inbox):
        return server.step(t, 0, {k: client.update(t, 0, inbox) for k, client in enumerate(clients)})

    _, clients, server = federation(generator_steps=5, generator_optimizer="adam")
    inbox = play(1, clients, server, server.first_message())
    _, others, other = federation(generator_steps=5, generator_optimizer="adam")
    for name, value in other.state_dict().items():
        value.copy_(server.state_dict()[name])
    for a, b in zip(clients, others, strict=True):
        b.model.load_state_dict(a.model.state_dict())
    assert all(torch.equal(value, inbox[name]) for name, value in other.first_message().items())
    a, b = play(2, clients, server, inbox), play(2, others, other, inbox)
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert all(torch.equal(server.state_dict()[name], value) for name, value in other.state_dict().items())
    assert server.steps == 10


def test_a_non_finite_generator_loss_raises(federation):
    _, clients, server = federation(generator_steps=3, generator_optimizer="sgd", generator_lr=1e30, lr=0.1)
    uploads = {k: client.update(1, 0, server.first_message()) for k, client in enumerate(clients)}
    with pytest.raises(RunError, match="server, round 1: generator loss is not finite"):
        server.step(1, 0, uploads)


# Whole runs


@pytest.mark.parametrize("fusion", ["sum", "separate"])
@pytest.mark.parametrize("partition", ["m1", "m1+"])
def test_a_run(finished, fusion, partition):
    run = finished(fusion=fusion, partition=partition, clients=4, samples=240)
    up, down = payload(3, 8, 3, 16, 64)
    assert (run.rounds["bytes_up"] == up).all()
    assert (run.rounds["bytes_down"] == down).all()
    assert (run.rounds["wire_down"] == down + 4 * 3).all()
    lacking = run.partition["modalities"].sum(1) < 3
    for name in ("ce", "rec", "gen"):
        assert np.isfinite(run.rounds[f"loss_{name}"]).all()
    assert not run.rounds["loss_rec"][0].any()
    assert not run.rounds["loss_gen"][0].any()
    assert ((run.rounds["loss_rec"][1:] > 0) == lacking).all()
    assert (run.rounds["loss_gen"][1:] > 0).all()
    assert np.isfinite(run.rounds["server_gen"]).all()
    assert (run.rounds["accuracy"] >= 0).all()


@pytest.mark.parametrize("fusion", ["sum", "separate"])
def test_absent_classes_few_samples_and_a_single_participant(finished, fusion):
    """Clients that first participate in a later round receive a trained generator, so all their terms are active."""
    run = finished(clients=14, alpha=0.05, participation=0.07, rounds=5, fusion=fusion)
    participated = run.rounds["participants"]
    assert (participated.sum(axis=1) == 1).all()
    assert (run.partition["counts"] == 0).any()
    assert (run.partition["counts"].sum(1) < 12).any()
    assert ((run.partition["counts"] > 0).sum(1) == 1).any()
    assert np.isfinite(run.rounds["loss_ce"][participated]).all()
    assert np.isfinite(run.rounds["server_gen"]).all()
    assert (run.rounds["loss_gen"][participated][1:] > 0).all()
    up, down = payload(3, 8, 3, 16, 64)
    assert (run.rounds["bytes_up"] == up * participated).all()
    assert (run.rounds["bytes_down"] == down * participated).all()


def test_without_generator_steps_no_features_are_generated(finished):
    run = finished(fedmobile={"generator_steps": 0})
    assert not run.rounds["loss_rec"].any()
    assert not run.rounds["loss_gen"].any()


def test_the_same_seed_gives_bit_identical_runs(finished):
    first = finished(eval_every=2, partition="m1")
    a = first.final["client_sha256"], first.final["server_sha256"]
    second = finished(partition="m1")
    assert a == (second.final["client_sha256"], second.final["server_sha256"])
