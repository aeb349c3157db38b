"""Fixtures for studies."""

import pytest

from mfedpba_mpi.studies.study_file import find_study
from tests.studies.examples import STUDY


@pytest.fixture
def study(tmp_path):
    """The study of `examples`."""
    (tmp_path / "t.toml").write_text(STUDY)
    return find_study(str(tmp_path / "t.toml"))


@pytest.fixture
def written(tmp_path):
    """A function that writes a study file and reads it."""

    def write(text):
        (tmp_path / "mine.toml").write_text(text)
        return find_study(str(tmp_path / "mine.toml"))

    return write
