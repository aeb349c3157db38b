"""Overheads: ``--help``, the start of a run, and the evaluation, log, snapshot and checkpoint of a round.

All of the default youtube run in one process. `help` and `first round` are measured from the start of the command. The
time of the log is a mean over 400 rounds, since the log grows.
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
from mfedpba_mpi.config.run_config import make_config
from mfedpba_mpi.data.sources import open_dataset, resolve
from mfedpba_mpi.engine.loop import run_rounds
from mfedpba_mpi.engine.observers import Observer, Round, Start
from mfedpba_mpi.engine.round import Federation
from mfedpba_mpi.records.checkpoint import Checkpoints
from mfedpba_mpi.records.run_log import RunLog

ROUNDS = 5


class Recorder(Observer):
    """Records the results of all rounds, and their times."""

    def start(self, start: Start) -> None:
        self.beginning, self.rounds, self.times = start, list[Round](), [time.perf_counter()]

    def round(self, result: Round) -> None:
        self.rounds.append(result)
        self.times.append(time.perf_counter())


@contextmanager
def timed(cls: type, name: str) -> Iterator[list[float]]:
    """Collect the seconds of each call of the method `name` of `cls` inside the `with` block."""
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
        config = resolve(config, data)
        open_dataset(config, data)  # only the first run creates it
        one_round = [*program, "run", "--dataset", "youtube", "--rounds", "1", "--data-dir", directory, "--overwrite"]
        calls = {
            "help": lambda: subprocess.run([*program, "--help"], capture_output=True, check=True),
            "first round": lambda: subprocess.run(one_round, cwd=directory, capture_output=True, check=True),
        }
        yield Case("start", "youtube", interleaved(calls, repeats=3))
        recorder = Recorder()
        with timed(Federation, "take_snapshot") as snapshots, timed(Checkpoints, "write") as written:
            run_rounds(config, data, SerialComm(), [recorder], Checkpoints(data, every=1))
        log = RunLog(data)
        log.start(recorder.beginning)
        start = time.perf_counter()
        for t in range(1, 401):
            log.round(dataclasses.replace(recorder.rounds[-1], t=t))
        logged = (time.perf_counter() - start) / 400
    evaluated = float(np.median([result.values["seconds_eval"] for result in recorder.rounds]))
    rounds = np.diff(recorder.times) - [0.0, *written[:-1]]
    parts = {"snapshot": snapshots, "checkpoint": written, "round": rounds}
    times = {"log": logged, "evaluation": evaluated} | {name: float(np.median(part)) for name, part in parts.items()}
    yield Case("start", "youtube, a round", times)
