"""What people see while a study runs: a live table on a terminal, otherwise a line for every run that ends."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Group
from rich.live import Live
from rich.markup import escape

from mfedpba_mpi.cli.console import Throttle, console, count, duration, table
from mfedpba_mpi.errors import COMPLETE, FAILED
from mfedpba_mpi.records.status import OUTPUT, RunState, overview, read_state
from mfedpba_mpi.studies.study import PlannedRun

_SECONDS = 60.0  # between two lines if there is no terminal and no run ends
_LAST = 6  # ended runs that stay in the live table


class Board:
    """How far the runs of a study are.

    Parameters
    ----------
    directory : the study's.
    runs, states : all of its runs, and how they were found.
    """

    def __init__(self, directory: Path, runs: Sequence[PlannedRun], states: Mapping[Path, RunState]):
        self.directory = directory
        self.runs = {planned.path: planned for planned in runs}
        self.states = dict(states)
        self.todo = [p for p, state in states.items() if state.status != COMPLETE and not state.active]
        self.console = console()
        self.live: Live | None = None
        self.going: Sequence[Path] = ()
        self.times: dict[Path, float] = {}  # seconds of those that ended here
        self.before = sum(map(self._done, self.todo))
        self.began, self.throttle = time.monotonic(), Throttle(_SECONDS)

    def __enter__(self) -> Board:
        complete = sum(state.status == COMPLETE for state in self.states.values())
        active = sum(state.active for state in self.states.values())
        already = f", {complete} already complete" if complete else ""
        elsewhere = f", {active} running elsewhere" if active else ""
        runs = f"{count(len(self.runs), 'run')} in {escape(str(self.directory))}"
        self.console.print(f"{runs}{already}{elsewhere}, {len(self.todo)} to do")
        if self.console.is_terminal and self.todo:
            self.live = Live(console=self.console, auto_refresh=False, transient=True)
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live:
            self.live.stop()

    def ended(self, planned: PlannedRun, state: RunState, seconds: float) -> None:
        """A run has come to an end here, or was never begun."""
        self.states[planned.path] = state
        if not seconds:
            return
        self.times[planned.path] = seconds
        words = f"{state.progress}, {seconds:.0f} s" + (f": {state.reason}" if state.status == FAILED else "")
        finished = sum(s.status == COMPLETE for s in self.states.values())
        if not self.live:
            number = f"{finished:{len(str(len(self.runs)))}d}/{len(self.runs)}"
            line = f"{number}  {planned.path}  {state.status}, {words}{self._eta()}"
            self.console.print(line, markup=False, soft_wrap=True)
            self.throttle.reset()

    def look(self, going: Sequence[Path]) -> None:
        """See how far the runs that are going have come."""
        self.going = going
        if not self.live and not self.throttle.due():
            return
        for path in going:
            self.states[path] = read_state(self.directory / path)
        if self.live:
            self.live.update(self._table(), refresh=True)
        elif going:
            words = ", ".join(f"{path} {self.states[path].progress}" for path in going)
            self.console.print(f"going: {words}{self._eta()}", markup=False, soft_wrap=True)
            self.throttle.reset()

    def report(self, failed: Sequence[tuple[PlannedRun, RunState]], stopped: str) -> None:
        """The last words."""
        for planned, state in failed:
            self.console.print(f"[red]failed[/] {escape(str(planned.path))}: {escape(state.reason)}", soft_wrap=True)
            self.console.print(f"       see {escape(str(self.directory / planned.path / OUTPUT))}", soft_wrap=True)
        complete = sum(state.status == COMPLETE for state in self.states.values())
        words = f"{complete} of {count(len(self.runs), 'run')} complete, {len(failed)} failed"
        if stopped:
            words += f"; stopped by {stopped}, the same command goes on"
        self.console.print(words)

    def _table(self) -> Group:
        shown = [*list(self.times)[-_LAST:], *self.going]
        rows = [
            (path, self.states[path].status, self.states[path].progress,
             f"{self.times[path]:.0f} s" if path in self.times else "")
            for path in shown
        ]  # fmt: skip
        total = f"{overview(self.states.values())}; {duration(time.monotonic() - self.began)}{self._eta()}"
        return Group(table(["run", "status", "rounds", "time"], rows), total)

    def _done(self, path: Path) -> float:
        """What has been done of a run; of one that has ended here, all that will be."""
        planned = self.runs[path]
        return planned.weight * (1 if path in self.times else self.states[path].rounds / planned.config.rounds)

    def _eta(self) -> str:
        total = sum(self.runs[path].weight for path in self.todo)
        done = sum(map(self._done, self.todo))
        if done - self.before <= 0:
            return ""
        left = (time.monotonic() - self.began) * (total - done) / (done - self.before)
        return f", {duration(left)} to go"
