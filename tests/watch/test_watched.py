"""The live view: its parts against values computed by hand, and the command in a real terminal."""

import io
import json
import math
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from mfedpba_mpi import Run, load_run
from mfedpba_mpi.cli.watch import find, rendered
from mfedpba_mpi.comm.serial import SerialComm
from mfedpba_mpi.data.sealed import open_image, seal
from mfedpba_mpi.engine.loop import run_rounds
from mfedpba_mpi.engine.observers import Observer
from mfedpba_mpi.errors import COMPLETE, FAILED, INTERRUPTED, RUNNING, WAITING
from mfedpba_mpi.records.lock import LOCK_NAME, locked
from mfedpba_mpi.records.run import LOG_NAME, RunWarning
from mfedpba_mpi.records.run_log import RunLog
from mfedpba_mpi.records.status import STALLED, STARTING, RunState
from mfedpba_mpi.watch.drawing import bar, braille, flow, grid, spark
from mfedpba_mpi.watch.pictures import average_curve, busy, losses, pace_of
from mfedpba_mpi.watch.watched import Row, WatchedRun, time_left

WATCH = [sys.executable, "-m", "mfedpba_mpi", "watch"]
ARGUMENTS = ("--dataset", "synthetic", "--samples", 120, "--classes", 3, "--dims", "6,10,8", "--feature-dim", 8)
STUDY = """
title = "Small"
[settings]
dataset = "synthetic"
[cross]
method = ["local", "fedproto"]
seed = [0, 1]
"""


def run_of(T=5, K=3, rounds=10, warnings=(), **changes):
    """A running run: T finished rounds of two seconds each; client k computed for (k + 1) / 10 seconds per round."""
    clients = np.arange(1, K + 1) / 10
    attributes = {
        "label": "MFedPBA", "dataset": "mfeat", "data_origin": "synthetic", "status": RUNNING, "ranks": K + 1,
        "hosts": ["node1", "node2"], "resumed": [], "seconds_setup": 3.0, "seed": 0,
        "config": {"rounds": rounds, "partition": "m2", "validation": 0.0},
    }  # fmt: skip
    arrays = {
        "tested": np.full((T, K), 20), "correct": np.linspace(5, 15, T).round().astype(int)[:, None].repeat(K, 1),
        "accuracy": np.full((T, K), 0.5), "loss_ce": np.ones((T, K)), "server_rec": np.full(T, np.nan),
        "seconds_total": np.full(T, 2.0), "seconds_train": np.full(T, 1.0), "seconds_server": np.full(T, 0.5),
        "seconds_eval": np.full(T, 0.25), "seconds_comm": np.full(T, 0.25), "seconds_checkpoint": np.zeros(T),
        "seconds_client": np.tile(clients, (T, 1)),
    }  # fmt: skip
    empty = {name: arrays[name][:0] for name in ("accuracy", "correct", "tested")}  # as `load_run` returns them
    partition = {"rank": np.arange(1, K + 1)}
    return Run(Path("somewhere/run.h5"), attributes | changes, arrays if T else empty, partition, {}, warnings)


def watched(run, status=RUNNING, reason=""):
    result = WatchedRun(Path("somewhere"))
    result.run, result.state = run, RunState(status, reason)
    return result


def shown(subject, width=80, height=24, **options):
    screen = Console(file=io.StringIO(), force_terminal=True, width=width, height=height, color_system=None, **options)
    screen.print(rendered(subject, screen))
    return screen.file.getvalue().rstrip("\n")


def restate(directory, **attributes):
    """Change attributes of a log."""
    path, aside = directory / LOG_NAME, directory / "aside"
    with open_image(path) as file:
        file.attrs.update(attributes)
        file.flush()
        aside.write_bytes(seal(file.id.get_file_image()))
    aside.replace(path)


@pytest.mark.parametrize(
    ("share", "width", "drawn"),
    [(0.5, 4, "██"), (5 / 16, 4, "█▎"), (1, 3, "███"), (0, 3, ""), (1 / 8, 1, "▏"), (7.0, 2, "██"), (math.nan, 4, "")],
)
def test_a_bar_has_as_many_eighths_of_a_column_as_its_share(share, width, drawn):
    assert bar(share, width) == drawn


def test_a_sparkline_spans_all_block_heights():
    assert spark(np.arange(8.0), 10) == "▁▂▃▄▅▆▇█"
    assert spark(np.arange(15.0), 8) == "▁▂▃▄▅▆▇█"
    assert spark(np.array([3.0, 3.0, math.inf]), 8) == "▁▁"
    assert spark(np.array([]), 8) == ""


def test_a_curve_joins_its_points():
    # the lowest left dot, and the right column from the highest dot down to the row above it
    assert braille(np.array([1, 2]), np.array([0.0, 1.0]), 0, 1, 1, 1) == [chr(0x2800 + 0x40 + 0x08 + 0x10 + 0x20)]
    assert braille(np.array([1, 9]), np.array([1.0, 1.0]), 0, 1, 3, 2) == ["⠉⠉⠉", "   "]
    assert braille(np.array([4]), np.array([0.0]), 0, 1, 2, 1) == ["⡀ "]


