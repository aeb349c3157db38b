"""Batch scripts of a study; tests/slurm submits them to a real SLURM."""

import shlex
import subprocess
from pathlib import Path

import pytest

from mfedpba_mpi.errors import UserError
from mfedpba_mpi.studies.slurm import STAGING, Resources, Submission, sbatch


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


def test_empty_resources_are_left_to_the_site():
    assert Resources().options() == ["--nodes=1", "--ntasks=1", "--cpus-per-task=1"]
    given = Resources(account="abc", partition="long", time="01:00:00", mem="7M", extra=("--qos=low",))
    assert given.options() == [
        "--account=abc", "--partition=long", "--time=01:00:00", "--nodes=1", "--ntasks=1", "--cpus-per-task=1",
        "--mem=7M", "--qos=low",
    ]  # fmt: skip
    assert given.table_options() == ["--account=abc", "--partition=long", "--time=00:15:00", "--ntasks=1"]


def test_scripts_quote_paths_and_settings(tmp_path):
    directory = tmp_path / "a study's"
    jobs = Submission("mine", directory, tmp_path, 3, [0, 2], assignments=["title=a b; exit"])
    array, table = jobs.array(), jobs.table()
    for script in (array, table):
        assert subprocess.run(["bash", "-n"], input=script, text=True).returncode == 0
        assert f" {shlex.quote(str(directory))} " in script
    assert "#SBATCH --array=0,2\n" in array
    assert " --set 'title=a b; exit' " in array
    assert '--part "$SLURM_ARRAY_TASK_ID/3"' in array


def test_an_error_of_sbatch_is_one_line_with_a_hint_for_arrays(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    program = tmp_path / "sbatch"
    program.write_text("#!/bin/sh\nprintf 'sbatch: error: Invalid job array\\n specification\\n' >&2\nexit 1\n")
    program.chmod(0o755)
    with pytest.raises(UserError) as refused:
        sbatch("script")
    assert str(refused.value) == (
        "submit: sbatch failed: Invalid job array specification; fewer elements: --per-element N"
    )
    program.write_text("#!/bin/sh\necho '42;cluster'\n")
    assert sbatch("script") == "42"
