"""Choice of the scratch directory; directories are made unwritable in a way that also works for root."""

import os

import pytest

from mfedpba_mpi.data.scratch import Scratch
from mfedpba_mpi.errors import UserError

NAME = "shards/a.h5"
OWN = f"mfedpba-mpi-{os.getuid()}"


@pytest.fixture
def closed(tmp_path, monkeypatch):
    """A data directory where shards cannot be written, even by root, and no directories from the environment."""
    for name in ("SLURM_TMPDIR", "TMPDIR", "MFEDPBA_SCRATCH"):
        monkeypatch.delenv(name, raising=False)
    directory = tmp_path / "closed"
    directory.mkdir()
    (directory / "shards").write_text("in the way")
    return directory


def never(path):
    return False


def test_a_writable_data_directory_is_used(tmp_path, closed):
    assert Scratch(tmp_path / "data").find(NAME, never) == (tmp_path / "data" / NAME, False)
    assert list((tmp_path / "data" / "shards").iterdir()) == []


def test_on_one_host_temporary_directories_are_tried_in_order(tmp_path, closed, monkeypatch):
    for name in ("TMPDIR", "SLURM_TMPDIR"):  # SLURM_TMPDIR has priority
        (tmp_path / name).mkdir()
        monkeypatch.setenv(name, str(tmp_path / name))
        path, exists = Scratch(closed).find(NAME, never)
        assert (path, exists) == (tmp_path / name / OWN / NAME, False)
        assert (tmp_path / name / OWN).stat().st_mode & 0o777 == 0o700
    assert Scratch(closed).find(NAME, lambda path: OWN in str(path)) == (path, True)


def test_a_temporary_directory_that_others_can_write_is_not_used(tmp_path, closed, monkeypatch):
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


def test_several_hosts_use_the_run_directory(tmp_path, closed, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    scratch = Scratch(closed, run=tmp_path / "out", one_host=False)
    assert scratch.find(NAME, never) == (tmp_path / "out" / NAME, False)
    with pytest.raises(
        UserError, match=r"scratch: cannot write in .*closed \(File exists\); give another .* --scratch"
    ):
        Scratch(closed, one_host=False).find(NAME, never)


def test_a_directory_set_by_the_user_is_the_only_candidate(tmp_path, closed, monkeypatch):
    monkeypatch.setenv("MFEDPBA_SCRATCH", str(tmp_path / "variable"))
    assert Scratch(tmp_path / "data").find(NAME, never)[0] == tmp_path / "variable" / NAME
    assert Scratch(tmp_path / "data", str(tmp_path / "option")).find(NAME, never)[0] == tmp_path / "option" / NAME
    with pytest.raises(UserError, match=r"scratch: cannot write in .*closed"):
        Scratch(tmp_path / "data", str(closed)).find(NAME, never)


def test_a_valid_file_in_the_data_directory_is_always_used(tmp_path):
    scratch = Scratch(tmp_path / "data", str(tmp_path / "option"))
    assert scratch.find(NAME, lambda path: path.parts[-3] == "data") == (tmp_path / "data" / NAME, True)
    assert not (tmp_path / "option").exists()
