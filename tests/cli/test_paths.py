"""Paths on the command line, and the data directory."""

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from mfedpba_mpi.cli.paths import PathType, check_data_dir, data_dir_option
from mfedpba_mpi.errors import UserError


@click.command()
@data_dir_option
def show_data_dir(data_dir):
    click.echo(repr(data_dir))


def test_an_empty_path_is_refused_with_the_fix():
    with pytest.raises(click.BadParameter, match=r"the path is empty; use '\.' for the current directory"):
        PathType.convert("", None, None)
    assert PathType.convert("a/b", None, None) == Path("a/b")


def test_the_data_directory_is_the_option_the_variable_or_the_default():
    def data_dir(*words, **variables):
        return CliRunner(env={"MFEDPBA_DATA_DIR": None} | variables).invoke(show_data_dir, words).output.strip()

    assert data_dir("--data-dir", "mine", MFEDPBA_DATA_DIR="ours") == repr(Path("mine"))
    assert data_dir(MFEDPBA_DATA_DIR="ours") == repr(Path("ours"))
    assert data_dir() == repr(Path("data"))
    assert "the path is empty" in data_dir("--data-dir", "")


def test_a_data_directory_must_exist_unless_it_is_the_default(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    check_data_dir(tmp_path)
    check_data_dir(Path("data"))
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "missing"):
        with pytest.raises(UserError, match=rf"data-dir: {path} is not a directory"):
            check_data_dir(path)