def test_the_curve_is_labelled_with_its_range_and_rounds():
    lines = ["".join(words for words, _ in line) for line in average_curve(run_of(), 40, 4)]
    assert lines[0] == "average 75.00%  best 75.00% (round 5)"
    assert [line[:6] for line in lines[1:]] == [" 75% │", "     │", "     │", " 25% │", "     └"]
    assert lines[-1].startswith("     └1 ──")
    assert lines[-1].endswith(" round 5")
    assert {len(line) for line in lines[1:]} == {40}


def test_time_left_follows_recent_rounds_and_subtracts_the_time_of_the_current_one():
    pace = pace_of(run_of(), age=1.5)
    assert (pace.t, pace.T, pace.each, pace.elapsed, pace.left) == (5, 10, 2.0, 3 + 10 + 1.5, 8.5)
    assert pace_of(run_of(), age=100).left == 8.0
    assert math.isnan(pace_of(run_of(T=0), 0).left)
    faster = run_of(T=40, rounds=50)
    faster.rounds["seconds_total"][20:] = 1.0
    assert pace_of(faster, 0).left == 10.0


def test_time_left_of_a_study_follows_its_complete_runs():
    rows = [
        Row(Path("a"), RunState(COMPLETE), seconds=10, share=1),
        Row(Path("b"), RunState(COMPLETE), seconds=20, share=1),
        Row(Path("c"), RunState(RUNNING), seconds=1, share=0.5),
        Row(Path("d"), RunState(RUNNING), share=0.5),
        Row(Path("e"), RunState(WAITING)),
    ]
    assert time_left(rows) == 2 * 15 / 2
    assert time_left(rows[2:]) == time_left(rows[:2]) == 0


def test_losses_are_means_over_participants():
    run = run_of(T=2)
    run.rounds["loss_ce"] = np.array([[1.0, 3.0, np.nan], [np.nan, np.nan, 5.0]])
    run.rounds["loss_fea"] = np.full((2, 3), np.nan)
    run.rounds["server_con"] = np.array([np.nan, 7.0])
    found = losses(run)
    assert list(found) == ["loss ce", "server con"]
    np.testing.assert_array_equal(found["loss ce"], [2, 5])
    np.testing.assert_array_equal(found["server con"], [7])


def test_busy_counts_the_clients_of_a_rank_and_on_rank_0_the_server():
    assert busy(run_of()) == pytest.approx({0: 0.25, 1: 0.05, 2: 0.1, 3: 0.15})
    assert busy(run_of(resumed=[{"ranks": 2, "hosts": ["node3"]}])) == {}


def test_phrases_wrap_and_cells_fill_columns():
    lines = ["".join(words for words, _ in line) for line in flow([("one", ""), ("two", ""), ("three", "")], 8)]
    assert lines == ["one  two", "three"]
    cells = [[(name, "")] for name in "abc"]
    assert ["".join(words for words, _ in line) for line in grid(cells, 3, 2)] == ["a    c", "b"]


@pytest.mark.parametrize("size", [(20, 8), (40, 20), (80, 24), (81, 25), (120, 40), (250, 90)])
@pytest.mark.parametrize("K", [1, 6, 1000])
def test_the_view_fits_every_terminal(size, K):
    warnings = [RunWarning(t, "a long warning " * 20) for t in range(9)]
    for T, status, reason, own in [
        (0, RUNNING, "", ()), (1, RUNNING, "", ()), (9, FAILED, "a reason " * 20, ()), (9, RUNNING, "", warnings),
    ]:  # fmt: skip
        view = shown(watched(run_of(T, K, warnings=own), status, reason), *size)
        lines = view.split("\n")
        assert len(lines) < size[1]
        assert max(map(len, lines)) <= size[0]
        assert "SYNTHETIC" in view
        assert (f"round {T}/10" in view) or size == (20, 8)


def test_the_view_shows_progress_clients_losses_times_and_ranks():
    view = shown(watched(run_of(K=6)), 80, 24)
    for words in ("running  round 5/10  elapsed 13 s  ETA 10 s  2 s per round", "client 5", "50.0%", "loss ce",
                  "train 50%", "7 ranks on 2 hosts: node1, node2", "busy  0: 25%  1: 5%"):  # fmt: skip
        assert words in view
    assert "server rec" not in view
    assert "…" not in view


def test_clients_that_do_not_fit_are_summarised_by_quantiles():
    run = run_of(K=1000)
    run.rounds["accuracy"][-1] = np.arange(1000) / 999
    assert re.search(r"and \d+ more  all: 0% to 100%, quartiles 25% 50% 75%", shown(watched(run)))


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


def test_accuracy_on_validation_rows_is_labelled():
    config = {"rounds": 10, "partition": "m2", "validation": 0.2}
    assert "average validation accuracy" in shown(watched(run_of(config=config)))


