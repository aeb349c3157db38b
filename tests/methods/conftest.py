"""Federations small enough for calculations by hand: extractors are the identity, so features equal inputs."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pytest
from torch import nn

from mfedpba_mpi import Run
from mfedpba_mpi.config.run_config import fit_to_data, make_config
from mfedpba_mpi.data.catalog import Dataset, Modality
from mfedpba_mpi.data.shards import ClientData
from mfedpba_mpi.methods.base import Client, ClientSpec, Method, Problem, Server
from mfedpba_mpi.methods.params import load_method
from mfedpba_mpi.models.architecture import Architecture
from tests.methods.hand import CPU, Data


class Federation(NamedTuple):
    method: Method
    clients: list[Client]
    server: Server | None


@pytest.fixture
def make_federation() -> Callable[..., Federation]:
    """A function that builds a method with its clients and server on data given in the test.

    `settings` are those of a run, such as `rounds`, `batch_size`, `epochs`, `lr`, `fusion`, and the method's parameters
    as a dict under its name. Inputs are not normalised, and each extractor is the identity, so Z[m] are the inputs.
    Gradients are not clipped.
    """

    def build(
        method: str, clients: Sequence[Data], modalities: int, classes: int = 3, d: int = 2, **settings: object
    ) -> Federation:
        widths = tuple(Modality(f"M{m}", "I", d) for m in range(modalities))
        info = Dataset("synthetic", 10_000, classes, widths)
        given = {
            "dataset": "synthetic",
            "method": method,
            "feature_dim": d,
            "normalise": "none",
            "epochs": 1,
            "clip": 0,
        }
        config = fit_to_data(make_config({**given, "clients": len(clients), "partition": "m1+", **settings}), info)
        specs = tuple(
            ClientSpec(
                tuple(sorted(values)),
                (Architecture("DNN", (32, 32)),) * len(values),
                np.bincount(labels, minlength=classes),
                len(labels),
            )
            for values, labels in clients
        )
        instance = load_method(method)(Problem(config, info, specs))
        built = []
        for k, (values, labels) in enumerate(clients):
            twice = {m: np.array([*rows, *rows], np.float32) for m, rows in values.items()}  # training and test rows
            client = instance.client(k, ClientData(np.array([*labels, *labels]), len(labels), twice), CPU)
            client.model.extractors = nn.ModuleList(nn.Identity() for _ in values)
            built.append(client)
        return Federation(instance, built, instance.server(CPU))

    return build


@pytest.fixture
def finished(finished: Callable[..., Run], request: pytest.FixtureRequest) -> Callable[..., Run]:
    """The global fixture `finished`, with the method that the test file is named after as default."""
    method = request.module.__name__.rpartition("test_")[2]
    return lambda **changes: finished(**{"method": method, **changes})
