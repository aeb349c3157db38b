"""Runs to draw."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mfedpba_mpi import Run


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
