"""A run from Python: five lines, the bits of the command, and nothing of the session changed."""

import dataclasses
import subprocess
import sys

import pytest
import torch

from mfedpba_mpi import Observer, RunConfig, load_run, simulate
from mfedpba_mpi.errors import UserError
from mfedpba_mpi.methods.mfedpba import MFedPBAServer

SETTINGS = {"dataset": "synthetic", "samples": 120, "classes": 3, "dims": (6, 10), "feature_dim": 8, "rounds": 2}


@pytest.fixture
def config():
    return RunConfig.of(**SETTINGS, mfedpba={"lambda_1": 0.5})


def test_a_run_has_the_bits_of_the_command(config, tmp_path, command, capsys):
    run = simulate(config, tmp_path / "python", tmp_path / "data")
    assert "MFedPBA: average accuracy (synthetic data)" in capsys.readouterr().out
    line = "--dataset synthetic --samples 120 --classes 3 --dims 6,10 --feature-dim 8 --rounds 2 --lambda-1 0.5"
    done = command(*line.split(), "--out", "command")
    assert done.returncode == 0, done.stderr
    there = load_run(tmp_path / "command")
    assert run.status == "complete"
    assert run.final["client_sha256"] == there.final["client_sha256"]
    assert run.final["server_sha256"] == there.final["server_sha256"]
    assert run.attributes["config"] == there.attributes["config"]


def test_threads_and_signals_of_the_session_stay_as_they_are(tmp_path):
    """In a process of its own, with as many threads as torch likes."""
    program = f"""
import signal, torch
from mfedpba_mpi import RunConfig, simulate
torch.set_num_threads(2)
before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
run = simulate(RunConfig.of(**{SETTINGS!r}), quiet=True)
assert torch.get_num_threads() == 2
assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
print(run.final["server_sha256"])
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    here = simulate(RunConfig.of(**SETTINGS), tmp_path / "here", tmp_path / "data", quiet=True)
    assert done.stdout.strip() == here.final["server_sha256"]


def test_quiet_says_nothing(config, tmp_path, capsys):
    simulate(config, tmp_path / "out", tmp_path / "data", quiet=True)
    assert capsys.readouterr() == ("", "")


def test_a_run_that_is_there_is_kept_resumed_or_replaced_as_asked(config, tmp_path):
    first = simulate(config, tmp_path / "out", tmp_path / "data", quiet=True)
    assert repr(first) == f"<Run {tmp_path}/out: MFedPBA on synthetic (synthetic data), complete after 2 of 2 rounds>"
    with pytest.raises(
        UserError, match=r"already holds a run .* resume=True to continue .* overwrite=True to replace it"
    ):
        simulate(config, tmp_path / "out", tmp_path / "data", quiet=True)
    again = simulate(config, tmp_path / "out", tmp_path / "data", resume=True, quiet=True)
    assert again.attributes["started"] == first.attributes["started"]
    replaced = simulate(config, tmp_path / "out", tmp_path / "data", overwrite=True, quiet=True)
    assert replaced.final["client_sha256"] == first.final["client_sha256"]
    other = RunConfig.of(**SETTINGS, lr=0.5, mfedpba={"lambda_1": 0.5})
    with pytest.raises(UserError, match=r"started with other settings: lr is 0\.01, not 0\.5"):
        simulate(other, tmp_path / "out", tmp_path / "data", resume=True)


def test_a_run_is_resumed_or_replaced_not_both(config, tmp_path):
    with pytest.raises(UserError, match="use one of them"):
        simulate(config, tmp_path / "out", tmp_path / "data", resume=True, overwrite=True)


def test_a_run_is_extended_by_asking_for_more_rounds(config, tmp_path):
    simulate(config, tmp_path / "out", tmp_path / "data", quiet=True)
    longer = dataclasses.replace(config, rounds=4)
    extended = simulate(longer, tmp_path / "out", resume=True, quiet=True)
    whole = simulate(longer, tmp_path / "whole", tmp_path / "data", quiet=True)
    assert extended.final["client_sha256"] == whole.final["client_sha256"]
    with pytest.raises(UserError, match=r"the run has 4 rounds and cannot be resumed with fewer \(2\)"):
        simulate(config, tmp_path / "out", resume=True)


def test_an_error_is_in_the_log_and_goes_on_to_the_caller(tmp_path):
    with pytest.raises(Exception, match="not finite"):
        simulate(RunConfig.of(**SETTINGS, lr=1e30), tmp_path / "out", tmp_path / "data", quiet=True)
    assert load_run(tmp_path / "out").status == "failed"


def test_a_configuration_without_the_dataset_s_settings_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"RunConfig\.of"):
        simulate(RunConfig(dataset="mfeat"), tmp_path / "out")
    with pytest.raises(UserError, match=r"RunConfig\.of"):
        simulate({"dataset": "mfeat"}, tmp_path / "out")
    assert torch.get_num_threads() == 1


SCRIPT = """
from mfedpba_mpi import Observer, RunConfig, simulate

class Enough(Observer):
    def round(self, result):
        return "that is enough" if result.t == {last} else None

for seed in (0, 1):
    config = RunConfig.of(**{settings!r}, seed=seed)
    run = simulate(config, f"{out}-{{seed}}", "data", quiet=True, observers=[Enough()])
    if run:
        print(run.status, len(run.rounds["tested"]), run.final.get("server_sha256"), flush=True)
"""


@pytest.mark.parametrize("ranks", [1, 3, 5])
def test_one_script_runs_alone_and_under_mpirun(ranks, tmp_path):
    """Twice in a row, with as many ranks as it takes or more, to its end and to the end that an observer makes."""
    settings = SETTINGS | {"rounds": 3, "clients": 3}
    expected = [simulate(RunConfig.of(**settings, seed=seed), tmp_path / f"here-{seed}", tmp_path / "data", quiet=True)
                for seed in (0, 1)]  # fmt: skip
    launcher = ["mpirun", "-n", str(ranks)] if ranks > 1 else []
    for out, last, said in (
        ("whole", 0, [f"complete 3 {run.final['server_sha256']}" for run in expected]),
        ("ended", 2, ["interrupted 2 None"] * 2),
    ):
        script = tmp_path / f"{out}.py"
        script.write_text(SCRIPT.format(settings=settings, out=out, last=last))
        line = [*launcher, sys.executable, "-m", "mpi4py", script.name]
        done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=240)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.splitlines() == said


def test_an_error_on_one_rank_ends_a_script_on_all(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(f"""
from mfedpba_mpi import Observer, RunConfig, simulate

class Careless(Observer):
    def round(self, result):
        1 / 0

simulate(RunConfig.of(**{SETTINGS!r}, clients=3), "out", "data", quiet=True, observers=[Careless()])
""")
    line = ["mpirun", "-n", "3", sys.executable, script.name]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode != 0
    assert "ZeroDivisionError: division by zero" in done.stderr
    assert load_run(tmp_path / "out").status == "failed"


def test_warnings_go_to_the_logger_also_when_quiet(config, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(MFedPBAServer, "step", _warning(MFedPBAServer.step))
    told = []

    class Listener(Observer):
        def warn(self, t, text):
            told.append((t, text))

    with caplog.at_level("WARNING", "mfedpba_mpi"):
        run = simulate(config, tmp_path / "out", tmp_path / "data", quiet=True, observers=[Listener()])
    assert [record.getMessage() for record in caplog.records] == ["round 1: look out"]
    assert told == run.warnings == [(1, "look out")]


def _warning(step):
    def with_warning(self, t, phase, received):
        if t == 1:
            self.warnings.append("look out")
        return step(self, t, phase, received)

    return with_warning
