"""The runs of a study: failed, interrupted and continued ones, and the commands that start them."""

import re
import signal
import subprocess
import sys
import time

import pytest

from mfedpba_mpi import load_run
from mfedpba_mpi.errors import COMPLETE, UserError
from mfedpba_mpi.records.status import OUTPUT, RunState
from mfedpba_mpi.studies.runner import Runner, refuse_other_data
from mfedpba_mpi.studies.study_file import read_study


def test_a_failed_run_is_reported_and_does_not_stop_the_others(study_file, command, tmp_path):
    (tmp_path / "runs/small-quick/local").mkdir(parents=True)
    (tmp_path / "runs/small-quick/local/s0").write_text("in the way")
    done = command("study", "run", study_file, "--quick")
    assert done.returncode == 1
    assert "1 of 2 runs complete, 1 failed" in done.stdout
    assert re.search(r"failed local/s0: .*s0", done.stdout)
    assert "Traceback" not in done.stdout + done.stderr
    assert "1 of 2 runs are complete" in (tmp_path / "runs/small-quick/table.txt").read_text()


def test_a_failed_run_is_reported_with_its_last_output_and_repeated_later(study_file, command, tmp_path):
    quick = ("study", "run", study_file, "--quick", "--set", "method=local")
    bad = command(*quick, "--set", "device=cuda")
    assert bad.returncode == 1
    assert "failed local/s0: mfedpba-mpi: device: cuda needs a GPU, but none is visible to this rank" in bad.stdout
    status = command("study", "status", "runs/small-quick")
    assert "1 failed" in status.stdout
    assert "cuda needs a GPU" in status.stdout
    (tmp_path / "runs/small-quick/study.toml").unlink()
    assert command(*quick).returncode == 0


def test_a_signal_stops_all_runs_in_order_and_the_same_command_continues(study_file, tmp_path, command):
    arguments = ["study", "run", study_file, "--quick", "--jobs", "2", "--set", "rounds=400"]
    process = subprocess.Popen(
        [sys.executable, "-m", "mfedpba_mpi", *arguments], cwd=tmp_path, stdout=-1, stderr=-1, text=True
    )
    logs = [tmp_path / "runs/small-quick" / method / "s0" for method in ("local", "fedproto")]
    until = time.monotonic() + 60
    while not all((log / "run.h5").exists() and len(load_run(log).rounds["tested"]) for log in logs):
        assert time.monotonic() < until
        assert process.poll() is None
    process.send_signal(signal.SIGUSR1)
    out, errors = process.communicate(timeout=30)
    assert process.returncode == 75, errors
    assert "stopped by SIGUSR1, repeat the command to continue" in out
    assert [load_run(log).status for log in logs] == ["interrupted"] * 2
    stopped = len(load_run(logs[0]).rounds["tested"])
    assert 0 < stopped < 400
    assert "2 interrupted" in command("study", "status", "runs/small-quick").stdout
    # continue one of them on two ranks
    again = command(*arguments, "--set", "method=local", "--ranks", "2")
    assert again.returncode == 0, again.stdout
    assert f"resuming after round {stopped} of 400" in (logs[0] / OUTPUT).read_text()
    assert load_run(logs[0]).attributes["resumed"][0]["ranks"] == 2


def test_keep_checkpoints_is_passed_to_the_runs(study_file, tmp_path):
    run = read_study(tmp_path / study_file).plan(tmp_path)[0]
    assert " --keep-checkpoints none " in " ".join(Runner(tmp_path, tmp_path, keep="none").command(run))


def test_a_missing_launcher_is_an_error_with_its_name(study_file, command):
    result = command("study", "run", study_file, "--ranks", 3, "--launcher", "mpirunn")
    assert result.returncode == 2
    assert "no mpirunn on the PATH" in result.stderr


@pytest.mark.parametrize(
    ("launcher", "jobs", "started"),
    [
        ("srun --mpi=pmix", 2, "srun --overlap --cpu-bind=none --mpi=pmix -n 3"),
        ("/usr/bin/srun --cpu-bind=cores", 2, "/usr/bin/srun --overlap --cpu-bind=none --cpu-bind=cores -n 3"),
        ("srun --exact", 2, "srun --exact -n 3"),
        ("srun --mpi=pmix", 1, "srun --mpi=pmix -n 3"),
        ("mpirun", 2, "mpirun -n 3"),
    ],
)
def test_parallel_steps_of_srun_share_the_job(study_file, tmp_path, launcher, jobs, started):
    """Options of the user take precedence; srun uses the last of two --cpu-bind."""
    run = read_study(tmp_path / study_file).with_changes({"ranks": 3}).plan(tmp_path)[0]
    line = Runner(tmp_path, tmp_path, jobs, launcher).command(run)
    assert " ".join(line[: line.index(sys.executable)]) == started


def test_complete_runs_on_other_data_are_refused(study_file, tmp_path):
    """For example after real data have been imported."""
    paths = [run.path for run in read_study(tmp_path / study_file).plan(tmp_path)]
    data = dict.fromkeys(paths, "the same")
    states = {path: RunState(COMPLETE, fingerprint="the same") for path in paths}
    refuse_other_data(tmp_path, states, data)
    states[paths[2]] = RunState(COMPLETE, fingerprint="other")
    with pytest.raises(UserError, match=rf"1 complete run in .* used other data than the present ones, .* {paths[2]}"):
        refuse_other_data(tmp_path, states, data)
