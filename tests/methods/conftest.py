"""Federations small enough to be worked out by hand: features are the inputs themselves, so nothing hides them."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

from mfedpba_mpi.config import fit_to_data, make_config
from mfedpba_mpi.data.catalog import Dataset, Modality
from mfedpba_mpi.data.shards import ClientData
from mfedpba_mpi.methods.base import Client, ClientSpec, Method, Problem, Server
from mfedpba_mpi.methods.catalog import load_method
from mfedpba_mpi.models.architecture import Architecture

CPU = torch.device("cpu")


class Federation(NamedTuple):
    method: Method
    clients: list[Client]
    server: Server | None


class OneClient(NamedTuple):
    """Modality number -> rows (n, d), and the n labels; all rows are training rows, and test rows too."""

    values: Mapping[int, Sequence[Sequence[float]]]
    labels: Sequence[int]


@pytest.fixture
def by_hand() -> Callable[..., Federation]:
    """A function that builds a method's clients and server on data written out in the test.

    `rounds`, `batch_size`, `epochs`, `lr`, `fusion` and the method's parameters (as a dict under its name) are
    settings; inputs are not normalised, and each extractor is the identity, so Z[m] are the values themselves.
    """

    def build(
        method: str, clients: Sequence[OneClient], modalities: int, classes: int = 3, d: int = 2, **settings: object
    ) -> Federation:
        widths = tuple(Modality(f"M{m}", "I", d) for m in range(modalities))
        info = Dataset("synthetic", 10_000, classes, widths)
        given = {"dataset": "synthetic", "method": method, "feature_dim": d, "normalise": "none", "epochs": 1}
        config = fit_to_data(make_config({**given, "clients": len(clients), "partition": "m1+", **settings}), info)
        specs = tuple(
            ClientSpec(
                tuple(sorted(client.values)),
                (Architecture("DNN", (32, 32)),) * len(client.values),
                np.bincount(client.labels, minlength=classes),
                len(client.labels),
            )
            for client in clients
        )
        made = load_method(method)(Problem(config, info, specs))
        built = []
        for k, (values, labels) in enumerate(clients):
            twice = {m: np.array([*rows, *rows], np.float32) for m, rows in values.items()}
            client = made.client(k, ClientData(np.array([*labels, *labels]), len(labels), twice), CPU)
            client.model.extractors = nn.ModuleList(nn.Identity() for _ in values)
            built.append(client)
        return Federation(made, built, made.server(CPU))

    return build
