"""Being asked to stop, by SIGUSR1, SIGTERM or SIGINT: at once where only numbers are computed, else at the next chance.

Files are written and messages sent to their end; a round's computing, of which nothing will count, is dropped where it
is. So a rank that all others wait for is there within moments, whatever it was doing.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

EXIT_INTERRUPTED = 75  # the BSD's EX_TEMPFAIL: try again
SIGNALS = (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT)


class Interrupted(BaseException):
    """Raised in the middle of `Stop.interruptible`; not an Exception, since nobody but the round may catch it."""


class Stop:
    """Whether this process was asked to stop; asked for nothing until `listen` is called."""

    def __init__(self) -> None:
        self.asked = ""  # the signal's name
        self._armed = False

    def listen(self) -> None:
        """Take over the signals of this process."""
        for number in SIGNALS:
            signal.signal(number, self._handle)

    @staticmethod
    def ignore() -> None:
        """Be deaf to them: all is done, and what the process says by its exit code is decided."""
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.asked and number == signal.SIGINT:
            raise KeyboardInterrupt  # asked twice: at once
        self.asked = self.asked or signal.Signals(number).name
        if self._armed:
            self._armed = False
            raise Interrupted

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """What may be left in the middle."""
        self._armed = True
        try:
            if self.asked:
                raise Interrupted
            yield
        finally:
            self._armed = False
