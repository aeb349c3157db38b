"""Shards and stand-ins go beside the data, or elsewhere where those cannot be written; also for root, so by trying."""

import os

import pytest

from mfedpba_mpi.data.scratch import Scratch
from mfedpba_mpi.errors import UserError

NAME = "shards/a.h5"
OWN = f"mfedpba-mpi-{os.getuid()}"


@pytest.fixture
def closed(tmp_path, monkeypatch):
    """A data directory that takes no shards, whoever asks, and no places that the environment names."""
    for name in ("SLURM_TMPDIR", "TMPDIR", "MFEDPBA_SCRATCH"):
        monkeypatch.delenv(name, raising=False)
    directory = tmp_path / "closed"
    directory.mkdir()
    (directory / "shards").write_text("in the way")
    return directory


def never(path):
    return False


def test_shards_stay_beside_the_data_where_that_can_be_written(tmp_path, closed):
    assert Scratch(tmp_path / "data").find(NAME, never) == (tmp_path / "data" / NAME, False)
    assert list((tmp_path / "data" / "shards").iterdir()) == []


def test_one_host_takes_its_temporary_directories_in_turn(tmp_path, closed, monkeypatch):
    for name in ("TMPDIR", "SLURM_TMPDIR"):  # the second goes before the first
        (tmp_path / name).mkdir()
        monkeypatch.setenv(name, str(tmp_path / name))
        path, there = Scratch(closed).find(NAME, never)
        assert (path, there) == (tmp_path / name / OWN / NAME, False)
        assert (tmp_path / name / OWN).stat().st_mode & 0o777 == 0o700
    assert Scratch(closed).find(NAME, lambda path: OWN in str(path)) == (path, True)


def test_a_temporary_directory_that_others_can_write_is_left_alone(tmp_path, closed, monkeypatch):
    for name in ("SLURM_TMPDIR", "TMPDIR"):
        (tmp_path / name).mkdir()
        monkeypatch.setenv(name, str(tmp_path / name))
    (tmp_path / "SLURM_TMPDIR" / OWN).mkdir()
    (tmp_path / "SLURM_TMPDIR" / OWN).chmod(0o777)
    assert Scratch(closed).find(NAME, never)[0] == tmp_path / "TMPDIR" / OWN / NAME
    (tmp_path / "SLURM_TMPDIR" / OWN).rmdir()
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "SLURM_TMPDIR" / OWN).symlink_to(tmp_path / "elsewhere")
    assert Scratch(closed).find(NAME, never)[0] == tmp_path / "TMPDIR" / OWN / NAME


def test_several_hosts_take_the_run_s_own_directory(tmp_path, closed, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    scratch = Scratch(closed, run=tmp_path / "out", one_host=False)
    assert scratch.find(NAME, never) == (tmp_path / "out" / NAME, False)
    with pytest.raises(
        UserError, match=r"scratch: cannot write in .*closed \(File exists\); name another .* --scratch"
    ):
        Scratch(closed, one_host=False).find(NAME, never)


def test_what_the_user_names_is_the_only_place(tmp_path, closed, monkeypatch):
    monkeypatch.setenv("MFEDPBA_SCRATCH", str(tmp_path / "variable"))
    assert Scratch(tmp_path / "data").find(NAME, never)[0] == tmp_path / "variable" / NAME
    assert Scratch(tmp_path / "data", str(tmp_path / "option")).find(NAME, never)[0] == tmp_path / "option" / NAME
    with pytest.raises(UserError, match=r"scratch: cannot write in .*closed"):
        Scratch(tmp_path / "data", str(closed)).find(NAME, never)


def test_a_good_file_beside_the_data_is_used_wherever_others_would_go(tmp_path):
    scratch = Scratch(tmp_path / "data", str(tmp_path / "option"))
    assert scratch.find(NAME, lambda path: path.parts[-3] == "data") == (tmp_path / "data" / NAME, True)
    assert not (tmp_path / "option").exists()
