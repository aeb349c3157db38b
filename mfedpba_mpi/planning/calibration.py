"""How fast a run's clients and its server are here: a few of them, run for a moment."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix

from mfedpba_mpi.comm.layout import Layout, Message
from mfedpba_mpi.comm.serial import Comm
from mfedpba_mpi.data.catalog import Modality
from mfedpba_mpi.data.shards import ClientData
from mfedpba_mpi.data.store import Values
from mfedpba_mpi.engine.setup import cost
from mfedpba_mpi.methods.base import Problem
from mfedpba_mpi.methods.params import load_method
from mfedpba_mpi.models.architecture import NONZEROS

SAMPLED, BATCHES = 8, 10  # clients, and batches an epoch, that are run
MPI_BYTES = 30e6  # of a rank, for MPI


@dataclass(frozen=True)
class Rates:
    """What was measured here.

    Attributes
    ----------
    train, evaluate : (K,) seconds of each client for each unit of `cost`.
    server : seconds of a round's server steps, with uploads of all participants.
    packing : seconds to pack and unpack a round's messages.
    process : bytes of a process that has loaded everything and has no clients.
    sampled : how many clients were measured.
    """

    train: np.ndarray
    evaluate: np.ndarray
    server: float
    packing: float
    process: float
    sampled: int


def calibrate(problem: Problem) -> Rates:
    """Run some of the problem's clients and its server here, on one thread as the ranks would."""
    torch.set_num_threads(problem.config.threads)
    K, process = problem.K, process_bytes()
    order = sorted(range(K), key=lambda k: cost(problem, k))
    sample = sorted({order[i] for i in np.linspace(0, K - 1, min(K, SAMPLED)).round().astype(int)})
    problem, data = shorten(problem, sample)
    method = load_method(problem.config.method)(problem)
    device = torch.device("cpu")
    clients = {k: method.client(k, data[k], device) for k in sample}
    server = method.server(device)
    drawn = [*sample, *(k for k in range(K) if k not in clients)][: max(len(sample), problem.clients_per_round)]
    inbox: dict[int, Message] = {k: {} for k in sample}
    comm = Comm()
    comm.place([0.0] * K)
    first = server.first_message() if server else {}
    for k, client in clients.items():
        inbox[k] = dict(first)
        client.begin(inbox[k])
    for t in (1, 2):  # the first warms up
        train, evaluate, server_seconds, packing = np.zeros(K), np.zeros(K), 0.0, 0.0
        for phase in range(method.phases):
            uploads = {}
            for k, client in clients.items():
                began = time.perf_counter()
                uploads[k] = client.update(t, phase, inbox[k])
                train[k] += time.perf_counter() - began
            everyone = {k: uploads.get(k) or stand_in(method.upload(t, phase, k), uploads) for k in sorted(drawn)}
            began = time.perf_counter()
            layouts = {k: method.upload(t, phase, k) for k in everyone}
            received = comm.gather(everyone, layouts) if any(layout.size for layout in layouts.values()) else {}
            packing += time.perf_counter() - began
            began = time.perf_counter()
            reply: Any = server.step(t, phase, received) if server else {}
            server_seconds += time.perf_counter() - began
            for k in sample:
                inbox[k] = {**inbox[k], **(reply[k] if method.replies_differ(t, phase) and reply else reply or {})}
        for k, client in clients.items():
            began = time.perf_counter()
            client.evaluate(t, inbox[k])
            evaluate[k] += time.perf_counter() - began
    costs = np.array([cost(problem, k) for k in sample])

    def rates(seconds: np.ndarray) -> np.ndarray:
        found = np.full(K, seconds[sample].sum() / costs.sum())
        found[sample] = seconds[sample] / costs
        return found

    return Rates(rates(train), rates(evaluate), server_seconds, packing, process, len(sample))


def stand_in(layout: Layout, uploads: Mapping[int, Message]) -> Message:
    """For a client that was not run: another's upload of the same shapes, else random numbers."""
    for message in uploads.values():
        if {name: tuple(value.shape) for name, value in message.items()} == layout.shapes:
            return message
    return {name: 0.1 * torch.randn(shape) for name, shape in layout.shapes.items()}


def shorten(problem: Problem, sample: Sequence[int]) -> tuple[Problem, dict[int, ClientData]]:
    """The problem with at most BATCHES batches for the sampled clients, and made-up rows for them."""
    rng = np.random.default_rng(0)
    specs, data = list(problem.clients), {}
    for k in sample:
        spec = specs[k]
        classes = np.repeat(np.arange(problem.C), spec.counts)
        labels = rng.permutation(classes)[: BATCHES * problem.config.batch_size]
        tested = rng.choice(classes, max(1, round(spec.n_test * len(labels) / spec.n_train)))
        values = {m: _rows(rng, len(labels) + len(tested), problem.info.modalities[m]) for m in spec.modalities}
        data[k] = ClientData(np.concatenate([labels, tested]), len(labels), values)
        counts = np.bincount(labels, minlength=problem.C)
        specs[k] = dataclasses.replace(spec, counts=counts, n_test=len(tested))
    config = problem.config
    if hasattr(config.params, "min_class_samples"):  # few rows would leave nobody with enough
        config = dataclasses.replace(config, params=dataclasses.replace(config.params, min_class_samples=1))
    return dataclasses.replace(problem, config=config, clients=tuple(specs)), data


def _rows(rng: np.random.Generator, n: int, modality: Modality) -> Values:
    if not modality.sparse:
        return rng.standard_normal((n, modality.width), np.float32)
    each = min(NONZEROS, modality.width)
    columns = np.sort(rng.integers(modality.width, size=(n, each), dtype=np.int32), axis=1)
    rows = csr_matrix((rng.random(n * each, np.float32), columns.ravel(), np.arange(n + 1) * each), (n, modality.width))
    rows.sum_duplicates()
    return rows


@cache
def process_bytes() -> float:
    """Resident size of this process when it was first asked: everything loaded, no client made."""
    pages = int(Path("/proc/self/statm").read_text().split()[1]) if os.path.exists("/proc/self/statm") else 0
    return (pages * os.sysconf("SC_PAGE_SIZE") or 220e6) + MPI_BYTES
