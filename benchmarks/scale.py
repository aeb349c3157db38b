"""Scaling from ten to four thousand clients on three ranks, and predictions of `plan` compared with measurements.

Each client has 60 samples of a synthetic dataset (widths 64 and 128, ten classes, DNN networks, one local epoch).
Read from the log:

* client-round: seconds per round x working ranks / clients; should stay within 15 % for K >= 100.
* gather and aggregation: messages, and the server's work without its S optimisation steps (from a run with S = 0), as a
  share of the round; should be at most 5 %.
* set-up: time until round 1 (partitioning the store, reading shards, building clients), in seconds and in rounds;
  should be linear in K and less than 20 rounds. Generating the synthetic dataset is not included.
* memory: growth of a working rank's peak memory over the ten-client run, per client; should be constant.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from benchmarks.common import Case
from benchmarks.parallel import CORES, Measured, mpirun
from mfedpba_mpi.config.run_config import make_config
from mfedpba_mpi.data.sources import open_dataset, resolve
from mfedpba_mpi.planning.plan import make_plan

RANKS, SAMPLES = 3, 60  # SAMPLES per client
ROUNDS = {10: 8, 100: 8, 1000: 3, 4000: 2}  # by number of clients


def _settings(K: int, rounds: int) -> dict[str, object]:
    shape = {"dataset": "synthetic", "samples": SAMPLES * K, "clients": K, "families": "DNN"}
    return {**shape, "epochs": 1, "rounds": rounds}


def _options(settings: dict[str, object]) -> list[object]:
    return [part for name, value in settings.items() for part in (f"--{name.replace('_', '-')}", value)]


def run() -> Iterator[Case]:
    """Four numbers of clients, then three runs compared with their plans."""
    with tempfile.TemporaryDirectory() as directory:
        data_dir = Path(directory)
        base_memory = 0
        for K, rounds in ROUNDS.items():
            settings = _settings(K, rounds)
            open_dataset(make_config(settings), data_dir)
            full = mpirun(RANKS, data_dir, *_options(settings))
            without_steps = None
            if K == 1000:
                without_steps = mpirun(RANKS, data_dir, *_options(_settings(K, 2)), "--server-epochs", 0)
            base_memory = base_memory or max(full.memory[1:])
            yield _case(K, full, without_steps, base_memory)
        yield from plans(data_dir)


def _case(K: int, full: Measured, without_steps: Measured | None, base_memory: int) -> Case:
    total, workers = full.median("total"), RANKS - 1
    setup = float(full.run.attributes["seconds_setup"])
    notes = {"round (s)": total, "set-up (s)": setup, "set-up (rounds)": setup / total}
    if without_steps:
        overhead = without_steps.median("server") + without_steps.median("comm")
        notes["gather, aggregation %"] = 100 * overhead / total
    if min(ROUNDS) < K:
        notes["kB / client"] = (max(full.memory[1:]) - base_memory) / (K / workers) / 1000
    notes["peak MB / rank"] = max(full.memory) / 1e6
    return Case("scale", f"k{K}", {"client-round": total * workers / K}, notes)


def plans(data_dir: Path) -> Iterator[Case]:
    """Yield the seconds and memory that `plan` predicts, and those of a run right after it."""
    runs: list[tuple[str, int, dict[str, object]]] = [
        ("youtube-n1", 1, {"dataset": "youtube", "rounds": 4}),
        ("youtube-n3", 3, {"dataset": "youtube", "rounds": 4}),
        ("synthetic-k100-n3", RANKS, _settings(100, ROUNDS[100])),
    ]
    for name, ranks, settings in runs:
        with ProcessPoolExecutor(1, get_context("spawn")) as new_process:  # the memory of this process has grown
            seconds, memory = new_process.submit(planned, settings, data_dir, ranks).result()
        found = mpirun(ranks, data_dir, *_options(settings))
        measured = found.median("total")
        yield Case(
            "plan",
            name,
            {"plan": seconds, "measured": measured},
            {
                "peak MB planned": memory / 1e6,
                "peak MB measured": max(found.memory) / 1e6,
                "error %": 100 * (seconds / measured - 1),
            },
        )


def planned(settings: dict[str, object], data_dir: Path, ranks: int) -> tuple[float, float]:
    """Return the predicted seconds per round, and bytes of the largest rank."""
    config = make_config(settings)
    plan = make_plan(resolve(config, data_dir), data_dir, ranks, nodes=1, cores=CORES)
    return plan.seconds, max(plan.memory)
