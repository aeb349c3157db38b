"""What is around the work: the answer to ``--help``, the start of a run, what evaluation and the log add to a round.

Of the default youtube run in one process: `help` and `first round` from the call on; a round, its evaluation, the log's
part as a mean over 400 rounds, since the log grows, the copy of the state after each round, and a checkpoint.
"""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import Case, interleaved
from mfedpba_mpi.comm.serial import SerialComm
from mfedpba_mpi.config.run_config import fit_to_data, make_config
from mfedpba_mpi.data.sources import describe, open_dataset
from mfedpba_mpi.engine.loop import run_rounds
from mfedpba_mpi.engine.observers import Observer, Round, Start
from mfedpba_mpi.engine.round import Federation
from mfedpba_mpi.records.checkpoint import Checkpoints
from mfedpba_mpi.records.run_log import RunLog

ROUNDS = 5


class Keeper(Observer):
    """Keeps what observers are told, and when."""

    def start(self, start: Start) -> None:
        self.begin, self.rounds, self.times = start, list[Round](), [time.perf_counter()]

    def round(self, result: Round) -> None:
        self.rounds.append(result)
        self.times.append(time.perf_counter())


@contextmanager
def timed(cls: type, name: str) -> Iterator[list[float]]:
    """The seconds of each call of a method, while this lasts."""
    function, seconds = getattr(cls, name), []

    def call(*args: Any) -> None:
        start = time.perf_counter()
        function(*args)
        seconds.append(time.perf_counter() - start)

    setattr(cls, name, call)
    try:
        yield seconds
    finally:
        setattr(cls, name, function)


def run() -> Iterator[Case]:
    program = [sys.executable, "-m", "mfedpba_mpi"]
    with tempfile.TemporaryDirectory() as directory:
        data = Path(directory)
        config = make_config({"dataset": "youtube", "rounds": ROUNDS})
        config = fit_to_data(config, describe(config, data))
        open_dataset(config, data)  # made before, as for every run but the first
        one = [*program, "run", "--dataset", "youtube", "--rounds", "1", "--data-dir", directory, "--overwrite"]
        calls = {
            "help": lambda: subprocess.run([*program, "--help"], capture_output=True, check=True),
            "first round": lambda: subprocess.run(one, cwd=directory, capture_output=True, check=True),
        }
        yield Case("start", "youtube", interleaved(calls, repeats=3))
        keeper = Keeper()
        with timed(Federation, "keep") as kept, timed(Checkpoints, "write") as written:
            run_rounds(config, data, SerialComm(), [keeper], Checkpoints(data, every=1))
        log = RunLog(data)
        log.start(keeper.begin)
        start = time.perf_counter()
        for t in range(1, 401):
            log.round(dataclasses.replace(keeper.rounds[-1], t=t))
        logged = (time.perf_counter() - start) / 400
    evaluated = float(np.median([result.values["seconds_eval"] for result in keeper.rounds]))
    rounds = np.diff(keeper.times) - [0.0, *written[:-1]]
    parts = {"copy of the state": kept, "checkpoint": written, "round": rounds}
    times = {"log": logged, "evaluation": evaluated} | {name: float(np.median(part)) for name, part in parts.items()}
    yield Case("start", "youtube, a round", times)
