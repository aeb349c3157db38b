"""What can happen to a run: signals to one rank, to all or to the launcher, a full disk, damage, a second run."""

from __future__ import annotations

import random
import signal
from dataclasses import dataclass

from tests.chaos.board import POINTS

HARD = ("kill", "segv", "freeze", "impatient")  # the run cannot see them coming
POLITE = {"usr1": signal.SIGUSR1, "term": signal.SIGTERM, "int": signal.SIGINT, "twice": signal.SIGINT}
FULL = ("limit", "fill")  # no space: RLIMIT_FSIZE, a full tmpfs
# lost: a rank dies and the others go on; damage: of files, after a hard or polite end; pause: stopped and continued
KINDS = (*HARD, *POLITE, *FULL, "damage", "lost", "second", "pause")
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
    victims : ranks; none: the launcher.
    point : where the first victim (rank 0, for the launcher) is held; "": it is not.
    round : of the moment at the earliest; 0: before round 1.
    delay : seconds from then, where nobody is held.
    size : bytes, of a limit.
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
        """The orders for the processes."""
        if self.kind == "limit":
            return {"limit": {"ranks": list(self.victims), "round": self.round, "bytes": self.size}}
        return {"hold": {"rank": self.holder, "point": self.point, "round": self.round}} if self.point else {}

    def __str__(self) -> str:
        whom = f"rank {','.join(map(str, self.victims))}" if self.victims else "mpirun"
        if self.kind == "limit":
            return f"{self.size} bytes a file for {whom} from round {self.round}"
        moment = f"at '{self.point}'" if self.point else f"{self.delay:.2f} s after the start"
        return f"{self.kind} of {whom} {moment} of round {self.round}"


def draw(rng: random.Random, kind: str, point: str, ranks: int, last: int, rounds: int) -> Fault:
    """A fault of a kind, at a point or, where that is "" or cannot be, at a random moment.

    Parameters
    ----------
    last : the round of the newest checkpoint.
    rounds : in all.
    """
    if (POINTS.get(point) == "m" and ranks == 1) or kind in FULL or (kind == "second" and point in EARLY):
        point = ""
    if kind == "lost" and point in BEFORE_MPI:  # nothing can outlive what MPI's own start waits for
        point = ""
    if last >= rounds:  # no round is left, only the end
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
    who = POINTS.get(point, "sc")
    able = [rank for rank in range(ranks) if ranks == 1 or who == "m" or ("s" if rank == 0 else "c") in who]
    victim = rng.choice(able)
    dice = rng.random()
    if ranks > 1 and dice < 0.15 and kind in ("kill", *POLITE):
        return ()
    if ranks > 1 and dice < 0.4 and kind not in ("lost", "second"):
        return victim, *(rank for rank in range(ranks) if rank != victim)
    return (victim,)
