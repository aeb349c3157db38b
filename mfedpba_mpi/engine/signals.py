"""Being asked to stop, by SIGUSR1, SIGTERM or SIGINT: at once where only numbers are computed, else at the next chance.

Files are written and messages sent to their end; a round's computing, of which nothing will count, is dropped where it
is. So a rank that all others wait for is there within moments, whatever it was doing.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

EXIT_INTERRUPTED = 75  # the BSD's EX_TEMPFAIL: try again
SIGNALS = (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT)


class Interrupted(BaseException):
    """Raised in the middle of `Stop.interruptible`; not an Exception, since nobody but the round may catch it."""


class Stop:
    """Whether this process was asked to stop; asked for nothing until `listen` is called.

    Parameters
    ----------
    words : said on the terminal at once after SIGTERM. Open MPI's mpirun answers Ctrl-C by SIGTERM to its ranks and
        SIGKILL 0.2 s later, and passes on nothing that they print in between; the terminal itself is still there.
    """

    def __init__(self, words: str = "") -> None:
        self.words = words
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
        if self.words and not self.asked and number == signal.SIGTERM:
            _tell_terminal(self.words)
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


def _tell_terminal(words: str) -> None:
    """A line on the terminal of this session, where there is one."""
    with suppress(OSError):
        terminal = os.open("/dev/tty", os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK)
        os.write(terminal, f"\n{words}\n".encode(errors="replace"))
        os.close(terminal)
