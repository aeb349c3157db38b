"""The state of the run in a directory, from its log, its lock, its checkpoints and its output.

Every part of the program that asks how far a run is, asks here: `read_state` looks once, `RunReader` again and again.
"""

from __future__ import annotations

import math
import socket
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mfedpba_mpi.errors import COMPLETE, FAILED, INTERRUPTED, PROGRAM, RUNNING, WAITING, UserError
from mfedpba_mpi.records.lock import LOCK_NAME, held, owner_of, shares_locks
from mfedpba_mpi.records.run import CHECKPOINTS, LOG_NAME, Run, load_run

# Beside the statuses that a log can have (see `errors`):
STARTING = "starting"  # a process holds the lock, but there is no log yet
STALLED = "stalled"  # the log has not changed for long, and this host cannot see whether the process is alive
UNREADABLE = "unreadable"  # the log is damaged, or missing although there are checkpoints

OUTPUT = "output.txt"  # in a run's directory: what a run of a study printed
PROMPT, ERROR = "$ ", f"{PROGRAM}: "  # start of the command's line and of error messages in it
RECENT = 20  # rounds from which the speed of a run is measured
_STALL_SECONDS, _FIRST_STALL_SECONDS = 60.0, 600.0  # at least; the second before the first round


@dataclass(frozen=True)
class RunState:
    """How far a run is.

    Attributes
    ----------
    status : waiting, starting, running, stalled, unreadable, complete, interrupted or failed.
    reason : why it failed, was interrupted, is stalled or unreadable; often "".
    rounds, total : finished rounds, and rounds of its configuration.
    accuracy : last average accuracy, NaN before the first evaluation.
    fingerprint : of its data.
    """

    status: str
    reason: str = ""
    rounds: int = 0
    total: int = 0
    accuracy: float = math.nan
    fingerprint: str = ""

    @property
    def active(self) -> bool:
        """Whether a process is working on it."""
        return self.status in (STARTING, RUNNING)

    @property
    def ended(self) -> bool:
        """Whether no process is working on it any more."""
        return self.status in (COMPLETE, INTERRUPTED, FAILED)

    @property
    def progress(self) -> str:
        """Rounds and accuracy in short."""
        accuracy = "" if math.isnan(self.accuracy) else f" {self.accuracy:.2%}"
        return f"{self.rounds}/{self.total}{accuracy}" if self.total else ""


def read_state(directory: Path) -> RunState:
    """The state of the run in a directory. A run whose lock this host sees free counts as interrupted."""
    alive = held(directory)
    run, damage = _load(directory)
    return _state_of(directory, run, damage, alive)


class RunReader:
    """The run in a directory, read again and again, from any host. The log is loaded only after it has changed.

    Attributes
    ----------
    run : the log as last read; None if there is none.
    state : the state as last read.
    age : seconds since the log changed.
    """

    def __init__(self, directory: Path):
        self.directory = directory
        self.run: Run | None = None
        self.state = RunState(WAITING)
        self.age = 0.0
        self._damage = ""
        self._stamp: object = None  # of the log that was read
        self._changed: float | None = None

    def read(self) -> None:
        """Update the attributes. The lock is checked first: a run writes its final status before it releases it."""
        alive = self._alive()
        self._read_log()
        if alive is False:  # it may have been started since
            alive = self._alive()
        self.age = time.monotonic() - (self._changed or time.monotonic())
        self.state = _state_of(self.directory, self.run, self._damage, alive, self.age, self._host())

    def _host(self) -> str:
        """The host that the lock names; "" if there is none."""
        return str(owner_of(self.directory / LOCK_NAME).get("host", ""))

    def _alive(self) -> bool | None:
        """Whether a process holds the lock; None if this host cannot tell."""
        host = self._host()
        known = host == socket.gethostname() or (host and shares_locks(self.directory))
        return held(self.directory) if known else None

    def _read_log(self) -> None:
        try:
            found = (self.directory / LOG_NAME).stat()
        except OSError:
            self.run, self._damage, self._stamp, self._changed = None, "", None, None
            return
        stamp = (found.st_mtime_ns, found.st_size, found.st_ino)
        if stamp == self._stamp:
            return
        # the file's time can be another host's, so it counts for the first reading only
        age = max(0.0, time.time() - found.st_mtime) if self._changed is None else 0.0
        self._changed = time.monotonic() - age
        run, self._damage = _load(self.directory)
        self.run, self._stamp = (run, stamp) if run else (self.run, None)


