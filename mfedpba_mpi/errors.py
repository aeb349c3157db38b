"""The ways a run ends early, and the exit codes that tell them apart."""

from __future__ import annotations


class UserError(Exception):
    """Something the user can put right; the message names the thing, the value and the fix."""

    exit_code = 2


class RunError(Exception):
    """The simulation itself cannot go on, for example after a non-finite loss."""

    exit_code = 1


class RankFailed(Exception):
    """Another rank cannot go on; it has said why on the screen, and says it here for the log."""

    def __init__(self, reason: str, exit_code: int):
        super().__init__(reason)
        self.exit_code = exit_code
