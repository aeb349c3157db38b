"""The client's loss terms, compared with loops, with absent classes and modalities."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from mfedpba_mpi.methods.mfedpba.client import BatchClasses, FeatureTerm, LogitTerm
from mfedpba_mpi.methods.training import Epoch, cross_entropy

C, d, B = 5, 4, 6
CUTS = [(0, 6), (6, 12), (12, 15)]  # the last batch is short


@pytest.fixture
def case():
    g = torch.Generator().manual_seed(1)
    y = torch.randint(0, C, (15,), generator=g)
    y[6:12] = 3  # a batch of one class
    return {
        "y": y,
        "classes": BatchClasses(Epoch([], y, CUTS, torch.arange(len(y))), B),
        "Z": torch.randn(2, 15, d, generator=g),
        "logits": torch.randn(2, 15, C, generator=g),
        "P_G": torch.randn(2, C, d, generator=g),
        "P_present": torch.tensor([[True, True, False, True, True], [True, False, False, False, True]]),
        "I_G": torch.randn(C, C, generator=g),
        "I_present": torch.tensor([True, True, False, True, True]),
    }


def loop_feature_loss(y, Z, P_G, present):
    total = 0.0
    for m in range(len(Z)):
        distances = []
        for c in range(C):
            members = [Z[m, i] for i in range(len(y)) if y[i] == c]
            if members and present[m, c]:
                distances.append(((sum(members) / len(members) - P_G[m, c]) ** 2).sum())
        total += sum(distances) / len(distances) if distances else 0.0
    return total / len(Z)


def loop_logit_loss(y, logits, I_G, present):
    divergences = []
    for c in range(C):
        members = [logits[i] for i in range(len(y)) if y[i] == c]
        if members and present[c]:
            p = torch.softmax(I_G[c], 0)
            q = torch.softmax(sum(members) / len(members), 0)
            divergences.append((p * (p.log() - q.log())).sum())
    return sum(divergences) / len(divergences) if divergences else 0.0


def test_the_mean_feature_loss_of_an_epoch(case):
    term = FeatureTerm(case["classes"], case["P_G"], case["P_present"], lambda_1=7.0)
    per_batch = [loop_feature_loss(case["y"][a:b], case["Z"][:, a:b], case["P_G"], case["P_present"]) for a, b in CUTS]
    np.testing.assert_allclose(term.mean(case["Z"]), sum(per_batch) / 3, rtol=1e-5)


@pytest.mark.parametrize("items", [1, 2])
def test_the_mean_logit_loss_of_an_epoch(case, items):
    logits = case["logits"][:items]
    term = LogitTerm(case["classes"], case["I_G"], case["I_present"], lambda_2=7.0)
    per_batch = [loop_logit_loss(case["y"][a:b], logits.mean(0)[a:b], case["I_G"], case["I_present"]) for a, b in CUTS]
    np.testing.assert_allclose(term.mean(logits), sum(per_batch) / 3, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("number", range(3))
def test_the_gradient_of_the_feature_loss(case, number):
    a, b = CUTS[number]
    Z = case["Z"][:, a:b].clone().requires_grad_()
    (expected,) = torch.autograd.grad(loop_feature_loss(case["y"][a:b], Z, case["P_G"], case["P_present"]), Z)
    term = FeatureTerm(case["classes"], case["P_G"], case["P_present"], lambda_1=0.5)
    found = term.add_gradient(number, Z.detach(), torch.ones_like(Z))
    torch.testing.assert_close(found, 1 + 0.5 * expected)


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("items", [1, 2])
def test_the_gradient_of_the_logit_loss(case, number, items):
    a, b = CUTS[number]
    logits = case["logits"][:items, a:b].clone().requires_grad_()
    loss = loop_logit_loss(case["y"][a:b], logits.mean(0), case["I_G"], case["I_present"])
    (expected,) = torch.autograd.grad(loss, logits)
    term = LogitTerm(case["classes"], case["I_G"], case["I_present"], lambda_2=0.5)
    found = term.add_gradient(number, logits.detach(), torch.ones_like(logits))
    torch.testing.assert_close(found, 1 + 0.5 * expected)


def test_terms_are_zero_if_no_class_of_the_batch_is_present(case):
    absent = torch.zeros(2, C, dtype=torch.bool)
    feature, logit = (
        FeatureTerm(case["classes"], case["P_G"], absent),
        LogitTerm(case["classes"], case["I_G"], absent[0]),
    )
    assert feature.mean(case["Z"]) == 0
    assert logit.mean(case["logits"]) == 0
    assert not feature.add_gradient(0, case["Z"][:, :6], torch.zeros(2, 6, d)).any()
    assert not logit.add_gradient(0, case["logits"][:, :6], torch.zeros(2, 6, C)).any()


def test_a_feature_loss_by_hand():
    """Classes 0, 0, 1; features (1, 1), (3, 1), (5, 5); global (2, 2) and (5, 4): distances 1 and 1, mean 1."""
    classes = BatchClasses(Epoch([], torch.tensor([0, 0, 1]), [(0, 3)], torch.arange(3)), 3)
    Z = torch.tensor([[[1.0, 1.0], [3.0, 1.0], [5.0, 5.0]]])
    P_G = torch.tensor([[[2.0, 2.0], [5.0, 4.0], [9.0, 9.0]]])
    assert FeatureTerm(classes, P_G, torch.ones(1, 3, dtype=torch.bool)).mean(Z).item() == pytest.approx(1.0)


def test_cross_entropy_is_the_mean_over_samples_and_modalities():
    logits, y = torch.randn(2, 3, C), torch.tensor([0, 2, 4])
    terms = [-F.log_softmax(logits[m, i], 0)[y[i]] for m in range(2) for i in range(3)]
    assert cross_entropy(logits, y).item() == pytest.approx(sum(terms).item() / 6, rel=1e-6)
