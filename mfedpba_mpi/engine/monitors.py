"""Ready-made observers for `simulate(..., observers=[...])`."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np

from mfedpba_mpi.engine.observers import Observer, Round, Start
from mfedpba_mpi.errors import UserError
from mfedpba_mpi.records.run import load_run


def scalars_of(rounds: dict[str, np.ndarray], row: int | None = None) -> dict[str, float]:
    """One number for every array of a round: the average accuracy, means over clients, the server's values.

    Parameters
    ----------
    rounds : the values of one round, or those of all rounds, first axis the round.
    row : index of the round in the arrays of all rounds; None for the values of one round.
    """
    found = {name: float(np.nanmean(x)) for name, value in rounds.items() if np.isfinite(x := _row(value, row)).any()}
    tested, correct = (_row(rounds[name], row) for name in ("tested", "correct"))
    found["accuracy"] = float(correct.sum() / tested.sum()) if tested.max() >= 0 else math.nan
    return found


def _row(value: np.ndarray, row: int | None) -> np.ndarray:
    return np.asarray(value if row is None else value[row], float)


class EarlyStopping(Observer):
    """End the run when a metric has not improved for `patience` evaluated rounds.

    A resumed run continues the count.

    Parameters
    ----------
    metric : str
        ``accuracy`` (the average over clients), or a name in /rounds of the log (a mean over clients).
    patience : int
        Evaluated rounds without improvement.
    min_delta : float
        Smallest change that counts as an improvement.
    larger_is_better : bool
        False for losses.
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
                self._update(scalars_of(rounds, row))

    def round(self, result: Round) -> str | None:
        self._update(values := scalars_of(result.values))
        if self.metric not in values:
            known = ", ".join(sorted(values))
            raise UserError(f"metric: a round of this run has no {self.metric!r}; choose from: {known}")
        if self.waited < self.patience:
            return None
        return f"{self.metric} has not improved on {self.sign * self.best:.4g} for {self.waited} rounds"

    def _update(self, values: dict[str, float]) -> None:
        value = values.get(self.metric, math.nan)
        if not math.isnan(value):
            better = self.sign * value > self.best + self.min_delta
            self.best, self.waited = (self.sign * value, 0) if better else (self.best, self.waited + 1)


class JsonLines(Observer):
    """Write one line of JSON after every round, for other programs to follow: round, values, warnings.

    A resumed run keeps the lines of its finished rounds and appends to them.

    Parameters
    ----------
    path : str or Path
        The file to write.
    """

    decides = False

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self._warnings: list[str] = []

    def start(self, start: Start) -> None:
        lines = self.path.read_text(encoding="utf-8").splitlines(keepends=True) if self.path.exists() else []
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text("".join(lines[: start.finished]), encoding="utf-8")

    def warn(self, t: int, text: str) -> None:
        self._warnings.append(text)

    def round(self, result: Round) -> None:
        values = {name: value if math.isfinite(value) else None for name, value in scalars_of(result.values).items()}
        with self.path.open("a", encoding="utf-8") as file:
            print(json.dumps({"round": result.t, **values, "warnings": self._warnings}), file=file)
        self._warnings = []


class PrintProgress(Observer):
    """Print the average accuracy every few rounds and after the last one.

    Parameters
    ----------
    every : int
        Rounds between two lines.
    """

    decides = False

    def __init__(self, every: int = 1):
        self.every = every

    def start(self, start: Start) -> None:
        self.rounds = start.problem.config.rounds

    def round(self, result: Round) -> None:
        if result.t % self.every == 0 or result.t == self.rounds:
            accuracy = scalars_of(result.values)["accuracy"]
            shown = "" if math.isnan(accuracy) else f": accuracy {accuracy:.2%}"
            print(f"round {result.t}/{self.rounds}{shown}", flush=True)
