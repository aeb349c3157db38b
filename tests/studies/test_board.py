"""Progress of a study without a terminal: one line per run that ends, the time left, and the totals."""

import pytest

from mfedpba_mpi.errors import COMPLETE, FAILED, INTERRUPTED, RUNNING, WAITING
from mfedpba_mpi.records.status import RunState
from mfedpba_mpi.studies import board as module
from mfedpba_mpi.studies.board import Board
from mfedpba_mpi.studies.study_file import read_study


@pytest.fixture
def runs(study_file, tmp_path):
    """The four runs of a study, of two rounds each: local/s0, local/s1, fedproto/s0, fedproto/s1."""
    return read_study(tmp_path / study_file).plan(tmp_path)


@pytest.fixture
def board(runs, tmp_path, monkeypatch):
    """A function that makes a board with the runs in these states."""
    monkeypatch.setenv("COLUMNS", "300")

    def make(*states):
        return Board(tmp_path, runs, {run.path: state for run, state in zip(runs, states, strict=True)})

    return make


def test_the_first_line_counts_complete_and_active_runs(board, capsys, tmp_path):
    with board(RunState(COMPLETE), RunState(RUNNING), RunState(INTERRUPTED), RunState(WAITING)):
        pass
    assert capsys.readouterr().out == (f"4 runs in {tmp_path}, 1 already complete, 1 running elsewhere, 2 to do\n")
    with board(*[RunState(WAITING)] * 4):
        pass
    assert capsys.readouterr().out == f"4 runs in {tmp_path}, 4 to do\n"


def test_a_run_that_ends_has_a_line_with_its_result(board, runs, capsys):
    shown = board(RunState(COMPLETE), *[RunState(WAITING)] * 3)
    shown.run_ended(runs[1], RunState(COMPLETE, rounds=2, total=2, accuracy=0.5), 3.2)
    shown.run_ended(runs[2], RunState(FAILED, "[red]no memory"), 1.0)
    shown.run_ended(runs[3], RunState(INTERRUPTED), 0.0)  # was not started
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("2/4  local/s1  complete, 2/2 50.00%, 3 s, ")
    assert second.startswith("2/4  fedproto/s0  failed, 1 s: [red]no memory, ")
    assert second.endswith(" left")


def test_the_time_left_follows_the_work_done_since_the_start(board, runs, capsys, monkeypatch):
    """Half of the first run was done before. It and the second run are complete after ten seconds."""
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    shown = board(RunState(INTERRUPTED, rounds=1, total=2), *[RunState(WAITING)] * 3)
    now[0] += 10
    for run in runs[:2]:
        shown.run_ended(run, RunState(COMPLETE, rounds=2, total=2), 5.0)
    first, second, *others = (run.weight for run in runs)
    left = 10 * sum(others) / (first / 2 + second)
    assert capsys.readouterr().out.endswith(f"complete, 2/2, 5 s, {left:.0f} s left\n")


def test_failed_runs_are_listed_with_their_output_before_the_totals(board, runs, capsys, tmp_path):
    failed = RunState(FAILED, "[b]cuda needs a GPU")
    shown = board(*[RunState(COMPLETE)] * 3, RunState(WAITING))
    shown.report([(runs[3], failed)], stopped_by="")
    shown.report([], stopped_by="SIGUSR1")
    assert capsys.readouterr().out.splitlines() == [
        "failed fedproto/s1: [b]cuda needs a GPU",
        f"       see {tmp_path}/fedproto/s1/output.txt",
        "3 of 4 runs complete, 1 failed",
        "3 of 4 runs complete, 0 failed; stopped by SIGUSR1, repeat the command to continue",
    ]
