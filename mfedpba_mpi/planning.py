"""What a run will need: memory, payload and time a round, for a layout of ranks on nodes, before anything is started.

A second or two of calibration runs the method's own code here: a few of the run's own clients (their networks, made-up
rows, at most ten batches of them) and the server on uploads of all clients. Everything else is arithmetic::

    w_k     = r_k cost(k)          seconds of client k; r_k measured, for clients not measured the mean r
    rank    = sum of w_k over its clients, which are placed as in the run
    node    = max(longest rank, sum of ranks / cores)
    round   = longest node's training + max(its evaluation, server) + messages
    memory  = a process + rows and weights (twice) of its clients + the largest client's activations (+ uploads and log)

Nothing is claimed about the speed of GPUs; their memory and which rank uses which is said.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.table import Table
from scipy.sparse import csr_matrix

from mfedpba_mpi.comm.devices import pick
from mfedpba_mpi.comm.placement import place
from mfedpba_mpi.comm.serial import Comm
from mfedpba_mpi.comm.wire import Layout, Message
from mfedpba_mpi.config import RunConfig
from mfedpba_mpi.console import bytes_of, count, table
from mfedpba_mpi.data.catalog import Modality
from mfedpba_mpi.data.shards import ClientData
from mfedpba_mpi.data.sources import describe
from mfedpba_mpi.data.store import FeatureStore, Values, locate
from mfedpba_mpi.data.synthetic import RECIPES, class_sizes
from mfedpba_mpi.errors import UserError
from mfedpba_mpi.methods.base import EVALUATION_ROWS, Method, Problem
from mfedpba_mpi.methods.catalog import load_method
from mfedpba_mpi.models.architecture import NONZEROS, convolutions, weights
from mfedpba_mpi.preparing import cost, draw_partition, draw_problem

SAMPLED, BATCHES = 8, 10  # clients, and batches an epoch, of the calibration
NETWORK = 1.25e9  # bytes a second between nodes, 10 Gbit/s: an assumption
MPI_BYTES, CUDA_BYTES = 30e6, 500e6  # of a rank for MPI; of a process for its CUDA context, an assumption
MODULE_BYTES = 12e3  # of Python objects for each layer of a network
LOOKS = 1e-3  # seconds between two looks of a waiting rank


@dataclass(frozen=True)
class Machine:
    """`ranks` in blocks on `nodes`, each with so many `cores` and `gpus`."""

    ranks: int
    nodes: int = 1
    cores: int = 1
    gpus: int = 0

    def __post_init__(self) -> None:
        for name in ("ranks", "nodes", "cores"):
            if getattr(self, name) < 1:
                raise UserError(f"{name}: {getattr(self, name)} is out of range; allowed: >= 1")
        if self.gpus < 0:
            raise UserError(f"gpus: {self.gpus} is out of range; allowed: >= 0")
        if self.nodes > self.ranks:
            raise UserError(
                f"nodes: {self.nodes} nodes for {self.ranks} ranks leave some empty; use at most one a rank"
            )

    @property
    def per_node(self) -> int:
        """Ranks of a full node."""
        return -(-self.ranks // self.nodes)

    def by_node(self, values: Sequence[float]) -> list[np.ndarray]:
        """Values of ranks, node by node."""
        starts = range(0, len(values), self.per_node)
        return [np.asarray(values[start : start + self.per_node]) for start in starts]


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


@dataclass(frozen=True)
class Plan:
    """The prediction; `memory` in bytes by rank, `seconds` of a round on CPUs, `up` and `down` bytes of payload."""

    problem: Problem
    machine: Machine
    ranks: Sequence[Sequence[int]]
    rates: Rates
    memory: Sequence[float]
    seconds: float
    up: int
    down: int
    last_up: int
    last_down: int


def make_plan(config: RunConfig, data_dir: Path, ranks: int = 0, nodes: int = 1, cores: int = 0, gpus: int = 0) -> Plan:
    """Plan `config`; by default on K + 1 ranks of a node like this one."""
    machine = Machine(ranks or config.clients + 1, nodes, cores or len(os.sched_getaffinity(0)), gpus)
    if config.device == "cuda" and not gpus:
        raise UserError("device: cuda needs GPUs; say how many a node has with --gpus")
    problem = imagine(config, data_dir)
    method = load_method(config.method)(problem)
    rates = calibrate(problem)
    costs = [cost(problem, k) for k in range(problem.K)]
    placed = place(costs, machine.ranks)
    share = participants(problem) / problem.K
    up, down = payload(method, min(2, config.rounds))
    last_up, last_down = payload(method, config.rounds)
    wire = 0.0 if machine.nodes == 1 else (up + down) / NETWORK
    waits = 3 * LOOKS if machine.ranks > 1 else 0.0
    seconds = round_seconds(
        share * rates.train * costs, rates.evaluate * costs / config.eval_every, rates.server,
        rates.packing + wire + waits, placed, machine,
    )  # fmt: skip
    memory = [rank_bytes(problem, rates.process, rank, clients, up) for rank, clients in enumerate(placed)]
    return Plan(problem, machine, placed, rates, memory, seconds, up, down, last_up, last_down)


def participants(problem: Problem) -> int:
    """Clients drawn each round."""
    return max(1, round(problem.config.participation * problem.K))


def imagine(config: RunConfig, data_dir: Path) -> Problem:
    """The run's clients and their networks, without making data; the labels are the store's where there is one."""
    info = describe(config, data_dir)
    path = None if config.dataset == "synthetic" else locate(config.dataset, data_dir)
    if path:
        labels = FeatureStore(path).labels()
    else:
        skew = RECIPES.get(info.name, RECIPES["synthetic"]).skew
        labels = np.random.default_rng(0).permutation(np.repeat(np.arange(info.classes), class_sizes(info, skew)))
    return draw_problem(config, info, labels, draw_partition(config, info, labels))


def payload(method: Method, t: int) -> tuple[int, int]:
    """Bytes up and down in round t by the method's definition; of the average draw, where not all take part."""
    K, up, down = method.problem.K, 0, 0
    for phase in range(method.phases):
        up += sum(method.upload(t, phase, k).payload_bytes for k in range(K))
        down += sum(method.reply(t, phase, k).payload_bytes for k in range(K))
    drawn = participants(method.problem)
    return round(up * drawn / K), round(down * drawn / K)


