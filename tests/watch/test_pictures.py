"""The live view of a run: its numbers against values computed by hand, and its size."""

import math
import re

import numpy as np
import pytest

from mfedpba_mpi.cli.watch import find
from mfedpba_mpi.comm.serial import SerialComm
from mfedpba_mpi.engine.loop import run_rounds
from mfedpba_mpi.engine.observers import Observer
from mfedpba_mpi.errors import FAILED, RUNNING
from mfedpba_mpi.records.run import RunWarning
from mfedpba_mpi.records.run_log import RunLog
from mfedpba_mpi.watch.pictures import average_curve, busy, losses, pace_of
from tests.watch.examples import run_of, shown, watched


def test_the_curve_is_labelled_with_its_range_and_rounds():
    lines = ["".join(words for words, _ in line) for line in average_curve(run_of(), 40, 4)]
    assert lines[0] == "average 75.00%  best 75.00% (round 5)"
    assert [line[:6] for line in lines[1:]] == [" 75% │", "     │", "     │", " 25% │", "     └"]
    assert lines[-1].startswith("     └1 ──")
    assert lines[-1].endswith(" round 5")
    assert {len(line) for line in lines[1:]} == {40}


def test_time_left_follows_recent_rounds_and_subtracts_the_time_of_the_current_one():
    pace = pace_of(run_of(), age=1.5)
    assert (pace.t, pace.T, pace.each, pace.elapsed, pace.left) == (5, 10, 2.0, 3 + 10 + 1.5, 8.5)
    assert pace_of(run_of(), age=100).left == 8.0
    assert math.isnan(pace_of(run_of(T=0), 0).left)
    faster = run_of(T=40, rounds=50)
    faster.rounds["seconds_total"][20:] = 1.0
    assert pace_of(faster, 0).left == 10.0


def test_losses_are_means_over_participants():
    run = run_of(T=2)
    run.rounds["loss_ce"] = np.array([[1.0, 3.0, np.nan], [np.nan, np.nan, 5.0]])
    run.rounds["loss_fea"] = np.full((2, 3), np.nan)
    run.rounds["server_con"] = np.array([np.nan, 7.0])
    found = losses(run)
    assert list(found) == ["loss ce", "server con"]
    np.testing.assert_array_equal(found["loss ce"], [2, 5])
    np.testing.assert_array_equal(found["server con"], [7])


def test_busy_counts_the_clients_of_a_rank_and_on_rank_0_the_server():
    assert busy(run_of()) == pytest.approx({0: 0.25, 1: 0.05, 2: 0.1, 3: 0.15})
    assert busy(run_of(resumed=[{"ranks": 2, "hosts": ["node3"]}])) == {}


@pytest.mark.parametrize("size", [(20, 8), (40, 20), (80, 24), (81, 25), (120, 40), (250, 90)])
@pytest.mark.parametrize("K", [1, 6, 1000])
def test_the_view_fits_every_terminal(size, K):
    warnings = [RunWarning(t, "a long warning " * 20) for t in range(9)]
    for T, status, reason, own in [
        (0, RUNNING, "", ()), (1, RUNNING, "", ()), (9, FAILED, "a reason " * 20, ()), (9, RUNNING, "", warnings),
    ]:  # fmt: skip
        view = shown(watched(run_of(T, K, warnings=own), status, reason), *size)
        lines = view.split("\n")
        assert len(lines) < size[1]
        assert max(map(len, lines)) <= size[0]
        assert "SYNTHETIC" in view
        assert (f"round {T}/10" in view) or size == (20, 8)


def test_the_view_shows_progress_clients_losses_times_and_ranks():
    view = shown(watched(run_of(K=6)), 80, 24)
    for words in ("running  round 5/10  elapsed 13 s  ETA 10 s  2 s per round", "client 5", "50.0%", "loss ce",
                  "train 50%", "7 ranks on 2 hosts: node1, node2", "busy  0: 25%  1: 5%"):  # fmt: skip
        assert words in view
    assert "server rec" not in view
    assert "…" not in view


def test_clients_that_do_not_fit_are_summarised_by_quantiles():
    run = run_of(K=1000)
    run.rounds["accuracy"][-1] = np.arange(1000) / 999
    assert re.search(r"and \d+ more  all: 0% to 100%, quartiles 25% 50% 75%", shown(watched(run)))


def test_accuracy_on_validation_rows_is_labelled():
    config = {"rounds": 10, "partition": "m2", "validation": 0.2}
    assert "average validation accuracy" in shown(watched(run_of(config=config)))


class Warner(Observer):
    """An observer that sends another one a warning after every round."""

    def __init__(self, other):
        self.other = other

    def round(self, result):
        self.other.warn(result.t, "rank 3 is slow")


def test_the_last_warnings_are_shown_with_their_rounds(tiny, tmp_path):
    observer = RunLog(tmp_path)
    observer.warn(0, "one thread only")
    run_rounds(tiny(), tmp_path, SerialComm(), [observer, Warner(observer)])
    view = shown(find(tmp_path), 40)
    assert "one thread only" not in view
    assert re.search(
        r"warning \(round 1\): rank 3 is slow *\nwarning \(round 2\): rank 3 is slow *\nwarning \(round 3\): rank 3 "
        r"is slow *\n1 earlier warning, see the report", view,
    )  # fmt: skip
    start = [RunWarning(0, "one thread only, although this rank has more")]
    assert "\nwarning: one thread only, although this…\n" in shown(watched(run_of(warnings=start)), 40)
