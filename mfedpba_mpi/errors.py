"""The ways a run ends, and the exit codes that tell them apart."""

from __future__ import annotations

import math
from typing import Any

PROGRAM = "mfedpba-mpi"  # as it is called, and before every last word of it
# The status of a run; one that waits has no log that says so.
WAITING, RUNNING, COMPLETE, INTERRUPTED, FAILED = "waiting", "running", "complete", "interrupted", "failed"


class SyntheticDataWarning(UserWarning):
    """A run from Python uses synthetic data in the place of real data that are not there."""


class UserError(Exception):
    """Something the user can put right; the message names the thing, the value and the fix."""

    exit_code = 2


class RunError(Exception):
    """The simulation itself cannot go on, for example after a non-finite loss."""

    exit_code = 1


class RankLost(RunError):
    """Another rank has died, and the MPI at hand lets this one live to see it."""


class RankFailed(Exception):
    """Another rank cannot go on; it has said why on the screen, and says it here for the log."""

    def __init__(self, reason: str, exit_code: int):
        super().__init__(reason)
        self.exit_code = exit_code


class Ended(RunError):
    """All ranks have agreed to end before the last round; no rank waits for another.

    `status` is INTERRUPTED (exit code 75: resume and it goes on) or FAILED. Only rank 0 knows the reason.
    """

    def __init__(self, status: str, reason: str, exit_code: int):
        super().__init__(reason)
        self.status, self.exit_code = status, exit_code


class EndedByObserver(Ended):
    """An observer has ended the run in good order, which is no failure (exit code 0); it can be resumed."""


def check_finite(what: str, value: Any, fix: str) -> None:
    """Raise a RunError where a number, or a tensor, is not finite."""
    number = isinstance(value, float)
    if not (math.isfinite(value) if number else value.isfinite().all()):
        raise RunError(f"{what} is not finite{f' ({value})' if number else ''}; {fix}")


def describe_error(error: BaseException) -> str:
    """One line: where (innermost first on the error, outermost first here), what."""
    if isinstance(error, (RankFailed, RunError)):
        return str(error)  # says where itself
    where = ", ".join(reversed(getattr(error, "__notes__", [])))
    kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
    return f"{where + ': ' if where else ''}{kind}{error}"
