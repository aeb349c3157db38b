"""Writing the log of a run: read while it grows, after a kill, on a full disk, and with warnings."""

import errno
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from mfedpba_mpi import Observer, load_run
from mfedpba_mpi.comm.devices import device_kind
from mfedpba_mpi.comm.serial import SerialComm
from mfedpba_mpi.engine.loop import run_rounds
from mfedpba_mpi.errors import RunError
from mfedpba_mpi.methods.mfedpba import MFedPBAServer
from mfedpba_mpi.records.checkpoint import Checkpoints
from mfedpba_mpi.records.run_log import RunLog


class Watcher(Observer):
    """An observer that is called after the log."""

    decides = False


def test_the_log_can_be_read_while_it_grows(tiny, tmp_path):
    code = f"import h5py; f = h5py.File({str(tmp_path / 'run.h5')!r}); print('open', flush=True); input()"
    seen = []

    class Reader(Watcher):
        def start(self, start):
            """Another process opens the log with plain h5py and keeps it open."""
            self.other = subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1, text=True)
            assert self.other.stdout.readline() == "open\n"

        def round(self, result):
            run = load_run(tmp_path)
            seen.append((run.status, len(run.rounds["accuracy"])))

        def end(self, end):
            self.other.communicate("")

    run_rounds(tiny(), tmp_path, SerialComm(), [RunLog(tmp_path), Reader()])
    assert seen == [("running", 1), ("running", 2), ("running", 3)]
    assert load_run(tmp_path).status == "complete"


def test_a_killed_run_leaves_a_log_that_opens_normally(tmp_path):
    line = [sys.executable, "-m", "mfedpba_mpi", "--dataset", "synthetic", "--samples", "120", "--rounds", "100000"]
    process = subprocess.Popen([*line, "--out", "run"], cwd=tmp_path, stdout=subprocess.DEVNULL)
    until = time.monotonic() + 60
    while time.monotonic() < until:
        if (tmp_path / "run" / "run.h5").exists() and len(load_run(tmp_path / "run").rounds.get("accuracy", [])) > 3:
            break
    process.send_signal(signal.SIGKILL)
    process.wait()
    run = load_run(tmp_path / "run")
    assert run.status == "running"
    assert len(run.rounds["accuracy"]) > 3
    with h5py.File(tmp_path / "run" / "run.h5") as file:
        assert file["rounds/accuracy"].shape[1] == 2


def test_an_abandoned_run_says_why_and_a_finished_one_stays_complete(tiny, tmp_path):
    class Failing(Watcher):
        def round(self, result):
            raise ZeroDivisionError

    log = RunLog(tmp_path)
    log.abandon("failed", "before it began")
    assert not (tmp_path / "run.h5").exists()
    with pytest.raises(ZeroDivisionError):
        run_rounds(tiny(), tmp_path, SerialComm(), [log, Failing()])
    log.abandon("failed", "division by zero")
    log.abandon("interrupted", "too late")
    run = load_run(tmp_path)
    assert (run.status, run.attributes["reason"]) == ("failed", "division by zero")


def test_a_full_disk_stops_the_run_and_leaves_the_rounds_before(tiny, tmp_path, monkeypatch):
    class Filling(Watcher):
        def round(self, result):
            if result.t == 2:
                monkeypatch.setattr(Path, "write_bytes", self.full)

        def full(self, data):
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(RunError, match=r"cannot write .*run\.h5: No space left on device"):
        run_rounds(tiny(), tmp_path, SerialComm(), [RunLog(tmp_path), Filling()])
    assert len(load_run(tmp_path).rounds["accuracy"]) == 2


FEW = {"clients": 14, "alpha": 0.05, "participation": 0.07, "rounds": 4}  # in the end one modality, and not all classes


@pytest.mark.parametrize("settings", [{}, FEW, {**FEW, "participation": 0.2}])
def test_a_final_plan_couples_the_present_classes_uniformly(finished, settings):
    run = finished(**settings)
    present = run.final["P_present"] > 0
    assert run.final["plan"].shape == (3, 3, 3)
    assert present.all() == (not settings)
    for plan, here, trace in zip(run.final["plan"], present, run.rounds["gw_trace"][-1], strict=True):
        n, among = here.sum(), np.ix_(here, here)
        assert np.isnan(plan).sum() == plan.size - n**2
        assert (plan[among] >= 0).all()
        for axis in (0, 1):
            np.testing.assert_allclose(plan[among].sum(axis), 1 / max(n, 1), atol=1e-6)
        if n > 1:
            assert np.trace(plan[among]) == pytest.approx(trace, rel=1e-12)  # as it was after the last step


@pytest.mark.parametrize("settings", [{"method": "local"}, {"method": "fedproto"}, {"mfedpba": {"without": "align"}}])
def test_without_a_transport_plan_there_is_none_at_the_end(finished, settings):
    assert "plan" not in finished(**settings).final


def test_warnings_are_kept_with_their_rounds_and_survive_a_resume(tiny, tmp_path, monkeypatch):
    step = MFedPBAServer.step

    def warning_step(self, t, phase, received):
        if t == 2:
            self.warnings += ["one", "λ two"]
        return step(self, t, phase, received)

    monkeypatch.setattr(MFedPBAServer, "step", warning_step)
    run_rounds(tiny(), tmp_path, SerialComm(), [RunLog(tmp_path)], Checkpoints(tmp_path, every=1))
    assert load_run(tmp_path).warnings == [(2, "one"), (2, "λ two")]
    newest = max((tmp_path / "checkpoints").glob("round-*"))
    shutil.copytree(newest, newest.with_name("round-00000004"))  # a damaged one
    (newest.with_name("round-00000004") / "manifest.json").write_text("{}")
    run_rounds(tiny(rounds=4), tmp_path, SerialComm(), [RunLog(tmp_path)], Checkpoints(tmp_path))
    first, second, damage = load_run(tmp_path).warnings
    assert (first, second) == ((2, "one"), (2, "λ two"))
    assert damage.round == 3
    assert "manifest.json is damaged" in damage.text


def test_the_log_names_the_device_of_every_rank(finished):
    run = finished()
    assert run.attributes["device"] == "cpu"
    assert run.attributes["devices"] == [device_kind(torch.device("cpu"))]
