"""Runs a study on this machine: each run is a process, or ranks of its own, with its output in a file.

Complete runs are skipped. Interrupted and failed runs continue from their last checkpoint (`run --resume`). A failed
run does not stop the others and is reported at the end. A signal that stops a run in order stops all of them; the next
`study run` continues.
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
from mfedpba_mpi.studies.study import StudyRun

UPDATE_SECONDS = 0.5  # between two updates of the board


def program() -> list[str]:
    """The command that starts this program with its plugins; the user's script if that called `main`."""
    main = sys.modules["__main__"]
    script = getattr(main, "__file__", None) or ""
    is_script = main.__spec__ is None and script.endswith(".py")
    start = [os.path.abspath(script)] if is_script else ["-m", "mfedpba_mpi"]
    return [sys.executable, *start, *plugins.arguments()]


def refuse_other_data(directory: Path, states: Mapping[Path, RunState], fingerprints: Mapping[Path, str]) -> None:
    """Raise a UserError if there are complete runs on other data than `fingerprints`, by path."""
    other = [
        path for path, state in states.items()
        if state.status == COMPLETE and state.fingerprint != fingerprints[path]
    ]  # fmt: skip
    if other:
        raise UserError(
            f"out: {count(len(other), 'complete run')} in {directory} used other data than the present ones, e.g. "
            f"{other[0]} (have the real data been imported since?); remove them, or choose another --out"
        )


@dataclass
class Outcome:
    """How a run has ended here, and its duration; 0 seconds if it was not started."""

    run: StudyRun
    state: RunState
    seconds: float


@dataclass
class Runner:
    """Runs those runs of a study that are not complete.

    Attributes
    ----------
    directory : the study's.
    data_dir : directory of the feature stores.
    jobs : number of parallel runs.
    launcher : command that starts several ranks, without ``-n RANKS``.
    keep : the checkpoints that a complete run keeps: last, all or none.
    """

    directory: Path
    data_dir: Path
    jobs: int = 1
    launcher: str = "mpirun"
    keep: str = "last"
    _processes: dict[Path, subprocess.Popen[bytes]] = field(default_factory=dict)
    _signalled: set[tuple[Path, signal.Signals]] = field(default_factory=set)
    _stop: Stop = field(default_factory=Stop)

    def run(self, runs: Sequence[StudyRun], fingerprints: Mapping[Path, str]) -> int:
        """Run all runs, and return the exit code: 0 if all are complete, 75 after a signal, 1 if one failed.

        `fingerprints` are those of the runs' data, by path. A complete run on other data is a UserError.
        """
        states = {run.path: read_state(self.directory / run.path) for run in runs}
        refuse_other_data(self.directory, states, fingerprints)
        todo = [run for run in runs if states[run.path].status != COMPLETE and not states[run.path].active]
        if any(run.ranks > 1 for run in todo) and not shutil.which(shlex.split(self.launcher)[0]):
            raise UserError(f"launcher: no {shlex.split(self.launcher)[0]} on the PATH to start several ranks")
        self._stop.listen()
        board = Board(self.directory, runs, states)
        outcomes = []
        with ThreadPoolExecutor(self.jobs) as pool, board:
            pending: set[Future[Outcome]] = {pool.submit(self._execute, run) for run in todo}
            try:
                while pending:
                    ended, pending = wait(pending, UPDATE_SECONDS, FIRST_COMPLETED)
                    for future in ended:
                        outcomes.append(future.result())
                        board.run_ended(outcomes[-1].run, outcomes[-1].state, outcomes[-1].seconds)
                    if self._stop.signal:
                        self._send(signal.SIGUSR1)
                    board.update([path for path, process in list(self._processes.items()) if process.poll() is None])
            except BaseException:
                self._stop.signal = self._stop.signal or "an error"
                self._send(signal.SIGKILL)
                raise
        failed = [(outcome.run, outcome.state) for outcome in outcomes if outcome.state.status == FAILED]
        board.report(failed, stopped_by=self._stop.signal)
        if self._stop.signal or any(outcome.state.status == INTERRUPTED for outcome in outcomes):
            return EXIT_INTERRUPTED
        return 1 if failed else 0

    def command(self, run: StudyRun) -> list[str]:
        """The command of a run."""
        launch = [*self._launcher_words(), "-n", str(run.ranks)] if run.ranks > 1 else []
        out, data = str(self.directory / run.path), str(self.data_dir)
        keep = [] if self.keep == "last" else ["--keep-checkpoints", self.keep]
        return [*launch, *program(), "run", *run.arguments, "--data-dir", data, "--out", out, *keep, "--resume"]

    def _launcher_words(self) -> list[str]:
        """The launcher; parallel steps of srun share the job's cores, memory and GPUs.

        Otherwise a step takes all memory and GPUs of its job, and the next step waits. With ``--exact``, steps still
        wait for GPUs, for cores with two threads, and if the job's nodes have unequal shares. ``--cpu-bind=none``
        keeps two steps from being bound to the same cores.
        """
        launcher, *options = shlex.split(self.launcher)
        chosen = {"--exact", "--overlap"} & set(options)
        parallel_srun = Path(launcher).name == "srun" and self.jobs > 1
        shared = ["--overlap", "--cpu-bind=none"] if parallel_srun and not chosen else []
        return [launcher, *shared, *options]

    def _execute(self, run: StudyRun) -> Outcome:
        """Start a run and wait for its end, in a thread of its own."""
        if self._stop.signal:
            return Outcome(run, RunState(INTERRUPTED), 0.0)
        start, directory = time.monotonic(), self.directory / run.path
        try:
            code = self._start(run, directory).wait()
            state = read_state(directory)
        except OSError as error:
            code, state = 1, RunState(FAILED, reason=f"cannot be started: {error}")
        if code and (self._stop.signal or code == EXIT_INTERRUPTED):
            state = replace(state, status=INTERRUPTED)
        elif (code or state.status != COMPLETE) and not state.active:  # active: another process has started it
            state = replace(state, status=FAILED, reason=state.reason or last_output(directory))
        return Outcome(run, state, time.monotonic() - start)

    def _start(self, run: StudyRun, directory: Path) -> subprocess.Popen[bytes]:
        directory.mkdir(parents=True, exist_ok=True)
        command = self.command(run)
        with open(directory / OUTPUT, "ab") as output:
            output.write(f"{PROMPT}{shlex.join(command)}\n".encode())
            output.flush()
            process = self._processes[run.path] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                start_new_session=True, env=self._environment(run),
            )  # fmt: skip
        return process

    @staticmethod
    def _environment(run: StudyRun) -> dict[str, str]:
        """The environment of a run. In a single process, it hides the number of tasks of an enclosing SLURM job."""
        hidden = ("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_STEP_NUM_TASKS") if run.ranks == 1 else ()
        return {name: value for name, value in os.environ.items() if name not in hidden}

    def _send(self, number: signal.Signals) -> None:
        """Send a signal to every active run, once."""
        for path, process in list(self._processes.items()):
            if process.poll() is None and (path, number) not in self._signalled:
                self._signalled.add((path, number))
                with suppress(ProcessLookupError):
                    (os.killpg if number == signal.SIGKILL else os.kill)(process.pid, number)
