"""The change of a client's loss by new prototypes, its causes and its bounds, compared with loops over classes."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from mfedpba_mpi.methods.mfedpba.arrival import TERMS, change_terms
from tests.methods.hand import CPU, Data

C, d, M = 4, 2, 3
LAMBDA_1, LAMBDA_2 = 0.7, 0.3


def losses(Z, logits, labels, owned, P_G, I_G, of_features, of_logits):
    """(L_fea, L_logit) of features Z (m, n, d) and logits (n, C), class by class."""
    fea = 0.0
    for i, m in enumerate(owned):
        distances = [((P_G[m, c] - Z[i][labels == c].mean(0)) ** 2).sum() for c in range(C) if (m, c) in of_features]
        fea += sum(distances) / max(len(distances), 1) / len(owned)
    divergences = [
        F.kl_div(logits[labels == c].mean(0).log_softmax(-1), I_G[c].softmax(-1), reduction="sum") for c in of_logits
    ]
    return float(fea), float(sum(divergences) / max(len(divergences), 1))


def prototypes_of(stream, **absent):
    """Random global prototypes; `absent` names entries of the masks that are 0."""
    made = {
        "P_G": torch.randn(M, C, d, generator=stream), "I_G": torch.randn(C, C, generator=stream),
        "P_present": torch.ones(M, C), "I_present": torch.ones(C),
    }  # fmt: skip
    for name, index in absent.items():
        made[name][index] = 0
    return made


def test_the_client_measures_its_whole_loss_with_the_model_of_its_last_round(make_federation):
    rows = {0: [(1, 2), (3, 1), (0, 1), (2, 2)], 2: [(1, 1), (0, 3), (2, 0), (1, 2)]}
    labels = torch.tensor([0, 1, 1, 3])
    settings = {"lambda_1": LAMBDA_1, "lambda_2": LAMBDA_2}
    (client,) = make_federation(
        "mfedpba", [Data(rows, labels.tolist())], M, C, d, batch_size=2, lr=0.1, mfedpba=settings, track_gradients=True
    ).clients
    stream = torch.Generator(CPU).manual_seed(0)
    old, new = prototypes_of(stream, P_present=(0, 1)), prototypes_of(stream, I_present=3)
    client.update(1, 0, {})
    assert np.isnan([client.arrival_old, client.arrival_new]).all()
    client.update(2, 0, old)
    assert np.isnan([client.arrival_old, client.arrival_new]).all()
    Z = torch.tensor([rows[0], rows[2]], dtype=torch.float32)
    with torch.no_grad():
        logits = client.model.classifier(Z.sum(0))
    ce = F.cross_entropy(logits, labels).item()
    client.update(3, 0, new)
    of_features = {(0, 0), (0, 3), (2, 0), (2, 1), (2, 3)}  # in both, and with samples
    for measured, g in ((client.arrival_old, old), (client.arrival_new, new)):
        fea, logit = losses(Z, logits, labels, (0, 2), g["P_G"], g["I_G"], of_features, (0, 1))
        assert measured == pytest.approx(ce + LAMBDA_1 * fea + LAMBDA_2 * logit, rel=1e-5)


def test_causes_add_up_to_the_change_and_bounds_are_those_of_the_proof():
    stream = torch.Generator(CPU).manual_seed(1)
    old, new = ({**prototypes_of(stream), "A": torch.randn(M, C, d, generator=stream)} for _ in range(2))
    new["P"] = torch.randn(M, C, d, generator=stream)
    E, I = torch.randn(M, C, d, generator=stream), torch.randn(C, C, generator=stream)
    old["P_present"][1, 2] = new["P_present"][1, 0] = 0
    upload, uploaded = {"E": E, "I": I}, torch.tensor([True, True, True, False])
    terms = change_terms(upload, range(M), old, new, uploaded, (LAMBDA_1, LAMBDA_2))
    found = dict(zip(TERMS, terms, strict=True))

    of_features = {(m, c) for m in range(M) for c in range(3)} - {(1, 2), (1, 0)}
    labels = torch.arange(C)  # one sample a class, so that class means are the samples
    (fea, logit), (new_fea, new_logit) = (
        losses(E, I, labels, range(M), g["P_G"], g["I_G"], of_features, (0, 1, 2)) for g in (old, new)
    )
    change = LAMBDA_1 * (new_fea - fea) + LAMBDA_2 * (new_logit - logit)
    assert found["arrival_clients"] + found["arrival_server"] == pytest.approx(change, rel=1e-4)

    drift, bias, server = 0.0, 0.0, 0.0
    for m, c in of_features:
        share = LAMBDA_1 / M / sum(m == other for other, _ in of_features)
        s = new["P_G"][m, c] + old["P_G"][m, c] - 2 * E[m, c]
        drift += share * float(s.norm() * (new["A"] - old["A"])[m, c].norm())
        bias += share * float(s.norm() * ((new["P_G"] - new["A"])[m, c].norm() + (old["P_G"] - old["A"])[m, c].norm()))
        server += share * float((new["P_G"] - new["P"])[m, c] @ s)
    drift += LAMBDA_2 * abs(new_logit - logit)
    assert found["arrival_drift"] == pytest.approx(drift, rel=1e-4)
    assert found["arrival_bias"] == pytest.approx(bias, rel=1e-4)
    assert found["arrival_server"] == pytest.approx(server, rel=1e-4)
    assert change <= drift + bias


@pytest.mark.parametrize(
    "settings",
    [{}, {"min_class_samples": 3}, {"without": ("fea",)}, {"global_prototypes": "mean"}, {"logit_weights": "correct"}],
    ids=str,
)
def test_the_server_explains_what_the_clients_measure(finished, settings):
    run = finished(
        method="mfedpba", track_gradients=True, rounds=6, alpha=0.5, clients=5, participation=0.8, mfedpba=settings
    )
    rounds, took_part = run.rounds, run.rounds["participants"]
    change = (rounds["arrival_new"] - rounds["arrival_old"])[1:]
    cause, bound = (
        (rounds[f"arrival_{a}"] + rounds[f"arrival_{b}"])[:-1] for a, b in (("clients", "server"), ("drift", "bias"))
    )
    both = took_part[1:] & took_part[:-1] & np.isfinite(cause)
    assert both.sum() >= 5
    np.testing.assert_allclose(change[both], cause[both], atol=2e-6)
    assert (change[both] <= bound[both] + 2e-6).all()
    assert (np.isnan(cause[1:]) == ~took_part[1:-1]).all()
    if settings.get("global_prototypes") == "mean":
        assert np.nanmax(rounds["arrival_bias"]) == np.nanmax(np.abs(rounds["arrival_server"])) == 0
