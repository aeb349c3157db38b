"""Observers that come with the program, for `simulate(..., observers=[...])`."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np

from mfedpba_mpi.engine.observers import Observer, Round, Start
from mfedpba_mpi.errors import UserError
from mfedpba_mpi.records.run import load_run


def values_of(rounds: dict[str, np.ndarray], row: int | None = None) -> dict[str, float]:
    """The numbers of a round that are one number each: the average accuracy, means over clients, the server's.

    `row` is the round's in arrays with all rounds; None where there is but one.
    """
    found = {name: float(np.nanmean(x)) for name, value in rounds.items() if np.isfinite(x := _row(value, row)).any()}
    tested, correct = (_row(rounds[name], row) for name in ("tested", "correct"))
    found["accuracy"] = float(correct.sum() / tested.sum()) if tested.max() >= 0 else math.nan
    return found


def _row(value: np.ndarray, row: int | None) -> np.ndarray:
    return np.asarray(value if row is None else value[row], float)


class EarlyStopping(Observer):
    """Ends a run when a value has not improved for so many rounds in which it was measured.

    A resumed run goes on counting where it was.

    Parameters
    ----------
    metric : the average ``accuracy``, or a name in the log's /rounds (a mean over clients where each has one).
    patience : rounds without improvement.
    min_delta : what counts as an improvement, at least.
    larger_is_better : for a loss say False.
    """

    def __init__(
        self, metric: str = "accuracy", patience: int = 20, min_delta: float = 0.0, larger_is_better: bool = True
    ):
        if patience < 1:
            raise UserError(f"patience: {patience} is out of range; allowed: >= 1")
        self.metric, self.patience, self.min_delta = metric, patience, min_delta
        self.sign = 1 if larger_is_better else -1

    def start(self, start: Start) -> None:
        self.best, self.waited = -math.inf, 0
        if start.log:
            rounds = load_run(start.log).rounds
            for row in range(start.finished):
                self._look(values_of(rounds, row))

    def round(self, result: Round) -> str | None:
        self._look(values := values_of(result.values))
        if self.metric not in values:
            known = ", ".join(sorted(values))
            raise UserError(f"metric: there is no {self.metric!r} in a round of this run; there are: {known}")
        if self.waited < self.patience:
            return None
        return f"{self.metric} has not improved on {self.sign * self.best:.4g} for {self.waited} rounds"

    def _look(self, values: dict[str, float]) -> None:
        value = values.get(self.metric, math.nan)
        if not math.isnan(value):
            better = self.sign * value > self.best + self.min_delta
            self.best, self.waited = (self.sign * value, 0) if better else (self.best, self.waited + 1)


class JsonLines(Observer):
    """Writes a line of JSON after each round, for other programs to follow: its number, its values, its warnings.

    A resumed run goes on after the lines of the rounds that it has finished.
    """

    decides = False

    def __init__(self, path: str | Path):
        self.path = Path(path)

    def start(self, start: Start) -> None:
        there = self.path.read_text(encoding="utf-8").splitlines(keepends=True) if self.path.exists() else []
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text("".join(there[: start.finished]), encoding="utf-8")

    def round(self, result: Round) -> None:
        values = {name: value if math.isfinite(value) else None for name, value in values_of(result.values).items()}
        with self.path.open("a", encoding="utf-8") as file:
            print(json.dumps({"round": result.t, **values, "warnings": list(result.warnings)}), file=file)


class PrintProgress(Observer):
    """Prints a line with the average accuracy every so many rounds, and every warning."""

    decides = False

    def __init__(self, every: int = 1):
        self.every = every

    def start(self, start: Start) -> None:
        self.rounds = start.problem.config.rounds

    def warn(self, words: str) -> None:
        print(f"warning: {words}", flush=True)

    def round(self, result: Round) -> None:
        for words in result.warnings:
            self.warn(f"round {result.t}: {words}")
        if result.t % self.every == 0 or result.t == self.rounds:
            accuracy = values_of(result.values)["accuracy"]
            said = "" if math.isnan(accuracy) else f": accuracy {accuracy:.2%}"
            print(f"round {result.t}/{self.rounds}{said}", flush=True)
