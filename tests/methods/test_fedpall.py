"""FedPall: a round worked out by hand, its terms against loops, its server against torch.optim, and real runs."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mfedpba_mpi.errors import RunError
from mfedpba_mpi.methods import fedpall
from mfedpba_mpi.methods.fedpall import adversarial_term, contrastive_term
from mfedpba_mpi.methods.heads import HeadClient
from mfedpba_mpi.methods.training import Epoch
from tests.methods.hand import Data

CPU = torch.device("cpu")


class NoChance:
    """A random generator that draws halves and shuffles nothing."""

    def uniform(self, low, high):
        return 0.5

    def permutation(self, n):
        return np.arange(n)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture
def no_chance(monkeypatch):
    monkeypatch.setattr(fedpall, "generator", lambda *_: NoChance())


def post(layout, message):
    """A message as it arrives."""
    flat = torch.empty(layout.size)
    layout.pack(message, flat)
    return layout.unpack(flat, CPU)


def play(federation, t, inbox, active=None):
    """Round `t`; returns each phase's uploads and leaves everything received in `inbox`."""
    method, clients, server = federation
    active = range(len(clients)) if active is None else active
    if not inbox:
        inbox.update(post(method.reply(0, 0, 0), server.first_message()))
    sent = []
    for phase in range(method.phases):
        sent.append({k: post(method.upload(t, phase, k), clients[k].update(t, phase, inbox)) for k in active})
        inbox.update(post(method.reply(t, phase, 0), server.step(t, phase, sent[-1])))
    return sent


def close(found, expected, tolerance=1e-5):
    found, expected = (np.asarray(x.detach() if isinstance(x, torch.Tensor) else x) for x in (found, expected))
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


# A round by hand


@pytest.fixture
def hand(by_hand, no_chance):
    """Two clients, class 1 nobody's; h_G = 0 and a discriminator of width 1 with W_1 = (1, 0), W_2 = 1, W_3 = 0.

    Client 0 owns modality 0 and has one sample, (3, 4) of class 0. Client 1 owns both modalities; its sums are (-3, 1),
    (-3, 4), (-3, 7) of class 0 and (-2.3, 0) of class 2.
    """
    clients = [
        Data({0: [(3, 4)]}, [0]),
        Data({0: [(-1, 1), (-1, 2), (-1, 3), (-2, 0)], 1: [(-2, 0), (-2, 2), (-2, 4), (-0.3, 0)]}, [0, 0, 0, 2]),
    ]
    settings = {"mix_low": 0, "keep": 1, "disc_hidden": 1, "server_epochs": 1, "server_lr": 1, "weight_decay": 0}
    federation = by_hand("fedpall", clients, 2, fedpall=settings, lr=0.3, batch_size=5)
    start = {"W": torch.zeros(3, 2), "b": torch.zeros(3), "D_W3": torch.zeros(2, 1)}
    start |= {"D_W1": torch.tensor([[1.0, 0.0]]), "D_W2": torch.ones(1, 1)}
    for name, value in start.items():
        federation.server.state()[name].copy_(value)
    return federation


