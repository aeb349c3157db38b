"""Observers of a run: what they receive, and how they end it."""

from typing import ClassVar

import pytest

from mfedpba_mpi import Observer, RunConfig, simulate
from mfedpba_mpi.comm.serial import SerialComm
from mfedpba_mpi.engine.loop import run_rounds

SETTINGS = {"dataset": "synthetic", "samples": 120, "classes": 3, "dims": (6, 10), "feature_dim": 8, "rounds": 2}


def test_a_run_ended_by_an_observer_is_resumed_to_the_same_bits(tmp_path):
    config = RunConfig.of(**SETTINGS, mfedpba={"lambda_1": 0.5})

    class Enough(Observer):
        calls: ClassVar[list[str]] = []

        def start(self, start):
            self.calls.append(f"start after {start.finished}")

        def round(self, result):
            self.calls.append(f"round {result.t}")
            return "enough" if result.t == 1 else None

        def end(self, end):
            self.calls.append("end")

    ended = simulate(config, tmp_path / "out", tmp_path / "data", quiet=True, observers=[Enough()])
    assert (ended.status, ended.attributes["reason"]) == ("interrupted", "ended after round 1 by Enough: enough")
    resumed = simulate(config, tmp_path / "out", resume=True, quiet=True, observers=[Enough()])
    whole = simulate(config, tmp_path / "whole", tmp_path / "data", quiet=True)
    assert resumed.final["client_sha256"] == whole.final["client_sha256"]
    assert Enough.calls == ["start after 0", "round 1", "start after 1", "round 2", "end"]


def test_an_observer_receives_the_problem_every_round_and_the_end(tiny, tmp_path):
    calls = []

    class Recorder(Observer):
        def start(self, start):
            calls.append((start.problem.K, start.partition.modalities, start.ranks, start.finished, start.log))

        def round(self, result):
            calls.append((result.t, result.values["accuracy"].shape))

        def end(self, end):
            calls.append((len(end.sha256), sorted(end.prototypes), list(end.predictors)))

    run_rounds(tiny(rounds=2, method="local"), tmp_path, SerialComm(), [Recorder()])
    (K, modalities, ranks, finished, log), *rounds, end = calls
    assert (K, len(modalities), ranks, finished, log) == (3, 3, [[0, 1, 2]], 0, None)
    assert rounds == [(1, (3,)), (2, (3,))]
    assert end == (3, [0, 1, 2], ["classifier"])


def test_an_observer_may_override_any_subset_of_the_methods(tiny, tmp_path):
    run_rounds(tiny(rounds=1, method="local"), tmp_path, SerialComm(), [Observer()])


def test_an_exception_in_an_observer_ends_the_run(tiny, tmp_path):
    class Failing(Observer):
        def round(self, result):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_rounds(tiny(method="local"), tmp_path, SerialComm(), [Failing()])
