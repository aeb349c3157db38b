"""Stopping and going on, as a user does it: from the command line, in one process."""

import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from mfedpba_mpi import load_run

TINY = (
    "--dataset",
    "synthetic",
    "--samples",
    120,
    "--classes",
    3,
    "--dims",
    "6,10,8",
    "--feature-dim",
    8,
    "--out",
    "run",
)


@pytest.fixture
def started(tmp_path):
    """A function that starts the command in the background and returns once a few rounds are done."""
    processes = []

    def start(*args):
        line = [sys.executable, "-m", "mfedpba_mpi", *map(str, args)]
        process = subprocess.Popen(line, cwd=tmp_path, stdout=-1, stderr=-1, text=True)
        processes.append(process)
        until = time.monotonic() + 60
        while time.monotonic() < until and process.poll() is None:
            if (tmp_path / "run/run.h5").exists() and len(load_run(tmp_path / "run").rounds.get("tested", ())) > 2:
                return process
        pytest.fail("no round in a minute")

    yield start
    for process in processes:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_run_in_order(started, tmp_path, number):
    process = started(*TINY, "--rounds", 100000)
    process.send_signal(number)
    began = time.monotonic()
    _, errors = process.communicate()
    assert time.monotonic() - began < 10
    assert process.returncode == 75
    assert re.search(rf"stopped by {number.name} after round \d+; go on with `mfedpba-mpi resume run`", errors)
    run = load_run(tmp_path / "run")
    assert run.status == "interrupted"
    assert run.attributes["reason"] in errors


def test_resume_goes_on_where_a_run_stopped(started, command, tmp_path):
    settings = (*TINY, "--rounds", 150)
    process = started(*settings)
    process.send_signal(signal.SIGUSR1)
    process.wait()
    stopped = len(load_run(tmp_path / "run").rounds["tested"])

    again = command(*settings)
    assert again.returncode == 2
    assert "holds a run already (status interrupted); go on with `mfedpba-mpi resume run`" in again.stderr
    other = command(*settings, "--lr", 0.02, "--resume")
    assert "begun with other settings: lr is 0.01, not 0.02" in other.stderr
    resumed = command("resume", "run")
    assert resumed.returncode == 0, resumed.stderr
    assert f"goes on after round {stopped} of 150" in resumed.stdout
    assert command(*settings, "--out", "whole").returncode == 0
    a, b = load_run(tmp_path / "run"), load_run(tmp_path / "whole")
    assert a.final["client_sha256"] == b.final["client_sha256"]
    np.testing.assert_array_equal(a.rounds["correct"], b.rounds["correct"])


def test_a_directory_in_use_is_refused_to_a_second_run(started, command):
    process = started(*TINY, "--rounds", 100000)
    second = command("resume", "run")
    assert second.returncode == 2
    assert f"run is in use by process {process.pid} on " in second.stderr


def test_a_finished_run_is_extended_and_a_damaged_log_made_anew(command, tmp_path):
    assert command(*TINY, "--rounds", 3).returncode == 0
    again = command(*TINY, "--rounds", 3)
    assert "extend it with `mfedpba-mpi resume run --rounds N`" in again.stderr
    done = command("resume", "run")
    assert (done.returncode, done.stdout) == (0, "the run in run is complete (3 rounds); --rounds N extends it\n")
    assert "is complete" in command(*TINY, "--rounds", 3, "--resume").stdout
    assert "cannot have fewer" in command("resume", "run", "--rounds", 2).stderr

    path = tmp_path / "run/run.h5"
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.unlink()
    path.write_bytes(data)
    assert command("resume", "run", "--rounds", 5).returncode == 0
    run = load_run(tmp_path / "run")
    assert (run.status, len(run.rounds["tested"]), run.attributes["config"]["rounds"]) == ("complete", 5, 5)


def test_resuming_what_is_no_run_is_refused(command):
    result = command("resume", "nowhere")
    assert result.returncode == 2
    assert "no run at nowhere" in result.stderr