def round_seconds(
    train: np.ndarray, evaluate: np.ndarray, server: float, messages: float, placed: Sequence[Sequence[int]],
    machine: Machine,
) -> float:  # fmt: skip
    """Seconds of a round, from those of each client: see the equations above."""
    if machine.ranks == 1:
        return float(train.sum() + evaluate.sum()) + server + messages

    def longest(work: np.ndarray) -> float:
        nodes = machine.by_node([float(work[list(clients)].sum()) for clients in placed])
        return max(max(ranks.max(), ranks.sum() / machine.cores) for ranks in nodes)

    return longest(train) + max(longest(evaluate), server) + messages


def rank_bytes(problem: Problem, process: float, rank: int, clients: Sequence[int], up: int) -> float:
    """Peak resident bytes of a rank: its process, its clients, and on rank 0 the uploads (thrice) and the log."""
    total = process + sum(client_bytes(problem, k) for k in clients)
    total += max((activation_bytes(problem, k) for k in clients), default=0)
    if rank == 0:
        total += 3 * up + 3 * 100 * problem.config.rounds * problem.K  # a hundred bytes a client and round
    return total


def client_bytes(problem: Problem, k: int) -> float:
    """Bytes that client k keeps: rows (twice while they are read), weights and a copy of them, objects."""
    spec, d = problem.clients[k], problem.d
    total = 0.0
    for m, architecture in zip(spec.modalities, spec.architectures, strict=True):
        modality = problem.info.modalities[m]
        total += 2 * (spec.n_train + spec.n_test) * row_bytes(modality)
        total += 2 * 4 * weights(architecture, modality, d)
        total += MODULE_BYTES * 2 * (len(architecture.widths) + len(convolutions(architecture, modality.width)) + 1)
    return total


def activation_bytes(problem: Problem, k: int) -> float:
    """Bytes of the largest layer of client k while it is tested, going in and coming out, and of an epoch's rows."""
    spec = problem.clients[k]
    total = 0.0
    for m, architecture in zip(spec.modalities, spec.architectures, strict=True):
        modality = problem.info.modalities[m]
        places = [layer.outputs * prod(layer.size) for layer in convolutions(architecture, modality.width)]
        largest = max(places, default=0) + modality.width
        total = max(total, 2 * 4 * min(EVALUATION_ROWS, spec.n_train) * largest)
        total += spec.n_train * row_bytes(modality)
    return total


def row_bytes(modality: Modality) -> int:
    """Bytes of a row as training holds it."""
    return 12 * NONZEROS + 8 if modality.sparse else 4 * modality.width


