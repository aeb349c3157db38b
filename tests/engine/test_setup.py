"""Set-up of a run: partitions given by the user, before and after an interruption, and the place of the shards."""

import shutil

import numpy as np
import pytest

from mfedpba_mpi import Partition, RunConfig, load_run, simulate
from mfedpba_mpi.comm.serial import SerialComm
from mfedpba_mpi.config.fault_tolerance import FaultTolerance
from mfedpba_mpi.engine.launch import run_rank
from mfedpba_mpi.engine.resume import extended, stored_run
from mfedpba_mpi.engine.setup import prepare
from mfedpba_mpi.engine.signals import Stop
from mfedpba_mpi.errors import UserError

SETTINGS = {"dataset": "synthetic", "samples": 120, "classes": 3, "dims": (6, 10), "feature_dim": 8, "rounds": 2}
OWNER = np.arange(120) % 4 - 1  # three clients
OWNED = np.array([[1, 0], [1, 1], [0, 1]], bool)


@pytest.fixture
def run(tmp_path):
    """A function that runs a tiny configuration to its end."""

    def make(out, **settings):
        own = {"partition": settings.pop("given")} if "given" in settings else {}
        own |= {"resume": settings.pop("resume")} if "resume" in settings else {}
        return simulate(RunConfig.of(**SETTINGS, **settings), tmp_path / out, tmp_path / "data", quiet=True, **own)

    return make


@pytest.fixture
def longer(tmp_path):
    """A function that goes on with a run for a round more, as `mfedpba-mpi resume --rounds 3` does."""

    def go_on(out):
        config = extended(stored_run(tmp_path / out).config, 3)
        run_rank(config, tmp_path / "data", tmp_path / out, SerialComm(), None, FaultTolerance(), Stop(), True)
        return load_run(tmp_path / out)

    return go_on


def digests(run):
    return run.final["client_sha256"], run.final["server_sha256"]


def test_what_a_run_logged_gives_the_same_clients_again(run, tmp_path):
    first = run("first", clients=3)
    for name in ("mine.csv", "mine.h5"):
        first.as_partition().save(tmp_path / name)
    for path in (tmp_path / "mine.csv", tmp_path / "mine.h5", first.path):
        again = run(f"again-{path.name}", partition=str(path))
        assert digests(again) == digests(first)
        assert again.attributes["config"]["partition"] == str(path)
        assert again.as_partition().digest == first.as_partition().digest


def test_a_partition_from_python_is_kept_as_a_file_of_the_run(run, tmp_path):
    mine = Partition.of(OWNER, OWNED, np.arange(120) >= 80)
    first = run("first", given=mine)
    assert first.as_partition().digest == mine.digest
    assert first.attributes["modalities"] == ["M1", "M2"]
    path = tmp_path / "first" / f"partition-{mine.digest[:8]}.h5"
    assert first.attributes["config"]["partition"] == str(path)
    assert digests(run("again", partition=str(path))) == digests(first)
    other = Partition.of(OWNER, ~OWNED | OWNED[[1]])
    with pytest.raises(UserError, match="already holds a run"):
        run("first", given=other)
    assert [found.name for found in (tmp_path / "first").glob("partition*")] == [path.name]


def test_a_run_goes_on_with_the_clients_of_its_log_when_the_file_is_gone(run, longer, killed, tmp_path):
    path = tmp_path / "mine.csv"
    Partition.of(OWNER, OWNED).save(path)
    whole = run("whole", partition=str(path)), longer("whole")
    for out in ("stopped", "no-checkpoint", "no-log"):
        run(out, partition=str(path))
    path.unlink()
    shutil.rmtree(tmp_path / "data" / "shards")
    killed(tmp_path / "no-checkpoint")
    assert digests(longer("stopped")) == digests(whole[1])
    assert digests(longer("no-checkpoint")) == digests(whole[1])
    config = extended(stored_run(tmp_path / "no-log").config, 3)
    (tmp_path / "no-log" / "run.h5").write_bytes(b"damaged")
    run_rank(config, tmp_path / "data", tmp_path / "no-log", SerialComm(), None, FaultTolerance(), Stop(), True)
    assert digests(load_run(tmp_path / "no-log")) == digests(whole[1])


