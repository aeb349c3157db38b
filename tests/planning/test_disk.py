"""Predicted disk space of a run, compared with the files of a run."""

import pytest

from mfedpba_mpi.comm.serial import SerialComm
from mfedpba_mpi.engine.loop import run_rounds
from mfedpba_mpi.planning.disk import disk_of
from mfedpba_mpi.planning.plan import expected_problem
from mfedpba_mpi.records.checkpoint import Checkpoints
from mfedpba_mpi.records.run_log import RunLog


@pytest.mark.parametrize("changes", [{}, {"fusion": "concat", "method": "local"}, {"clients": 12, "rounds": 8}])
def test_predicted_sizes_are_close_to_those_of_a_run(tiny, tmp_path, changes):
    """Checkpoints within 10 %; logs within 30 %, as methods log different numbers; small shards are mostly headers."""
    config, run = tiny(samples=1200, **changes), tmp_path / "run"
    run.mkdir()
    run_rounds(config, tmp_path, SerialComm(), [RunLog(run)], Checkpoints(run))
    disk = disk_of(expected_problem(config, tmp_path))
    checkpoint = sum(path.stat().st_size for path in run.glob("checkpoints/*/*"))
    assert disk.checkpoint == pytest.approx(checkpoint, rel=0.1)
    assert disk.log == pytest.approx((run / "run.h5").stat().st_size, rel=0.3)
    (shards,) = (tmp_path / "shards").iterdir()
    assert disk.shards < shards.stat().st_size < disk.shards + 200e3


def test_more_rounds_need_more_space_for_the_log_only(tiny, tmp_path):
    short, long = (disk_of(expected_problem(tiny(rounds=rounds), tmp_path)) for rounds in (3, 3000))
    assert long.log > short.log
    assert long.shards == short.shards
    assert long.checkpoint - short.checkpoint == pytest.approx(long.log - short.log)  # a checkpoint contains the log
