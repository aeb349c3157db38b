"""What the files of a run say of it."""

import json
import os
import socket

import pytest

from mfedpba_mpi.records.lock import LOCK_NAME, held, locked
from mfedpba_mpi.records.run import CHECKPOINTS
from mfedpba_mpi.records.status import OUTPUT, overview, state_of


def test_a_directory_tells_how_far_its_run_is(finished, tmp_path):
    directory = tmp_path / "place"
    assert state_of(directory).status == "waiting"
    directory.mkdir()
    (directory / OUTPUT).write_text("$ mfedpba-mpi run\n")
    assert state_of(directory).status == "waiting"
    (directory / OUTPUT).write_text("$ mfedpba-mpi run\nmfedpba-mpi: no room\n\n")
    assert (state_of(directory).status, state_of(directory).reason) == ("failed", "mfedpba-mpi: no room")
    with locked(directory):
        assert state_of(directory).status == "running"
    (directory / CHECKPOINTS).mkdir()
    assert state_of(directory).status == "interrupted"

    run = finished(rounds=3)
    state = state_of(run.path.parent)
    assert (state.status, state.rounds, state.total) == ("complete", 3, 3)
    assert state.accuracy == pytest.approx(run.summary()["last"])
    assert state.progress == f"3/3 {run.summary()['last']:.2%}"
    run.path.write_bytes(run.path.read_bytes()[:-1])
    assert state_of(run.path.parent).status == "interrupted"
    assert overview([state, state, state_of(tmp_path / "nowhere")]) == "2 complete, 1 waiting"


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
