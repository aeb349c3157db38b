"""The state of a run from its files."""

import json
import os
import socket

import pytest

from mfedpba_mpi.records.lock import LOCK_NAME, held, locked
from mfedpba_mpi.records.run import CHECKPOINTS
from mfedpba_mpi.records.status import OUTPUT, overview, read_state


def test_a_directory_tells_how_far_its_run_is(finished, tmp_path):
    directory = tmp_path / "place"
    assert read_state(directory).status == "waiting"
    directory.mkdir()
    (directory / OUTPUT).write_text("$ mfedpba-mpi run\n")
    assert read_state(directory).status == "waiting"
    (directory / OUTPUT).write_text("$ mfedpba-mpi run\nmfedpba-mpi: no room\n\n")
    assert (read_state(directory).status, read_state(directory).reason) == ("failed", "mfedpba-mpi: no room")
    with locked(directory):
        assert (read_state(directory).status, read_state(directory).active) == ("starting", True)
    (directory / CHECKPOINTS).mkdir()
    assert read_state(directory).status == "unreadable"

    run = finished(rounds=3)
    state = read_state(run.path.parent)
    assert (state.status, state.rounds, state.total) == ("complete", 3, 3)
    assert state.accuracy == pytest.approx(run.summary()["last"])
    assert state.progress == f"3/3 {run.summary()['last']:.2%}"
    run.path.write_bytes(run.path.read_bytes()[:-1])
    damaged = read_state(run.path.parent)
    assert damaged.status == "unreadable"
    assert "not a readable run log" in damaged.reason
    assert overview([state, state, damaged, read_state(tmp_path / "nowhere")]) == "2 complete, 1 interrupted, 1 waiting"


def test_the_state_of_a_running_run_with_slow_rounds(finished, monkeypatch):
    run = finished()
    run.rounds["seconds_total"][:] = 1000.0
    monkeypatch.setattr("mfedpba_mpi.records.status.load_run", lambda path: run)
    with locked(run.path.parent):
        assert (read_state(run.path.parent).status, read_state(run.path.parent).reason) == ("running", "")


@pytest.mark.parametrize("host", [socket.gethostname(), "elsewhere"])
def test_a_name_in_the_lock_is_not_enough(tmp_path, host):
    assert not held(tmp_path)
    # a process of this number lives, as another one may after a reboot or in a container
    (tmp_path / LOCK_NAME).write_text(json.dumps({"host": host, "pid": os.getpid(), "since": "now"}))
    assert not held(tmp_path)


def test_a_lock_that_another_host_took_is_seen(tmp_path, monkeypatch):
    with locked(tmp_path):
        monkeypatch.setattr(socket, "gethostname", lambda: "login")
        assert held(tmp_path)
    assert not held(tmp_path)
