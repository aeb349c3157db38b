"""Resuming a run, in one process."""

import os
import shutil
import signal

import numpy as np
import pytest

from mfedpba_mpi import load_run
from mfedpba_mpi.engine.resume import stored_run
from mfedpba_mpi.errors import UserError

TINY = ("--dataset", "synthetic", "--samples", 120, "--classes", 3, "--dims", "6,10,8", "--feature-dim", 8)
OUT = ("--out", "out")


def test_resume_continues_where_a_run_stopped(started, command, tmp_path):
    settings = (*TINY, "--rounds", 60)
    process = started(*settings)
    process.send_signal(signal.SIGUSR1)
    process.wait()
    stopped = len(load_run(tmp_path / "out").rounds["tested"])

    again = command(*settings, *OUT)
    assert again.returncode == 2
    assert "already holds a run (status interrupted); resume it with `mfedpba-mpi resume out`" in again.stderr
    other = command(*settings, *OUT, "--lr", 0.02, "--resume")
    assert "started with other settings: lr is 0.01, not 0.02" in other.stderr
    resumed = command("resume", "out")
    assert resumed.returncode == 0, resumed.stderr
    assert f"resuming after round {stopped} of 60" in resumed.stdout
    assert command(*settings, "--out", "whole").returncode == 0
    a, b = load_run(tmp_path / "out"), load_run(tmp_path / "whole")
    assert a.final["client_sha256"] == b.final["client_sha256"]
    np.testing.assert_array_equal(a.rounds["correct"], b.rounds["correct"])


def test_a_second_run_in_a_directory_in_use_is_refused(started, command):
    process = started(*TINY, "--rounds", 100000)
    for second in (command("resume", "out"), command(*TINY, *OUT)):
        assert second.returncode == 2
        assert f"out is in use by process {process.pid} on " in second.stderr


def test_a_finished_run_is_extended_and_a_damaged_log_recreated(command, tmp_path):
    assert command(*TINY, *OUT, "--rounds", 3).returncode == 0
    again = command(*TINY, *OUT, "--rounds", 3)
    assert "extend it with `mfedpba-mpi resume out --rounds N`" in again.stderr
    done = command("resume", "out")
    assert (done.returncode, done.stdout) == (0, "the run in out is complete (3 rounds); extend it with --rounds N\n")
    assert "is complete" in command(*TINY, *OUT, "--rounds", 3, "--resume").stdout
    assert "cannot be resumed with fewer" in command("resume", "out", "--rounds", 2).stderr

    path = tmp_path / "out/run.h5"
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.unlink()
    path.write_bytes(data)
    assert command("resume", "out", "--rounds", 5).returncode == 0
    run = load_run(tmp_path / "out")
    assert (run.status, len(run.rounds["tested"]), run.attributes["config"]["rounds"]) == ("complete", 5, 5)


def test_resuming_a_directory_without_a_run_is_refused(command):
    result = command("resume", "nowhere")
    assert result.returncode == 2
    assert "no run at nowhere" in result.stderr


def test_a_complete_run_without_checkpoints_is_not_extended(command, tmp_path):
    assert command(*TINY, *OUT, "--rounds", 2, "--keep-checkpoints", "none").returncode == 0
    before = (tmp_path / "out/run.h5").read_bytes()
    longer = command("resume", "out", "--rounds", 3)
    assert longer.returncode == 2
    assert "has no checkpoint to extend it from" in longer.stderr
    assert (tmp_path / "out/run.h5").read_bytes() == before


def test_a_log_without_read_permission_does_not_count_as_damaged(made, tmp_path, monkeypatch):
    """A damaged log would be restored from a checkpoint."""
    shutil.copytree(made().path.parent, tmp_path / "mine")
    (tmp_path / "mine/checkpoints").mkdir(exist_ok=True)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(UserError, match=r"run\.h5 cannot be read; check its permissions"):
        stored_run(tmp_path / "mine")
