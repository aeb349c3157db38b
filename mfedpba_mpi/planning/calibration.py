"""Measure how fast this machine runs a federation's clients and server: two rounds with a sample of the clients.

The rounds are those of the engine (`Federation.round`). Clients outside the sample are replaced by `StandInClient`s, so
that the server receives an upload from every participant.
"""

from __future__ import annotations

import dataclasses
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor

from mfedpba_mpi.comm.layout import Message
from mfedpba_mpi.comm.serial import SerialComm
from mfedpba_mpi.data.catalog import Modality
from mfedpba_mpi.data.shards import ClientData
from mfedpba_mpi.data.store import Values
from mfedpba_mpi.engine.round import Federation
from mfedpba_mpi.engine.setup import cost
from mfedpba_mpi.methods.base import Client, Method, Problem
from mfedpba_mpi.methods.params import load_method
from mfedpba_mpi.models.architecture import NONZEROS

SAMPLE_SIZE = 8  # clients that are run
BATCHES = 10  # batches per epoch of a sampled client, at most
MPI_BYTES = 30e6  # resident memory that MPI adds to a rank


@dataclass(frozen=True)
class Rates:
    """Speed and memory measured on this machine.

    Attributes
    ----------
    train, evaluate : (K,) seconds per unit of `cost` of each client; clients outside the sample have the sample's mean.
    server : seconds of the server steps of a round, with uploads from all participants.
    comm : seconds of the rest of a round in one process: packing and unpacking messages, gathering metrics.
    process : resident bytes of a process with all modules loaded and no clients.
    sampled : number of clients measured.
    """

    train: np.ndarray
    evaluate: np.ndarray
    server: float
    comm: float
    process: float
    sampled: int


def calibrate(problem: Problem) -> Rates:
    """Run two rounds of a shortened `problem` with the run's number of threads; the second one is measured."""
    torch.set_num_threads(problem.config.threads)
    process = process_bytes()
    sample = choose_sample(problem)
    problem, data = shorten(problem, sample)
    federation = SampledFederation(problem, data)
    for t in (1, 2):  # round 1 warms up
        federation.began = time.perf_counter()  # exclude set-up and the checks between rounds
        values = federation.round(t)[0].values
        if federation.failure:
            raise federation.failure
    costs = np.array([cost(problem, k) for k in sample])

    def rates(seconds: Sequence[float]) -> np.ndarray:
        found = np.full(problem.K, sum(seconds) / costs.sum())
        found[sample] = seconds / costs
        return found

    measured = [federation.sample[k] for k in sample]
    return Rates(
        rates([client.train_seconds for client in measured]),
        rates([client.evaluate_seconds for client in measured]),
        values["seconds_server"],
        values["seconds_comm"],
        process,
        len(sample),
    )


def choose_sample(problem: Problem) -> list[int]:
    """Return up to SAMPLE_SIZE clients, ascending, evenly spaced in the order of their `cost`."""
    order = sorted(range(problem.K), key=lambda k: cost(problem, k))
    places = np.linspace(0, problem.K - 1, min(problem.K, SAMPLE_SIZE)).round().astype(int)
    return sorted({order[i] for i in places})


class SampledFederation(Federation):
    """A federation in one process where only the clients in `data` train; all others are stand-ins."""

    def __init__(self, problem: Problem, data: Mapping[int, ClientData]):
        method, comm = load_method(problem.config.method)(problem), SerialComm()
        comm.place([0.0] * problem.K)
        self.sample = {k: MeasuredClient(method.client(k, rows, comm.device)) for k, rows in data.items()}
        clients = {k: self.sample.get(k) or StandInClient(k, method, self.sample) for k in comm.own_clients}
        super().__init__(problem.config, comm, method, clients, method.server(comm.device))

    def participants(self, t: int) -> list[int]:
        """Return the sample, then stand-ins up to the run's number of participants.

        The sample comes first so that stand-ins can copy its uploads of the same phase.
        """
        others = (k for k in self.clients if k not in self.sample)
        return [*self.sample, *others][: max(len(self.sample), self.method.problem.clients_per_round)]


