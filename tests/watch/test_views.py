"""Watched runs and studies: their states, read from files, and the view of a study."""

import json
import os
import re
import socket
import time
from pathlib import Path

import pytest

from mfedpba_mpi import load_run
from mfedpba_mpi.cli.watch import find
from mfedpba_mpi.errors import COMPLETE, INTERRUPTED, RUNNING, WAITING
from mfedpba_mpi.records.lock import LOCK_NAME, locked
from mfedpba_mpi.records.run import LOG_NAME
from mfedpba_mpi.records.status import STALLED, STARTING, RunState
from mfedpba_mpi.watch.views import Row, time_left
from tests.watch.examples import set_attributes, shown, study_at


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


def test_a_log_is_loaded_only_after_it_has_changed(finished, monkeypatch):
    directory = finished().path.parent
    read = []
    monkeypatch.setattr("mfedpba_mpi.records.status.load_run", lambda path: read.append(path) or load_run(path))
    subject = find(directory)
    subject.read()
    assert len(read) == 1
    set_attributes(directory, status=INTERRUPTED, reason="because")
    subject.read()
    assert len(read) == 2
    assert (subject.state.status, subject.state.reason) == (INTERRUPTED, "because")


def test_a_run_is_active_as_long_as_its_lock_is_held(finished):
    directory = finished().path.parent
    set_attributes(directory, status=RUNNING)
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
    set_attributes(directory, status=RUNNING)
    monkeypatch.setattr("mfedpba_mpi.records.status.shares_locks", lambda _: True)
    # the process id may have been reused by another process
    (directory / LOCK_NAME).write_text(json.dumps({"host": host, "pid": os.getpid(), "since": "then"}))
    subject = find(directory)
    assert subject.state.status == INTERRUPTED
    assert subject.state.reason == "its process exited without a final status"


def test_without_locks_across_hosts_a_run_is_stalled_once_its_log_is_old(finished, monkeypatch):
    directory = finished().path.parent
    set_attributes(directory, status=RUNNING)
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
    set_attributes(directory / "fedproto/s0", status=INTERRUPTED)
    assert "no run is active" in shown(find(directory), *size)
