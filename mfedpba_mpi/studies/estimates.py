"""How long a study's runs will take, and how much disk and memory, before they are started.

Runs that differ only in what does not change a step's work (seed, partition, clients, weights and rates) have the same
speed, so one of each kind is calibrated (see `planning.plan`); the others follow from what their clients cost.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mfedpba_mpi.config.run_config import RunConfig
from mfedpba_mpi.engine.setup import cost
from mfedpba_mpi.planning.calibration import process_bytes
from mfedpba_mpi.planning.disk import Disk, disk_of
from mfedpba_mpi.planning.plan import expected_problem, make_plan, node_bytes
from mfedpba_mpi.studies.study import PlannedRun

_HARMLESS = ("seed", "partition", "clients", "alpha", "rounds", "lr", "validation", "params", "device")


def kind(config: RunConfig) -> tuple[Any, ...]:
    """What the speed of a step depends on; of a method's own settings the words and whole numbers."""
    common = {name: value for name, value in asdict(config).items() if name not in _HARMLESS}
    own = {name: value for name, value in asdict(config.params).items() if not isinstance(value, float)}
    return *common.items(), *own.items()


def estimate(runs: Sequence[PlannedRun], data_dir: Path) -> Iterable[tuple[PlannedRun, float, Disk]]:
    """(run, seconds, disk) of each of them, as they become known."""
    rates: dict[tuple[Any, ...], float] = {}
    for planned in runs:
        config = planned.config
        problem = expected_problem(config, data_dir)
        total = sum(cost(problem, k) for k in range(problem.K))
        if kind(config) not in rates:
            rates[kind(config)] = make_plan(config, data_dir, planned.ranks).seconds / total
        yield planned, rates[kind(config)] * total * config.rounds, disk_of(problem)


def memory(runs: Sequence[PlannedRun], data_dir: Path, jobs: int, nodes: int) -> float:
    """Bytes that a node needs for `jobs` of the runs side by side, the largest, and the process that starts them."""
    alike = {(*shards_of(p.config), p.config.feature_dim, p.ranks): p for p in runs}  # methods hardly matter
    largest = max(node_bytes(p.config, data_dir, p.ranks, nodes) for p in alike.values())
    return jobs * largest + process_bytes()


def shards_of(config: RunConfig) -> tuple[Any, ...]:
    """What runs that share their shards have in common."""
    data = (config.dataset, config.samples, config.classes, config.dims)
    return *data, config.partition, config.clients, config.alpha, config.seed, config.validation
