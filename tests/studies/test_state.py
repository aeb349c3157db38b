"""What the files of a run say of it."""

import json
import os
import socket

import pytest

from mfedpba_mpi.records.lock import LOCK_NAME, held, locked
from mfedpba_mpi.records.run import CHECKPOINTS
from mfedpba_mpi.studies.state import OUTPUT, overview, state_of


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


@pytest.mark.parametrize(
    ("host", "pid", "expected"),
    [
        (socket.gethostname(), os.getpid(), True),
        (socket.gethostname(), 2**22 + 1, False),  # beyond any process
        ("elsewhere", os.getpid(), False),  # nobody holds it
    ],
    ids=["alive", "dead", "elsewhere"],
)
def test_a_lock_is_held_by_a_living_process(tmp_path, host, pid, expected):
    assert not held(tmp_path)
    (tmp_path / LOCK_NAME).write_text(json.dumps({"host": host, "pid": pid, "since": "now"}))
    assert held(tmp_path) == expected


def test_a_lock_that_another_host_took_is_seen(tmp_path, monkeypatch):
    with locked(tmp_path):
        monkeypatch.setattr(socket, "gethostname", lambda: "login")
        assert held(tmp_path)
    assert not held(tmp_path)
