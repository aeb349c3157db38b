"""Local: clients train alone."""

import math

import numpy as np
import pytest
from torch import nn

from tests.methods.hand import Data


@pytest.mark.parametrize("fusion", ["sum", "concat", "separate"])
def test_local_equals_mfedpba_with_both_weights_zero(finished, fusion):
    local = finished(fusion=fusion)
    off = finished(method="mfedpba", mfedpba={"lambda_1": 0, "lambda_2": 0}, fusion=fusion)
    without = finished(method="mfedpba", mfedpba={"without": "fea,logit"}, fusion=fusion)
    for other in (off, without):
        assert local.final["client_sha256"] == other.final["client_sha256"]
        np.testing.assert_array_equal(local.rounds["correct"], other.rounds["correct"])
    assert not local.rounds["bytes_up"].any()
    assert not local.rounds["bytes_down"].any()


def test_a_step_by_hand(make_federation):
    """W = b = 0, one sample x = (1, 2) of class 0 of 2: p - y = (-1/2, 1/2), so W -= 0.5 (p - y) x^T."""
    federation = make_federation("local", [Data({0: [(1, 2)]}, [0])], modalities=1, classes=2, lr=0.5)
    (client,) = federation.clients
    for parameter in client.model.classifier.parameters():
        nn.init.zeros_(parameter)
    assert client.update(1, 0, {}) == {}
    assert federation.server is None
    assert client.model.classifier.weight.tolist() == [[0.25, 0.5], [-0.25, -0.5]]
    assert client.model.classifier.bias.tolist() == [0.25, -0.25]
    assert client.losses["ce"] == pytest.approx(math.log(2))
