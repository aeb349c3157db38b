"""The lock of a run's directory: held by one process, named to others, gone with its holder."""

import errno
import fcntl
import json
import os
import socket
import subprocess
import sys

import pytest

from mfedpba_mpi.errors import UserError
from mfedpba_mpi.records.lock import LOCK_NAME, locked

HOLD = """
import sys; from pathlib import Path; from mfedpba_mpi.records.lock import locked
with locked(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the lock of `tmp_path`."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdin=-1, stdout=-1, text=True)
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def test_the_second_is_refused_and_told_who_the_first_is(holder, tmp_path):
    expected = f"is in use by process {holder.pid} on {socket.gethostname()} since .*; wait for it, or choose another"
    with pytest.raises(UserError, match=expected), locked(tmp_path):
        pass


def test_a_killed_holder_leaves_the_directory_free(holder, tmp_path):
    holder.kill()
    holder.wait()
    assert str(holder.pid) in (tmp_path / LOCK_NAME).read_text()
    with locked(tmp_path):
        assert json.loads((tmp_path / LOCK_NAME).read_text())["pid"] == os.getpid()
    assert (tmp_path / LOCK_NAME).read_text() == ""


@pytest.mark.parametrize(("pid", "host", "free"), [(0, None, False), (None, None, True), (None, "elsewhere", False)])
def test_without_locks_in_the_file_system_the_name_decides(tmp_path, monkeypatch, pid, host, free):
    def unsupported(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    owner = {"host": host or socket.gethostname(), "pid": os.getpid() if pid == 0 else gone.pid, "since": "then"}
    (tmp_path / LOCK_NAME).write_text(json.dumps(owner))
    monkeypatch.setattr(fcntl, "flock", unsupported)
    if free:
        with locked(tmp_path):
            pass
    else:
        with pytest.raises(UserError, match="if that process is no more, delete it"), locked(tmp_path):
            pass


def test_nonsense_in_the_lock_file_is_no_trouble(tmp_path):
    (tmp_path / LOCK_NAME).write_bytes(b"\xff\x00{")
    with locked(tmp_path):
        pass


def test_a_directory_that_cannot_be_written_in_is_named(tmp_path):
    with pytest.raises(UserError, match=r"cannot write in .*missing"), locked(tmp_path / "missing"):
        pass
