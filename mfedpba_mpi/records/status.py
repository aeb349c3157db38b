"""How far the run in a directory has come, as its files tell."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from mfedpba_mpi.errors import COMPLETE, FAILED, INTERRUPTED, PROGRAM, RUNNING, WAITING, UserError
from mfedpba_mpi.records.lock import held
from mfedpba_mpi.records.run import CHECKPOINTS, LOG_NAME, Run, load_run

OUTPUT = "output.txt"  # in a run's directory: what it printed
PROMPT, ERROR = "$ ", f"{PROGRAM}: "  # before the command in it, and before what went wrong


@dataclass(frozen=True)
class State:
    """A run's status, its finished rounds of how many, its last average accuracy (NaN: none yet), and why it failed.

    `fingerprint` is that of its data.
    """

    status: str
    rounds: int = 0
    total: int = 0
    accuracy: float = math.nan
    reason: str = ""
    fingerprint: str = ""

    @property
    def progress(self) -> str:
        """Rounds and accuracy in a few words."""
        accuracy = "" if math.isnan(self.accuracy) else f" {self.accuracy:.2%}"
        return f"{self.rounds}/{self.total}{accuracy}" if self.total else ""


def state_of(directory: Path) -> State:
    """The state of the run in a directory; one that was killed counts as interrupted."""
    going = held(directory)
    if not any((directory / name).exists() for name in (LOG_NAME, CHECKPOINTS)):
        if going:
            return State(RUNNING)
        said = last_words(directory) if (directory / OUTPUT).exists() else PROMPT
        return State(WAITING) if said.startswith(PROMPT) else State(FAILED, reason=said)
    try:
        run = load_run(directory)
    except UserError as error:
        return State(RUNNING if going else INTERRUPTED, reason=str(error))
    status = RUNNING if going else INTERRUPTED if run.status == RUNNING else run.status
    average = run.average().tolist()
    reason = str(run.attributes.get("reason", "")) if status == FAILED else ""
    accuracy = average[-1] if average else math.nan
    rounds, data = run.attributes["config"]["rounds"], str(run.attributes.get("data_fingerprint", ""))
    return State(status, len(run.rounds["tested"]), rounds, accuracy, reason, data)


def load_ended(directory: Path) -> Run | None:
    """The run in a directory if it is complete, or has failed."""
    try:
        run = load_run(directory)
    except UserError:  # none, or damaged
        return None
    return run if run.status in (COMPLETE, FAILED) else None


def last_words(directory: Path) -> str:
    """The last line that a run printed, or the last that is an error; others may write to the same file."""
    try:
        lines = (directory / OUTPUT).read_text(errors="replace").split("\n")
    except OSError as error:
        return f"it left no output: {error.strerror}"
    begun = max((i for i, line in enumerate(lines) if line.startswith(PROMPT)), default=0)
    said = [line.strip()[:300] for line in lines[begun:] if line.strip()]
    errors = [line for line in said if line.startswith(ERROR)]
    return (errors or said or ["it printed nothing"])[-1]


def overview(states: Iterable[State]) -> str:
    """How many runs are in which state."""
    count = Counter(state.status for state in states)
    return ", ".join(f"{count[s]} {s}" for s in (COMPLETE, RUNNING, INTERRUPTED, FAILED, WAITING) if count[s])
