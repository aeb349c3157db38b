"""The numbers of a run in tables of studies."""

from dataclasses import replace

import numpy as np
import pytest

from mfedpba_mpi.studies.measures import MEASURES


def test_prototypes_are_counted_by_the_samples_behind_them(finished):
    """Five prototypes, of 1, 2, 4, 5 and 1 samples; a class without samples has none."""
    run = replace(finished(method="local"), partition={"counts": np.array([[1, 2, 0], [4, 5, 1]])})
    assert [MEASURES[name][1](run) for name in ("from_one", "from_two", "from_few")] == [40, 20, 80]


def test_falls_of_clients_and_of_the_average(finished):
    """Client 0 falls from 0.6 to 0.3 in round 12, client 1 keeps more; earlier falls are free."""
    accuracy = np.full((13, 2), 0.1)
    accuracy[[0, 10, 11, 12]] = [[0.9, 0.9], [0.6, 0.5], [0.3, 0.4], [0.6, 0.6]]
    rounds = {"accuracy": accuracy, "correct": np.int64(10 * accuracy + 0.5), "tested": np.full((13, 2), 10)}
    run = replace(finished(method="local"), rounds=rounds)
    assert MEASURES["diverged"][1](run) == 1
    assert MEASURES["largest_fall"][1](run) == pytest.approx(20)


def test_the_plan_trace_is_a_mean_over_the_last_five_rounds_without_missing_plans(finished):
    trace = np.array([[9.0, 9.0], [0.2, 0.4], [0.2, 0.4], [0.2, 0.4], [0.2, 0.4], [0.2, np.nan]])
    run = finished(method="local")
    assert MEASURES["plan_trace"][1](replace(run, rounds={"gw_trace": trace})) == pytest.approx((5 * 0.2 + 4 * 0.4) / 9)
