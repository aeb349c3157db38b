"""Helpers for the tests of FedPall: clients, a discriminator, and a function that plays a round."""

import numpy as np
import torch
from torch import nn

from tests.methods.hand import CPU, Data

TWO = [
    Data({1: [(1, 2), (0.5, -1), (2, 2)]}, [0, 2, 2]),
    Data({0: [(1, 0), (0, 1), (1, 1), (-1, 2)], 1: [(2, 1), (0, 3), (-1, -2), (0.5, 0)]}, [0, 2, 0, 0]),
]


class ConstantGenerator:
    """Stands in for a random generator: draws 0.5 and the identity permutation."""

    def uniform(self, low, high):
        return 0.5

    def permutation(self, n):
        return np.arange(n)


def transmit(layout, message):
    """Pack and unpack a message."""
    flat = torch.empty(layout.size)
    layout.pack(message, flat)
    return layout.unpack(flat, CPU)


def play(federation, t, inbox, active=None):
    """Play round `t`; return the uploads of each phase, and store all replies in `inbox`."""
    method, clients, server = federation
    active = range(len(clients)) if active is None else active
    if not inbox:
        inbox.update(transmit(method.first(), server.first_message()))
    sent = []
    for phase in range(method.phases):
        sent.append({k: transmit(method.upload(t, phase, k), clients[k].update(t, phase, inbox)) for k in active})
        inbox.update(transmit(method.reply(t, phase, 0), server.step(t, phase, sent[-1])))
    return sent


def assert_close(found, expected, tolerance=1e-5):
    found, expected = (np.asarray(x.detach() if isinstance(x, torch.Tensor) else x) for x in (found, expected))
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


def random_discriminator(d, h, K):
    """A discriminator as nn.Sequential in evaluation mode with non-trivial BatchNorm statistics, and as a message."""
    layers = [nn.Linear(d, h, bias=False), nn.BatchNorm1d(h), nn.ReLU(), nn.Linear(h, h, bias=False)]
    D = nn.Sequential(*layers, nn.BatchNorm1d(h), nn.ReLU(), nn.Linear(h, K, bias=False))
    for p in D.parameters():
        nn.init.normal_(p)
    for _ in range(5):
        D(torch.randn(20, d))
    return D.eval(), discriminator_message(D)


def discriminator_message(D):
    message = {"D_W1": D[0].weight, "D_W2": D[3].weight, "D_W3": D[6].weight}
    for i, norm in ((1, D[1]), (2, D[4])):
        parts = {"gamma": norm.weight, "beta": norm.bias, "mean": norm.running_mean, "var": norm.running_var}
        message |= {f"D_{name}{i}": value for name, value in parts.items()}
    return {name: value.detach() for name, value in message.items()}
