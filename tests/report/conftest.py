"""Fixtures for figures and pages."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mfedpba_mpi import Run


@pytest.fixture(scope="session")
def changed() -> Callable[..., Run]:
    """A function that returns a copy of a run with changed attributes, or changed arrays in `rounds`, `final`, ...

    None removes an array, and ``final=None`` all of them.
    """

    def change(run: Run, path: Path | None = None, attributes: Any = (), **groups: Any) -> Run:
        merged = {
            name: {key: value for key, value in {**getattr(run, name), **changes}.items() if value is not None}
            if changes is not None
            else {}
            for name, changes in groups.items()
        }
        attributes = {**run.attributes, **dict(attributes)}
        return dataclasses.replace(run, path=path or run.path, attributes=attributes, **merged)

    return change


@pytest.fixture
def run(made: Callable[..., Run]) -> Run:
    """A complete run of MFedPBA with tracked gradients."""
    return made(track_gradients=True)
