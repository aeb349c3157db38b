"""Digests of states: equal if and only if names, types, shapes and values are equal."""

from types import SimpleNamespace

import pytest
import torch

from mfedpba_mpi.engine.digests import WITHOUT_EFFECT, client_sha256, sha256

STATE = {"model.weight": torch.arange(6.0).reshape(2, 3), "model.bias": torch.zeros(2)}


def test_equal_states_have_equal_digests():
    copies = {name: value.clone() for name, value in STATE.items()}
    assert sha256(copies) == sha256(STATE)
    assert len(sha256(STATE)) == 32


@pytest.mark.parametrize(
    "change",
    [
        {"model.weight": torch.arange(6.0).reshape(3, 2)},
        {"model.weight": torch.arange(6).reshape(2, 3)},
        {"model.bias": torch.tensor([0.0, -0.0])},
        {"model.scale": torch.zeros(1)},
    ],
    ids=["shape", "type", "one bit", "name"],
)
def test_any_change_of_a_state_changes_its_digest(change):
    assert sha256(STATE | change) != sha256(STATE)


def test_the_order_in_memory_does_not_change_the_digest():
    assert sha256(STATE | {"model.weight": STATE["model.weight"].T.contiguous().T}) == sha256(STATE)


@pytest.mark.parametrize("attribute", WITHOUT_EFFECT)
def test_a_digest_ignores_what_has_no_effect(attribute):
    assert sha256(STATE | {f"{attribute}.P_G": torch.ones(1)}) == sha256(STATE | {attribute: torch.ones(1)})
    assert sha256(STATE | {attribute: torch.ones(1)}) == sha256(STATE)


def test_the_digest_of_a_client_ignores_its_last_predictions():
    def client_of(**state):
        return SimpleNamespace(state_dict=lambda: STATE | state)

    digest = client_sha256(client_of(predicted=torch.tensor([0, 1])))
    assert digest == client_sha256(client_of(predicted=torch.tensor([1, 1]))) == sha256(STATE)
    assert digest != client_sha256(client_of(momentum=torch.tensor([0, 1])))
