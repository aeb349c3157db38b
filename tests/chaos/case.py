"""A case: a small run, some faults, after each of them resumed on another number of ranks, and compared at the end."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from mfedpba_mpi.errors import UserError
from mfedpba_mpi.records.run import Run, load_run
from tests.chaos.attempt import LONGEST, ROOT, Attempt, Stuck
from tests.chaos.board import POINTS
from tests.chaos.disk import differences, newest_sound, places, small_disk, spoil
from tests.chaos.faults import DECK, FULL, HARD, POLITE, Fault, draw

ROUNDS = 12
PROMPT = 10.0  # seconds in which a run that was killed, or told to stop, must have ended
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
Card = tuple[str, str]  # a kind of fault and a point, which may be ""


@cache
def mitigates() -> bool:
    """Whether the launcher is one with which ranks can outlive others."""
    return "Open MPI" in subprocess.run(["mpirun", "--version"], capture_output=True, text=True).stdout


@dataclass
class Result:
    """What came of a case."""

    number: int
    setting: str
    words: list[str] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)
    points: Counter[str] = field(default_factory=Counter)
    redone: int = 0
    longest: float = 0.0
    problems: list[str] = field(default_factory=list)


class Chaos:
    """All that the cases share: a directory, the data, and one unbroken run of each setting."""

    def __init__(self, directory: Path):
        self.directory = directory
        self.data = directory / "data"
        self.data.mkdir(parents=True, exist_ok=True)
        self._references: dict[str, Run] = {}

    def reference(self, setting: str) -> Run:
        """The unbroken run of a setting, in one process."""
        if setting not in self._references:
            out = self.directory / f"unbroken-{setting}"
            args = [*SMALL, *SETTINGS[setting], "--data-dir", self.data, "--out", out, "--overwrite"]
            line = [sys.executable, "-m", "mfedpba_mpi", "run", *map(str, args)]
            subprocess.run(line, cwd=ROOT, check=True, capture_output=True, timeout=LONGEST)
            self._references[setting] = load_run(out)
        return self._references[setting]

    def run(
        self, seed: int, number: int, only: str | None = None, keep: bool = False, faults: Sequence[Card] = ()
    ) -> Result:
        """The case with this number; what is drawn depends on it and the seed alone, what is hit also on the clock.

        Parameters
        ----------
        only : the setting, where it is not to be drawn.
        keep : leave the files of a case that fails.
        faults : kinds and points, where they are not to be drawn.
        """
        rng = random.Random(f"{seed} {number}")
        setting = only or list(SETTINGS)[number % len(SETTINGS)]
        result = Result(number, setting)
        case = Case(self, rng, result, faults or _draw_cards(rng, seed, number))
        with ExitStack() as stack:
            try:
                case.run(stack)
            except Stuck as stuck:
                result.problems.append(f"hang: {stuck}")
            if keep and result.problems:
                shutil.copytree(case.home, self.directory / f"kept-{seed}-{number}", symlinks=True)
        shutil.rmtree(case.home)
        return result


def _draw_cards(rng: random.Random, seed: int, number: int) -> list[Card]:
    """The faults of a case: the first ones of all cases together go through all kinds and all points."""
    kind, point = _deal(DECK, seed, number), _deal(list(POINTS), seed, number)
    cards = [(kind, point)]
    more = rng.choices((0, 1, 2, 3), (50, 25, 15, 10))[0]
    cards += [(rng.choice(DECK), rng.choice(list(POINTS)) if rng.random() < 0.3 else "") for _ in range(more)]
    if point == "restore":  # there must be something to restore
        cards.insert(0, (rng.choice(("kill", "usr1")), "evaluation"))
    return cards[:4]


def _deal(deck: list[str], seed: int, number: int) -> str:
    """The card of a number: every card once before any comes again, in another order each time."""
    turn, place = divmod(number, len(deck))
    cards = list(deck)
    random.Random(f"{seed} deck {turn} {len(deck)}").shuffle(cards)
    return cards[place]


class Case:
    """One case under way.

    Parameters
    ----------
    faults : kinds, each with a point, or "" for a random moment.
    """

    def __init__(self, chaos: Chaos, rng: random.Random, result: Result, faults: Sequence[Card]):
        self.chaos, self.rng, self.result = chaos, rng, result
        self.home = chaos.directory / f"case-{result.number}"
        self.out = self.home / "disk" / "run"
        self.faults = [(kind, point) for kind, point in faults if kind != "lost" or mitigates()]
        self.attempts = 0
        self.start = self.rows = 0  # the round that the attempt goes on from, the rounds in the log
        self.overwrite = False

    def run(self, stack: ExitStack) -> None:
        """All attempts, and the comparison at the end."""
        reference = self.chaos.reference(self.result.setting)
        filling = any(kind == "fill" for kind, _ in self.faults)
        self.disk = stack.enter_context(small_disk(self.home / "disk", 256)) if filling else None
        if filling and not self.disk:
            self.result.words.append("(no tmpfs may be mounted here: limits instead)")
        self.out.parent.mkdir(parents=True, exist_ok=True)
        self.data = self.chaos.data
        if self.rng.random() < 0.15:  # all of it made by the run itself, faults or not
            self.data = self.home / "data"
            self.data.mkdir()
        while self.faults and self._log() != "complete" and not self.result.problems:
            kind, point = self.faults.pop(0)
            kind = "limit" if kind == "fill" and not self.disk else kind
            self._suffer(kind, point, reference)
        if not self.result.problems and self._log() != "complete":
            self._suffer("", "", reference)
        if not self.result.problems:
            self._compare(reference)

    def _log(self) -> str:
        """The status in the log; "" where there is none."""
        return load_run(self.out).status if self.readable and (self.out / "run.h5").exists() else ""

    readable = True  # the log, as far as we have not spoilt it

    def _args(self, every: int, mitigating: bool) -> list[object]:
        """The command that starts the run, or goes on with it."""
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

    def _suffer(self, kind: str, point: str, reference: Run) -> None:
        """One attempt, with a fault (or, if `kind` is "", without) and all that must hold after it."""
        rng, result = self.rng, self.result
        ranks = 3 if self.attempts == 0 else rng.choice((1, 2, 3, 5))
        ranks = max(2, ranks) if kind == "lost" else ranks
        every = rng.choice((1, 2, 3)) if self.attempts == 0 or kind else rng.choice((0, 1, 2, 4))
        fault = None
        if kind:
            fate = rng.choice(("kill", "usr1")) if kind == "damage" else kind
            point = "" if kind == "damage" else point
            fault = draw(rng, fate, point, ranks, self.start, ROUNDS)
        args = self._args(every, kind == "lost")
        self.overwrite, self.readable = False, True
        result.words.append(f"n={ranks} {args[0]} every {every}: {fault or 'to the end'}")
        plan = fault.plan if fault else {}
        attempt = Attempt(args, ranks, self.home / f"attempt-{self.attempts}", plan, kind == "lost")
        self.attempts += 1
        before, old = self.start, _identity(self.out / "run.h5")
        try:
            seconds, late, early = self._strike(attempt, fault)
        finally:
            code, output = attempt.close()
            if self.disk:
                self.disk.clear()
        result.words[-1] += f" -> {code}, {seconds:.1f} s"
        begun = _identity(self.out / "run.h5") != old
        self._check(fault, code, output, late, early, reference, before, every if begun else 0)
        if kind and not late and not result.problems:
            result.kinds[kind] += 1
            result.longest = max(result.longest, seconds)
        self._look_back()
        if kind == "damage" and not result.problems and self._log() != "complete":
            self._spoil()

    def _strike(self, attempt: Attempt, fault: Fault | None) -> tuple[float, bool, bool]:
        """Let the fault happen; (seconds until all was over, it came too late, a victim was not listening yet)."""
        if not fault:
            return attempt.finish(LONGEST), False, False
        if fault.kind == "limit":
            there = attempt.wait_until(lambda: any(board.failed for board in attempt.boards.values()))
        elif fault.point:
            there = attempt.wait_until(lambda: self._held(attempt, fault))
        else:
            there = attempt.wait_until(lambda: attempt.round >= fault.round)
            time.sleep(fault.delay)  # a random moment is what this is for
            there = there and attempt.wait_until(lambda: attempt.boards.keys() >= set(fault.victims))
        if not there:
            return attempt.finish(LONGEST), True, False
        points = {rank: board.point for rank, board in attempt.boards.items()}
        hit = list(fault.victims or points)
        early = any(points.get(rank, "start") == "start" for rank in (range(attempt.ranks)))
        self._send(attempt, fault)
        lives = fault.kind in ("second", "pause") or (fault.kind == "lost" and fault.victims != (0,))
        fill = self.disk.fill if fault.kind == "fill" and self.disk else lambda: None
        if fault.kind == "fill" and not attempt.wait_until(lambda: _failed(attempt, fill)):
            return attempt.finish(LONGEST), True, False
        # Without their launcher ranks end when MPI cannot start, and not before they have loaded everything.
        orphans = not fault.victims and not {"start", "importing"}.isdisjoint(points.values())
        seconds = attempt.finish(LONGEST if lives or orphans else PROMPT, fill)
        if fault.kind in FULL:
            found = [board.failed for board in attempt.boards.values() if board.failed]
        elif fault.kind in HARD or fault.kind == "lost":
            found = [attempt.boards[rank].point for rank in hit if rank in attempt.boards]
        else:
            found = [points[rank] for rank in hit if rank in points]
        self.result.points.update(found)
        self.result.words[-1] += f" [{', '.join(found)}]"
        return 0.0 if lives or orphans else seconds, False, early

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
                send(POLITE[fault.kind])
                time.sleep(0.05)  # so that the handler runs where the process is held, and a second signal is a second
                if fault.kind == "twice":
                    send(signal.SIGINT)
                    time.sleep(0.05)
        attempt.release()

    def _try_second(self) -> None:
        """Another run in the same directory must be refused, whatever it is asked to do there."""
        begin = ["run", *SMALL, *SETTINGS[self.result.setting], "--out", self.out]
        args = self.rng.choice((["resume", self.out], [*begin, "--overwrite"], [*begin, "--resume"]))
        line = [sys.executable, "-m", "mfedpba_mpi", *map(str, args), "--data-dir", str(self.data)]
        done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=LONGEST)
        if done.returncode != 2 or "is in use by" not in done.stderr:
            self.result.problems.append(f"a second `{args[0]}` was not refused: {done.returncode} {done.stderr[-500:]}")

    def _check(
        self, fault: Fault | None, code: int, output: str, late: bool, early: bool, reference: Run, before: int,
        every: int,
    ) -> None:  # fmt: skip
        """What must hold after an attempt: exit code, log, checkpoints."""
        problems = self.result.problems
        tail = output[-1500:]
        if "Traceback" in output and not (early and fault and fault.kind in ("int", "twice")):  # Python's own start
            problems.append(f"a traceback: {output[-3000:]}")
        log = None
        if (self.out / "run.h5").exists():
            try:
                log = load_run(self.out)
            except UserError as error:
                problems.append(f"the log cannot be read: {error}")
                return
        status, rows = (log.status, len(log.rounds.get("accuracy", ()))) if log else ("", 0)
        newest = newest_sound(self.out)
        complete = status == "complete"
        kind = fault.kind if fault else ""
        if not fault or late or kind in ("second", "pause"):
            if (code, status) != (0, "complete"):
                problems.append(f"did not come to its end: exit code {code}, status {status!r}: {tail}")
        elif kind == "lost" and fault.victims != (0,):
            if (code, complete) != (0, True):
                problems.append(f"did not go on without rank {fault.victims}: exit code {code}: {tail}")
        elif complete:
            if code != 0 and kind not in (*HARD, "lost", "twice") and fault.victims:
                problems.append(f"complete, but exit code {code}: {tail}")
        elif code == 0:
            problems.append(f"exit code 0 and status {status!r}: {tail}")
        elif kind in POLITE and not early and (fault.victims or kind == "usr1"):
            if code not in ((75, 130) if kind == "twice" else (75,)):
                problems.append(f"exit code {code}, not 75: {tail}")
            elif code == 75 and (status != "interrupted" or newest != rows):
                problems.append(f"status {status!r}, {rows} rounds in the log, checkpoint of round {newest}: {tail}")
        elif kind in FULL and (code != 1 or "mfedpba-mpi: " not in output or "cannot write" not in output):
            problems.append(f"exit code {code}: {tail}")
        if log:
            problems += [f"after the fault: {words}" for words in differences(log, reference, False)]
            if every and newest < (rows - 1) // every * every:
                problems.append(f"{rows} rounds in the log, but the newest checkpoint is of round {newest}")
            went_on = [entry["round"] for entry in log.attributes["resumed"]]
            if every and before and kind != "lost" and before not in went_on[-1:]:
                problems.append(f"went on from {went_on}, not from round {before}")
        if newest < before:
            problems.append(f"the checkpoint of round {before} is gone, {newest} is the newest: {tail}")
        self.rows = rows

    def _look_back(self) -> None:
        """What the next attempt will start from."""
        self.start = newest_sound(self.out)
        if self._log() != "complete":
            self.result.redone += max(0, self.rows - self.start)

    def _spoil(self) -> None:
        """Damage a file of the newest checkpoint or the log; where nothing sound is left the run must say so."""
        rng, there = self.rng, places(self.out)
        if not there:
            return
        files = [self.out / "run.h5", *sorted(there[0].iterdir())]
        words = spoil(rng.choice(files[:1] if rng.random() < 0.25 else files), rng)
        self.result.words.append(words)
        self.readable = "run.h5" not in words
        self.start = newest_sound(self.out)
        if not self.start:
            line = [sys.executable, "-m", "mfedpba_mpi", "resume", str(self.out), "--data-dir", str(self.data)]
            done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=LONGEST)
            self.result.words.append(f"nothing sound is left: {done.returncode}")
            self.overwrite = True
            if done.returncode != 2 or "Traceback" in done.stderr:
                self.result.problems.append(f"nothing sound to go on from, but {done.returncode}: {done.stderr}")

    def _compare(self, reference: Run) -> None:
        """The end must be that of the unbroken run, and nothing half-written may be left."""
        problems = self.result.problems
        problems += [f"difference: {words}" for words in differences(load_run(self.out), reference, True)]
        left = [path.name for path in self.out.rglob("*.part")]
        if left:
            problems.append(f"left behind: {left}")


def _identity(path: Path) -> tuple[int, int]:
    """What tells a file from the one that takes its place."""
    return (path.stat().st_ino, path.stat().st_mtime_ns) if path.exists() else (0, 0)


def _failed(attempt: Attempt, fill: object) -> bool:
    if callable(fill):
        fill()
    return any(board.failed for board in attempt.boards.values())
