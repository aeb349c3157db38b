"""Studies from the command line: run, interrupted, continued, with failed runs, and submitted to SLURM."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from mfedpba_mpi import load_run
from mfedpba_mpi.cli.main import cli
from mfedpba_mpi.errors import COMPLETE, UserError
from mfedpba_mpi.planning.calibration import process_bytes
from mfedpba_mpi.records.status import OUTPUT, RunState
from mfedpba_mpi.studies.runner import Runner, refuse_other_data
from mfedpba_mpi.studies.slurm import STAGING
from mfedpba_mpi.studies.study_file import read_study

STUDY = """
title = "Small"
[settings]
dataset = "synthetic"
samples = 120
classes = 3
dims = [6, 10, 8]
feature_dim = 8
rounds = 2
[cross]
method = ["local", "fedproto"]
seed = [0, 1]
[quick]
seed = [0]
"""


@pytest.fixture
def study(tmp_path):
    (tmp_path / "small.toml").write_text(STUDY)
    return "small.toml"


def correct(path):
    return load_run(path).rounds["correct"]


def test_a_study_prints_its_table_and_complete_runs_are_not_repeated(study, command, tmp_path):
    done = command("study", "run", study, "--jobs", 2)
    assert done.returncode == 0, done.stderr
    assert "4 of 4 runs complete, 0 failed" in done.stdout
    assert "Small (synthetic data): average accuracy" in done.stdout
    directory = tmp_path / "runs/small"
    assert sorted(path.name for path in directory.iterdir()) == [
        "fedproto", "local", "runs.csv", "study.toml", "table.csv", "table.md", "table.tex", "table.txt"
    ]  # fmt: skip
    before = (directory / "local/s1/run.h5").stat().st_mtime_ns
    again = command("study", "run", "runs/small")
    assert "4 already complete, 0 to do" in again.stdout
    assert (directory / "local/s1/run.h5").stat().st_mtime_ns == before
    assert command("study", "status", "runs/small").stdout.endswith("4 complete\n")
    assert command("study", "table", "runs/small", "--format", "latex").stdout.startswith("% needs")

    by_hand = (
        "--dataset", "synthetic", "--samples", 120, "--classes", 3, "--dims", "6,10,8", "--feature-dim", 8,
        "--rounds", 2, "--method", "fedproto", "--seed", 1, "--out", "hand",
    )  # fmt: skip
    assert command(*by_hand).returncode == 0
    np.testing.assert_array_equal(correct(tmp_path / "hand"), correct(directory / "fedproto/s1"))

    other = command("study", "run", study, "--set", "rounds=3")
    assert other.returncode == 2
    assert "contains a study with other settings: rounds is 2 there, 3 here; choose another --out" in other.stderr
    assert command("study", "run", study, "--set", "rounds=3", "--dry-run").stderr == other.stderr
    grown = command("study", "run", study, "--set", "seed=0,1,2", "--set", "method=local", "--dry-run")
    assert "3 runs in runs/small: 2 complete, 1 waiting" in grown.stdout


def test_a_table_includes_the_runs_of_earlier_calls(study, command, tmp_path):
    for seed in (0, 2):
        done = command("study", "run", study, "--set", f"seed={seed}", "--set", "method=fedproto")
        assert done.returncode == 0, done.stderr
    assert command("study", "run", study, "--set", "seed=1").returncode == 0
    stored = (tmp_path / "runs/small/study.toml").read_text()
    assert 'method = ["local", "fedproto"]' in stored
    assert "seed = [0, 2, 1]" in stored
    assert "4 of 6 runs are complete" in command("study", "table", "runs/small").stdout


def test_a_shown_study_can_be_run_and_has_the_name_of_its_file(command, tmp_path):
    (tmp_path / "mine.toml").write_text(command("study", "show", "fusion").stdout)
    done = command("study", "run", "mine.toml", "--quick", "--commands")
    assert done.returncode == 0, done.stderr
    assert "--out runs/mine-quick/youtube/local/sum/s0" in done.stdout


def test_a_failed_run_is_reported_and_does_not_stop_the_others(study, command, tmp_path):
    (tmp_path / "runs/small-quick/local").mkdir(parents=True)
    (tmp_path / "runs/small-quick/local/s0").write_text("in the way")
    done = command("study", "run", study, "--quick")
    assert done.returncode == 1
    assert "1 of 2 runs complete, 1 failed" in done.stdout
    assert re.search(r"failed local/s0: .*s0", done.stdout)
    assert "Traceback" not in done.stdout + done.stderr
    assert "1 of 2 runs are complete" in (tmp_path / "runs/small-quick/table.txt").read_text()


def test_a_failed_run_is_reported_with_its_last_output_and_repeated_later(study, command, tmp_path):
    quick = ("study", "run", study, "--quick", "--set", "method=local")
    bad = command(*quick, "--set", "device=cuda")
    assert bad.returncode == 1
    assert "failed local/s0: mfedpba-mpi: device: cuda needs a GPU, but none is visible to this rank" in bad.stdout
    status = command("study", "status", "runs/small-quick")
    assert "1 failed" in status.stdout
    assert "cuda needs a GPU" in status.stdout
    (tmp_path / "runs/small-quick/study.toml").unlink()
    assert command(*quick).returncode == 0


def test_a_signal_stops_all_runs_in_order_and_the_same_command_continues(study, tmp_path, command):
    arguments = ["study", "run", study, "--quick", "--jobs", "2", "--set", "rounds=400"]
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


def test_parts_are_every_n_th_run(study, command):
    lines = [command("study", "run", study, "--commands", "--part", f"{i}/3").stdout.splitlines() for i in range(3)]
    assert [len(part) for part in lines] == [2, 1, 1]
    assert "--method local --seed 0 " in lines[0][0]
    assert "--method fedproto --seed 1 " in lines[0][1]
    assert "I/N" in command("study", "run", study, "--part", "3/3").stderr


def test_a_study_under_mpirun_is_refused(study, monkeypatch, command):
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "3")
    result = command("study", "run", study)
    assert result.returncode == 2
    assert "start it without mpirun" in result.stderr


def test_keep_checkpoints_is_passed_to_the_runs(study, tmp_path):
    run = read_study(tmp_path / study).plan(tmp_path)[0]
    assert " --keep-checkpoints none " in " ".join(Runner(tmp_path, tmp_path, keep="none").command(run))


def test_a_dry_run_estimates_the_disk_space(study, tmp_path, monkeypatch):
    """Two methods share the shards of each of two seeds: 120 rows of at most 24 numbers, label and row number."""
    monkeypatch.chdir(tmp_path)
    output = CliRunner().invoke(cli, ["study", "run", study, "--dry-run"], catch_exceptions=False).output
    logs, checkpoints, shards = re.search(
        r"logs ([\d.]+) kB, checkpoints ([\d.]+) MB .*shards ([\d.]+) kB", " ".join(output.split())
    ).groups()
    assert 4 * 85 < float(logs) < 4 * 200
    assert float(checkpoints) > float(logs) / 1000
    assert float(shards) < 2 * 120 * (4 * 24 + 16) / 1000


def test_a_missing_launcher_is_an_error_with_its_name(study, command):
    result = command("study", "run", study, "--ranks", 3, "--launcher", "mpirunn")
    assert result.returncode == 2
    assert "no mpirunn on the PATH" in result.stderr


@pytest.mark.parametrize("words", [("--set", "rounds"), ("--set", "=3"), ("--set", "sede=1")])
def test_a_malformed_or_unknown_setting_is_refused(study, command, words):
    result = command("study", "run", study, *words, "--dry-run")
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1


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
def test_parallel_steps_of_srun_share_the_job(study, tmp_path, launcher, jobs, started):
    """Options of the user take precedence; srun uses the last of two --cpu-bind."""
    run = read_study(tmp_path / study).with_changes({"ranks": 3}).plan(tmp_path)[0]
    line = Runner(tmp_path, tmp_path, jobs, launcher).command(run)
    assert " ".join(line[: line.index(sys.executable)]) == started


@pytest.mark.parametrize(
    ("variables", "scratch"),
    [
        ({"SLURM_TMPDIR": "{here}"}, True),
        ({"TMPDIR": "{here}"}, True),  # contains the job's number
        ({"SLURM_TMPDIR": "{here}", "SLURM_JOB_NUM_NODES": "2"}, False),
        ({"SLURM_TMPDIR": "/nowhere"}, False),
        ({"TMPDIR": "/tmp"}, False),
        ({}, False),
    ],
)
def test_shards_of_a_job_on_one_node_are_on_its_local_disk(tmp_path, variables, scratch):
    here = tmp_path / "job.4711"
    here.mkdir()
    job = {"SLURM_JOB_ID": "4711", "SLURM_JOB_NUM_NODES": "1"}
    env = job | {name: value.format(here=here) for name, value in variables.items()}
    line = ["bash", "-c", f'{STAGING}\necho "$MFEDPBA_SCRATCH"']
    assert subprocess.run(line, env=env, capture_output=True, text=True).stdout.strip() == (
        str(here) if scratch else ""
    )


def test_job_scripts_for_one_node_use_its_local_disk_like_submit():
    texts = {path.stem: path.read_text() for path in (Path(__file__).parents[2] / "jobs").glob("*.sbatch")}
    one_node = {name for name, text in texts.items() if "--nodes=1\n" in text or "--ntasks=1\n" in text}
    assert {name for name, text in texts.items() if STAGING in text} == one_node


SBATCH = """#!/bin/sh
echo "$@" >> calls
for script; do :; done
grep '^#SBATCH' "$script" >> calls
echo 42
"""


def test_submit_writes_an_array_and_a_job_that_waits_for_it(study, command, tmp_path, monkeypatch):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/sbatch").write_text(SBATCH)
    (tmp_path / "bin/sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    options = ("--account", "abc", "--slurm-partition", "long", "--time", "01:00:00", "--gpus-per-node", 2,
               "--ranks", 9, "--per-element", 3, "--at-once", 1, "--setup", "module load openmpi", "--sbatch=--qos=low",
               "--keep-checkpoints", "none")  # fmt: skip
    done = command("study", "submit", study, *options)
    assert done.returncode == 0, done.stderr
    assert "array 42: 2 elements, 4 runs in runs/small; table: job 42" in done.stdout
    calls = (tmp_path / "calls").read_text()
    for line in ("--array=0-1%1", "--account=abc", "--partition=long", "--time=01:00:00", "--gpus-per-node=2",
                 "--ntasks=4", "--qos=low", "--requeue", "--signal=B:USR1@120"):  # fmt: skip
        assert f"#SBATCH {line}\n" in calls
    assert "--dependency=afterany:42" in calls
    script = tmp_path / "runs/small/slurm/array.sbatch"
    assert "module load openmpi\n" in script.read_text()
    assert subprocess.run(["bash", "-n", script]).returncode == 0
    assert "--keep-checkpoints none " in script.read_text()
    shown = command("study", "submit", study, *options, "--dry-run").stdout
    assert script.read_text() in shown


def test_submit_accepts_the_old_option_partition_with_a_hint(study, command):
    done = command("study", "submit", study, "--partition", "long", "--dry-run")
    assert "#SBATCH --partition=long\n" in done.stdout
    assert done.stderr == "hint: use --slurm-partition long; --partition is an option of `run`, for the data\n"
    assert "--partition" not in command("study", "submit", "--help").stdout.replace("--slurm-partition", "")
    both = command("study", "submit", study, "--partition", "long", "--slurm-partition", "short", "--dry-run")
    assert both.returncode == 2
    assert "slurm-partition: given as 'short' and, by --partition, as 'long'" in both.stderr


def test_submit_requests_the_predicted_memory_by_default_and_without_gpus(study, tmp_path, monkeypatch):
    """Two parallel runs need twice the memory of one, plus that of the process that starts them."""
    monkeypatch.chdir(tmp_path)

    def memory(*options):
        words = ["study", "submit", study, "--dry-run", "--per-element", "2", *options]
        script = CliRunner().invoke(cli, words, catch_exceptions=False).output
        return [int(size) for size in re.findall("--mem=(.*)M", script)]

    process = process_bytes() / 1e6
    for options, processes in (((), 2), (("--jobs", "2"), 3), (("--ranks", "3", "--jobs", "2"), 7)):
        (megabytes,) = memory(*options)
        assert 1.25 * processes * process < megabytes < 1.25 * processes * process * 1.1 + 100
    assert memory("--mem", "7M") == [7]
    for options in (("--mem", ""), ("--gpus-per-node", "1"), ("--sbatch=--mem-per-cpu=1G",)):
        assert memory(*options) == []


def test_submit_skips_complete_runs(study, command):
    def array(*options):
        output = command("study", "submit", study, *options, "--dry-run").stdout
        return re.search("--array=(.*)", output)[1] if "--array" in output else output

    assert array() == "0-3"
    assert command("study", "run", study, "--set", "method=fedproto", "--set", "seed=0").returncode == 0
    assert array() == "0-1,3"
    assert array("--set", "seed=0") == "0"
    assert "1 run in runs/small, all complete" in array("--set", "seed=0", "--set", "method=fedproto")


def test_submit_numbers_the_runs_of_the_stored_study(study, command, tmp_path):
    """The file has another seed than the directory, so the stored study has both."""
    assert command("study", "run", study, "--set", "seed=0").returncode == 0
    (tmp_path / study).write_text(STUDY.replace("seed = [0, 1]", "seed = [1]"))
    script = command("study", "submit", study, "--dry-run").stdout
    assert re.search("--array=(.*)", script)[1] == "1,3"
    assert '--part "$SLURM_ARRAY_TASK_ID/4"' in script


def test_submit_without_slurm_is_an_error(study, command, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    result = command("study", "submit", study)
    assert result.returncode == 2
    assert "no sbatch on the PATH" in result.stderr


def test_complete_runs_on_other_data_are_refused(tmp_path):
    """For example after real data have been imported."""
    (tmp_path / "small.toml").write_text(STUDY)
    paths = [planned.path for planned in read_study(tmp_path / "small.toml").plan(tmp_path)]
    data = dict.fromkeys(paths, "the same")
    states = {path: RunState(COMPLETE, fingerprint="the same") for path in paths}
    refuse_other_data(tmp_path, states, data)
    states[paths[2]] = RunState(COMPLETE, fingerprint="other")
    with pytest.raises(UserError, match=rf"1 complete run in .* used other data than the present ones, .* {paths[2]}"):
        refuse_other_data(tmp_path, states, data)