# ---- calibration


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
    drawn = [*sample, *(k for k in range(K) if k not in clients)][: max(len(sample), participants(problem))]
    inbox: dict[int, Message] = {k: {} for k in sample}
    comm = Comm()
    comm.place([0.0] * K)
    first = server.first_message() if server else None
    for k, client in clients.items():
        inbox[k] = dict(first or {})
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


# ---- what is shown


def report(plan: Plan) -> Iterator[str | Table]:
    """The plan as lines to print."""
    problem, machine, config = plan.problem, plan.machine, plan.problem.config
    working = [r for r, clients in enumerate(plan.ranks) if clients or r == 0]
    yield (
        f"{config.method} on {problem.info.name}: {problem.K} clients on {count(machine.ranks, 'rank')}, "
        f"{count(machine.nodes, 'node')} of {count(machine.cores, 'core')} and {count(machine.gpus, 'GPU')} each"
    )
    if len(working) < machine.ranks:
        yield f"{machine.ranks - len(working)} of the ranks have nothing to do: {problem.K + 1} ranks would do"
    rows = []
    for node, memory in enumerate(machine.by_node(plan.memory)):
        first = node * machine.per_node
        ranks = plan.ranks[first : first + machine.per_node]
        used = f"{_gpu_bytes(plan, node) / 1e9:.1f} GB" if machine.gpus else ""
        label = f"{first} to {first + len(ranks) - 1}" if len(ranks) > 1 else f"{first}"
        rows.append(
            (
                node, label, sum(map(len, ranks)), f"{memory.max() / 1e6:.0f} MB", f"{memory.sum() / 1e9:.2f} GB", used
            )
        )  # fmt: skip
    yield table(["node", "ranks", "clients", "largest rank", "all ranks", "fullest GPU"], _few(rows))
    yield f"payload a round: {bytes_of(plan.up)} up, {bytes_of(plan.down)} down (exact)" + (
        f"; at the end {bytes_of(plan.last_up)} up, {bytes_of(plan.last_down)} down"
        if (plan.up, plan.down) != (plan.last_up, plan.last_down)
        else ""
    )
    if machine.gpus and config.device != "cpu":
        turns = ", ".join(
            f"local rank {r} uses {pick('cuda', r, machine.gpus)}" for r in range(min(3, machine.per_node))
        )
        yield f"GPUs: {turns}{', ...' if machine.per_node > 3 else ''}; no speed is predicted for them"
    else:
        total = plan.seconds * config.rounds
        yield (
            f"time: {plan.seconds:.3g} s a round, {total / 3600:.2g} h for {config.rounds} rounds"
            if total > 3600
            else f"time: {plan.seconds:.3g} s a round, {total:.3g} s for {config.rounds} rounds"
        )
    yield (
        f"measured here, on this machine's cores: {plan.rates.sampled} of {problem.K} clients, the server "
        f"({plan.rates.server:.2g} s a round), packing ({plan.rates.packing:.1g} s), a process "
        f"({plan.rates.process / 1e6:.0f} MB)"
    )
    guesses = ["the other clients, from their networks and samples"] * (plan.rates.sampled < problem.K)
    guesses += [f"{count(machine.cores, 'core')} a node, as fast as here and without getting in each other's way"]
    guesses += [f"a network of {8 * NETWORK / 1e9:.0f} Gbit/s"] * (machine.nodes > 1)
    guesses += [f"{CUDA_BYTES / 1e6:.0f} MB for each CUDA context"] * bool(machine.gpus)
    yield f"extrapolated: {'; '.join(guesses)}"


def _gpu_bytes(plan: Plan, node: int) -> float:
    """Bytes on the fullest GPU of a node: contexts, and what its ranks' clients hold."""
    machine = plan.machine
    used = np.zeros(machine.gpus)
    first = node * machine.per_node
    for local, clients in enumerate(plan.ranks[first : first + machine.per_node]):
        needed = sum(client_bytes(plan.problem, k) for k in clients)
        needed += max((activation_bytes(plan.problem, k) for k in clients), default=0)
        if clients or first + local == 0:
            used[local % machine.gpus] += CUDA_BYTES + needed
    return float(used.max())


def _few(rows: list[tuple[Any, ...]], most: int = 8) -> list[tuple[Any, ...]]:
    if len(rows) <= most:
        return rows
    return [*rows[: most - 1], ("...", f"{len(rows) - most} more nodes", "", "", "", ""), rows[-1]]
