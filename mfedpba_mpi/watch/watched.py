"""Runs and studies, looked at again and again by their files alone.

Nothing is written. A log is read anew only when it has changed; see `records.run_log` for why it can be read at any
time.
"""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mfedpba_mpi.cli.console import count, duration
from mfedpba_mpi.errors import COMPLETE, FAILED, INTERRUPTED, RUNNING, WAITING, UserError
from mfedpba_mpi.records.lock import LOCK_NAME, held, owner_of, shares_locks
from mfedpba_mpi.records.run import CHECKPOINTS, LOG_NAME, Run, load_run
from mfedpba_mpi.records.status import OUTPUT, PROMPT, State, last_words, overview
from mfedpba_mpi.studies.study import FILE, read_study
from mfedpba_mpi.watch.drawing import Line, flow, flow_each
from mfedpba_mpi.watch.pictures import (
    RECENT,
    SILENT,
    STARTING,
    UNREADABLE,
    average_curve,
    pace_of,
    run_lines,
    said,
    styled,
)

_PATIENCE, _FIRST_PATIENCE = 60.0, 600.0  # seconds without news, at least, of a run, and of one before its first round
_LAST = 6  # ended runs in the view of a study


class WatchedRun:
    """The run in a directory, looked at again and again.

    Attributes
    ----------
    run : its log as last read, None before there is one.
    status, reason : as far as can be seen from here.
    news : seconds since the log last changed.
    """

    def __init__(self, directory: Path):
        self.directory = directory
        self.run: Run | None = None
        self.status, self.reason, self.host = WAITING, "", ""
        self.news = 0.0
        self._damage = ""
        self._mark: object = None  # of the log that was read
        self._changed: float | None = None

    @property
    def over(self) -> bool:
        return self.status in (COMPLETE, INTERRUPTED, FAILED)

    def look(self) -> None:
        """See how far it is. Who holds the lock is asked first: a run writes its last words before it lets go."""
        alive = self._alive()
        self._read()
        if alive is False:  # or has it just been started?
            alive = self._alive()
        self.news = time.monotonic() - (self._changed or time.monotonic())
        self.status, self.reason = self._judge(alive)

    def _alive(self) -> bool | None:
        """Whether a process holds the lock, None if that cannot be known on this host."""
        self.host = str(owner_of(self.directory / LOCK_NAME).get("host", ""))
        known = self.host == socket.gethostname() or (self.host and shares_locks(self.directory))
        return held(self.directory) if known else None

    def _read(self) -> None:
        try:
            found = (self.directory / LOG_NAME).stat()
        except OSError:
            self.run, self._damage, self._mark, self._changed = None, "", None, None
            return
        mark = (found.st_mtime_ns, found.st_size, found.st_ino)
        if mark == self._mark:
            return
        # another node's clock is asked once; from then on it is ours that counts
        age = max(0.0, time.time() - found.st_mtime) if self._changed is None else 0.0
        self._changed = time.monotonic() - age
        try:
            self.run, self._damage, self._mark = load_run(self.directory), "", mark
        except UserError as error:
            self._damage, self._mark = str(error), None  # and try again

    def _judge(self, alive: bool | None) -> tuple[str, str]:
        if self._damage:
            return UNREADABLE, self._damage
        if self.run is None:
            if alive or (alive is None and self.host):
                return STARTING, f"on {self.host}, no log yet"
            if (self.directory / CHECKPOINTS).exists():
                return UNREADABLE, "the log is gone; `mfedpba-mpi resume` makes it anew from a checkpoint"
            said = last_words(self.directory) if (self.directory / OUTPUT).exists() else PROMPT
            return (WAITING, "") if said.startswith(PROMPT) else (FAILED, said)
        seconds = self.run.rounds.get("seconds_total", np.zeros(0))[-RECENT:]
        late = self.news > (max(_PATIENCE, 10 * seconds.max()) if len(seconds) else _FIRST_PATIENCE)
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time.time() - self.news))
        if alive:
            return RUNNING, f"its process lives, but there is {SILENT} since {since}" if late else ""
        if self.run.status != RUNNING:
            return self.run.status, str(self.run.attributes.get("reason", ""))
        if alive is False:
            return INTERRUPTED, "its process exited without a final status"
        if not late:
            return RUNNING, ""
        where = f"; whether it lives can be seen on {self.host} only" if self.host else ""
        return SILENT, f"{SILENT} since {since}{where}"

    def view(self, width: int, height: int) -> list[Line]:
        if self.run:
            return run_lines(self.run, self.status, self.reason, self.news, self.directory, width, height)
        words = said(self.status, self.reason, self.directory, width)
        return [*flow([(str(self.directory), "bold")], width), *flow([(self.status, "bold")], width), *words]


