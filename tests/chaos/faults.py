"""Faults: signals to one rank, all ranks or the launcher, a full disk, damaged files, a second run."""

from __future__ import annotations

import random
import signal
from dataclasses import dataclass

from tests.chaos.board import POINTS

ABRUPT = ("kill", "segv", "freeze", "impatient")  # end without a chance to clean up
GRACEFUL = {"usr1": signal.SIGUSR1, "term": signal.SIGTERM, "int": signal.SIGINT, "twice": signal.SIGINT}
NO_SPACE = ("limit", "fill")  # RLIMIT_FSIZE, a full tmpfs
# lost: a rank dies and the others continue; damage: of files, after a kill or SIGUSR1; second: another run in the same
# directory; pause: SIGSTOP, then SIGCONT
KINDS = (*ABRUPT, *GRACEFUL, *NO_SPACE, "damage", "lost", "second", "pause")
_WEIGHTS = {"kill": 4, "usr1": 2, "term": 2, "limit": 2, "fill": 2, "damage": 3, "lost": 2}
DECK = [kind for kind in KINDS for _ in range(_WEIGHTS.get(kind, 1))]
BEFORE_MPI = ("start", "importing")
EARLY = ("start", "importing", "set-up", "find checkpoint", "restore")
LATE = ("end", "leaving")


@dataclass(frozen=True)
class Fault:
    """A fault and its moment.

    Attributes
    ----------
    victims : ranks; empty: the launcher.
    point : point at which the first victim (rank 0 for the launcher) is held; "": it is not held.
    round : earliest round; 0: before round 1.
    delay : seconds after the start of that round, if no rank is held.
    size : file size limit in bytes.
    """

    kind: str
    victims: tuple[int, ...]
    point: str
    round: int
    delay: float
    size: int = 0

    @property
    def holder(self) -> int:
        return self.victims[0] if self.victims else 0

    @property
    def plan(self) -> dict[str, object]:
        """The instructions for the instrumented processes."""
        if self.kind == "limit":
            return {"limit": {"ranks": list(self.victims), "round": self.round, "bytes": self.size}}
        return {"hold": {"rank": self.holder, "point": self.point, "round": self.round}} if self.point else {}

    def __str__(self) -> str:
        target = f"rank {','.join(map(str, self.victims))}" if self.victims else "mpirun"
        if self.kind == "limit":
            return f"limit of {self.size} bytes per file for {target} from round {self.round}"
        moment = f"at '{self.point}'" if self.point else f"{self.delay:.2f} s after the start"
        return f"{self.kind} of {target} {moment} of round {self.round}"


def draw(rng: random.Random, kind: str, point: str, ranks: int, last: int, rounds: int) -> Fault:
    """Draw a fault of a kind at a point, or at a random moment if the point is "" or impossible.

    Parameters
    ----------
    last : round of the newest checkpoint.
    rounds : total number of rounds.
    """
    if (POINTS.get(point) == "m" and ranks == 1) or kind in NO_SPACE or (kind == "second" and point in EARLY):
        point = ""
    if kind == "lost" and point in BEFORE_MPI:  # MPI's start-up needs all ranks
        point = ""
    if last >= rounds:  # all rounds are done
        point = rng.choice((*EARLY[2:], *LATE)) if kind != "second" else "leaving"
    victims = _victims(rng, kind, point, ranks)
    if point:
        first = 0 if point in EARLY else rounds if point in LATE else rng.randint(last + 1, max(last + 1, rounds - 1))
        return Fault(kind, victims, point, first, 0.0)
    if kind == "limit":
        return Fault(kind, victims, "", rng.randint(last + 1, rounds), 0.0, rng.choice((0, 4000, 100_000, 300_000)))
    if rng.random() < 0.2 and kind not in ("lost", "second", "fill"):
        return Fault(kind, victims, "", 0, rng.uniform(0, 6))
    at = rng.randint(last + 1, rounds)
    if kind == "second":
        return Fault(kind, victims, "training" if ranks == 1 else "waiting", at, 0.0)
    return Fault(kind, victims, "", at, rng.uniform(0, 0.4))


def _victims(rng: random.Random, kind: str, point: str, ranks: int) -> tuple[int, ...]:
    roles = POINTS.get(point, "sc")
    eligible = [rank for rank in range(ranks) if ranks == 1 or roles == "m" or ("s" if rank == 0 else "c") in roles]
    victim = rng.choice(eligible)
    dice = rng.random()
    if ranks > 1 and dice < 0.15 and kind in ("kill", *GRACEFUL):
        return ()
    if ranks > 1 and dice < 0.4 and kind not in ("lost", "second"):
        return victim, *(rank for rank in range(ranks) if rank != victim)
    return (victim,)
