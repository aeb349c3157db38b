"""The parent reports every way in which the run_guarded child process can end."""

import faulthandler
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from mfedpba_mpi.data.guard import run_guarded
from mfedpba_mpi.data.store import new_file
from mfedpba_mpi.errors import RunError, UserError

SOURCE = Path("some.mat")


def crash(number: signal.Signals) -> None:
    faulthandler.disable()  # pytest's
    os.kill(os.getpid(), number)


def test_the_work_runs_in_a_child_process(tmp_path: Path) -> None:
    out = tmp_path / "out"
    run_guarded(lambda: out.write_text(str(os.getppid())), SOURCE, out)
    assert out.read_text() == str(os.getpid())


@pytest.mark.parametrize("kind", [UserError, RunError])
def test_errors_are_re_raised_on_one_line(tmp_path: Path, kind: type[Exception]) -> None:
    def work() -> None:
        raise kind("x\x1b[2J is ü\nbroken")

    with pytest.raises(kind, match=r"^x \[2J is ü broken$"):
        run_guarded(work, SOURCE, tmp_path / "out")


def test_unexpected_exceptions_print_a_traceback(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RunError, match="ZeroDivisionError: division by zero"):
        run_guarded(lambda: 1 / 0, SOURCE, tmp_path / "out")
    assert "Traceback" in capfd.readouterr().err


def test_a_crash_names_the_file_and_leaves_nothing_behind(tmp_path: Path) -> None:
    out = tmp_path / "out.h5"
    other = tmp_path / ".out.h5.1-0123abcd.part"  # of another process
    other.touch()

    def work() -> None:
        with new_file(out, "some format", 1):
            crash(signal.SIGSEGV)

    with pytest.raises(UserError, match=r"^cannot read some\.mat: damaged, .*SIGSEGV.*get the file again$"):
        run_guarded(work, SOURCE, out)
    assert list(tmp_path.iterdir()) == [other]


def test_a_crash_on_a_directory_blames_one_of_its_files(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"^cannot read a file in {tmp_path}: damaged"):
        run_guarded(lambda: crash(signal.SIGABRT), tmp_path, tmp_path / "out")


def test_a_kill_is_not_blamed_on_the_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"the process reading some\.mat was killed \(SIGKILL\)"):
        run_guarded(lambda: crash(signal.SIGKILL), SOURCE, tmp_path / "out")


def test_requesting_more_than_the_free_memory_is_an_error(tmp_path: Path) -> None:
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with pytest.raises(UserError, match=r"some\.mat needs more than the [0-9.e+]+ GB of free memory"):
        run_guarded(lambda: bytearray(total + 2**30), SOURCE, tmp_path / "out")


@pytest.mark.parametrize(("number", "end"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
@pytest.mark.parametrize("slow", [False, True])
def test_a_signal_to_the_parent_ends_the_child_after_cleanup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, end: type[BaseException], slow: bool
) -> None:
    before = signal.getsignal(number)
    done = threading.Event()  # the system may deliver the signal to another thread
    bystander = threading.Thread(target=done.wait)
    bystander.start()
    fork = os.fork

    def slow_fork() -> int:
        child = fork()
        if child:
            time.sleep(0.3)  # so that the child's signal arrives first
        return child

    if slow:
        monkeypatch.setattr(os, "fork", slow_fork)

    def work() -> None:
        try:
            os.kill(os.getppid(), number)
            while True:
                signal.pause()
        finally:
            os.kill(os.getpid(), number)  # a terminal sends it to both processes
            (tmp_path / "cleaned").touch()

    try:
        with pytest.raises(end) as caught:
            run_guarded(work, SOURCE, tmp_path / "out")
    finally:
        done.set()
        bystander.join()
    assert (tmp_path / "cleaned").exists()
    assert signal.getsignal(number) == before
    if isinstance(caught.value, SystemExit):
        assert caught.value.code == 143


def test_the_child_ends_with_its_parent() -> None:
    code = """
import signal
from pathlib import Path
from mfedpba_mpi.data.guard import run_guarded

def work():
    print("started", flush=True)
    signal.pause()

run_guarded(work, Path("some.mat"), Path("out"))
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout
        assert parent.stdout.readline() == "started\n"
        parent.kill()
        assert parent.communicate(timeout=60)[0] == ""  # end of file: the child has closed it, too