def test_a_round_by_hand(hand):
    inbox = {}
    means, mixed = play(hand, 1, inbox)
    first = hand.clients[0]

    # h_0 = h_G = 0, so p - y = (-2/3, 1/3, 1/3) for z = (3, 4), and W -= 0.3 (p - y) z^T. W_3 = 0: D is constant.
    close(first.model.classifier.weight, [[0.6, 0.8], [-0.3, -0.4], [-0.3, -0.4]])
    close(first.model.classifier.bias, [0.2, -0.1, -0.1])
    for client in hand.clients:
        close(list(client.losses.values()), [math.log(3), 0, 0])

    # p_0 = (3, 4) has the direction (0.6, 0.8) and counts once, (-3, 4) the direction (-0.6, 0.8) and counts three
    # times: Pbar_0 = ((0.6 - 1.8) / 4, 0.8). Class 2 is client 1's: (-2.3, 0) has the direction (-1, 0).
    close(means[0]["p"][0], [3, 4])
    close(means[1]["p"][[0, 2]], [[-3, 4], [-2.3, 0]])
    close(inbox["Pbar"][[0, 2]], [[-0.3, 0.8], [-1, 0]])
    assert inbox["Pbar_present"].tolist() == [1, 0, 1]

    # v = (z + Pbar_y) / 2
    close(mixed[0]["V"], [[1.35, 2.4]])
    close(mixed[1]["V"], [[-1.65, 0.9], [-1.65, 2.4], [-1.65, 3.9], [-1.65, 0]])
    assert mixed[0]["y"].tolist() == [0]
    assert mixed[1]["y"].tolist() == [0, 0, 0, 2]

    # h_G(v) = 0, so dCE/db = 1/3 - (4, 0, 1) / 5. The v of class 0 sum to (-3.6, 9.6), those of class 2 to (-1.65, 0),
    # all to (-5.25, 9.6): dCE/dW = ((-1.75, 3.2) - (-3.6, 9.6)) / 5, (-1.75, 3.2) / 5, ((-1.75, 3.2) - (-1.65, 0)) / 5.
    close(inbox["W"], [[-0.37, 1.28], [0.35, -0.64], [0.02, -0.64]])
    close(inbox["b"], [7 / 15, -1 / 3, -2 / 15])
    assert hand.server.record["server_ce"] == pytest.approx(math.log(3))

    # W_1 v = 1.35 and four times -1.65: mean -1.05, deviations 2.4 and -0.6, variance 7.2 / 5 = 1.2^2, so BatchNorm and
    # relu give 2, 0, 0, 0, 0. Of these the mean is 0.4, the variance 3.2 / 5 = 0.8^2, and again a_2 = 2, 0, 0, 0, 0.
    # Running means move to 0.1 of the mean, variances to 0.9 + 0.1 of the unbiased 7.2 / 4 and 3.2 / 4.
    # D = 0, so dCE/dW_3 = (1/2 - 1) 2 / 5 and 1/2 2 / 5; nothing reaches the layers before W_3 = 0.
    close(inbox["D_W3"], [[0.2], [-0.2]], 1e-4)
    close(
        [inbox["D_mean1"], inbox["D_var1"], inbox["D_mean2"], inbox["D_var2"]], [[-0.105], [1.08], [0.04], [0.98]], 1e-4
    )
    close(inbox["D_W1"], [[1, 0]])
    close([inbox[f"D_{name}"].item() for name in ("W2", "gamma1", "gamma2", "beta1", "beta2")], [1, 1, 1, 0, 0])
    assert hand.server.record["server_disc"] == pytest.approx(math.log(2))


def test_the_round_after_it(hand):
    """Client 0 starts from the classifier above, and z = (3, 4) meets the prototypes and the discriminator above."""
    inbox = {}
    play(hand, 1, inbox)
    first = hand.clients[0]
    first.update(2, 0, inbox)
    # h_G(z) = (4.01 + 7/15, -1.51 - 1/3, -2.5 - 2/15); cosines 0.46 / sqrt(0.73) = 0.538390 and -0.6, T = 3;
    # D: (3 + 0.105) / sqrt(1.08) = 2.987787, (2.987787 - 0.04) / sqrt(0.98) = 2.977716, logits +-0.595543.
    ce = math.log(1 + math.exp(-1.843333 - 4.476667) + math.exp(-2.633333 - 4.476667))
    nce = math.log(1 + math.exp((-0.6 - 0.538390) / 3))
    adv = math.log(math.cosh(0.595543))
    close(list(first.losses.values()), [ce, adv, nce], 1e-4)
    close([adv, nce], [0.167749, 0.521308], 1e-5)


def test_payload_is_the_closed_formula(hand, by_hand):
    method = hand.method
    C, d, K, h = 3, 2, 2, 1
    P_D = h * d + h * h + h * K + 4 * h
    assert [method.upload(1, 0, k).payload_bytes for k in (0, 1)] == [4 * C * d] * 2
    assert [method.upload(1, 1, k).payload_bytes for k in (0, 1)] == [4 * n * (d + 1) for n in (1, 4)]
    assert method.reply(1, 0, 0).payload_bytes == 4 * C * d
    assert method.reply(1, 1, 0).payload_bytes == 4 * (C * d + C + P_D + 4 * h) == 88
    assert method.reply(0, 0, 0).payload_bytes == 88
    few = by_hand("fedpall", TWO, 2, fedpall={"upload": "prototypes"}).method
    assert sum(few.upload(1, phase, 0).payload_bytes for phase in (0, 1)) == 4 * 2 * C * d
    items = by_hand("fedpall", TWO, 2, fusion="separate").method
    assert [items.upload(1, 1, k).payload_bytes for k in (0, 1)] == [4 * n * (d + 1) for n in (3, 2 * 4)]
    assert items.reply(1, 1, 0).payload_bytes == 4 * (C * d + C + (64 * d + 64 * 64 + 64 * K + 256) + 256)


