"""Example of a pre-trained extractor: a frozen trunk and a new trainable last layer.

python examples/pretrained_extractor.py

The network is a small encoder of half images, pre-trained on 600 of scikit-learn's digits that no client has. An
extractor can be any `nn.Module` (B, width) -> (B, d). As in plain PyTorch, parameters with `requires_grad_(False)` are
not trained, but BatchNorm in a frozen trunk still updates its running statistics, unless the module's `train` method
keeps it in evaluation mode.
"""

from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from mfedpba_mpi import (
    Architecture,
    Dataset,
    Modality,
    RunConfig,
    register_extractor,
    simulate,
    standardise,
    write_store,
)

STORE, WEIGHTS = Path("data/halves.h5"), Path("data/encoder.pt")


def make_trunk() -> nn.Module:
    """Create the trunk, (B, 32) -> (B, 64)."""
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())


def pretrain(rows: np.ndarray, classes: np.ndarray) -> None:
    """Train a trunk to classify the rows, and save it."""
    torch.manual_seed(0)
    x, y = torch.tensor(standardise(rows, len(rows)), dtype=torch.float32), torch.tensor(classes)
    network = nn.Sequential(make_trunk(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    for _ in range(100):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(x), y).backward()
        optimizer.step()
    torch.save(network[0].state_dict(), WEIGHTS)


def pretrained(architecture: Architecture, modality: Modality, d: int) -> nn.Module:
    """Build an extractor from the saved trunk, frozen, and a new Linear layer."""
    trunk = make_trunk()
    trunk.load_state_dict(torch.load(WEIGHTS, weights_only=True))
    return nn.Sequential(trunk.requires_grad_(False), nn.Linear(64, d))


register_extractor("Pretrained", "I", pretrained)  # for image modalities; used if `families` lists it

if __name__ == "__main__":
    digits = load_digits()
    halves = [digits.images[:, :4].reshape(-1, 32), digits.images[:, 4:].reshape(-1, 32)]
    public, private = slice(0, 600), slice(600, None)
    modalities = (Modality("upper", "I", 32), Modality("lower", "I", 32))
    info = Dataset("halves", len(digits.target[private]), 10, modalities, "halves of scikit-learn's handwritten digits")
    source = {"source": "sklearn.datasets.load_digits, from row 600"}
    write_store(STORE, info, digits.target[private], [view[private] for view in halves], "real", source)
    pretrain(np.concatenate([view[public] for view in halves]), np.tile(digits.target[public], 2))
    for family in ("DNN", "Pretrained"):
        config = RunConfig.of(dataset="halves", method="local", clients=20, rounds=5, lr=0.02, families=family)
        run = simulate(config, out=f"runs/{family}", overwrite=True, quiet=True)
        print(f"{family}: {run.summary()['last_five']:.2%}")
