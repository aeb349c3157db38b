"""Progress of a study: a live table on a terminal, otherwise a line for every run that ends."""

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
from mfedpba_mpi.studies.study import StudyRun

_SECONDS = 60.0  # between progress lines without a terminal, while no run ends
_ENDED_ROWS = 6  # runs that have ended in the live table


class Board:
    """Prints the progress of a study's runs.

    Parameters
    ----------
    directory : the study's.
    runs : all runs of this call.
    states : their states at the start, by path.
    """

    def __init__(self, directory: Path, runs: Sequence[StudyRun], states: Mapping[Path, RunState]):
        self.directory = directory
        self.runs = {run.path: run for run in runs}
        self.states = dict(states)
        self.todo = [path for path, state in states.items() if state.status != COMPLETE and not state.active]
        self.console = console()
        self.live: Live | None = None
        self.active: Sequence[Path] = ()
        self.seconds: dict[Path, float] = {}  # of the runs that have ended here
        self.done_before = sum(map(self._done, self.todo))
        self.start, self.throttle = time.monotonic(), Throttle(_SECONDS)

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

    def run_ended(self, run: StudyRun, state: RunState, seconds: float) -> None:
        """Record that a run has ended; after 0 seconds: that it will not be started."""
        self.states[run.path] = state
        if not seconds:
            return
        self.seconds[run.path] = seconds
        if not self.live:
            complete = sum(s.status == COMPLETE for s in self.states.values())
            number = f"{complete:{len(str(len(self.runs)))}d}/{len(self.runs)}"
            details = ", ".join(filter(None, [state.status, state.progress, f"{seconds:.0f} s"]))
            reason = f": {state.reason}" if state.status == FAILED else ""
            self.console.print(f"{number}  {run.path}  {details}{reason}{self._eta()}", markup=False, soft_wrap=True)
            self.throttle.reset()

    def update(self, active: Sequence[Path]) -> None:
        """Read and show the states of the active runs, not too often without a terminal."""
        self.active = active
        if not self.live and not self.throttle.due():
            return
        for path in active:
            self.states[path] = read_state(self.directory / path)
        if self.live:
            self.live.update(self._table(), refresh=True)
        elif active:
            progress = ", ".join(f"{path} {self.states[path].progress}" for path in active)
            self.console.print(f"running: {progress}{self._eta()}", markup=False, soft_wrap=True)
            self.throttle.reset()

    def report(self, failed: Sequence[tuple[StudyRun, RunState]], stopped_by: str) -> None:
        """Print the failed runs and the totals; `stopped_by` is the signal that ended the study, or ""."""
        for run, state in failed:
            self.console.print(f"[red]failed[/] {escape(str(run.path))}: {escape(state.reason)}", soft_wrap=True)
            self.console.print(f"       see {escape(str(self.directory / run.path / OUTPUT))}", soft_wrap=True)
        complete = sum(state.status == COMPLETE for state in self.states.values())
        summary = f"{complete} of {count(len(self.runs), 'run')} complete, {len(failed)} failed"
        if stopped_by:
            summary += f"; stopped by {stopped_by}, repeat the command to continue"
        self.console.print(summary)

    def _table(self) -> Group:
        rows = [
            (path, self.states[path].status, self.states[path].progress,
             f"{self.seconds[path]:.0f} s" if path in self.seconds else "")
            for path in [*list(self.seconds)[-_ENDED_ROWS:], *self.active]
        ]  # fmt: skip
        total = f"{overview(self.states.values())}; {duration(time.monotonic() - self.start)}{self._eta()}"
        return Group(table(["run", "status", "rounds", "time"], rows), total)

    def _done(self, path: Path) -> float:
        """The finished part of a run's weight; all of it if the run has ended here, even if it failed."""
        run = self.runs[path]
        return run.weight * (1 if path in self.seconds else self.states[path].rounds / run.config.rounds)

    def _eta(self) -> str:
        total = sum(self.runs[path].weight for path in self.todo)
        done = sum(map(self._done, self.todo))
        if done - self.done_before <= 0:
            return ""
        left = (time.monotonic() - self.start) * (total - done) / (done - self.done_before)
        return f", {duration(left)} left"
