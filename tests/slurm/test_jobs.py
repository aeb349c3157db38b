"""The batch scripts that people copy, on a real SLURM: two nodes, signals, requeueing, GPUs."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from mfedpba_mpi import load_run
from mfedpba_mpi.comm.devices import choose_device
from tests.chaos.disk import differences
from tests.slurm.cluster import ROOT, Cluster

YOUTUBE = ("--allow-synthetic", "--dataset", "youtube", "--rounds", 2)
TINY = (
    "--allow-synthetic",
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
)
LONG = (*TINY, "--rounds", 60)
CHECKPOINTS = ("--checkpoint-every", 5)
TWO_NODES = ("--nodes=2", "--ntasks=2")
SCRIPTS = sorted(path.name for path in (ROOT / "jobs").glob("*.sbatch"))

Submit = Callable[..., str]
pmix = pytest.mark.skipif(os.environ.get("MFEDPBA_MPI") == "mpich", reason="srun --mpi=pmix is for Open MPI")


@pytest.fixture
def submit(cluster: Cluster, data_dir: Path, tmp_path: Path) -> Submit:
    """A function that submits ``jobs/SCRIPT SETTINGS --out out`` with options for sbatch."""

    def call(script: str, *options: str, settings: tuple[object, ...]) -> str:
        return cluster.submit(
            *options, f"jobs/{script}", *settings, "--out", tmp_path / "out", env={"MFEDPBA_DATA_DIR": str(data_dir)}
        )

    return call


def rounds(out: Path) -> int:
    """Rounds that a run has in its log by now."""
    return len(load_run(out).rounds.get("tested", ())) if (out / "run.h5").exists() else 0


@pytest.mark.parametrize("script", SCRIPTS)
def test_bash_and_sbatch_accept_a_script(cluster: Cluster, script: str) -> None:
    assert subprocess.run(["bash", "-n", ROOT / "jobs" / script]).returncode == 0
    done = cluster.run("sbatch", "--test-only", "--nodes=1-2", ROOT / "jobs" / script)  # there are no more
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("script", "ranks", "settings"),
    [("youtube.sbatch", 7, YOUTUBE), pytest.param("youtube-srun.sbatch", 3, (*TINY, "--rounds", 3), marks=pmix)],
)
def test_a_job_on_two_nodes_gives_the_bits_of_one_process(
    cluster, submit, unbatched, tmp_path, script, ranks, settings
):
    job = submit(script, "--nodes=2", f"--ntasks={ranks}", settings=settings)
    assert cluster.finish(job) == 0, cluster.output(job)
    run = load_run(tmp_path / "out")
    assert run.attributes["ranks"] == ranks
    assert set(run.attributes["hosts"]) == {"n1", "n2"}
    assert not differences(run, unbatched(*settings), whole=True)


def test_a_job_that_is_told_to_stop_queues_itself_again_and_ends_with_the_same_bits(
    cluster, submit, unbatched, tmp_path
):
    job = submit("requeue.sbatch", *TWO_NODES, settings=LONG)
    cluster.until(lambda: rounds(tmp_path / "out") > 2, "no rounds")
    cluster.cancel("--signal=USR1", "--batch", job)
    assert cluster.finish(job) == 0, cluster.output(job)
    assert cluster.show(job)[0]["Restarts"] == "1"
    assert "stopped by SIGUSR1" in cluster.output(job)
    run = load_run(tmp_path / "out")
    assert len(run.attributes["resumed"]) == 1
    assert not differences(run, unbatched(*LONG), whole=True)


@pytest.mark.parametrize("script", [pytest.param("youtube-srun.sbatch", marks=pmix), "requeue.sbatch"])
def test_a_cancelled_job_is_over_and_its_run_can_be_resumed(cluster, submit, unbatched, command, tmp_path, script):
    job = submit(script, *TWO_NODES, settings=(*LONG, *CHECKPOINTS))
    cluster.until(lambda: rounds(tmp_path / "out") > 5, "no checkpoint")
    cluster.cancel(job)
    cluster.wait(job, "CANCELLED")
    resumed = command("resume", "out")
    assert resumed.returncode == 0, resumed.stderr
    assert not differences(load_run(tmp_path / "out"), unbatched(*LONG), whole=True)


@pmix
def test_srun_with_the_wrong_mpi_is_told_so_once(cluster, data_dir):
    line = f"./envs/run srun --mpi=none mfedpba-mpi {' '.join(map(str, TINY))} --data-dir {data_dir}"
    job = cluster.submit(*TWO_NODES, f"--wrap={line}")
    assert cluster.finish(job) == 2, cluster.output(job)
    assert cluster.output(job).count("--mpi=pmix") == 1


@pmix
@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        ("", 0, "8 methods with 4 clients: identical for 2 ranks and one process"),
        ("--dir /dev/shm", 2, "rank 1 (n2) cannot see files that rank 0 (n1) writes in /dev/shm"),
    ],
)
def test_check_looks_at_both_nodes_and_what_they_share(cluster, options, code, words):
    job = cluster.submit(*TWO_NODES, f"--wrap=./envs/run srun --mpi=pmix mfedpba-mpi check {options}")
    assert cluster.finish(job) == code, cluster.output(job)
    assert words in cluster.output(job)


def test_the_script_for_gpus_runs_on_two_nodes(cluster, submit, unbatched, tmp_path):
    settings = (*TINY, "--rounds", 3, "--clients", 8, "--device", "cpu")
    job = submit("multi-node-gpu.sbatch", "--ntasks-per-node=2", settings=settings)
    assert cluster.finish(job) == 0, cluster.output(job)
    run = load_run(tmp_path / "out")
    assert set(run.attributes["hosts"]) == {"n1", "n2"}
    assert not differences(run, unbatched(*settings), whole=True)


@pytest.mark.parametrize(
    ("option", "launcher", "expected"),
    [
        ("--gpus-per-node=2", "mpirun -n 4 --bind-to none", [("0,1", "cuda:0"), ("0,1", "cuda:1")]),
        ("--gpus-per-node=2", "srun", [("0,1", "cuda:0"), ("0,1", "cuda:1")]),
        ("--gpus-per-task=1", "srun", [("0", "cuda:0"), ("1", "cuda:0")]),
    ],
)
def test_the_ranks_of_a_node_take_its_gpus_in_turn(cluster, option, launcher, expected):
    words = "$(hostname) $CUDA_VISIBLE_DEVICES ${OMPI_COMM_WORLD_LOCAL_RANK:-${MPI_LOCALRANKID:-$SLURM_LOCALID}}"
    line = f"./envs/run {launcher} bash -c 'echo {words}'"
    job = cluster.submit("--nodes=2", "--ntasks-per-node=2", option, f"--wrap={line}")
    assert cluster.finish(job) == 0, cluster.output(job)
    places = sorted(line.split() for line in cluster.output(job).splitlines())
    chosen = [(host, gpus, choose_device("cuda", int(rank), len(gpus.split(",")))) for host, gpus, rank in places]
    assert sorted(chosen) == [(host, *gpu) for host in ("n1", "n2") for gpu in expected]