# The client

TWO = [
    Data({1: [(1, 2), (0.5, -1), (2, 2)]}, [0, 2, 2]),
    Data({0: [(1, 0), (0, 1), (1, 1), (-1, 2)], 1: [(2, 1), (0, 3), (-1, -2), (0.5, 0)]}, [0, 2, 0, 0]),
]


def random_discriminator(d, h, K):
    """An nn.Sequential in evaluation mode whose BatchNorms have seen something, and its arrays as they travel."""
    layers = [nn.Linear(d, h, bias=False), nn.BatchNorm1d(h), nn.ReLU(), nn.Linear(h, h, bias=False)]
    D = nn.Sequential(*layers, nn.BatchNorm1d(h), nn.ReLU(), nn.Linear(h, K, bias=False))
    for p in D.parameters():
        nn.init.normal_(p)
    for _ in range(5):
        D(torch.randn(20, d))
    return D.eval(), arrays(D)


def arrays(D):
    message = {"D_W1": D[0].weight, "D_W2": D[3].weight, "D_W3": D[6].weight}
    for i, norm in ((1, D[1]), (2, D[4])):
        parts = {"gamma": norm.weight, "beta": norm.bias, "mean": norm.running_mean, "var": norm.running_var}
        message |= {f"D_{name}{i}": value for name, value in parts.items()}
    return {name: value.detach() for name, value in message.items()}


@pytest.mark.parametrize("items", [1, 2])
def test_adversarial_term_is_the_divergence_from_uniform(items):
    D, message = random_discriminator(d=4, h=5, K=3)
    z = torch.randn(items, 6, 4)
    expected = 0.0
    for row in z.flatten(0, 1):
        q = torch.softmax(D(row[None])[0], 0)
        expected += sum((1 / 3) * math.log((1 / 3) / q[j].item()) for j in range(3)) / (6 * items)
    assert adversarial_term(message)(z).item() == pytest.approx(expected, rel=1e-4)


def test_adversarial_term_is_zero_when_the_discriminator_is_constant():
    _, message = random_discriminator(d=4, h=5, K=3)
    message["D_W3"] = torch.ones(3, 5)
    assert adversarial_term(message)(torch.randn(1, 6, 4)).item() == pytest.approx(0, abs=1e-6)


def loop_contrast(z, y, Pbar, present, T):
    terms = []
    for row in z:
        for i in range(len(y)):
            if present[y[i]]:
                cos = {
                    c: F.cosine_similarity(row[i], Pbar[c], dim=0).item() / T
                    for c in present.nonzero().flatten().tolist()
                }
                terms.append(-cos[int(y[i])] + math.log(sum(math.exp(v) for v in cos.values())))
    return sum(terms) / len(terms) if terms else 0.0


