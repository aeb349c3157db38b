"""Estimates of time, disk and memory of a study's runs, before they are started.

Seed, partition, number of clients, weights and learning rates do not change the work of a step. So a single run is
calibrated for each set of the other settings (see `planning.plan`), and the times of the others follow from the costs
of their clients.
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
from mfedpba_mpi.studies.study import StudyRun

# settings that do not change the time of a step; of `params` only floats, see `calibration_key`
_SAME_SPEED = ("seed", "partition", "clients", "alpha", "rounds", "lr", "validation", "params", "device")


def calibration_key(config: RunConfig) -> tuple[Any, ...]:
    """All settings that change the time of a step; of the method's parameters, those that are not floats."""
    common = {name: value for name, value in asdict(config).items() if name not in _SAME_SPEED}
    parameters = {name: value for name, value in asdict(config.params).items() if not isinstance(value, float)}
    return *common.items(), *parameters.items()


def estimate(runs: Sequence[StudyRun], data_dir: Path) -> Iterable[tuple[StudyRun, float, Disk]]:
    """Yield (run, seconds, disk) for each run; slow when a run has to be calibrated."""
    rates: dict[tuple[Any, ...], float] = {}  # seconds per cost
    for run in runs:
        problem, key = expected_problem(run.config, data_dir), calibration_key(run.config)
        total = sum(cost(problem, k) for k in range(problem.K))
        if key not in rates:
            rates[key] = make_plan(run.config, data_dir, run.ranks).seconds / total
        yield run, rates[key] * total * run.config.rounds, disk_of(problem)


def memory(runs: Sequence[StudyRun], data_dir: Path, jobs: int, nodes: int) -> float:
    """Bytes of memory of a node with `jobs` parallel runs of the largest size and the process that starts them."""
    sizes = {(*shard_key(run.config), run.config.feature_dim, run.ranks): run for run in runs}  # methods hardly matter
    largest = max(node_bytes(run.config, data_dir, run.ranks, nodes) for run in sizes.values())
    return jobs * largest + process_bytes()


def shard_key(config: RunConfig) -> tuple[Any, ...]:
    """The settings that determine the shards; runs with equal keys share them."""
    data = (config.dataset, config.samples, config.classes, config.dims)
    return *data, config.partition, config.clients, config.alpha, config.drawn_problem_seed, config.validation
