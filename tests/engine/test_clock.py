"""Timing of a round."""

import time

import pytest

from mfedpba_mpi.engine.clock import Clock


@pytest.fixture
def timers(monkeypatch):
    """The readings of the wall clock and of the CPU clock, which the test sets."""
    now = {"wall": 100.0, "cpu": 10.0}
    monkeypatch.setattr(time, "perf_counter", lambda: now["wall"])
    monkeypatch.setattr(time, "process_time", lambda: now["cpu"])
    return now


def test_wall_clock_seconds_add_up_by_phase(timers):
    clock = Clock()
    for phase, seconds in (("train", 2.0), ("eval", 1.0), ("train", 0.5)):
        with clock(phase):
            timers["wall"] += seconds
        timers["wall"] += 50.0  # between phases
    assert clock.seconds == {"train": 2.5, "eval": 1.0, "server": 0.0}


def test_cpu_seconds_add_up_by_client(timers):
    clock = Clock()
    for k, seconds in ((3, 0.25), (1, 1.0), (3, 0.5)):
        with clock("train"), clock.client(k):
            timers["cpu"] += seconds
            timers["wall"] += 10 * seconds  # other processes use the core
    assert clock.clients == {3: 0.75, 1: 1.0}
    assert clock.clients[0] == 0.0  # a client that did nothing
