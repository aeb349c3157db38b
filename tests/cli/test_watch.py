"""``mfedpba-mpi watch``: characters that a terminal cannot show, without a terminal, and in a real one."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import time

import pytest
from rich.console import Console

from mfedpba_mpi.errors import COMPLETE, RUNNING
from mfedpba_mpi.records.lock import locked
from tests.watch.examples import run_of, set_attributes, shown, study_at, watched

WATCH = [sys.executable, "-m", "mfedpba_mpi", "watch"]


ARGUMENTS = ("--dataset", "synthetic", "--samples", 120, "--classes", 3, "--dims", "6,10,8", "--feature-dim", 8)


def test_control_characters_and_markup_in_names_are_shown_as_text():
    view = shown(watched(run_of(dataset="\x1b[2J[red]x", hosts=["a\nb"])))
    assert "?[2J[red]x" in view
    assert "\x1b" not in view


def test_a_terminal_without_unicode_gets_ascii(monkeypatch):
    monkeypatch.setattr(Console, "encoding", "ascii")
    view = shown(watched(run_of()))
    assert view.isascii()
    assert "###" in view
    assert "***" in view


def test_without_a_terminal_one_view_is_printed(finished, tmp_path):
    directory = finished().path.parent
    set_attributes(directory, status=RUNNING)
    done = subprocess.run([*WATCH, directory], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "round 3/3" in done.stdout
    assert "\x1b" not in done.stdout


def test_a_directory_without_a_run_is_refused_with_the_fix(tmp_path):
    done = subprocess.run([*WATCH, tmp_path], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "contains neither run.h5 nor study.toml; give the directory of a run" in done.stderr
    assert done.stderr.count("\n") == 1


def test_help_loads_nothing_heavy():
    code = "import sys, mfedpba_mpi.cli.watch as w\nw.watch(['--help'], standalone_mode=False)\n"
    code += "print([name for name in ('torch', 'mpi4py', 'h5py', 'scipy', 'rich') if name in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "--once" in out
    assert out.endswith("[]\n")


class Terminal:
    """A shell in tmux; `wait` returns the text of the screen once it matches a pattern."""

    def __init__(self, directory, width, height):
        self.name = f"{directory.name}-{os.getpid()}"
        self.tmux("-f", "/dev/null", "new-session", "-d", "-x", width, "-y", height, "-c", directory, "sh")

    def tmux(self, *words):
        line = ["tmux", "-L", self.name, *map(str, words)]
        return subprocess.run(line, capture_output=True, text=True, check=True).stdout

    def watch(self, *words):
        self.tmux("send-keys", f"clear; {shlex.join([*WATCH, *map(str, words)])}; echo code=$?=", "Enter")

    def wait(self, pattern):
        until = time.monotonic() + 30
        while not re.search(pattern, seen := self.tmux("capture-pane", "-p")):
            assert time.monotonic() < until, seen
            time.sleep(0.05)  # leave the CPU to the watched processes
        return seen

    @property
    def alternate(self):
        """Whether a program uses the alternate screen."""
        return self.tmux("display-message", "-p", "#{alternate_on}").strip() == "1"


@pytest.fixture
def terminal(tmp_path):
    """A function that opens a terminal of the given size."""
    if not shutil.which("tmux"):
        pytest.skip("no tmux on the PATH")
    opened = []

    def start(width, height):
        opened.append(Terminal(tmp_path, width, height))
        return opened[-1]

    yield start
    for each in opened:
        each.tmux("kill-server")


def test_a_run_is_followed_through_a_resize_until_it_is_killed(started, terminal):
    process = started(*ARGUMENTS, "--rounds", 100000)
    screen = terminal(80, 24)
    screen.watch("out")
    first = int(re.search(r"running  round (\d+)/100000", screen.wait("ETA .* per round"))[1])
    screen.wait(rf"round (?!{first}/)\d+/100000")
    assert screen.alternate
    screen.tmux("resize-window", "-x", 40, "-y", 20)
    narrow = screen.wait(r"(?m)^average \d")
    assert "…" not in narrow
    process.kill()
    process.wait()
    last = screen.wait("code=0=")
    assert not screen.alternate
    for words in ("interrupted  round", "its process exited", "resume with `mfedpba-mpi resume out`"):
        assert words in last


def test_a_run_is_followed_to_its_end(finished, terminal):
    directory = finished().path.parent
    set_attributes(directory, status=RUNNING)
    screen = terminal(120, 40)
    with locked(directory):
        screen.watch(directory.name)
        screen.wait("running  round 3/3")
        set_attributes(directory, status=COMPLETE)
    assert "complete  round 3/3" in screen.wait("code=0=")


def test_a_damaged_log_is_reported_until_it_is_replaced(finished, terminal):
    log = finished().path
    whole = log.read_bytes()
    log.write_bytes(whole[:3000])
    screen = terminal(80, 24)
    screen.watch(log.parent.name)
    assert "Traceback" not in screen.wait(r"wrong\s+checksum")
    aside = log.with_name("aside")
    aside.write_bytes(whole)
    aside.replace(log)
    assert "complete  round 3/3" in screen.wait("code=0=")


def test_control_c_ends_watch_and_leaves_the_last_view(finished, terminal, tmp_path):
    directory = study_at(tmp_path / "study", finished)
    screen = terminal(40, 20)
    with locked(directory / "fedproto/s0"):
        screen.watch("study")
        screen.wait("2 waiting")
        assert screen.alternate
        screen.tmux("send-keys", "C-c")
        last = screen.wait("code=0=")
    assert not screen.alternate
    assert "fedproto/s0  running" in last