class WatchedStudy:
    """The runs of a study, looked at again and again; those that are complete, once."""

    def __init__(self, directory: Path):
        self.directory, self.study = directory, read_study(directory / FILE)
        self._watched = {place.path: WatchedRun(directory / place.path) for place in self.study.places()}
        self._rows: dict[Path, Row] = {}

    @property
    def over(self) -> bool:
        return all(row.status in (COMPLETE, FAILED) for row in self._rows.values())

    def look(self) -> None:
        for path, watched in list(self._watched.items()):
            watched.look()
            self._rows[path] = Row.of(path, watched)
            if watched.status == COMPLETE:
                del self._watched[path]

    def view(self, width: int, height: int) -> list[Line]:
        rows = list(self._rows.values())
        going = [row for row in rows if row.status not in (COMPLETE, INTERRUPTED, FAILED, WAITING)]
        ended = sorted((row for row in rows if row.ended), key=lambda row: row.when)[-_LAST:]
        known = {SILENT: INTERRUPTED, UNREADABLE: INTERRUPTED, STARTING: RUNNING}
        found = overview(State(known.get(row.status, row.status)) for row in rows)
        marks = sorted({row.remark.strip(" ()") for row in rows if row.remark})
        left = time_left(rows)
        top = flow(
            [(self.study.title, "bold"), *((mark, "yellow") for mark in marks), (str(self.directory), "dim")], width
        )
        words = [f"{count(len(rows), 'run')}: {found}", *([f"about {duration(left)} to go"] if left else [])]
        top += flow([(word, "") for word in words], width)
        if not going and not self.over:
            top += flow([("nothing is running at the moment", "yellow")], width)
        run = next((self._watched[row.path].run for row in going if row.status == RUNNING), None)
        most = (height - len(top)) // (2 if run else 1)
        shown = [*going, *reversed(ended)]
        parts = zip(*(row.path.parts for row in rows), strict=True)
        telling = [i for i, part in enumerate(parts) if len(set(part)) > 1]
        lines = [*top, *_table(shown, telling, width, most)]
        reasons = {row.reason: row for row in reversed(shown) if row.reason}  # each once
        why = flow_each([(f"{row.path}: {reason}", styled(row.status)[1]) for reason, row in reasons.items()], width)
        lines += why[: max(0, min(3, most - len(shown)) if run else most - len(shown))]
        if run:
            path = str(run.path.parent.relative_to(self.directory))
            heading = flow([(path, "bold")], width)
            free = height - len(lines) - len(heading) - 2
            lines += [*heading, *average_curve(run, width, min(16, free))]
        return lines


@dataclass(frozen=True)
class Row:
    """A run of a study in a line: when its log changed, how many seconds it has taken for which share of its rounds."""

    path: Path
    status: str
    progress: str = ""
    reason: str = ""
    remark: str = ""
    when: float = -math.inf
    seconds: float = 0.0
    share: float = 0.0

    @property
    def ended(self) -> bool:
        return self.status in (COMPLETE, INTERRUPTED, FAILED)

    @classmethod
    def of(cls, path: Path, watched: WatchedRun) -> Row:
        if watched.run is None:
            return cls(path, watched.status, "", watched.reason)
        run = watched.run
        pace = pace_of(run, watched.news if watched.status == RUNNING else 0.0)
        average = run.average() if "tested" in run.rounds else np.zeros(0)
        accuracy = float(average[-1]) if len(average) else math.nan
        progress = State(watched.status, pace.t, pace.T, accuracy).progress
        when = time.time() - watched.news
        return cls(path, watched.status, progress, watched.reason, run.remark, when, pace.elapsed, pace.t / pace.T)


def time_left(rows: Sequence[Row]) -> float:
    """Seconds until the last run ends if all take what the complete ones took, and as many go at once; 0: unknown."""
    complete = [row.seconds for row in rows if row.status == COMPLETE]
    side_by_side = sum(row.status == RUNNING for row in rows)
    if not complete or not side_by_side:
        return 0.0
    todo = sum(1 - row.share for row in rows if row.status not in (COMPLETE, FAILED))
    return todo * sum(complete) / len(complete) / side_by_side


def _table(rows: Sequence[Row], telling: Sequence[int], width: int, height: int) -> list[Line]:
    """Runs, a line each, as many as there is room for; of long paths the end. `telling` parts of paths differ."""
    room = height if len(rows) <= height else max(0, height - 1)
    more: list[Line] = [[(f"and {len(rows) - room} more", "dim")]] if len(rows) > room else []
    rows = rows[:room]
    paths = [str(row.path) for row in rows]
    columns = [[row.status for row in rows], [row.progress for row in rows]]
    columns.append([duration(row.seconds) if row.seconds else "" for row in rows])
    wide = [max(map(len, cells), default=0) for cells in columns]
    longest = max(map(len, paths), default=0)
    if longest + sum(wide) + 6 > width < 60:  # without the time, and what is the same in all
        columns[2], wide[2] = [""] * len(rows), 0
        paths = ["/".join(row.path.parts[i] for i in telling) for row in rows] if telling else paths
        longest = max(map(len, paths))
    longest = max(8, min(longest, width - sum(wide) - 6 + 2 * (not wide[2])))
    lines: list[Line] = []
    for path, status, progress, took in zip(paths, *columns, strict=True):
        path = path if len(path) <= longest else f"…{path[1 - longest :]}"
        line = [(f"{path:{longest}s}  ", ""), (f"{status:{wide[0]}s}  ", styled(status)[1])]
        lines.append([*line, (f"{progress:{wide[1]}s}  {took:>{wide[2]}s}".rstrip(), "")])
    return lines + more