def test_the_last_warnings_are_shown_with_their_rounds(tiny, tmp_path):
    observer = RunLog(tmp_path)
    observer.warn(0, "one thread only")
    run_rounds(tiny(), tmp_path, SerialComm(), [observer, Warner(observer)])
    view = shown(find(tmp_path), 40)
    assert "one thread only" not in view
    assert re.search(
        r"warning \(round 1\): rank 3 is slow *\nwarning \(round 2\): rank 3 is slow *\nwarning \(round 3\): rank 3 "
        r"is slow *\n1 earlier warning, see the report", view,
    )  # fmt: skip
    start = [RunWarning(0, "one thread only, although this rank has more")]
    assert "\nwarning: one thread only, although this…\n" in shown(watched(run_of(warnings=start)), 40)


class Warner(Observer):
    """An observer that sends another one a warning after every round."""

    def __init__(self, other):
        self.other = other

    def round(self, result):
        self.other.warn(result.t, "rank 3 is slow")


def test_a_log_is_loaded_only_after_it_has_changed(finished, monkeypatch):
    directory = finished().path.parent
    read = []
    monkeypatch.setattr("mfedpba_mpi.records.status.load_run", lambda path: read.append(path) or load_run(path))
    subject = find(directory)
    subject.read()
    assert len(read) == 1
    restate(directory, status=INTERRUPTED, reason="because")
    subject.read()
    assert len(read) == 2
    assert (subject.state.status, subject.state.reason) == (INTERRUPTED, "because")


def test_a_run_is_active_as_long_as_its_lock_is_held(finished):
    directory = finished().path.parent
    restate(directory, status=RUNNING)
    with locked(directory):
        os.utime(directory / LOG_NAME, (0, 0))
        subject = find(directory)
        assert subject.state.status == RUNNING
        assert "its process is alive, but the log has not changed since 1970" in shown(subject)
        (directory / LOG_NAME).unlink()
        assert find(directory).state.status == STARTING
        assert "starting\nno log yet" in shown(find(directory))


@pytest.mark.parametrize("host", [socket.gethostname(), "elsewhere"])
def test_a_run_that_was_killed_is_interrupted_at_once(finished, monkeypatch, host):
    directory = finished().path.parent
    restate(directory, status=RUNNING)
    monkeypatch.setattr("mfedpba_mpi.records.status.shares_locks", lambda _: True)
    # the process id may have been reused by another process
    (directory / LOCK_NAME).write_text(json.dumps({"host": host, "pid": os.getpid(), "since": "then"}))
    subject = find(directory)
    assert subject.state.status == INTERRUPTED
    assert subject.state.reason == "its process exited without a final status"


def test_without_locks_across_hosts_a_run_is_stalled_once_its_log_is_old(finished, monkeypatch):
    directory = finished().path.parent
    restate(directory, status=RUNNING)
    (directory / LOCK_NAME).write_text(json.dumps({"host": f"not {socket.gethostname()}", "pid": 1, "since": "then"}))
    monkeypatch.setattr("mfedpba_mpi.records.status.shares_locks", lambda _: False)
    subject = find(directory)
    assert subject.state.status == RUNNING
    os.utime(directory / LOG_NAME, (time.time() - 3600,) * 2)
    subject = find(directory)
    assert subject.state.status == STALLED
    assert not subject.over
    assert re.search(r"stalled  round 3/3.*\nthe log has not changed since 2", shown(subject))
    assert "only not " in shown(subject)
    assert "can see whether its process is alive" in shown(subject, 200)


def test_watching_writes_nothing(finished):
    directory = finished().path.parent
    before = {path: path.stat().st_mtime_ns for path in [directory, *directory.rglob("*")]}
    shown(find(directory))
    assert {path: path.stat().st_mtime_ns for path in [directory, *directory.rglob("*")]} == before


def study_at(directory, finished):
    """A study with one complete run, one running run (if its lock is held) and two waiting ones."""
    for method in ("local", "fedproto"):
        (directory / method).mkdir(parents=True)
        finished(method=method).path.parent.rename(directory / method / "s0")
    restate(directory / "fedproto/s0", status=RUNNING)
    (directory / "study.toml").write_text(STUDY)
    return directory


@pytest.mark.parametrize("size", [(40, 20), (120, 40)])
def test_a_study_shows_its_runs_and_the_curve_of_the_running_one(finished, tmp_path, size):
    directory = study_at(tmp_path / "study", finished)
    with locked(directory / "fedproto/s0"):
        view = shown(find(directory), *size)
    for words in ("Small  synthetic data", "4 runs: 1 complete, 1 running, 2 waiting", "average"):
        assert words in view
    assert re.search(r"fedproto/s0 +running +3/3 \d\d.\d\d%", view)
    assert re.search(r"local/s0 +complete +3/3 \d\d.\d\d%", view)
    assert max(map(len, view.split("\n"))) <= size[0]
    restate(directory / "fedproto/s0", status=INTERRUPTED)
    assert "no run is active" in shown(find(directory), *size)


def test_without_a_terminal_one_view_is_printed(finished, tmp_path):
    directory = finished().path.parent
    restate(directory, status=RUNNING)
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
    restate(directory, status=RUNNING)
    screen = terminal(120, 40)
    with locked(directory):
        screen.watch(directory.name)
        screen.wait("running  round 3/3")
        restate(directory, status=COMPLETE)
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