def _load(directory: Path) -> tuple[Run | None, str]:
    """The log, and what is wrong with it."""
    if not (directory / LOG_NAME).is_file():
        return None, ""
    try:
        return load_run(directory), ""
    except UserError as error:
        return None, str(error)


def _state_of(
    directory: Path, run: Run | None, damage: str, alive: bool | None, age: float = 0.0, host: str = ""
) -> RunState:
    """The state of a run by its log, whether a process holds its lock (None: unknown), and the age of its log."""
    if damage:
        return RunState(RUNNING if alive else UNREADABLE, damage)
    if run is None:
        return _state_without_log(directory, alive, host)
    average = run.average()
    numbers = (
        len(run.rounds["tested"]), int(run.attributes["config"]["rounds"]),
        float(average[-1]) if len(average) else math.nan, str(run.attributes.get("data_fingerprint", "")),
    )  # fmt: skip
    seconds = run.rounds.get("seconds_total", np.zeros(0))[-RECENT:]
    late = age > (max(_STALL_SECONDS, 10 * seconds.max()) if len(seconds) else _FIRST_STALL_SECONDS)
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time.time() - age))
    if alive:
        reason = f"its process is alive, but the log has not changed since {since}" if late else ""
        return RunState(RUNNING, reason, *numbers)
    if run.status != RUNNING:
        return RunState(run.status, str(run.attributes.get("reason", "")), *numbers)
    if alive is False:
        return RunState(INTERRUPTED, "its process exited without a final status", *numbers)
    if not late:
        return RunState(RUNNING, "", *numbers)
    where = f"; only {host} can see whether its process is alive" if host else ""
    return RunState(STALLED, f"the log has not changed since {since}{where}", *numbers)


def _state_without_log(directory: Path, alive: bool | None, host: str) -> RunState:
    if alive or (alive is None and host):
        return RunState(STARTING, f"no log yet{f', on {host}' if host else ''}")
    if (directory / CHECKPOINTS).exists():
        return RunState(UNREADABLE, "the log is missing; `mfedpba-mpi resume` restores it from a checkpoint")
    output = last_output(directory) if (directory / OUTPUT).exists() else PROMPT
    return RunState(WAITING) if output.startswith(PROMPT) else RunState(FAILED, output)


def load_ended(directory: Path) -> Run | None:
    """The run in a directory if its log says complete or failed."""
    run, _ = _load(directory)
    return run if run and run.status in (COMPLETE, FAILED) else None


def last_output(directory: Path) -> str:
    """The last error message in a run's output, or its last line. Other processes may write to the same file."""
    try:
        lines = (directory / OUTPUT).read_text(errors="replace").split("\n")
    except OSError as error:
        return f"no output: {error.strerror}"
    begin = max((i for i, line in enumerate(lines) if line.startswith(PROMPT)), default=0)
    printed = [line.strip()[:300] for line in lines[begin:] if line.strip()]
    errors = [line for line in printed if line.startswith(ERROR)]
    return (errors or printed or ["it printed nothing"])[-1]


def overview(states: Iterable[RunState]) -> str:
    """The number of runs by status."""
    merged = {STALLED: INTERRUPTED, UNREADABLE: INTERRUPTED, STARTING: RUNNING}
    count = Counter(merged.get(state.status, state.status) for state in states)
    return ", ".join(f"{count[s]} {s}" for s in (COMPLETE, RUNNING, INTERRUPTED, FAILED, WAITING) if count[s])
