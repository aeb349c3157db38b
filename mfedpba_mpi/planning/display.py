"""Print a plan."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from rich.table import Table

from mfedpba_mpi.cli.console import bytes_of, count, duration, table
from mfedpba_mpi.comm.devices import choose_device
from mfedpba_mpi.planning.disk import disk_of
from mfedpba_mpi.planning.plan import NETWORK_BANDWIDTH, Plan, activation_bytes, client_bytes

CUDA_BYTES = 500e6  # GPU memory of a process's CUDA context: an assumption


def report(plan: Plan) -> Iterator[str | Table]:
    """Yield the lines and the table to print."""
    problem, machine, config = plan.problem, plan.machine, plan.problem.config
    idle = sum(not clients for clients in plan.ranks[1:])
    yield (
        f"{config.method} on {problem.info.name}: {count(problem.K, 'client')} on {count(machine.ranks, 'rank')}, "
        f"{count(machine.nodes, 'node')} of {count(machine.cores, 'core')} and {count(machine.gpus, 'GPU')} each"
    )
    if idle:
        yield f"{count(idle, 'rank')} {'is' if idle == 1 else 'are'} idle: {problem.K + 1} ranks are enough"
    rows = []
    for node, memory in enumerate(machine.by_node(plan.memory)):
        first = node * machine.ranks_per_node
        ranks = plan.ranks[first : first + machine.ranks_per_node]
        gpu_memory = f"{_gpu_bytes(plan, node) / 1e9:.1f} GB" if machine.gpus else ""
        label = f"{first} to {first + len(ranks) - 1}" if len(ranks) > 1 else f"{first}"
        largest, total = f"{memory.max() / 1e6:.0f} MB", f"{memory.sum() / 1e9:.2f} GB"
        rows.append((node, label, sum(map(len, ranks)), largest, total, gpu_memory))
    yield table(["node", "ranks", "clients", "largest rank", "all ranks", "fullest GPU"], _shortened(rows))
    yield f"payload per round: {bytes_of(plan.up)} up, {bytes_of(plan.down)} down (exact)" + (
        f"; in the last round {bytes_of(plan.last_up)} up, {bytes_of(plan.last_down)} down"
        if (plan.up, plan.down) != (plan.last_up, plan.last_down)
        else ""
    )
    if machine.gpus and config.device != "cpu":
        examples = ", ".join(
            f"local rank {r} uses {choose_device('cuda', r, machine.gpus)}"
            for r in range(min(3, machine.ranks_per_node))
        )
        yield f"GPUs: {examples}{', ...' if machine.ranks_per_node > 3 else ''}; their speed is not predicted"
    else:
        total = f"{duration(plan.seconds * config.rounds)} for {count(config.rounds, 'round')}"
        yield f"time: {plan.seconds:.3g} s a round, {total}"
    disk = disk_of(problem)
    yield (
        f"disk: log {bytes_of(disk.log)}, checkpoint {bytes_of(disk.checkpoint)} (two during the run, one after it), "
        f"shards {bytes_of(disk.shards)} (shared by runs with the same partition)"
    )
    yield (
        f"measured on this machine: {plan.rates.sampled} of {count(problem.K, 'client')}, the server "
        f"({plan.rates.server:.2g} s per round), packing of messages ({plan.rates.comm:.1g} s per round), memory of a "
        f"process ({plan.rates.process / 1e6:.0f} MB)"
    )
    assumptions = ["the other clients, from their networks and samples"] * (plan.rates.sampled < problem.K)
    assumptions += [f"{count(machine.cores, 'core')} a node, as fast as here and without contention"]
    assumptions += [f"a network of {8 * NETWORK_BANDWIDTH / 1e9:.0f} Gbit/s"] * (machine.nodes > 1)
    assumptions += [f"{CUDA_BYTES / 1e6:.0f} MB for each CUDA context"] * bool(machine.gpus)
    yield f"extrapolated: {'; '.join(assumptions)}"


def _gpu_bytes(plan: Plan, node: int) -> float:
    """Return the bytes on the fullest GPU of a node: the CUDA contexts and clients of its ranks."""
    machine = plan.machine
    used = np.zeros(machine.gpus)
    first = node * machine.ranks_per_node
    for local, clients in enumerate(plan.ranks[first : first + machine.ranks_per_node]):
        needed = sum(client_bytes(plan.problem, k) for k in clients)
        needed += max((activation_bytes(plan.problem, k) for k in clients), default=0)
        if clients or first + local == 0:
            used[local % machine.gpus] += CUDA_BYTES + needed
    return float(used.max())


def _shortened(rows: list[tuple[Any, ...]], limit: int = 8) -> list[tuple[Any, ...]]:
    """Return at most `limit` + 1 rows: the first ones, a row that counts those left out, and the last one."""
    if len(rows) <= limit:
        return rows
    return [*rows[: limit - 1], ("...", count(len(rows) - limit, "more node"), "", "", "", ""), rows[-1]]
