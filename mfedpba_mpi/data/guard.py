"""Read untrusted files in a child process, because the libraries crash or hang on some damaged files.

About one in sixty flipped bits in a small MAT-file crashes scipy, and some send HDF5 into an endless loop. The child
does all the work and prints the output. The parent, which has not loaded these libraries, reports how the child ended.
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


def run_guarded(work: Callable[[], object], source: Path, out: Path) -> None:
    """Call `work`, which reads `source` and writes `out`, in a child process, and re-raise its errors here.

    A crash of the child, or a lack of memory, is a UserError; partly written files are removed. The child receives
    Ctrl-C and SIGTERM once, no matter which process they were sent to, and ends when its parent ends.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    reader, writer = os.pipe()
    parent, child, pending = os.getpid(), 0, []

    def forward_signal(number: int, _: FrameType | None) -> None:
        if child:
            os.kill(child, number)
        else:
            pending.append(number)

    # Install the handlers first: blocking affects this thread only, and another thread would take the signal.
    handlers = {number: signal.signal(number, forward_signal) for number in _SIGNALS}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # inherited by the child until it has its own handlers
    child = os.fork()
    if child == 0:
        os.close(reader)
        _child_main(work, source, writer, parent, mask)
    os.close(writer)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    for number in pending:
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
        raise UserError(_death_message(-code, source))
    if code in (UserError.exit_code, RunError.exit_code):
        raise (UserError if code == UserError.exit_code else RunError)(text)
    if code:
        sys.exit(code)


@contextmanager
def cpu_time_limit(seconds: float) -> Iterator[None]:
    """Kill the process when the block takes more CPU time, the only way to stop a library in an endless loop."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _death_message(number: int, source: Path) -> str:
    """Return the error message for a child that was killed by a signal."""
    name = signal.Signals(number).name
    if number not in (*_CRASHES, signal.SIGPROF):
        return f"the process reading {source} was killed ({name}), perhaps for lack of memory; free memory and retry"
    what = f"a file in {source}" if source.is_dir() else str(source)
    how = "did not finish" if number == signal.SIGPROF else f"crashed, {name}"
    return f"cannot read {what}: damaged, or not the format of its suffix (its reader {how}); get the file again"


def _child_main(work: Callable[[], object], source: Path, writer: int, parent: int, mask: Iterable[int]) -> NoReturn:
    """Run `work` in the child with a memory limit; exit with a code, and write the error message to `writer`."""
    code, text = 1, ""
    try:
        for number in _SIGNALS:
            signal.signal(number, _exit_on_signal)
        with suppress(AttributeError):  # Linux
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # the parent ended before prctl
            sys.exit(1)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        limit = _limit_memory()
        try:
            work()
        except MemoryError:
            raise UserError(
                f"{source} needs more than the {limit / 1e9:.3g} GB of free memory; it is damaged, or needs a larger "
                "machine"
            ) from None
        sys.stdout.flush()
        code = 0
    except (UserError, RunError) as error:
        code, text = error.exit_code, printable(str(error))  # names read from files may contain control characters
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


def _exit_on_signal(number: int, frame: FrameType | None) -> NoReturn:
    """Exit by an exception so that cleanup handlers run, and ignore further signals meanwhile."""
    for other in _SIGNALS:
        signal.signal(other, signal.SIG_IGN)
    sys.exit(128 + number)


def _limit_memory() -> int:
    """Limit this process to the free memory, so that a file with a huge claimed size is an error; return the bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if not os.path.exists("/proc/meminfo"):  # not Linux: no limit
        return soft
    with open("/proc/meminfo") as file:
        kilobytes = {line.split(":")[0]: int(line.split()[1]) for line in file}
    free = 1024 * (kilobytes["MemAvailable"] + kilobytes["SwapFree"])
    limit = min(limit for limit in (free, soft, hard) if limit != resource.RLIM_INFINITY)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    return limit
