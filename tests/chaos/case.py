"""Chaos cases: a small run with some faults, resumed after each on another number of ranks, and compared at the end."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from mfedpba_mpi.errors import UserError
from mfedpba_mpi.records.run import Run, load_run
from tests.chaos.attempt import ROOT, TIMEOUT, Attempt, Stuck
from tests.chaos.board import POINTS
from tests.chaos.disk import checkpoints, damage, differences, newest_valid, small_disk
from tests.chaos.faults import ABRUPT, DECK, GRACEFUL, NO_SPACE, Fault, draw

ROUNDS = 12
SHUTDOWN_TIMEOUT = 10.0  # seconds in which a killed or interrupted run must end
SMALL = (
    "--dataset", "synthetic", "--samples", 300, "--classes", 4, "--dims", "6,40,9,12", "--feature-dim", 8,
    "--rounds", ROUNDS,
)  # fmt: skip
SETTINGS: dict[str, tuple[object, ...]] = {
    "mfedpba": ("--partition", "m2"),
    "harmony": ("--method", "harmony", "--clients", 7, "--participation", 0.5),
    "fedmobile": ("--method", "fedmobile"),
    "fedpall": ("--method", "fedpall", "--clients", 7, "--participation", 0.5, "--eval-every", 3),
}
FaultSpec = tuple[str, str]  # a kind of fault and a point, "" for a random moment


@cache
def mitigates() -> bool:
    """Whether the MPI library lets the other ranks continue after a rank dies."""
    return "Open MPI" in subprocess.run(["mpirun", "--version"], capture_output=True, text=True).stdout


@dataclass
class Result:
    """Result of a case."""

    number: int
    setting: str
    history: list[str] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)
    points: Counter[str] = field(default_factory=Counter)
    redone: int = 0
    longest: float = 0.0
    problems: list[str] = field(default_factory=list)


class Chaos:
    """State shared by all cases: a directory, the data, and one undisturbed run of each setting."""

    def __init__(self, directory: Path):
        self.directory = directory
        self.data = directory / "data"
        self.data.mkdir(parents=True, exist_ok=True)
        self._references: dict[str, Run] = {}

    def reference(self, setting: str) -> Run:
        """Return the undisturbed run of a setting, in one process."""
        if setting not in self._references:
            out = self.directory / f"reference-{setting}"
            args = [*SMALL, *SETTINGS[setting], "--data-dir", self.data, "--out", out, "--overwrite"]
            line = [sys.executable, "-m", "mfedpba_mpi", "run", *map(str, args)]
            subprocess.run(line, cwd=ROOT, check=True, capture_output=True, timeout=TIMEOUT)
            self._references[setting] = load_run(out)
        return self._references[setting]

    def run(
        self, seed: int, number: int, only: str | None = None, keep: bool = False, faults: Sequence[FaultSpec] = ()
    ) -> Result:
        """Run the case with this number; its faults depend on number and seed alone, their effect also on timing.

        Parameters
        ----------
        only : the setting, instead of choosing it by the number.
        keep : keep the files of a failed case.
        faults : kinds and points, instead of drawing them.
        """
        rng = random.Random(f"{seed} {number}")
        setting = only or list(SETTINGS)[number % len(SETTINGS)]
        result = Result(number, setting)
        case = Case(self, rng, result, faults or _draw_faults(rng, seed, number))
        with ExitStack() as stack:
            try:
                case.run(stack)
            except Stuck as stuck:
                result.problems.append(f"hang: {stuck}")
            if keep and result.problems:
                shutil.copytree(case.home, self.directory / f"kept-{seed}-{number}", symlinks=True)
        shutil.rmtree(case.home)
        return result


def _draw_faults(rng: random.Random, seed: int, number: int) -> list[FaultSpec]:
    """Draw the faults of a case; the first faults of successive cases cover all kinds and all points."""
    kind, point = _deal(DECK, seed, number), _deal(list(POINTS), seed, number)
    faults = [(kind, point)]
    more = rng.choices((0, 1, 2, 3), (50, 25, 15, 10))[0]
    faults += [(rng.choice(DECK), rng.choice(list(POINTS)) if rng.random() < 0.3 else "") for _ in range(more)]
    if point == "restore":  # there must be a checkpoint to restore
        faults.insert(0, (rng.choice(("kill", "usr1")), "evaluation"))
    return faults[:4]


def _deal(deck: list[str], seed: int, number: int) -> str:
    """Return the card of a number; the deck is used up before it is shuffled again."""
    turn, place = divmod(number, len(deck))
    cards = list(deck)
    random.Random(f"{seed} deck {turn} {len(deck)}").shuffle(cards)
    return cards[place]


class Case:
    """One running case."""

    def __init__(self, chaos: Chaos, rng: random.Random, result: Result, faults: Sequence[FaultSpec]):
        self.chaos, self.rng, self.result = chaos, rng, result
        self.home = chaos.directory / f"case-{result.number}"
        self.out = self.home / "disk" / "run"
        self.faults = [(kind, point) for kind, point in faults if kind != "lost" or mitigates()]
        self.attempts = 0
        self.start = self.rows = 0  # round from which the next attempt continues, rounds in the log
        self.overwrite = False

    def run(self, stack: ExitStack) -> None:
        """Run all attempts, and compare the result with the reference."""
        reference = self.chaos.reference(self.result.setting)
        filling = any(kind == "fill" for kind, _ in self.faults)
        self.disk = stack.enter_context(small_disk(self.home / "disk", 256)) if filling else None
        if filling and not self.disk:
            self.result.history.append("(cannot mount a tmpfs: file size limits instead)")
        self.out.parent.mkdir(parents=True, exist_ok=True)
        self.data = self.chaos.data
        if self.rng.random() < 0.15:  # no data yet: the run itself creates it, despite faults
            self.data = self.home / "data"
            self.data.mkdir()
        while self.faults and self._status() != "complete" and not self.result.problems:
            kind, point = self.faults.pop(0)
            kind = "limit" if kind == "fill" and not self.disk else kind
            self._run_attempt(kind, point, reference)
        if not self.result.problems and self._status() != "complete":
            self._run_attempt("", "", reference)
        if not self.result.problems:
            self._compare(reference)

    def _status(self) -> str:
        """Return the status in the log, "" if there is no readable log."""
        return load_run(self.out).status if self.readable and (self.out / "run.h5").exists() else ""

    readable = True  # False after the log was damaged on purpose

    def _args(self, every: int, mitigating: bool) -> list[object]:
        """Return the command that starts or continues the run."""
        common: list[object] = ["--data-dir", self.data, *(["--checkpoint-every", every] if every else [])]
        common += ["--on-failure", "continue"] if mitigating else []
        begin: list[object] = ["run", *SMALL, *SETTINGS[self.result.setting], *common, "--out", self.out]
        if self.attempts == 0:
            return begin
        if self.overwrite:
            return [*begin, "--overwrite"]
        if not (self.out / "run.h5").exists() or self.rng.random() < 0.3:
            return [*begin, "--resume"]
        return ["resume", self.out, *common]

    def _run_attempt(self, kind: str, point: str, reference: Run) -> None:
        """Run one attempt with a fault (without if `kind` is "") and check the result."""
        rng, result = self.rng, self.result
        ranks = 3 if self.attempts == 0 else rng.choice((1, 2, 3, 5))
        ranks = max(2, ranks) if kind == "lost" else ranks
        every = rng.choice((1, 2, 3)) if self.attempts == 0 or kind else rng.choice((0, 1, 2, 4))
        fault = None
        if kind:
            signal_kind = rng.choice(("kill", "usr1")) if kind == "damage" else kind
            point = "" if kind == "damage" else point
            fault = draw(rng, signal_kind, point, ranks, self.start, ROUNDS)
        args = self._args(every, kind == "lost")
        self.overwrite, self.readable = False, True
        result.history.append(f"n={ranks} {args[0]} checkpoint every {every}: {fault or 'to the end'}")
        plan = fault.plan if fault else {}
        attempt = Attempt(args, ranks, self.home / f"attempt-{self.attempts}", plan, kind == "lost")
        self.attempts += 1
        before, old = self.start, _identity(self.out / "run.h5")
        try:
            seconds, late, early = self._inject(attempt, fault)
        finally:
            code, output = attempt.close()
            if self.disk:
                self.disk.clear()
        result.history[-1] += f" -> {code}, {seconds:.1f} s"
        begun = _identity(self.out / "run.h5") != old
        self._check(fault, code, output, late, early, reference, before, every if begun else 0)
        if kind and not late and not result.problems:
            result.kinds[kind] += 1
            result.longest = max(result.longest, seconds)
        self._update_start()
        if kind == "damage" and not result.problems and self._status() != "complete":
            self._damage_file()

    def _inject(self, attempt: Attempt, fault: Fault | None) -> tuple[float, bool, bool]:
        """Inject the fault and wait for the end of the attempt.

        Returns
        -------
        The seconds until all processes had ended, whether the attempt ended before the fault, and whether a rank had
        not installed its signal handlers yet.
        """
        if not fault:
            return attempt.finish(TIMEOUT), False, False
        if fault.kind == "limit":
            reached = attempt.wait_until(lambda: any(board.failed for board in attempt.boards.values()))
        elif fault.point:
            reached = attempt.wait_until(lambda: self._held(attempt, fault))
        else:
            reached = attempt.wait_until(lambda: attempt.round >= fault.round)
            time.sleep(fault.delay)  # a random moment, on purpose
            reached = reached and attempt.wait_until(lambda: attempt.boards.keys() >= set(fault.victims))
        if not reached:
            return attempt.finish(TIMEOUT), True, False
        points = {rank: board.point for rank, board in attempt.boards.items()}
        hit = list(fault.victims or points)
        early = any(points.get(rank, "start") == "start" for rank in (range(attempt.ranks)))
        self._send(attempt, fault)
        survives = fault.kind in ("second", "pause") or (fault.kind == "lost" and fault.victims != (0,))
        fill = self.disk.fill if fault.kind == "fill" and self.disk else lambda: None
        if fault.kind == "fill" and not attempt.wait_until(lambda: _failed(attempt, fill)):
            return attempt.finish(TIMEOUT), True, False
        # Without their launcher, ranks end only when MPI fails to start, after all imports.
        orphans = not fault.victims and not {"start", "importing"}.isdisjoint(points.values())
        seconds = attempt.finish(TIMEOUT if survives or orphans else SHUTDOWN_TIMEOUT, fill)
        if fault.kind in NO_SPACE:
            found = [board.failed for board in attempt.boards.values() if board.failed]
        elif fault.kind in ABRUPT or fault.kind == "lost":
            found = [attempt.boards[rank].point for rank in hit if rank in attempt.boards]
        else:
            found = [points[rank] for rank in hit if rank in points]
        self.result.points.update(found)
        self.result.history[-1] += f" [{', '.join(found)}]"
        return 0.0 if survives or orphans else seconds, False, early

    @staticmethod
    def _held(attempt: Attempt, fault: Fault) -> bool:
        board = attempt.boards.get(fault.holder)
        return bool(board and board["held"])

    def _send(self, attempt: Attempt, fault: Fault) -> None:
        def send(number: signal.Signals) -> None:
            for rank in fault.victims:
                attempt.send(number, rank)
            if not fault.victims:
                attempt.send_launcher(number)

        match fault.kind:
            case "kill" | "lost":
                send(signal.SIGKILL)
            case "segv":
                send(signal.SIGSEGV)
            case "freeze":
                send(signal.SIGSTOP)
                time.sleep(self.rng.uniform(0, 0.5))
                send(signal.SIGKILL)
            case "impatient":
                send(signal.SIGTERM)
                time.sleep(self.rng.uniform(0, 0.4))
                send(signal.SIGKILL)
            case "pause":
                send(signal.SIGSTOP)
                time.sleep(self.rng.uniform(0.1, 1))
                send(signal.SIGCONT)
            case "second":
                self._try_second()
            case "usr1" | "term" | "int" | "twice":
                send(GRACEFUL[fault.kind])
                time.sleep(0.05)  # the handler runs while the process is held, and a second signal is not merged
                if fault.kind == "twice":
                    send(signal.SIGINT)
                    time.sleep(0.05)
        attempt.release()

    def _try_second(self) -> None:
        """Check that a second run in the same directory is refused, with any command."""
        begin = ["run", *SMALL, *SETTINGS[self.result.setting], "--out", self.out]
        args = self.rng.choice((["resume", self.out], [*begin, "--overwrite"], [*begin, "--resume"]))
        line = [sys.executable, "-m", "mfedpba_mpi", *map(str, args), "--data-dir", str(self.data)]
        done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT)
        if done.returncode != 2 or "is in use by" not in done.stderr:
            self.result.problems.append(f"a second `{args[0]}` was not refused: {done.returncode} {done.stderr[-500:]}")

    def _check(
        self, fault: Fault | None, code: int, output: str, late: bool, early: bool, reference: Run, before: int,
        every: int,
    ) -> None:  # fmt: skip
        """Check the exit code, log and checkpoints after an attempt."""
        problems = self.result.problems
        tail = output[-1500:]
        if "Traceback" in output and not (early and fault and fault.kind in ("int", "twice")):  # Python itself starting
            problems.append(f"traceback: {output[-3000:]}")
        log = None
        if (self.out / "run.h5").exists():
            try:
                log = load_run(self.out)
            except UserError as error:
                problems.append(f"cannot read the log: {error}")
                return
        status, rows = (log.status, len(log.rounds.get("accuracy", ()))) if log else ("", 0)
        newest = newest_valid(self.out)
        complete = status == "complete"
        kind = fault.kind if fault else ""
        if not fault or late or kind in ("second", "pause"):
            if (code, status) != (0, "complete"):
                problems.append(f"did not complete: exit code {code}, status {status!r}: {tail}")
        elif kind == "lost" and fault.victims != (0,):
            if (code, complete) != (0, True):
                problems.append(f"did not continue without rank {fault.victims}: exit code {code}: {tail}")
        elif complete:
            if code != 0 and kind not in (*ABRUPT, "lost", "twice") and fault.victims:
                problems.append(f"complete, but exit code {code}: {tail}")
        elif code == 0:
            problems.append(f"exit code 0 and status {status!r}: {tail}")
        elif kind in GRACEFUL and not early and (fault.victims or kind == "usr1"):
            if code not in ((75, 130) if kind == "twice" else (75,)):
                problems.append(f"exit code {code} instead of 75: {tail}")
            elif code == 75 and (status != "interrupted" or newest != rows):
                problems.append(f"status {status!r}, {rows} rounds in the log, checkpoint of round {newest}: {tail}")
        elif kind in NO_SPACE and (code != 1 or "mfedpba-mpi: " not in output or "cannot write" not in output):
            problems.append(f"exit code {code}: {tail}")
        if log:
            problems += [f"after the fault: {where}" for where in differences(log, reference, False)]
            if every and newest < (rows - 1) // every * every:
                problems.append(f"{rows} rounds in the log, but the newest checkpoint is of round {newest}")
            resumed = [entry["round"] for entry in log.attributes["resumed"]]
            if every and before and kind != "lost" and before not in resumed[-1:]:
                problems.append(f"resumed from {resumed} instead of round {before}")
        if newest < before:
            problems.append(f"the checkpoint of round {before} is missing, the newest is of round {newest}: {tail}")
        self.rows = rows

    def _update_start(self) -> None:
        """Set the round from which the next attempt must continue."""
        self.start = newest_valid(self.out)
        if self._status() != "complete":
            self.result.redone += max(0, self.rows - self.start)

    def _damage_file(self) -> None:
        """Damage a file of the newest checkpoint or the log; without a valid checkpoint, resuming must be refused."""
        rng, directories = self.rng, checkpoints(self.out)
        if not directories:
            return
        files = [self.out / "run.h5", *sorted(directories[0].iterdir())]
        description = damage(rng.choice(files[:1] if rng.random() < 0.25 else files), rng)
        self.result.history.append(description)
        self.readable = "run.h5" not in description
        self.start = newest_valid(self.out)
        if not self.start:
            line = [sys.executable, "-m", "mfedpba_mpi", "resume", str(self.out), "--data-dir", str(self.data)]
            done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT)
            self.result.history.append(f"no valid checkpoint left: {done.returncode}")
            self.overwrite = True
            if done.returncode != 2 or "Traceback" in done.stderr:
                self.result.problems.append(f"no valid checkpoint, but exit code {done.returncode}: {done.stderr}")

    def _compare(self, reference: Run) -> None:
        """Check that the results equal those of the reference and no partly written files are left."""
        problems = self.result.problems
        problems += [f"difference: {where}" for where in differences(load_run(self.out), reference, True)]
        left = [path.name for path in self.out.rglob("*.part")]
        if left:
            problems.append(f"left behind: {left}")


def _identity(path: Path) -> tuple[int, int]:
    """Return the inode and modification time, which change when a file is replaced."""
    return (path.stat().st_ino, path.stat().st_mtime_ns) if path.exists() else (0, 0)


def _failed(attempt: Attempt, fill: Callable[[], None]) -> bool:
    """Fill the disk, and return whether any rank has met an OSError."""
    fill()
    return any(board.failed for board in attempt.boards.values())
