"""A study as a job array on a real SLURM, and the table after it."""

import re
import sys
from datetime import datetime

import pytest

from mfedpba_mpi import load_run
from tests.chaos.disk import differences
from tests.slurm.test_jobs import LONG, TINY, pmix, rounds

STUDY = """
[settings]
dataset = "synthetic"
samples = 120
classes = 3
dims = [6, 10, 8]
feature_dim = 8
rounds = {rounds}
[cross]
{lists}
"""


@pytest.fixture
def submitted(cluster, data_dir, tmp_path):
    """A function that submits a study with options; the numbers of the array and of the job for the table."""

    def submit(lists, rounds, *options):
        (tmp_path / "small.toml").write_text(STUDY.format(lists=lists, rounds=rounds))
        line = ("study", "submit", "small.toml", "--out", "out", "--time", "00:10:00", "--data-dir", data_dir, *options)
        done = cluster.run(sys.executable, "-m", "mfedpba_mpi", *line, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return re.search(r"array (\d+): .* table: job (\d+)", done.stdout).groups()

    return submit


def test_a_study_is_an_array_whose_failing_element_takes_no_other_along(cluster, submitted, unbatched, tmp_path):
    lists = 'variant = [{ name = "good" }, { name = "bad", device = "cuda" }, { name = "better", seed = 1 }]'
    array, table = submitted(lists, 3, "--ranks", 2, "--nodes", 2)
    states = {record["ArrayTaskId"]: record["JobState"] for record in cluster.wait(array)}
    assert states == {"0": "COMPLETED", "1": "FAILED", "2": "COMPLETED"}
    assert cluster.finish(table) == 0, cluster.output(table)
    for name, seed in (("good", 0), ("better", 1)):
        run = load_run(tmp_path / "out" / name)
        assert sorted(set(run.attributes["hosts"])) == ["n1", "n2"]
        assert not differences(run, unbatched(*TINY, "--rounds", 3, "--seed", seed), whole=True)
    assert "cuda needs a GPU" in (tmp_path / "out/bad/output.txt").read_text()
    assert "2 of 3 runs are complete" in (tmp_path / "out/table.txt").read_text()
    assert "synthetic data" in (tmp_path / "out/table.txt").read_text()


def test_an_element_that_is_told_to_stop_goes_on_and_the_table_waits_for_it(cluster, submitted, unbatched, tmp_path):
    array, table = submitted('method = ["local", "mfedpba"]', LONG[-1], "--per-element", 2)
    cluster.until(lambda: rounds(tmp_path / "out/local") > 2, "no rounds")
    cluster.cancel("--signal=USR1", "--batch", f"{array}_0")
    (record,) = cluster.wait(array, timeout=180)
    assert (record["JobState"], record["Restarts"]) == ("COMPLETED", "1"), cluster.output(array)
    assert cluster.finish(table) == 0, cluster.output(table)
    assert not differences(load_run(tmp_path / "out/mfedpba"), unbatched(*LONG), whole=True)
    assert "runs are complete" not in (tmp_path / "out/table.txt").read_text()  # all are


@pmix
def test_runs_that_srun_starts_go_side_by_side(cluster, submitted, tmp_path):
    """On nodes with unequal shares, with memory and GPUs that the first step would keep to itself."""
    side_by_side = ("--ranks", 3, "--jobs", 2, "--per-element", 2, "--launcher", "srun --mpi=pmix")
    resources = ("--nodes", 2, "--mem", "6000M", "--gpus-per-node", 2, "--cpus-per-task", 2)
    array, _ = submitted('device = ["cpu"]\nseed = [0, 1]', 30, *side_by_side, *resources)
    (record,) = cluster.wait(array)
    assert record["JobState"] == "COMPLETED", cluster.output(array)
    runs = [tmp_path / "out/cpu" / name for name in ("s0", "s1")]
    assert all("step creation temporarily disabled" not in (run / "output.txt").read_text() for run in runs)
    began = [datetime.fromisoformat(load_run(run).attributes["started"]).timestamp() for run in runs]
    ended = [(run / "run.h5").stat().st_mtime for run in runs]
    assert max(began) < min(ended)
