"""Running a study here: so many runs side by side, each a process, or ranks of its own, with its output in a file.

A run that is complete is skipped, one that is not goes on from its checkpoint (`run --resume`), one that fails is
reported at the end. Signals that end a run in order end all of them so; the next `study run` goes on.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from mfedpba_mpi import plugins
from mfedpba_mpi.cli.console import count
from mfedpba_mpi.engine.signals import EXIT_INTERRUPTED, Stop
from mfedpba_mpi.errors import COMPLETE, FAILED, INTERRUPTED, UserError
from mfedpba_mpi.records.status import OUTPUT, PROMPT, RunState, last_output, read_state
from mfedpba_mpi.studies.board import Board
from mfedpba_mpi.studies.study import PlannedRun

LOOK = 0.5  # seconds between two looks at the runs


def program() -> list[str]:
    """What starts this program again, with its plugins: a script that calls `main`, if that is what runs."""
    main = sys.modules["__main__"]
    script = getattr(main, "__file__", None) or ""
    own = main.__spec__ is None and script.endswith(".py")
    how = [os.path.abspath(script)] if own else ["-m", "mfedpba_mpi"]
    return [sys.executable, *how, *plugins.arguments()]


def refuse_other_data(directory: Path, states: Mapping[Path, RunState], data: Mapping[Path, str]) -> None:
    """Refuse complete runs whose data were not those of the fingerprints `data`."""
    other = [path for path, state in states.items() if state.status == COMPLETE and state.fingerprint != data[path]]
    if other:
        raise UserError(
            f"out: {count(len(other), 'complete run')} in {directory} had other data than are there now, {other[0]} "
            "for one (have the real data been imported since?); remove them, or choose another --out"
        )


@dataclass
class Outcome:
    """A run that has come to an end here: how, and after how many seconds."""

    planned: PlannedRun
    state: RunState
    seconds: float


@dataclass
class Runner:
    """Runs what is not complete.

    Attributes
    ----------
    directory, data_dir : where the runs go, and where datasets are.
    jobs : runs side by side.
    launcher : what starts a run on several ranks, before ``-n RANKS``.
    keep : which checkpoints a complete run keeps.
    """

    directory: Path
    data_dir: Path
    jobs: int = 1
    launcher: str = "mpirun"
    keep: str = "last"
    _processes: dict[Path, subprocess.Popen[bytes]] = field(default_factory=dict)
    _told: set[tuple[Path, signal.Signals]] = field(default_factory=set)
    _stop: Stop = field(default_factory=Stop)

    def run(self, runs: Sequence[PlannedRun], data: Mapping[Path, str]) -> int:
        """Run them all; the exit code is 0 where all are complete, 75 after a signal, 1 where one failed.

        `data` is the fingerprint of each run's data, by its path; a complete run of other data is refused.
        """
        states = {planned.path: read_state(self.directory / planned.path) for planned in runs}
        refuse_other_data(self.directory, states, data)
        todo = [
            planned for planned in runs
            if states[planned.path].status != COMPLETE and not states[planned.path].active
        ]  # fmt: skip
        if any(planned.ranks > 1 for planned in todo) and not shutil.which(shlex.split(self.launcher)[0]):
            raise UserError(f"launcher: no {shlex.split(self.launcher)[0]} on the PATH to start several ranks with")
        self._stop.listen()
        board = Board(self.directory, runs, states)
        outcomes = []
        with ThreadPoolExecutor(self.jobs) as pool, board:
            waiting: set[Future[Outcome]] = {pool.submit(self._execute, planned) for planned in todo}
            try:
                while waiting:
                    ended, waiting = wait(waiting, LOOK, FIRST_COMPLETED)
                    for future in ended:
                        outcomes.append(future.result())
                        board.ended(outcomes[-1].planned, outcomes[-1].state, outcomes[-1].seconds)
                    if self._stop.signal:
                        self._pass_on(signal.SIGUSR1)
                    board.look([path for path, process in list(self._processes.items()) if process.poll() is None])
            except BaseException:
                self._stop.signal = self._stop.signal or "an error"
                self._pass_on(signal.SIGKILL)
                raise
        failed = [(outcome.planned, outcome.state) for outcome in outcomes if outcome.state.status == FAILED]
        board.report(failed, stopped=self._stop.signal)
        if self._stop.signal or any(outcome.state.status == INTERRUPTED for outcome in outcomes):
            return EXIT_INTERRUPTED
        return 1 if failed else 0

    def line(self, planned: PlannedRun) -> list[str]:
        """The command that runs it."""
        ranks = [*self._launch(), "-n", str(planned.ranks)] if planned.ranks > 1 else []
        out, data = str(self.directory / planned.path), str(self.data_dir)
        keep = [] if self.keep == "last" else ["--keep-checkpoints", self.keep]
        return [*ranks, *program(), "run", *planned.arguments, "--data-dir", data, "--out", out, *keep, "--resume"]

    def _launch(self) -> list[str]:
        """The launcher; steps of srun that go side by side share the job's cores, memory and GPUs.

        A step takes all the memory and GPUs of its job otherwise, and the next one waits. With ``--exact`` steps still
        wait for GPUs, for cores of two threads, and where the job's nodes have unequal shares. Unbound, two steps do
        not end up on the same cores.
        """
        first, *others = shlex.split(self.launcher)
        own = {"--exact", "--overlap"} & set(others)
        together = ["--overlap", "--cpu-bind=none"] if Path(first).name == "srun" and self.jobs > 1 and not own else []
        return [first, *together, *others]

    def _execute(self, planned: PlannedRun) -> Outcome:
        """Run it to its end, in a thread that does nothing but wait for it."""
        if self._stop.signal:
            return Outcome(planned, RunState(INTERRUPTED), 0.0)
        began, directory = time.monotonic(), self.directory / planned.path
        try:
            code = self._start(planned, directory).wait()
            state = read_state(directory)
        except OSError as error:
            code, state = 1, RunState(FAILED, reason=f"cannot be started: {error}")
        if code and (self._stop.signal or code == EXIT_INTERRUPTED):
            state = replace(state, status=INTERRUPTED)
        elif (code or state.status != COMPLETE) and not state.active:  # active: another process was faster
            state = replace(state, status=FAILED, reason=state.reason or last_output(directory))
        return Outcome(planned, state, time.monotonic() - began)

    def _start(self, planned: PlannedRun, directory: Path) -> subprocess.Popen[bytes]:
        directory.mkdir(parents=True, exist_ok=True)
        with open(directory / OUTPUT, "ab") as output:
            output.write(f"{PROMPT}{shlex.join(self.line(planned))}\n".encode())
            output.flush()
            process = self._processes[planned.path] = subprocess.Popen(
                self.line(planned), stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                start_new_session=True, env=self._environment(planned),
            )  # fmt: skip
        return process

    @staticmethod
    def _environment(planned: PlannedRun) -> dict[str, str]:
        """A run in one process has nothing to do with the tasks of a batch job that it is started in."""
        tasks = ("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_STEP_NUM_TASKS") if planned.ranks == 1 else ()
        return {name: value for name, value in os.environ.items() if name not in tasks}

    def _pass_on(self, number: signal.Signals) -> None:
        """Send a signal to every run that is going, once."""
        for path, process in list(self._processes.items()):
            if process.poll() is None and (path, number) not in self._told:
                self._told.add((path, number))
                with suppress(ProcessLookupError):
                    (os.killpg if number == signal.SIGKILL else os.kill)(process.pid, number)
