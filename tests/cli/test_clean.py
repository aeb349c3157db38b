"""`clean`: removed files, kept files and output."""

import shutil

import pytest
from click.testing import CliRunner

from mfedpba_mpi import load_run
from mfedpba_mpi.cli.main import cli
from mfedpba_mpi.comm.serial import SerialComm
from mfedpba_mpi.engine.loop import run_rounds
from mfedpba_mpi.records.checkpoint import Checkpoints
from mfedpba_mpi.records.lock import locked
from mfedpba_mpi.records.run_log import RunLog


@pytest.fixture
def runs(tiny, tmp_path):
    """Three runs: a complete one, one that was killed after round 2, and one whose log is damaged."""
    complete = tmp_path / "runs/complete"
    complete.mkdir(parents=True)
    run_rounds(tiny(), tmp_path, SerialComm(), [RunLog(complete)], Checkpoints(complete, every=1, keep="all"))
    (complete / ".lock").touch()
    for name in ("killed", "damaged"):
        shutil.copytree(complete, complete.parent / name)
    shutil.copy(complete / "checkpoints/round-00000002/log.h5", complete.parent / "killed/run.h5")
    (complete.parent / "damaged/run.h5").write_bytes(b"no log")
    return complete.parent


def files(directory):
    return {path.relative_to(directory): path.stat().st_size for path in directory.rglob("*") if path.is_file()}


def clean(*args, code=0):
    result = CliRunner().invoke(cli, ["clean", *map(str, args)])
    assert result.exit_code == code, result.output
    return result.output


def test_only_checkpoints_of_complete_runs_are_removed_and_logs_are_kept(runs):
    before = files(runs)
    spare = {path for path in before if path.match("complete/checkpoints/*/*")}
    size = f"{sum(before[path] for path in spare) / 1e6:.4g} MB"
    assert clean(runs, "--dry-run").endswith(f"would free {size}; 1 run could no longer be extended\n")
    assert files(runs) == before
    output = clean(runs)
    assert f"complete: {size}\n" in output
    assert "killed: 0 B (interrupted)\n" in output
    assert "damaged: 0 B (unreadable)\n" in output
    assert output.endswith(f"freed {size}; 1 run can no longer be extended\n")
    assert files(runs).keys() == before.keys() - spare
    assert not (runs / "complete/checkpoints").exists()
    assert load_run(runs / "complete").status == "complete"
    assert clean(runs / "complete") == "freed 0 B\n"


def test_temporary_files_of_killed_runs_are_removed(runs):
    before = files(runs)
    for name in ("checkpoints/.round-00000003.part/rank-0.safetensors", ".run.h5.part"):
        (runs / "killed" / name).parent.mkdir(exist_ok=True)
        (runs / "killed" / name).write_bytes(bytes(1000))
    assert "killed: 2 kB (interrupted)\n" in clean(runs / "killed")
    assert files(runs) == before


def test_an_active_run_is_not_changed(runs):
    (runs / "complete/checkpoints/.round-00000004.part").mkdir()
    with locked(runs / "complete"):
        before = files(runs)
        assert clean(runs / "complete") == f"{runs / 'complete'}: 0 B (running)\nfreed 0 B\n"
        assert files(runs) == before
    assert (runs / "complete/checkpoints/.round-00000004.part").is_dir()


def test_a_repeated_path_is_cleaned_once_and_a_path_without_runs_is_refused(runs, tmp_path):
    assert clean(runs, runs / "complete", "--dry-run").count("/complete:") == 1
    (tmp_path / "empty").mkdir()
    result = CliRunner().invoke(cli, ["clean", str(tmp_path / "empty")])
    assert f"no run in {tmp_path / 'empty'}" in str(result.exception)


def test_shards_are_removed_and_made_again_and_datasets_are_kept(finished, tiny, tmp_path):
    data = finished().path.parents[1]
    (shards,) = (data / "shards").iterdir()
    stores = files(data / "synthetic")
    made = shards.read_bytes()
    for verb, options in (("would free", ["--dry-run"]), ("freed", [])):
        assert shards.exists()
        output = CliRunner().invoke(cli, ["data", "clean", "--data-dir", str(data), *options]).output
        assert output == f"{verb} {len(made) / 1000:.4g} kB, 1 file in {data / 'shards'}\n"
    assert not shards.exists()
    assert files(data / "synthetic") == stores
    finished()
    assert len(shards.read_bytes()) == len(made)
