"""``mfedpba-mpi study submit``: options and elements of the job array, without SLURM."""

import os
import re
import subprocess

from click.testing import CliRunner

from mfedpba_mpi.cli.main import cli
from mfedpba_mpi.planning.calibration import process_bytes

SBATCH = """#!/bin/sh
echo "$@" >> calls
for script; do :; done
grep '^#SBATCH' "$script" >> calls
echo 42
"""


def test_submit_writes_an_array_and_a_job_that_waits_for_it(study_file, command, tmp_path, monkeypatch):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/sbatch").write_text(SBATCH)
    (tmp_path / "bin/sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    options = ("--account", "abc", "--slurm-partition", "long", "--time", "01:00:00", "--gpus-per-node", 2,
               "--ranks", 9, "--per-element", 3, "--at-once", 1, "--setup", "module load openmpi", "--sbatch=--qos=low",
               "--keep-checkpoints", "none")  # fmt: skip
    done = command("study", "submit", study_file, *options)
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
    shown = command("study", "submit", study_file, *options, "--dry-run").stdout
    assert script.read_text() in shown


def test_submit_accepts_the_old_option_partition_with_a_hint(study_file, command):
    done = command("study", "submit", study_file, "--partition", "long", "--dry-run")
    assert "#SBATCH --partition=long\n" in done.stdout
    assert done.stderr == "hint: use --slurm-partition long; --partition is an option of `run`, for the data\n"
    assert "--partition" not in command("study", "submit", "--help").stdout.replace("--slurm-partition", "")
    both = command("study", "submit", study_file, "--partition", "long", "--slurm-partition", "short", "--dry-run")
    assert both.returncode == 2
    assert "slurm-partition: given as 'short' and, by --partition, as 'long'" in both.stderr


def test_submit_requests_the_predicted_memory_by_default_and_without_gpus(study_file, tmp_path, monkeypatch):
    """Two parallel runs need twice the memory of one, plus that of the process that starts them."""
    monkeypatch.chdir(tmp_path)

    def memory(*options):
        words = ["study", "submit", study_file, "--dry-run", "--per-element", "2", *options]
        script = CliRunner().invoke(cli, words, catch_exceptions=False).output
        return [int(size) for size in re.findall("--mem=(.*)M", script)]

    process = process_bytes() / 1e6
    for options, processes in (((), 2), (("--jobs", "2"), 3), (("--ranks", "3", "--jobs", "2"), 7)):
        (megabytes,) = memory(*options)
        assert 1.25 * processes * process < megabytes < 1.25 * processes * process * 1.1 + 100
    assert memory("--mem", "7M") == [7]
    for options in (("--mem", ""), ("--gpus-per-node", "1"), ("--sbatch=--mem-per-cpu=1G",)):
        assert memory(*options) == []


def test_submit_skips_complete_runs(study_file, command):
    def array(*options):
        output = command("study", "submit", study_file, *options, "--dry-run").stdout
        return re.search("--array=(.*)", output)[1] if "--array" in output else output

    assert array() == "0-3"
    assert command("study", "run", study_file, "--set", "method=fedproto", "--set", "seed=0").returncode == 0
    assert array() == "0-1,3"
    assert array("--set", "seed=0") == "0"
    assert "1 run in runs/small, all complete" in array("--set", "seed=0", "--set", "method=fedproto")


def test_submit_numbers_the_runs_of_the_stored_study(study_file, command, tmp_path):
    """The file has another seed than the directory, so the stored study has both."""
    assert command("study", "run", study_file, "--set", "seed=0").returncode == 0
    path = tmp_path / study_file
    path.write_text(path.read_text().replace("seed = [0, 1]", "seed = [1]"))
    script = command("study", "submit", study_file, "--dry-run").stdout
    assert re.search("--array=(.*)", script)[1] == "1,3"
    assert '--part "$SLURM_ARRAY_TASK_ID/4"' in script


def test_submit_without_slurm_is_an_error(study_file, command, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    result = command("study", "submit", study_file)
    assert result.returncode == 2
    assert "no sbatch on the PATH" in result.stderr
