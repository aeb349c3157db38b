"""FedPall's client: loss terms compared with loops, steps compared with autograd, and uploads."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mfedpba_mpi.methods.fedpall import adversarial_term, contrastive_term
from mfedpba_mpi.methods.training import Epoch
from tests.methods.fedpall.parts import TWO, assert_close, discriminator_message, play, random_discriminator
from tests.methods.hand import Data


@pytest.mark.parametrize("items", [1, 2])
def test_adversarial_term_equals_the_divergence_from_uniform(items):
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
def test_contrastive_term_ignores_absent_classes(items, present):
    y = torch.tensor([0, 1, 2, 3, 0, 1, 1, 1, 1, 3, 3])
    cuts = [(0, 5), (5, 9), (9, 11)]  # the second batch has only class 1
    present = torch.tensor(present, dtype=torch.bool)
    z, Pbar = torch.randn(items, 11, 3), torch.randn(4, 3)
    Pbar[~present] = float("nan")  # must not be used
    term = contrastive_term(Epoch([], y, cuts, torch.arange(len(y))), Pbar, present, 0.7)
    for number, (start, stop) in enumerate(cuts):
        found = term(number, slice(start, stop), z[:, start:stop])
        expected = loop_contrast(z[:, start:stop], y[start:stop], Pbar, present, 0.7)
        assert found.item() == pytest.approx(expected, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("present", [[True, True, True], [False, True, False]])
@pytest.mark.parametrize("T", [0.05, 3.0])
def test_contrastive_term_is_never_negative(T, present):
    """With prototypes of norm 0.1, unnormalised in the denominator, the loss would be -0.9 / T at z = Pbar_y."""
    y, Pbar = torch.ones(50, dtype=torch.long), 0.1 * torch.eye(3)
    z = torch.randn(1, 50, 3)
    z[:, 0] = Pbar[1]
    term = contrastive_term(
        Epoch([], y, [(i, i + 1) for i in range(50)], torch.arange(50)), Pbar, torch.tensor(present), T
    )
    losses = [term(i, slice(i, i + 1), z[:, i : i + 1]).item() for i in range(50)]
    assert min(losses) >= 0
    assert (max(losses) > 0) == all(present)  # with one class the loss is 0


@pytest.mark.parametrize("fusion", ["sum", "separate"])
def test_a_client_step_equals_autograd(make_federation, fusion):
    """One SGD step on extractors and classifier, compared with autograd through modules; D and Pbar do not change."""
    weights = {"beta": 0.7, "mu": 0.4, "temperature": 0.5, "rho": 0.25, "disc_hidden": 5}
    federation = make_federation("fedpall", TWO, 2, fedpall=weights, lr=0.5, batch_size=4, fusion=fusion)
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
    gradients = torch.autograd.grad(ce + 0.7 * adv + 0.4 * nce, parameters)

    inbox = {**h_G, **message, "Pbar": Pbar, "Pbar_present": present}
    client.update(1, 0, inbox)
    assert_close(list(client.losses.values()), [ce.item(), adv.item(), nce.item()])
    found = [h.weight, h.bias, *client.model.extractors[0].parameters(), *client.model.extractors[1].parameters()]
    for p, start, gradient in zip(found, parameters, gradients, strict=True):
        assert_close(p, start - 0.5 * gradient)
    for name, value in message.items():
        assert torch.equal(value, discriminator_message(D)[name])


@pytest.mark.parametrize(
    ("d", "keep", "ones"), [(2, 0.9, 1), (10, 0.9, 9), (24, 0.9, 21), (64, 0.9, 57), (100, 0.29, 29)]
)
def test_the_mask_keeps_the_given_fraction_of_features(make_federation, d, keep, ones):
    rows = np.random.default_rng(0).normal(size=(4, d)) + 5
    federation = make_federation("fedpall", [Data({0: rows}, [0, 1, 1, 2])] * 2, 1, d=d, fedpall={"keep": keep})
    inbox, masks = {}, []
    for t in (1, 2):
        for k, upload in play(federation, t, inbox)[1].items():
            masks.append((upload["V"] != 0).numpy())
            assert (masks[-1].sum(1) == ones).all()
            assert (masks[-1] == masks[-1][0]).all(), k
    if d == 64:  # masks differ between clients and rounds
        assert len({mask.tobytes() for mask in masks}) == 4


def test_the_mixing_weight_is_drawn_once_per_client_and_round(make_federation):
    federation = make_federation("fedpall", TWO, 2, fedpall={"keep": 1, "mix_low": 0.6})
    inbox, mixing_weights = {}, []
    for t in (1, 2, 3):
        for k, upload in play(federation, t, inbox)[1].items():
            z = sum(torch.tensor(rows).float() for rows in TWO[k].values.values())
            P = inbox["Pbar"][TWO[k].labels]
            g = ((upload["V"] - P) / (z - P)).numpy()
            assert_close(g, np.full_like(g, g[0, 0]), 1e-4)
            mixing_weights.append(round(float(g[0, 0]), 4))
    assert len(set(mixing_weights)) == 6
    assert 0.6 <= min(mixing_weights) <= max(mixing_weights) <= 1


def test_phase_b_does_not_change_the_classifier_for_prediction(hand):
    inbox = {}
    play(hand, 1, inbox)
    client = hand.clients[0]
    client.update(2, 0, inbox)
    before = {name: value.clone() for name, value in client.model.state_dict().items()}
    correct = client.evaluate(2, inbox)
    client.update(2, 1, inbox)
    assert all(torch.equal(value, before[name]) for name, value in client.model.state_dict().items())
    assert not torch.equal(client.model.classifier.weight, inbox["W"])
    assert client.evaluate(2, inbox) == correct
