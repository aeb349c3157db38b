"""What happens in the guarded child process is told by its parent, whatever it is."""

import faulthandler
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from mfedpba_mpi.data.guard import guarded
from mfedpba_mpi.data.store import replacing
from mfedpba_mpi.errors import RunError, UserError

SOURCE = Path("some.mat")


def crash(number: signal.Signals) -> None:
    faulthandler.disable()  # pytest's
    os.kill(os.getpid(), number)


def test_the_work_is_done_in_another_process(tmp_path: Path) -> None:
    out = tmp_path / "out"
    guarded(lambda: out.write_text(str(os.getppid())), SOURCE, out)
    assert out.read_text() == str(os.getpid())


@pytest.mark.parametrize("kind", [UserError, RunError])
def test_an_error_is_raised_again_on_one_line(tmp_path: Path, kind: type[Exception]) -> None:
    def work() -> None:
        raise kind("x\x1b[2J is ü\nbroken")

    with pytest.raises(kind, match=r"^x \[2J is ü broken$"):
        guarded(work, SOURCE, tmp_path / "out")


def test_anything_else_leaves_its_traceback(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RunError, match="ZeroDivisionError: division by zero"):
        guarded(lambda: 1 / 0, SOURCE, tmp_path / "out")
    assert "Traceback" in capfd.readouterr().err


def test_a_crash_names_the_file_and_leaves_nothing_behind(tmp_path: Path) -> None:
    out = tmp_path / "out.h5"
    other = tmp_path / ".out.h5.1-0123abcd.part"  # somebody else's
    other.touch()

    def work() -> None:
        with replacing(out, "some format", 1):
            crash(signal.SIGSEGV)

    with pytest.raises(UserError, match=r"^some\.mat cannot be read: it is damaged, .*SIGSEGV.*get it again$"):
        guarded(work, SOURCE, out)
    assert list(tmp_path.iterdir()) == [other]


def test_a_crash_over_a_directory_says_that_it_is_one_of_its_files(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"^a file in {tmp_path} cannot be read"):
        guarded(lambda: crash(signal.SIGABRT), tmp_path, tmp_path / "out")


def test_a_kill_is_not_blamed_on_the_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"reading some\.mat was ended from outside \(SIGKILL\)"):
        guarded(lambda: crash(signal.SIGKILL), SOURCE, tmp_path / "out")


def test_more_memory_than_there_is_is_an_error_before_it_is_taken(tmp_path: Path) -> None:
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with pytest.raises(UserError, match=r"some\.mat needs more than the [0-9.e+]+ GB of memory that are free"):
        guarded(lambda: bytearray(total + 2**30), SOURCE, tmp_path / "out")


@pytest.mark.parametrize(("number", "end"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
@pytest.mark.parametrize("slow", [False, True])
def test_a_signal_to_the_parent_ends_the_child_tidily(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, end: type[BaseException], slow: bool
) -> None:
    before = signal.getsignal(number)
    done = threading.Event()  # another thread, to which the system may deliver the signal
    bystander = threading.Thread(target=done.wait)
    bystander.start()
    fork = os.fork

    def slow_fork() -> int:
        child = fork()
        if child:
            time.sleep(0.3)  # the child's signal comes first
        return child

    if slow:
        monkeypatch.setattr(os, "fork", slow_fork)

    def work() -> None:
        try:
            os.kill(os.getppid(), number)
            while True:
                signal.pause()
        finally:
            os.kill(os.getpid(), number)  # as from a terminal, which sends it to both
            (tmp_path / "tidied").touch()

    try:
        with pytest.raises(end) as caught:
            guarded(work, SOURCE, tmp_path / "out")
    finally:
        done.set()
        bystander.join()
    assert (tmp_path / "tidied").exists()
    assert signal.getsignal(number) == before
    if isinstance(caught.value, SystemExit):
        assert caught.value.code == 143


def test_the_child_ends_with_its_parent() -> None:
    code = """
import signal
from pathlib import Path
from mfedpba_mpi.data.guard import guarded

def work():
    print("started", flush=True)
    signal.pause()

guarded(work, Path("some.mat"), Path("out"))
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout
        assert parent.stdout.readline() == "started\n"
        parent.kill()
        assert parent.communicate(timeout=60)[0] == ""  # the child has closed it, too
