"""Reading files of others in a child process: the libraries that do so crash on some damaged files.

scipy dies of about one in sixty flipped bits in a small MAT-file, and HDF5 comes to no end with some. The child does
all the work and prints what there is to print; its parent, in which nothing is loaded yet, says what became of it.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

from mfedpba_mpi.data.catalog import printable
from mfedpba_mpi.errors import RunError, UserError

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_PR_SET_PDEATHSIG = 1
_CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL)


def guarded(work: Callable[[], object], source: Path, out: Path) -> None:
    """Call `work`, which reads `source` and writes `out`, in a child process; its errors are raised here.

    Where the child crashes, or wants more memory than there is, that is a UserError, and what it has begun to write is
    removed. Ctrl-C and SIGTERM reach the child once, wherever they were sent to; it ends when its parent does.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    reader, writer = os.pipe()
    parent, child, early = os.getpid(), 0, []

    def pass_on(number: int, _: FrameType | None) -> None:
        if child:
            os.kill(child, number)
        else:
            early.append(number)

    # Handlers first: blocking holds signals back from this thread only, and another thread of the process takes them.
    handlers = {number: signal.signal(number, pass_on) for number in _SIGNALS}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # the child inherits this until it has its own handlers
    child = os.fork()
    if child == 0:
        os.close(reader)
        _run(work, source, writer, parent, mask)
    os.close(writer)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    for number in early:
        os.kill(child, number)
    try:
        with open(reader, encoding="utf-8") as report:
            text = report.read()
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if code == 128 + signal.SIGINT:
        raise KeyboardInterrupt
    if code < 0:
        for part in out.parent.glob(f".{out.name}.{child}-*.part"):
            part.unlink(missing_ok=True)
        raise UserError(_died(-code, source))
    if code in (UserError.exit_code, RunError.exit_code):
        raise (UserError if code == UserError.exit_code else RunError)(text)
    if code:
        sys.exit(code)


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """End the process where the block takes more CPU time; a library that goes in circles stops in no other way."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _died(number: int, source: Path) -> str:
    name = signal.Signals(number).name
    if number not in (*_CRASHES, signal.SIGPROF):
        return f"reading {source} was ended from outside ({name}), as when memory runs out; free some, try again"
    what = f"a file in {source}" if source.is_dir() else str(source)
    how = "came to no end" if number == signal.SIGPROF else f"crashed, {name}"
    return f"{what} cannot be read: it is damaged, or not what its name says (its reader {how}); get it again"


def _run(work: Callable[[], object], source: Path, writer: int, parent: int, mask: Iterable[int]) -> NoReturn:
    """The child: `work`, within the memory that there is; ends with an exit code, and the text of an error if any."""
    code, text = 1, ""
    try:
        for number in _SIGNALS:
            signal.signal(number, _stop)
        with suppress(AttributeError):  # Linux
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # too late
            sys.exit(1)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        limit = _limit_memory()
        try:
            work()
        except MemoryError:
            larger = "it is damaged, or has to be read on a larger machine"
            raise UserError(
                f"{source} needs more than the {limit / 1e9:.3g} GB of memory that are free; {larger}"
            ) from None
        sys.stdout.flush()
        code = 0
    except (UserError, RunError) as error:
        code, text = error.exit_code, printable(str(error))  # there may be anything in names out of files
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException as error:
        traceback.print_exc()
        text = f"{type(error).__name__}: {error}"
    finally:
        with suppress(OSError, ValueError):
            sys.stderr.flush()
            os.write(writer, text.encode(errors="replace"))
        os._exit(code)


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    """End by an exception, so that what was begun is cleaned away, and do not be disturbed in that."""
    for other in _SIGNALS:
        signal.signal(other, signal.SIG_IGN)
    sys.exit(128 + number)


def _limit_memory() -> int:
    """Give this process no more memory than is free, so that a file that claims to be huge is an error; the bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if not os.path.exists("/proc/meminfo"):  # not Linux: as much as it takes
        return soft
    with open("/proc/meminfo") as file:
        kilobytes = {line.split(":")[0]: int(line.split()[1]) for line in file}
    free = 1024 * (kilobytes["MemAvailable"] + kilobytes["SwapFree"])
    limit = min(limit for limit in (free, soft, hard) if limit != resource.RLIM_INFINITY)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    return limit
