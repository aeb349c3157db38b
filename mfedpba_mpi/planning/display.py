"""A plan as people read it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from rich.table import Table

from mfedpba_mpi.cli.console import bytes_of, count, duration, table
from mfedpba_mpi.comm.devices import pick
from mfedpba_mpi.planning.disk import disk_of
from mfedpba_mpi.planning.plan import NETWORK, Plan, activation_bytes, client_bytes

CUDA_BYTES = 500e6  # of a process, for its CUDA context: an assumption


def report(plan: Plan) -> Iterator[str | Table]:
    """The plan as lines to print."""
    problem, machine, config = plan.problem, plan.machine, plan.problem.config
    working = [r for r, clients in enumerate(plan.ranks) if clients or r == 0]
    yield (
        f"{config.method} on {problem.info.name}: {count(problem.K, 'client')} on {count(machine.ranks, 'rank')}, "
        f"{count(machine.nodes, 'node')} of {count(machine.cores, 'core')} and {count(machine.gpus, 'GPU')} each"
    )
    if len(working) < machine.ranks:
        spare = machine.ranks - len(working)
        yield f"{count(spare, 'rank')} {'has' if spare == 1 else 'have'} nothing to do: {problem.K + 1} ranks would do"
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
        total = f"{duration(plan.seconds * config.rounds)} for {count(config.rounds, 'round')}"
        yield f"time: {plan.seconds:.3g} s a round, {total}"
    disk = disk_of(problem)
    yield (
        f"disk: log {bytes_of(disk.log)}, a checkpoint {bytes_of(disk.checkpoint)} (two while the run goes, one "
        f"when it is complete), shards {bytes_of(disk.shards)} (runs with the same partition share them)"
    )
    yield (
        f"measured here, on this machine's cores: {plan.rates.sampled} of {count(problem.K, 'client')}, the server "
        f"({plan.rates.server:.2g} s a round), packing ({plan.rates.comm:.1g} s), a process "
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
    return [*rows[: most - 1], ("...", count(len(rows) - most, "more node"), "", "", "", ""), rows[-1]]
