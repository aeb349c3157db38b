"""Predict the memory, payload and time per round of a run for a given number of ranks and nodes, before it starts.

A second or two of calibration runs the method on this machine: a few of the run's clients (their own networks, random
rows, at most ten batches per epoch), and the server with uploads from all participants. The rest is arithmetic::

    w_k     = r_k cost(k)          seconds of client k; r_k is measured, or the sample's mean where k is not measured
    rank    = sum of w_k over its clients, placed as in the run
    node    = max(slowest rank, sum of ranks / cores)
    round   = training of the slowest node + max(its evaluation, server) + messages
    memory  = a process + rows and weights (twice) of its clients + the largest client's activations (+ uploads and log)

GPU memory and the assignment of ranks to GPUs are predicted; GPU speed is not.
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
from mfedpba_mpi.models.inputs import keeps_gram
from mfedpba_mpi.planning.calibration import Rates, calibrate, process_bytes

NETWORK_BANDWIDTH = 1.25e9  # bytes per second between nodes (10 Gbit/s): an assumption
MODULE_BYTES = 12e3  # Python objects per layer of a network
POLL_SECONDS = 1e-3  # interval at which a waiting rank polls


@dataclass(frozen=True)
class Machine:
    """The machine to plan for: `ranks` spread over `nodes` in blocks.

    Attributes
    ----------
    ranks, nodes : total numbers.
    cores, gpus : numbers per node.
    """

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
                f"nodes: {self.nodes} nodes for {count(self.ranks, 'rank')} leave some empty; use at most {self.ranks}"
            )

    @property
    def ranks_per_node(self) -> int:
        """Number of ranks on a full node."""
        return -(-self.ranks // self.nodes)

    def by_node(self, values: Sequence[float]) -> list[np.ndarray]:
        """Split one value per rank into one array per node."""
        starts = range(0, len(values), self.ranks_per_node)
        return [np.asarray(values[start : start + self.ranks_per_node]) for start in starts]


@dataclass(frozen=True)
class Plan:
    """The prediction for a run.

    Attributes
    ----------
    ranks : clients of each rank.
    memory : peak resident bytes of each rank.
    seconds : of a round, on CPUs.
    up, down : bytes of payload per round.
    last_up, last_down : bytes of payload in the last round.
    """

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
    """Plan a run of `config`; by default on K + 1 ranks of one node with the cores of this machine."""
    ranks = config.clients + 1 if ranks is None else ranks
    machine = Machine(ranks, nodes, len(available_cores()) if cores is None else cores, gpus)
    if config.device == "cuda" and not gpus:
        raise UserError("device: cuda needs GPUs; give their number per node with --gpus")
    problem = expected_problem(config, data_dir)
    method = load_method(config.method)(problem)
    rates = calibrate(problem)
    costs = [cost(problem, k) for k in range(problem.K)]
    placed = place(costs, machine.ranks)
    participation = problem.clients_per_round / problem.K
    up, down = payload(method, min(2, config.rounds))
    last_up, last_down = payload(method, config.rounds)
    transfer = 0.0 if machine.nodes == 1 else (up + down) / NETWORK_BANDWIDTH
    polling = 3 * POLL_SECONDS if machine.ranks > 1 else 0.0
    seconds = round_seconds(
        participation * rates.train * costs, rates.evaluate * costs / config.eval_every, rates.server,
        rates.comm + transfer + polling, placed, machine,
    )  # fmt: skip
    memory = [rank_bytes(problem, rates.process, rank, clients, up) for rank, clients in enumerate(placed)]
    return Plan(problem, machine, placed, rates, memory, seconds, up, down, last_up, last_down)


def node_bytes(config: RunConfig, data_dir: Path, ranks: int, nodes: int = 1) -> float:
    """Predict the peak resident bytes on the fullest node; needs no calibration."""
    process = process_bytes()
    problem = expected_problem(config, data_dir)
    up, _ = payload(load_method(config.method)(problem), config.rounds)
    placed = place([cost(problem, k) for k in range(problem.K)], ranks)
    memory = [rank_bytes(problem, process, rank, clients, up) for rank, clients in enumerate(placed)]
    return float(max(node.sum() for node in Machine(ranks, min(nodes, ranks)).by_node(memory)))


def expected_problem(config: RunConfig, data_dir: Path) -> Problem:
    """Return the run's clients and networks without creating data.

    Labels come from the store if there is one; else only the class sizes are those of the run.
    """
    info = describe(config, data_dir)
    path = None if config.dataset == "synthetic" else locate(config.dataset, data_dir)
    if path:
        labels = FeatureStore(path).labels()
    else:
        skew = RECIPES.get(info.name, RECIPES["synthetic"]).skew
        labels = np.random.default_rng(0).permutation(np.repeat(np.arange(info.classes), class_sizes(info, skew)))
    return draw_problem(config, info, labels, draw_partition(config, info, labels))


def payload(method: Method, t: int) -> tuple[int, int]:
    """Return the payload of round t in bytes, (up, down), as the method defines it.

    With partial participation it is the mean over all draws of participants.
    """
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
    """Return the seconds of a round, given those of each client (K,); see the equations in the module docstring."""
    if machine.ranks == 1:
        return float(train.sum() + evaluate.sum()) + server + messages

    def slowest_node(seconds: np.ndarray) -> float:
        nodes = machine.by_node([float(seconds[list(clients)].sum()) for clients in placed])
        return max(max(ranks.max(), ranks.sum() / machine.cores) for ranks in nodes)

    return slowest_node(train) + max(slowest_node(evaluate), server) + messages


def rank_bytes(problem: Problem, process: float, rank: int, clients: Sequence[int], up: int) -> float:
    """Return the peak resident bytes of a rank: process and clients; on rank 0 also uploads (three copies) and log."""
    total = process + sum(client_bytes(problem, k) for k in clients)
    total += max((activation_bytes(problem, k) for k in clients), default=0)
    if rank == 0:
        total += 3 * up + 3 * 100 * problem.config.rounds * problem.K  # 100 bytes per client and round, three copies
    return total


def client_bytes(problem: Problem, k: int) -> float:
    """Return the bytes client k holds.

    Rows (twice while they are read), weights and a copy of them, Python objects, products of rows for clipping.
    """
    spec, d = problem.clients[k], problem.d
    total = 0.0
    for m, architecture in zip(spec.modalities, spec.architectures, strict=True):
        modality = problem.info.modalities[m]
        total += 2 * (spec.n_train + spec.n_test) * row_bytes(modality)
        total += 2 * 4 * weights(architecture, modality, d)
        first_is_linear = not convolutions(architecture, modality.width)
        by_hand = first_is_linear and not problem.config.autograd
        if problem.config.clip and by_hand and keeps_gram(spec.n_train, modality.width):
            total += 4 * spec.n_train**2
        total += MODULE_BYTES * 2 * (len(architecture.widths) + len(convolutions(architecture, modality.width)) + 1)
    return total


def activation_bytes(problem: Problem, k: int) -> float:
    """Return the bytes client k needs while it computes.

    That is input and output of its largest layer during evaluation, the shuffled rows of an epoch, and with autograd
    the gradients of the weights (fewer for sparse rows).
    """
    spec = problem.clients[k]
    total = gradients = 0.0
    for m, architecture in zip(spec.modalities, spec.architectures, strict=True):
        modality = problem.info.modalities[m]
        outputs = [layer.outputs * prod(layer.size) for layer in convolutions(architecture, modality.width)]
        largest = max(outputs, default=0) + modality.width
        total = max(total, 2 * 4 * min(EVALUATION_ROWS, spec.n_train) * largest)
        total += spec.n_train * row_bytes(modality)
        gradients += 4 * weights(architecture, modality, problem.d)
    return total + gradients if problem.config.autograd else total


def row_bytes(modality: Modality) -> int:
    """Return the bytes of a row in memory during training."""
    return 12 * NONZEROS + 8 if modality.sparse else 4 * modality.width
