"""Runs to draw, each made once for all tests in this room."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mfedpba_mpi import Run, load_run
from mfedpba_mpi.comm.serial import Comm
from mfedpba_mpi.config import fit_to_data, make_config
from mfedpba_mpi.data.sources import describe
from mfedpba_mpi.records.runlog import RunLog
from mfedpba_mpi.simulation import simulate

TINY = {"dataset": "synthetic", "samples": 120, "classes": 3, "dims": (6, 10, 8), "rounds": 3, "feature_dim": 8}


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Run]:
    """A function like `finished` that makes a run only once; what it returns is shared, so change it with `changed`."""
    data, runs = tmp_path_factory.mktemp("data"), {}

    def make(**changes: Any) -> Run:
        key = repr(sorted(changes.items()))
        if key not in runs:
            config = make_config({**TINY, **changes})
            directory = tmp_path_factory.mktemp("run")
            simulate(fit_to_data(config, describe(config, data)), data, Comm(), [RunLog(directory)])
            runs[key] = load_run(directory)
        return runs[key]

    return make


@pytest.fixture(scope="session")
def changed() -> Callable[..., Run]:
    """A function that returns a copy of a run with other attributes, or other arrays in `rounds` and its like.

    None takes an array away, and ``final=None`` all of them.
    """

    def change(run: Run, path: Path | None = None, attributes: Any = (), **groups: Any) -> Run:
        merged = {
            name: {key: value for key, value in {**getattr(run, name), **news}.items() if value is not None}
            if news is not None
            else {}
            for name, news in groups.items()
        }
        attributes = {**run.attributes, **dict(attributes)}
        return dataclasses.replace(run, path=path or run.path, attributes=attributes, **merged)

    return change
