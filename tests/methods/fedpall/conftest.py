"""Fixtures for FedPall: a deterministic generator, and a federation for calculations by hand."""

import pytest
import torch

from mfedpba_mpi.methods import fedpall
from tests.methods.fedpall.parts import ConstantGenerator
from tests.methods.hand import Data


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture
def constant_generator(monkeypatch):
    monkeypatch.setattr(fedpall, "generator", lambda *_: ConstantGenerator())


@pytest.fixture
def hand(make_federation, constant_generator):
    """Two clients without class 1; h_G = 0 and a discriminator of width 1 with W_1 = (1, 0), W_2 = 1, W_3 = 0.

    Client 0 owns modality 0 and has one sample, (3, 4) of class 0. Client 1 owns both modalities; its sums are (-3, 1),
    (-3, 4), (-3, 7) of class 0 and (-2.3, 0) of class 2.
    """
    clients = [
        Data({0: [(3, 4)]}, [0]),
        Data({0: [(-1, 1), (-1, 2), (-1, 3), (-2, 0)], 1: [(-2, 0), (-2, 2), (-2, 4), (-0.3, 0)]}, [0, 0, 0, 2]),
    ]
    settings = {"mix_low": 0, "keep": 1, "disc_hidden": 1, "server_epochs": 1, "server_lr": 1, "weight_decay": 0}
    federation = make_federation("fedpall", clients, 2, fedpall=settings, lr=0.3, batch_size=5)
    start = {"W": torch.zeros(3, 2), "b": torch.zeros(3), "D_W3": torch.zeros(2, 1)}
    start |= {"D_W1": torch.tensor([[1.0, 0.0]]), "D_W2": torch.ones(1, 1)}
    for name, value in start.items():
        federation.server.weights[name].data.copy_(value)
    return federation
