"""From ten to four thousand clients on three ranks, and what `plan` predicts beside what is measured.

Clients have 60 samples each of a synthetic set (widths 64 and 128, ten classes, networks DNN, one local
epoch). Read from the log:

* client-round: seconds a round x working ranks / clients; should stay within 15 % from K = 100 up.
* gather and aggregation: what the server does without its S optimisation steps (a run with S = 0) and messages, as a
  share of the round; at most 5 %.
* set-up: from a rank's first step to round 1 (dealing out the store, reading shards, building clients), in seconds and
  in rounds; linear in K, fewer than 20 rounds' worth. Making the synthetic set itself does not count.
* memory: growth of a working rank's peak over that of the ten-client run, per client; flat.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from benchmarks.common import Case
from benchmarks.parallel import CORES, Measured, mpirun
from mfedpba_mpi.config.run_config import fit_to_data, make_config
from mfedpba_mpi.data.sources import describe, open_dataset
from mfedpba_mpi.planning.plan import make_plan

RANKS, SIZES, SAMPLES = 3, {10: 8, 100: 8, 1000: 3, 4000: 2}, 60  # clients: rounds


def _settings(K: int, rounds: int) -> dict[str, object]:
    shape = {"dataset": "synthetic", "samples": SAMPLES * K, "clients": K, "families": "DNN"}
    return {**shape, "epochs": 1, "rounds": rounds}


def _options(settings: dict[str, object]) -> list[object]:
    return [part for name, value in settings.items() for part in (f"--{name.replace('_', '-')}", value)]


def run() -> Iterator[Case]:
    """Four sizes, then three layouts against their plans."""
    with tempfile.TemporaryDirectory() as directory:
        data_dir = Path(directory)
        base = 0
        for K, rounds in SIZES.items():
            settings = _settings(K, rounds)
            open_dataset(make_config(settings), data_dir)
            whole = mpirun(RANKS, data_dir, *_options(settings))
            bare = mpirun(RANKS, data_dir, *_options(_settings(K, 2)), "--server-epochs", 0) if K == 1000 else None
            base = base or max(whole.memory[1:])
            yield _case(K, whole, bare, base)
        yield from plans(data_dir)


def _case(K: int, whole: Measured, bare: Measured | None, base: int) -> Case:
    total, workers = whole.median("total"), RANKS - 1
    setup = float(whole.run.attributes["seconds_setup"])
    notes = {"round (s)": total, "set-up (s)": setup, "set-up (rounds)": setup / total}
    if bare:
        overhead = bare.median("server") + bare.median("comm")
        notes["gather, aggregation %"] = 100 * overhead / total
    if min(SIZES) < K:
        notes["kB / client"] = (max(whole.memory[1:]) - base) / (K / workers) / 1000
    notes["peak MB / rank"] = max(whole.memory) / 1e6
    return Case("scale", f"k{K}", {"client-round": total * workers / K}, notes)


def plans(data_dir: Path) -> Iterator[Case]:
    """What `plan` says, beside what is measured right after it."""
    layouts: list[tuple[str, int, dict[str, object]]] = [
        ("youtube-n1", 1, {"dataset": "youtube", "rounds": 4}),
        ("youtube-n3", 3, {"dataset": "youtube", "rounds": 4}),
        ("synthetic-k100-n3", RANKS, _settings(100, SIZES[100])),
    ]
    for name, ranks, settings in layouts:
        with ProcessPoolExecutor(1, get_context("spawn")) as fresh:  # this process has grown
            seconds, memory = fresh.submit(planned, settings, data_dir, ranks).result()
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
    """Seconds a round, and bytes of the largest rank."""
    config = make_config(settings)
    plan = make_plan(fit_to_data(config, describe(config, data_dir)), data_dir, ranks, nodes=1, cores=CORES)
    return plan.seconds, max(plan.memory)
