"""The lock of a run's directory: held by one process, named to others, gone with its holder."""

import errno
import fcntl
import json
import os
import socket
import subprocess
import sys
from threading import Timer

import pytest

from mfedpba_mpi.errors import UserError
from mfedpba_mpi.records.lock import LOCK_NAME, held, locked, shares_locks

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


def test_a_killed_holder_that_nobody_has_waited_for_holds_nothing(holder, tmp_path):
    assert held(tmp_path)
    holder.kill()
    os.waitid(os.P_PID, holder.pid, os.WEXITED | os.WNOWAIT)  # a zombie: there, but dead
    os.kill(holder.pid, 0)
    assert not held(tmp_path)


def test_whoever_looks_at_the_lock_keeps_nobody_from_taking_it(tmp_path):
    (tmp_path / LOCK_NAME).touch()
    with open(tmp_path / LOCK_NAME) as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        Timer(0.05, fcntl.flock, (file, fcntl.LOCK_UN)).start()
        with locked(tmp_path):
            assert held(tmp_path)


@pytest.mark.parametrize(
    ("system", "shared"),
    [
        ("ext4 /dev/sda1 rw,relatime", True),
        ("nfs4 server:/home rw,vers=4.2,local_lock=none,addr=10.0.0.1", True),
        ("nfs server:/home rw,vers=3,local_lock=flock,addr=10.0.0.1", False),
        ("lustre 10.0.0.1@o2ib:/scratch rw,flock,lazystatfs", True),
        ("lustre 10.0.0.1@o2ib:/scratch rw,localflock,lazystatfs", False),
        ("beegfs beegfs_nodev rw", False),
    ],
)
def test_it_depends_on_the_file_system_whether_other_hosts_locks_are_seen(tmp_path, monkeypatch, system, shared):
    device = tmp_path.stat().st_dev
    mounts = [
        "22 27 0:9999 / /proc rw,relatime - proc proc rw",
        f"36 35 {os.major(device)}:{os.minor(device)} / /mnt rw,noatime master:1 - {system}",
    ]
    monkeypatch.setattr("pathlib.Path.read_text", lambda *_, **__: "\n".join(mounts))
    assert shares_locks(tmp_path) == shared


@pytest.mark.parametrize(("pid", "host", "free"), [(0, None, False), (None, None, True), (None, "elsewhere", False)])
def test_without_locks_in_the_file_system_the_name_decides(tmp_path, monkeypatch, pid, host, free):
    def unsupported(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    owner = {"host": host or socket.gethostname(), "pid": os.getpid() if pid == 0 else gone.pid, "since": "then"}
    (tmp_path / LOCK_NAME).write_text(json.dumps(owner))
    monkeypatch.setattr(fcntl, "flock", unsupported)
    assert held(tmp_path) == (not free)
    if free:
        with locked(tmp_path):
            pass
    else:
        with pytest.raises(UserError, match="if that process no longer exists, delete it"), locked(tmp_path):
            pass


def test_nonsense_in_the_lock_file_is_no_trouble(tmp_path):
    (tmp_path / LOCK_NAME).write_bytes(b"\xff\x00{")
    with locked(tmp_path):
        pass


def test_a_directory_that_cannot_be_written_in_is_named(tmp_path):
    with pytest.raises(UserError, match=r"cannot write in .*missing"), locked(tmp_path / "missing"):
        pass