def test_a_complete_run_of_other_clients_is_not_taken_for_this_one(run, tmp_path):
    path = tmp_path / "mine.csv"
    Partition.of(OWNER, OWNED).save(path)
    run("out", partition=str(path))
    assert run("out", partition=str(path), resume=True).status == "complete"
    Partition.of(OWNER[::-1], OWNED).save(path)
    with pytest.raises(UserError, match=r"mine\.csv now gives other clients than the run in .*out has"):
        run("out", partition=str(path), resume=True)


@pytest.mark.parametrize("checkpoint", [True, False])
def test_a_run_does_not_go_on_with_other_clients(run, longer, tmp_path, checkpoint):
    path = tmp_path / "mine.csv"
    Partition.of(OWNER, OWNED).save(path)
    before = run("out", partition=str(path))
    Partition.of(OWNER[::-1], OWNED).save(path)
    if not checkpoint:
        shutil.rmtree(tmp_path / "out" / "checkpoints")
    with pytest.raises(UserError, match=r"mine\.csv now gives other clients than the run in .*out has"):
        longer("out")
    assert load_run(tmp_path / "out").as_partition().digest == before.as_partition().digest


def test_the_shards_follow_what_is_in_the_file(run, tmp_path):
    path = tmp_path / "mine.csv"
    for out, owner in (("one", OWNER), ("two", OWNER[::-1])):
        Partition.of(owner, OWNED).save(path)
        rows = run(out, partition=str(path)).as_partition()
        for k in range(3):
            assert sorted([*rows.train[k], *rows.test[k]]) == np.flatnonzero(owner == k).tolist()
    assert len(list((tmp_path / "data" / "shards").glob("synthetic-mine-k3-*.h5"))) == 2


def test_a_client_may_be_as_small_as_the_file_says(run):
    owner, test = np.full(120, -1), np.arange(120) >= 60
    owner[[0, 1, 60]], owner[[2, 3, 4, 61]], owner[10:60], owner[70:] = 0, 1, 2, 2
    assert run("out", given=Partition.of(owner, OWNED, test)).partition["counts"].sum(axis=1).tolist() == [2, 3, 50]


class SeveralHosts(SerialComm):
    """One process that says it is on two hosts."""

    def collect(self, value):
        return [value, "another"]


@pytest.mark.parametrize(("comm", "place"), [(SerialComm, "tmp"), (SeveralHosts, "out")])
def test_a_data_directory_that_cannot_be_written_is_left_alone(tiny, tmp_path, monkeypatch, comm, place):
    monkeypatch.delenv("SLURM_TMPDIR", raising=False)
    monkeypatch.delenv("MFEDPBA_SCRATCH", raising=False)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    (tmp_path / "data").mkdir()
    for name in ("shards", "synthetic"):
        (tmp_path / "data" / name).write_text("no directory, so that root cannot write there either")
    _, partition, store, shards = prepare(tiny(), tmp_path / "data", comm(), tmp_path / "out")
    assert shards.is_relative_to(tmp_path / place)
    assert store.path.is_relative_to(tmp_path / place)
    named = prepare(tiny(), tmp_path / "data", comm(), tmp_path / "out", str(tmp_path / "mine"))
    assert named[3].parent == tmp_path / "mine" / "shards"
    assert named[1].digest == partition.digest


def test_a_partition_names_the_owner_of_every_sample(run):
    with pytest.raises(UserError, match=r"is for a dataset of 40 samples, but .* has 120; give the owner of every"):
        run("out", given=Partition.of(OWNER[:40], OWNED))


def test_the_problem_seed_draws_partition_and_networks_and_the_seed_the_rest(run):
    def drawn(out):
        return out.as_partition().digest, list(out.partition["architectures"])

    first, other = run("first", seed=5), run("other", seed=6)
    assert drawn(first) != drawn(other)
    same = run("same", seed=5, problem_seed=5)
    assert (drawn(same), digests(same)) == (drawn(first), digests(first))
    second = run("second", seed=6, problem_seed=5)
    assert drawn(second) == drawn(first)
    assert digests(second) != digests(first)
