"""Estimates of a study's time, disk and memory before it is started."""

import re

import pytest
from click.testing import CliRunner

from mfedpba_mpi import RunConfig
from mfedpba_mpi.cli.main import cli
from mfedpba_mpi.studies.estimates import calibration_key, shard_key


def test_a_dry_run_estimates_the_disk_space(study_file, tmp_path, monkeypatch):
    """Two methods share the shards of each of two seeds: 120 rows of at most 24 numbers, label and row number."""
    monkeypatch.chdir(tmp_path)
    output = CliRunner().invoke(cli, ["study", "run", study_file, "--dry-run"], catch_exceptions=False).output
    logs, checkpoints, shards = re.search(
        r"logs ([\d.]+) kB, checkpoints ([\d.]+) MB .*shards ([\d.]+) kB", " ".join(output.split())
    ).groups()
    assert 4 * 85 < float(logs) < 4 * 200
    assert float(checkpoints) > float(logs) / 1000
    assert float(shards) < 2 * 120 * (4 * 24 + 16) / 1000


def config(**changes):
    return RunConfig.of(dataset="youtube", **changes)


@pytest.mark.parametrize(
    "change", [{"seed": 1}, {"clients": 20}, {"rounds": 7}, {"lr": 0.5}, {"lambda_1": 3.0}], ids=lambda c: next(iter(c))
)
def test_settings_that_do_not_change_a_step_need_no_calibration(change):
    assert calibration_key(config(**change)) == calibration_key(config())


@pytest.mark.parametrize(
    "change",
    [{"method": "local"}, {"feature_dim": 8}, {"batch_size": 6}, {"server_epochs": 3}, {"without": ("rec",)}],
    ids=lambda c: next(iter(c)),
)
def test_settings_that_change_a_step_need_a_calibration(change):
    assert calibration_key(config(**change)) != calibration_key(config())


def test_runs_share_shards_unless_their_data_or_partitions_differ():
    for change in ({"method": "local"}, {"lr": 0.5}, {"feature_dim": 8}, {"rounds": 7}):
        assert shard_key(config(**change)) == shard_key(config())
    for change in ({"seed": 1}, {"clients": 20}, {"partition": "m1"}, {"validation": 0.2}):
        assert shard_key(config(**change)) != shard_key(config())
    assert shard_key(RunConfig.of(dataset="mfeat")) != shard_key(config())
