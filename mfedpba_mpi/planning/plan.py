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

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np

from mfedpba_mpi.cli.console import count
from mfedpba_mpi.comm.launcher import available_cores
from mfedpba_mpi.comm.placement import place
from mfedpba_mpi.config.run_config import RunConfig
from mfedpba_mpi.data.catalog import Modality
from mfedpba_mpi.data.sources import describe
from mfedpba_mpi.data.store import FeatureStore, locate
from mfedpba_mpi.data.synthetic import RECIPES, class_sizes
from mfedpba_mpi.engine.setup import cost, draw_partition, draw_problem
from mfedpba_mpi.errors import UserError
from mfedpba_mpi.methods.base import EVALUATION_ROWS, Method, Problem
from mfedpba_mpi.methods.params import load_method
from mfedpba_mpi.models.architecture import NONZEROS, convolutions, weights
from mfedpba_mpi.planning.calibration import Rates, calibrate, process_bytes

NETWORK = 1.25e9  # bytes a second between nodes, 10 Gbit/s: an assumption
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
                f"nodes: {self.nodes} nodes for {count(self.ranks, 'rank')} leave some empty; use at most one a rank"
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


def make_plan(
    config: RunConfig,
    data_dir: Path,
    ranks: int | None = None,
    nodes: int = 1,
    cores: int | None = None,
    gpus: int = 0,
) -> Plan:
    """Plan `config`; by default on K + 1 ranks of a node like this one."""
    ranks = config.clients + 1 if ranks is None else ranks
    machine = Machine(ranks, nodes, len(available_cores()) if cores is None else cores, gpus)
    if config.device == "cuda" and not gpus:
        raise UserError("device: cuda needs GPUs; say how many a node has with --gpus")
    problem = imagine(config, data_dir)
    method = load_method(config.method)(problem)
    rates = calibrate(problem)
    costs = [cost(problem, k) for k in range(problem.K)]
    placed = place(costs, machine.ranks)
    share = problem.clients_per_round / problem.K
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


def node_bytes(config: RunConfig, data_dir: Path, ranks: int, nodes: int = 1) -> float:
    """Peak resident bytes on the fullest of some nodes; without calibration."""
    process = process_bytes()
    problem = imagine(config, data_dir)
    up, _ = payload(load_method(config.method)(problem), config.rounds)
    placed = place([cost(problem, k) for k in range(problem.K)], ranks)
    memory = [rank_bytes(problem, process, rank, clients, up) for rank, clients in enumerate(placed)]
    return float(max(node.sum() for node in Machine(ranks, min(nodes, ranks)).by_node(memory)))


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
    drawn = method.problem.clients_per_round
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
