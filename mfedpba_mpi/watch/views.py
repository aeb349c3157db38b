"""Live views of a run and of a study. They only read the files of the runs."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mfedpba_mpi.cli.console import count, duration
from mfedpba_mpi.errors import COMPLETE, FAILED, RUNNING, WAITING
from mfedpba_mpi.records.status import RunReader, RunState, overview
from mfedpba_mpi.studies.study_file import FILE, read_study
from mfedpba_mpi.watch.drawing import Line, flow, flow_each
from mfedpba_mpi.watch.pictures import average_curve, pace_of, reason_lines, run_lines, styled

_MAX_ENDED = 6  # ended runs in the view of a study


class WatchedRun(RunReader):
    """A run and its view."""

    @property
    def over(self) -> bool:
        """Whether the view will not change any more."""
        return self.state.ended

    def view(self, width: int, height: int) -> list[Line]:
        """The view of the run as lines of text."""
        if self.run:
            return run_lines(self.run, self.state, self.age, self.directory, width, height)
        heading = [*flow([(str(self.directory), "bold")], width), *flow([styled(self.state.status)], width)]
        return [*heading, *reason_lines(self.state, self.directory, width)]


class WatchedStudy:
    """The runs of a study and their view. A complete run is read once."""

    def __init__(self, directory: Path):
        self.directory, self.study = directory, read_study(directory / FILE)
        self._watched = {place.path: WatchedRun(directory / place.path) for place in self.study.run_keys()}
        self._rows: dict[Path, Row] = {}

    @property
    def over(self) -> bool:
        """Whether the view will not change any more."""
        return all(row.state.status in (COMPLETE, FAILED) for row in self._rows.values())

    def read(self) -> None:
        """Read the files of all runs that are not complete."""
        for path, watched in list(self._watched.items()):
            watched.read()
            self._rows[path] = Row.of(path, watched)
            if watched.state.status == COMPLETE:
                del self._watched[path]

    def view(self, width: int, height: int) -> list[Line]:
        """The view of the study as lines of text."""
        rows = list(self._rows.values())
        active = [row for row in rows if not row.state.ended and row.state.status != WAITING]
        ended = sorted((row for row in rows if row.state.ended), key=lambda row: row.changed)
        hidden = max(0, len(ended) - _MAX_ENDED)
        ended = ended[hidden:]
        remarks = sorted({row.remark for row in rows if row.remark})
        left = time_left(rows)
        top = flow(
            [(self.study.title, "bold"), *((remark, "yellow") for remark in remarks), (str(self.directory), "dim")],
            width,
        )
        counts = f"{count(len(rows), 'run')}: {overview(row.state for row in rows)}"
        top += flow([(counts, ""), *([(f"about {duration(left)} to go", "")] if left else [])], width)
        if not active and not self.over:
            top += flow([("no run is active", "yellow")], width)
        run = next((self._watched[row.path].run for row in active if row.state.status == RUNNING), None)
        table_height = (height - len(top)) // (2 if run else 1)
        shown = [*active, *reversed(ended)]
        parts = zip(*(row.path.parts for row in rows), strict=True)
        differing = [i for i, part in enumerate(parts) if len(set(part)) > 1]
        lines = [*top, *_table(shown, hidden, differing, width, table_height)]
        rows_by_reason = {row.state.reason: row for row in reversed(shown) if row.state.reason}  # every reason once
        reasons = [(f"{row.path}: {reason}", styled(row.state.status)[1]) for reason, row in rows_by_reason.items()]
        free = table_height - len(shown) - bool(hidden)
        lines += flow_each(reasons, width)[: max(0, min(3, free) if run else free)]
        if run:
            path = str(run.path.parent.relative_to(self.directory))
            heading = flow([(path, "bold")], width)
            free = height - len(lines) - len(heading) - 2
            lines += [*heading, *average_curve(run, width, min(16, free))]
        return lines


@dataclass(frozen=True)
class Row:
    """A run in the view of a study.

    Attributes
    ----------
    path : relative to the study's directory.
    state : the state of the run.
    remark : see `Run.remark`.
    changed : time at which its log last changed, in seconds since 1970.
    seconds : running time so far.
    share : share of its rounds that are finished.
    """

    path: Path
    state: RunState
    remark: str = ""
    changed: float = -math.inf
    seconds: float = 0.0
    share: float = 0.0

    @classmethod
    def of(cls, path: Path, watched: WatchedRun) -> Row:
        run, state = watched.run, watched.state
        if run is None:
            return cls(path, state)
        pace = pace_of(run, watched.age if state.status == RUNNING else 0.0)
        return cls(path, state, run.remark, time.time() - watched.age, pace.elapsed, pace.t / pace.T)


def time_left(rows: Sequence[Row]) -> float:
    """Estimated seconds until all runs have ended; 0 if unknown.

    Assumes that runs take as long as the complete ones, and that as many as now run concurrently.
    """
    complete = [row.seconds for row in rows if row.state.status == COMPLETE]
    concurrent = sum(row.state.status == RUNNING for row in rows)
    if not complete or not concurrent:
        return 0.0
    remaining = sum(1 - row.share for row in rows if row.state.status not in (COMPLETE, FAILED))
    return remaining * sum(complete) / len(complete) / concurrent


def _table(rows: Sequence[Row], hidden: int, differing: Sequence[int], width: int, height: int) -> list[Line]:
    """One line per run, as many as fit. Long paths are cut at the start.

    `hidden` further runs are only counted. `differing` are the indices of the path components that are not the same in
    all runs.
    """
    max_rows = len(rows) if len(rows) + bool(hidden) <= height else max(0, height - 1)
    omitted = len(rows) - max_rows + hidden
    more: list[Line] = [[(f"and {omitted} more", "dim")]] if omitted else []
    rows = rows[:max_rows]
    paths = [str(row.path) for row in rows]
    columns = [[row.state.status for row in rows], [row.state.progress for row in rows]]
    columns.append([duration(row.seconds) if row.seconds else "" for row in rows])
    widths = [max(map(len, cells), default=0) for cells in columns]
    longest = max(map(len, paths), default=0)
    if longest + sum(widths) + 6 > width < 60:  # omit the time, and components of paths that are the same in all runs
        columns[2], widths[2] = [""] * len(rows), 0
        paths = ["/".join(row.path.parts[i] for i in differing) for row in rows] if differing else paths
        longest = max(map(len, paths))
    longest = max(8, min(longest, width - sum(widths) - 6 + 2 * (not widths[2])))
    lines: list[Line] = []
    for path, status, progress, elapsed in zip(paths, *columns, strict=True):
        path = path if len(path) <= longest else f"…{path[1 - longest :]}"
        line = [(f"{path:{longest}s}  ", ""), (f"{status:{widths[0]}s}  ", styled(status)[1])]
        lines.append([*line, (f"{progress:{widths[1]}s}  {elapsed:>{widths[2]}s}".rstrip(), "")])
    return lines + more