class MeasuredClient(Client):
    """A client of the sample: keeps its last upload, and the wall-clock seconds of its last round.

    The engine's `seconds_client` does not separate training from evaluation.
    """

    transient: ClassVar[tuple[str, ...]] = ("client", "upload", "train_seconds", "evaluate_seconds")

    def __init__(self, client: Client):
        self.client = client
        self.upload: Message = {}
        self.train_seconds = self.evaluate_seconds = 0.0

    def begin(self, inbox: Message) -> None:
        self.client.begin(inbox)

    def update(self, t: int, phase: int, inbox: Message) -> Message:
        before = self.train_seconds if phase else 0.0
        began = time.perf_counter()
        self.upload = self.client.update(t, phase, inbox)
        self.train_seconds = before + time.perf_counter() - began
        self.losses, self.gradient_norm2 = self.client.losses, self.client.gradient_norm2
        return self.upload

    def evaluate(self, t: int, inbox: Message) -> list[int]:
        began = time.perf_counter()
        scores = self.client.evaluate(t, inbox)
        self.evaluate_seconds = time.perf_counter() - began
        return scores

    def state_dict(self) -> dict[str, Tensor]:
        return self.client.state_dict()


class StandInClient(Client):
    """A client that does not train: it uploads a copy of a sampled client's upload, or random numbers."""

    transient: ClassVar[tuple[str, ...]] = ("method", "sample")

    def __init__(self, k: int, method: Method, sample: Mapping[int, MeasuredClient]):
        self.k, self.method, self.sample = k, method, sample
        self.losses = dict.fromkeys(method.client_class.terms, math.nan)
        self.gradient_norm2 = math.nan

    def update(self, t: int, phase: int, inbox: Message) -> Message:
        """Return the upload of the first sampled client with the same shapes, else random numbers."""
        shapes = self.method.upload(t, phase, self.k).shapes
        for client in self.sample.values():
            if {name: tuple(value.shape) for name, value in client.upload.items()} == shapes:
                return client.upload
        return {name: 0.1 * torch.randn(shape) for name, shape in shapes.items()}

    def evaluate(self, t: int, inbox: Message) -> list[int]:
        return [0] * (1 + len(self.method.predictors))

    def state_dict(self) -> dict[str, Tensor]:
        return {}


def shorten(problem: Problem, sample: Sequence[int]) -> tuple[Problem, dict[int, ClientData]]:
    """Return `problem` with at most BATCHES batches per epoch for the clients in `sample`, and random rows for them."""
    rng = np.random.default_rng(0)
    specs, data = list(problem.clients), {}
    for k in sample:
        spec = specs[k]
        classes = np.repeat(np.arange(problem.C), spec.counts)
        labels = rng.permutation(classes)[: BATCHES * problem.config.batch_size]
        test_labels = rng.choice(classes, max(1, round(spec.n_test * len(labels) / spec.n_train)))
        n = len(labels) + len(test_labels)
        values = {m: _random_rows(rng, n, problem.info.modalities[m]) for m in spec.modalities}
        data[k] = ClientData(np.concatenate([labels, test_labels]), len(labels), values)
        counts = np.bincount(labels, minlength=problem.C)
        specs[k] = dataclasses.replace(spec, counts=counts, n_test=len(test_labels))
    config = dataclasses.replace(problem.config, eval_every=1)
    if hasattr(config.params, "min_class_samples"):  # with few rows no client may have enough samples of a class
        config = dataclasses.replace(config, params=dataclasses.replace(config.params, min_class_samples=1))
    return dataclasses.replace(problem, config=config, clients=tuple(specs)), data


def _random_rows(rng: np.random.Generator, n: int, modality: Modality) -> Values:
    if not modality.sparse:
        return rng.standard_normal((n, modality.width), np.float32)
    each = min(NONZEROS, modality.width)
    columns = np.sort(rng.integers(modality.width, size=(n, each), dtype=np.int32), axis=1)
    rows = csr_matrix((rng.random(n * each, np.float32), columns.ravel(), np.arange(n + 1) * each), (n, modality.width))
    rows.sum_duplicates()
    return rows


@cache
def process_bytes() -> float:
    """Return the resident bytes of this process at the first call, plus MPI_BYTES; call it before creating clients."""
    pages = int(Path("/proc/self/statm").read_text().split()[1]) if os.path.exists("/proc/self/statm") else 0
    return (pages * os.sysconf("SC_PAGE_SIZE") or 220e6) + MPI_BYTES