@pytest.mark.parametrize("items", [1, 2])
@pytest.mark.parametrize("present", [[1, 1, 1, 1], [1, 0, 0, 1], [0, 0, 1, 0]])
def test_contrastive_term_leaves_absent_classes_out(items, present):
    y = torch.tensor([0, 1, 2, 3, 0, 1, 1, 1, 1, 3, 3])
    cuts = [(0, 5), (5, 9), (9, 11)]  # in the second batch class 1 alone
    present = torch.tensor(present, dtype=torch.bool)
    z, Pbar = torch.randn(items, 11, 3), torch.randn(4, 3)
    Pbar[~present] = float("nan")  # must not be looked at
    term = contrastive_term(Epoch([], y, cuts), Pbar, present, 0.7)
    for number, (start, stop) in enumerate(cuts):
        found = term(number, slice(start, stop), z[:, start:stop])
        expected = loop_contrast(z[:, start:stop], y[start:stop], Pbar, present, 0.7)
        assert found.item() == pytest.approx(expected, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("present", [[True, True, True], [False, True, False]])
@pytest.mark.parametrize("T", [0.05, 3.0])
def test_contrastive_term_is_never_negative(T, present):
    """Prototypes of norm 0.1, not normalised in the denominator, would give -0.9 / T when z points to its own."""
    y, Pbar = torch.ones(50, dtype=torch.long), 0.1 * torch.eye(3)
    z = torch.randn(1, 50, 3)
    z[:, 0] = Pbar[1]
    term = contrastive_term(Epoch([], y, [(i, i + 1) for i in range(50)]), Pbar, torch.tensor(present), T)
    losses = [term(i, slice(i, i + 1), z[:, i : i + 1]).item() for i in range(50)]
    assert min(losses) >= 0
    assert (max(losses) > 0) == all(present)  # with one class there is nothing to contrast


@pytest.mark.parametrize("fusion", ["sum", "separate"])
def test_a_client_step_goes_down_all_three_terms(by_hand, fusion):
    """One SGD step on extractors and classifier against autograd through plain modules; D and Pbar stay as they are."""
    weights = {"beta": 0.7, "mu": 0.4, "temperature": 0.5, "rho": 0.25, "disc_hidden": 5}
    federation = by_hand("fedpall", TWO, 2, fedpall=weights, lr=0.5, batch_size=4, fusion=fusion)
    client, K = federation.clients[1], 2
    client.model.extractors = nn.ModuleList(nn.Linear(2, 2) for _ in range(2))
    D, message = random_discriminator(2, 5, K)
    h_G = {"W": torch.randn(3, 2), "b": torch.randn(3)}
    Pbar, present = torch.randn(3, 2), torch.tensor([1.0, 1.0, 0.0])
    h = client.model.classifier
    W, b = (
        (0.75 * p.detach() + 0.25 * h_G[name]).requires_grad_()
        for name, p in zip("Wb", (h.weight, h.bias), strict=True)
    )
    f = [[p.detach().clone().requires_grad_() for p in layer.parameters()] for layer in client.model.extractors]

    y = torch.tensor(TWO[1].labels)
    Z = torch.stack([F.linear(torch.tensor(TWO[1].values[m]).float(), *f[m]) for m in range(2)])
    z = Z.sum(0) if fusion == "sum" else Z.flatten(0, 1)
    y = y if fusion == "sum" else torch.cat([y, y])
    ce = F.cross_entropy(z @ W.T + b, y)
    adv = F.kl_div(F.log_softmax(D(z), -1), torch.full((len(z), K), 1 / K), reduction="batchmean")
    cos = F.cosine_similarity(z[:, None], Pbar[None, :2], dim=-1) / 0.5  # class 2 has no prototype
    nce = F.cross_entropy(cos[y < 2], y[y < 2])
    parameters = [W, b, *f[0], *f[1]]
    moves = torch.autograd.grad(ce + 0.7 * adv + 0.4 * nce, parameters)

    inbox = {**h_G, **message, "Pbar": Pbar, "Pbar_present": present}
    client.update(1, 0, inbox)
    close(list(client.losses.values()), [ce.item(), adv.item(), nce.item()])
    found = [h.weight, h.bias, *client.model.extractors[0].parameters(), *client.model.extractors[1].parameters()]
    for p, start, move in zip(found, parameters, moves, strict=True):
        close(p, start - 0.5 * move)
    for name, value in message.items():
        assert torch.equal(value, arrays(D)[name])


@pytest.mark.parametrize(
    ("d", "keep", "ones"), [(2, 0.9, 1), (10, 0.9, 9), (24, 0.9, 21), (64, 0.9, 57), (100, 0.29, 29)]
)
def test_the_mask_lets_exactly_so_many_features_through(by_hand, d, keep, ones):
    rows = np.random.default_rng(0).normal(size=(4, d)) + 5
    federation = by_hand("fedpall", [Data({0: rows}, [0, 1, 1, 2])] * 2, 1, d=d, fedpall={"keep": keep})
    inbox, masks = {}, []
    for t in (1, 2):
        for k, upload in play(federation, t, inbox)[1].items():
            masks.append((upload["V"] != 0).numpy())
            assert (masks[-1].sum(1) == ones).all()
            assert (masks[-1] == masks[-1][0]).all(), k
    if d == 64:  # every client and round has its own
        assert len({mask.tobytes() for mask in masks}) == 4


def test_the_share_is_one_draw_for_each_client_and_round(by_hand):
    federation = by_hand("fedpall", TWO, 2, fedpall={"keep": 1, "mix_low": 0.6})
    inbox, shares = {}, []
    for t in (1, 2, 3):
        for k, upload in play(federation, t, inbox)[1].items():
            z = sum(torch.tensor(rows).float() for rows in TWO[k].values.values())
            P = inbox["Pbar"][TWO[k].labels]
            g = ((upload["V"] - P) / (z - P)).numpy()
            close(g, np.full_like(g, g[0, 0]), 1e-4)
            shares.append(round(float(g[0, 0]), 4))
    assert len(set(shares)) == 6
    assert 0.6 <= min(shares) <= max(shares) <= 1


def test_phase_b_leaves_the_trained_classifier_for_prediction(hand):
    inbox = {}
    play(hand, 1, inbox)
    client = hand.clients[0]
    client.update(2, 0, inbox)
    before = {name: value.clone() for name, value in client.model.state_dict().items()}
    hits = client.evaluate(2, inbox)
    client.update(2, 1, inbox)
    assert all(torch.equal(value, before[name]) for name, value in client.model.state_dict().items())
    assert not torch.equal(client.model.classifier.weight, inbox["W"])
    assert client.evaluate(2, inbox) == hits


# The server


def test_prototypes_of_separate_features_count_items(by_hand):
    federation = by_hand("fedpall", TWO, 2, fusion="separate", fedpall={"keep": 1, "mix_low": 1})
    inbox = {}
    means, mixed = play(federation, 1, inbox)
    sums, counts = np.zeros((3, 2)), np.zeros(3)
    for k, client in enumerate(TWO):
        for c in set(client.labels):
            members = [
                row for rows in client.values.values() for row, y in zip(rows, client.labels, strict=True) if y == c
            ]
            p = np.mean(members, axis=0)
            close(means[k]["p"][c], p)
            sums[c] += len(members) * p / np.linalg.norm(p)
            counts[c] += len(members)
    close(inbox["Pbar"][[0, 2]], (sums / counts.clip(1)[:, None])[[0, 2]])
    assert counts.tolist() == [7, 0, 4]
    close(mixed[1]["V"], np.concatenate([TWO[1].values[0], TWO[1].values[1]]))  # g = 1: the features themselves
    assert mixed[1]["y"].tolist() == TWO[1].labels * 2


def test_the_server_is_sgd_with_momentum_over_rounds(by_hand, no_chance):
    """Rounds with 16 vectors (the last batch has one, which D leaves out), 14 and 8; three epochs in batches of 5."""
    rng = np.random.default_rng(1)
    clients = [Data({0: rng.normal(size=(n, 4))}, rng.integers(0, 3, n)) for n in (8, 8, 6)]
    settings = {"disc_hidden": 6, "server_lr": 0.2, "weight_decay": 0.01}
    federation = by_hand("fedpall", clients, 1, d=4, fedpall=settings, batch_size=5)
    inbox = dict(federation.server.first_message())
    D, _ = random_discriminator(4, 6, 3)
    names = {"D_W1": D[0].weight, "D_W2": D[3].weight, "D_W3": D[6].weight}
    for i, norm in ((1, D[1]), (2, D[4])):
        names |= {f"D_gamma{i}": norm.weight, f"D_beta{i}": norm.bias, f"D_mean{i}": norm.running_mean}
        names[f"D_var{i}"] = norm.running_var
    h = nn.Linear(4, 3)
    with torch.no_grad():
        for name, value in (names | {"W": h.weight, "b": h.bias}).items():
            value.copy_(inbox[name])
    D.train()
    optimisers = [torch.optim.SGD(net.parameters(), 0.2, momentum=0.9, weight_decay=0.01) for net in (h, D)]
    for t, active in ((1, [0, 1]), (2, [0, 2]), (3, [1])):
        _, mixed = play(federation, t, inbox, active)
        V, y = (torch.cat([mixed[k][name] for k in active]) for name in ("V", "y"))
        owner = torch.tensor([k for k in active for _ in range(len(clients[k].labels))])
        cases = (h, optimisers[0], y.long(), 1, "ce"), (D, optimisers[1], owner, 4, "disc")
        for net, optimiser, target, least, term in cases:
            losses = []
            for _ in range(3):
                for start in range(0, len(V), 5):
                    if len(V[start : start + 5]) >= least:
                        loss = F.cross_entropy(net(V[start : start + 5]), target[start : start + 5])
                        optimiser.zero_grad()
                        loss.backward()
                        optimiser.step()
                        losses.append(loss.item())
            assert federation.server.record[f"server_{term}"] == pytest.approx(np.mean(losses), rel=1e-3)
        for name, value in (arrays(D) | {"W": h.weight, "b": h.bias}).items():
            close(inbox[name], value, 1e-3)


def test_every_draw_has_a_stream_of_its_own(by_hand, monkeypatch):
    keys, real = [], fedpall.generator
    monkeypatch.setattr(fedpall, "generator", lambda *key: keys.append(key) or real(*key))
    federation, inbox = by_hand("fedpall", TWO, 2), {}
    for t in (1, 2):
        play(federation, t, inbox)
    assert len(keys) == len(set(keys)) == 2 * (2 + 3 + 3)  # a mix for each client, three shuffles for h_G and for D


def test_uploaded_prototypes_are_weighted_by_their_counts(by_hand, no_chance):
    """A batch of all class means, weighted, is the batch of all samples with each replaced by its class mean."""
    settings = {"upload": "prototypes", "server_epochs": 1, "server_lr": 0.1, "weight_decay": 0, "keep": 1}
    federation = by_hand("fedpall", TWO, 2, fedpall=settings)
    inbox = dict(federation.server.first_message())
    W, b = (inbox[name].clone().requires_grad_() for name in "Wb")
    means, mixed = play(federation, 1, inbox)
    V, y = [], []
    for k, client in enumerate(TWO):
        assert mixed[k].keys() == {"V"}
        for c in client.labels:
            close(mixed[k]["V"][c], (means[k]["p"][c] + inbox["Pbar"][c]) / 2)
            V.append(mixed[k]["V"][c])
            y.append(c)
    loss = F.cross_entropy(torch.stack(V) @ W.T + b, torch.tensor(y))
    gradients = torch.autograd.grad(loss, [W, b])
    close(inbox["W"], W - 0.1 * gradients[0])
    close(inbox["b"], b - 0.1 * gradients[1])
    # mean weight 1: four class means of 1 + 2 + 3 + 1 samples
    assert federation.server.record["server_ce"] == pytest.approx(loss.item(), rel=1e-5)


def test_one_prototype_alone_cannot_train_the_discriminator(by_hand):
    federation = by_hand("fedpall", [Data({0: [(1, 2), (3, 1)]}, [2, 2]), TWO[0]], 2, fedpall={"upload": "prototypes"})
    inbox = dict(federation.server.first_message())
    before = dict(inbox)
    play(federation, 1, inbox, [0])
    assert all(torch.equal(inbox[name], before[name]) for name in before if name.startswith("D_"))
    assert not torch.equal(inbox["W"], before["W"])
    assert inbox["Pbar_present"].tolist() == [0, 0, 1]


def test_all_that_persists_is_in_the_state(by_hand):
    """A server and clients that are given another's state go on as that one does."""
    one, other = (by_hand("fedpall", TWO, 2) for _ in range(2))
    inbox = {}
    for t in (1, 2):
        play(one, t, inbox)
    for name, value in other.server.state().items():
        value.copy_(one.server.state()[name])
    for client, source in zip(other.clients, one.clients, strict=True):
        client.model.load_state_dict(source.model.state_dict())
    news = dict(inbox)
    play(one, 3, inbox)
    play(other, 3, news)
    assert all(torch.equal(inbox[name], news[name]) for name in inbox)
    for name, value in one.server.state().items():
        assert torch.equal(value, other.server.state()[name]), name


# Runs


def floats(run, K, h=64, upload="samples", items=1, C=3, d=8):
    """(up, down) of the closed formula, (K,) and a number."""
    mixed = C * d if upload == "prototypes" else run.partition["counts"].sum(axis=1) * items * (d + 1)
    return C * d + mixed, C * d + (C * d + C) + (h * d + h * h + h * K + 4 * h) + 4 * h


@pytest.mark.parametrize("upload", ["samples", "prototypes"])
@pytest.mark.parametrize("fusion", ["sum", "separate"])
def test_a_run_is_finite_and_its_payload_the_formula(finished, fusion, upload):
    run = finished(fusion=fusion, partition="m1+", fedpall={"upload": upload, "disc_hidden": 16})
    owned = run.partition["modalities"].sum(axis=1)
    up, down = floats(run, K=3, h=16, upload=upload, items=owned if fusion == "separate" else 1)
    assert (run.rounds["bytes_up"] == 4 * up).all()
    assert (run.rounds["bytes_down"] == 4 * down).all()
    assert (run.rounds["wire_down"] == 4 * (down + 3)).all()  # the presence of classes
    for name in ("loss_ce", "loss_adv", "loss_nce", "server_ce", "server_disc"):
        assert np.isfinite(run.rounds[name]).all(), name
        assert (run.rounds[name][1:] > 0).all(), name
    assert (run.rounds["loss_nce"][0] == 0).all()
    assert run.rounds["server_ce"].shape == (3,)


@pytest.mark.parametrize("upload", ["samples", "prototypes"])
def test_absent_classes_short_batches_and_a_single_participant(finished, upload):
    run = finished(clients=14, alpha=0.05, participation=0.07, rounds=4, fedpall={"upload": upload})
    took_part, counts = run.rounds["participants"], run.partition["counts"]
    assert (took_part.sum(axis=1) == 1).all()
    assert (counts == 0).any()
    assert (counts.sum(axis=1) < 12).any()
    up, down = floats(run, K=14, upload=upload)
    np.testing.assert_array_equal(run.rounds["bytes_up"], 4 * up * took_part)
    np.testing.assert_array_equal(run.rounds["bytes_down"], 4 * down * took_part)
    assert np.isfinite(run.rounds["server_ce"]).all()
    assert np.isfinite(run.rounds["loss_nce"][took_part]).all()
    last = counts[took_part[-1]][0]
    np.testing.assert_array_equal(run.final["Pbar_present"], last > 0)


@pytest.mark.parametrize("fusion", ["sum", "separate"])
def test_without_its_terms_and_the_common_classifier_it_is_local(finished, fusion, monkeypatch):
    monkeypatch.setattr(HeadClient, "begin", lambda self, inbox: None)
    off = finished(fusion=fusion, fedpall={"mu": 0, "beta": 0, "rho": 0})
    local = finished(method="local", fusion=fusion)
    for name in ("E", "I"):
        np.testing.assert_allclose(off.final[name], local.final[name], rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(off.rounds["correct"], local.rounds["correct"])
    assert not off.rounds["loss_adv"].any()
    assert not off.rounds["loss_nce"].any()


def test_the_same_seed_gives_the_same_bits_and_another_does_not(finished):
    a, b, c = finished(), finished(eval_every=3), finished(seed=1)
    assert a.final["client_sha256"] == b.final["client_sha256"]
    assert a.final["server_sha256"] == b.final["server_sha256"]
    assert a.final["server_sha256"] != c.final["server_sha256"]


def test_a_server_without_epochs_leaves_its_networks_alone(finished):
    one, three = finished(rounds=1, fedpall={"server_epochs": 0}), finished(fedpall={"server_epochs": 0})
    assert one.final["server_sha256"] == three.final["server_sha256"]
    assert not three.rounds["server_ce"].any()


def test_what_is_not_finite_is_named(finished):
    with pytest.raises(RunError, match=r"server, round \d+: L_ce .*not finite"):
        finished(fedpall={"server_lr": 1e38})
    with pytest.raises(RunError, match=r"client \d, round \d+: .*not finite"):
        finished(lr=1e18, fedpall={"server_lr": 0.01})
