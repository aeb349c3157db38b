"""Exchange of classifiers: a round calculated by hand, and messages."""

import pytest
import torch
from torch import nn

from mfedpba_mpi.methods.heads import HeadMethod, average_heads, draw_head, head_message, set_head
from tests.methods.hand import CPU, Data


@pytest.fixture
def federation(make_federation, monkeypatch):
    """Two clients: one sample (1, 2) of class 0, and three samples (2, 0) of class 1."""
    monkeypatch.setattr("mfedpba_mpi.methods.local.METHOD", HeadMethod)
    data = [Data({0: [(1, 2)]}, [0]), Data({0: [(2, 0)] * 3}, [1] * 3)]
    return make_federation("local", data, modalities=1, classes=2, lr=0.5)


def test_a_round_by_hand(federation):
    """W = b = 0: p - y = +-(1/2, -1/2), W -= 0.5 (p - y) x^T; the server's weights are 1/4 and 3/4."""
    inbox = {"W": torch.zeros(2, 2), "b": torch.zeros(2)}
    uploads = {k: client.update(1, 0, inbox) for k, client in enumerate(federation.clients)}
    assert uploads[0]["W"].tolist() == [[0.25, 0.5], [-0.25, -0.5]]
    assert uploads[0]["b"].tolist() == [0.25, -0.25]
    assert uploads[1]["W"].tolist() == [[-0.5, 0], [0.5, 0]]
    reply = federation.server.step(1, 0, uploads)
    assert reply["W"].tolist() == [[-0.3125, 0.125], [0.3125, -0.125]]
    assert reply["b"].tolist() == [-0.125, 0.125]


def test_all_clients_begin_with_the_server_s_classifier(federation):
    first = federation.server.first_message()
    for client in federation.clients:
        client.begin(first)
        assert torch.equal(client.model.classifier.weight, first["W"])
        assert torch.equal(client.model.classifier.bias, first["b"])
    assert torch.equal(draw_head(federation.method.problem, CPU).weight, first["W"])


def test_messages_have_c_d_plus_c_floats_in_each_direction(federation):
    method = federation.method
    assert method.first().payload_bytes == method.upload(1, 0, 0).payload_bytes == 4 * (2 * 2 + 2)
    assert method.reply(1, 0, 1).payload_bytes == 4 * (2 * 2 + 2)


def test_a_message_is_a_copy_of_the_classifier():
    one, other = nn.Linear(3, 2), nn.Linear(3, 2)
    message = head_message(one)
    nn.init.zeros_(one.weight)
    assert message["W"].all()
    set_head(other, message)
    assert torch.equal(other.weight, message["W"])
    assert torch.equal(other.bias, message["b"])


def test_the_average_uses_the_weights_in_the_order_of_the_clients():
    heads = {k: {"W": torch.full((2, 2), float(k)), "b": torch.full((2,), -float(k))} for k in (1, 5)}
    average = average_heads(heads, torch.tensor([0.75, 0.25]))
    assert average["W"].tolist() == [[2, 2], [2, 2]]
    assert average["b"].tolist() == [-2, -2]
