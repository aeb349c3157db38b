"""Stopping in order after SIGUSR1, SIGTERM or SIGINT.

A signal interrupts computation at once, because the round becomes void anyway. Writing files and exchanging messages
are never interrupted. So the other ranks wait only moments for a rank that received a signal.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

EXIT_INTERRUPTED = 75  # EX_TEMPFAIL of BSD's sysexits.h: try again
SIGNALS = (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT)


class Interrupted(BaseException):
    """Raised inside `Stop.interruptible`. Not an Exception, so that only the round catches it."""


class Stop:
    """A request to stop, made by a signal; there is none until `listen` is called.

    Parameters
    ----------
    farewell : printed on the terminal directly after SIGTERM. On Ctrl-C, Open MPI's mpirun sends SIGTERM to its ranks
        and SIGKILL 0.2 s later, and forwards nothing that they print in between.

    Attributes
    ----------
    signal : name of the first signal received, "" if none.
    """

    def __init__(self, farewell: str = "") -> None:
        self.farewell = farewell
        self.signal = ""
        self._armed = False

    def listen(self) -> None:
        """Install the signal handlers."""
        for number in SIGNALS:
            signal.signal(number, self._handle)

    @staticmethod
    def ignore() -> None:
        """Ignore the signals from here on: the run has ended and its exit code is decided."""
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.signal and number == signal.SIGINT:
            raise KeyboardInterrupt  # the second request ends the process at once
        if self.farewell and not self.signal and number == signal.SIGTERM:
            _print_on_terminal(self.farewell)
        self.signal = self.signal or signal.Signals(number).name
        if self._armed:
            self._armed = False
            raise Interrupted

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Raise `Interrupted` inside this block when a signal arrives, or on entry if one has arrived before."""
        self._armed = True
        try:
            if self.signal:
                raise Interrupted
            yield
        finally:
            self._armed = False


def _print_on_terminal(text: str) -> None:
    """Print a line on the controlling terminal, if there is one."""
    with suppress(OSError):
        terminal = os.open("/dev/tty", os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK)
        os.write(terminal, f"\n{text}\n".encode(errors="replace"))
        os.close(terminal)
