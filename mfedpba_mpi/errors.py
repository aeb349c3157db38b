"""Run statuses, exceptions that end a run, and their exit codes."""

from __future__ import annotations

import math
from typing import Any

PROGRAM = "mfedpba-mpi"  # command name, and prefix of final error messages
# Status of a run; WAITING is never stored in a log.
WAITING, RUNNING, COMPLETE, INTERRUPTED, FAILED = "waiting", "running", "complete", "interrupted", "failed"


class SyntheticDataWarning(UserWarning):
    """A run started from Python uses synthetic data because the real data are missing."""


class UserError(Exception):
    """An error that the user can fix; the message names the setting or file, the value and the fix."""

    exit_code = 2


class RunError(Exception):
    """The simulation cannot continue, for example after a non-finite loss."""

    exit_code = 1


class RankLost(RunError):
    """Another rank died, and the MPI library let this rank survive to detect it."""


class RankFailed(Exception):
    """Another rank failed; it printed the reason itself, and `reason` repeats it for the log."""

    def __init__(self, reason: str, exit_code: int):
        super().__init__(reason)
        self.exit_code = exit_code


class Ended(RunError):
    """All ranks agreed to end before the last round; no rank is left waiting.

    `status` is INTERRUPTED (exit code 75: the run can be resumed) or FAILED. Only rank 0 has the reason.
    """

    def __init__(self, status: str, reason: str, exit_code: int):
        super().__init__(reason)
        self.status, self.exit_code = status, exit_code


class EndedByObserver(Ended):
    """An observer ended the run; this is not a failure (exit code 0), and the run can be resumed."""


def check_finite(what: str, value: Any, fix: str) -> None:
    """Raise a RunError if a number, or any element of a tensor, is not finite."""
    number = isinstance(value, float)
    if not (math.isfinite(value) if number else value.isfinite().all()):
        raise RunError(f"{what} is not finite{f' ({value})' if number else ''}; {fix}")


def describe_error(error: BaseException) -> str:
    """Format an error in one line: its notes (the location, outermost first), then the message."""
    if isinstance(error, (RankFailed, RunError)):
        return str(error)  # the message includes the location
    where = ", ".join(reversed(getattr(error, "__notes__", [])))
    kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
    return f"{where + ': ' if where else ''}{kind}{error}"
