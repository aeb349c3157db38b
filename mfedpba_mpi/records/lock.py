"""The lock of a run's directory. Rank 0 holds it; the kernel releases it when the process ends, however it ends."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mfedpba_mpi.errors import UserError

LOCK_NAME = ".lock"
_RETRY_SECONDS = 0.5  # `held` takes the lock for a moment
_LOCAL = ("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "tmpfs", "overlay")  # file systems of one host
_SHARING = {"nfs": "local_lock=none", "nfs4": "local_lock=none", "lustre": "flock"}  # share locks if mounted so


class DirectoryInUse(UserError):
    """Another process holds the lock of the run's directory."""


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold the lock of a directory. Raises `DirectoryInUse` if another process holds it."""
    path = directory / LOCK_NAME
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise UserError(f"out: cannot write in {directory}: {error.strerror}; choose another --out") from None
    try:
        _take(descriptor, path)
        owner = {"host": socket.gethostname(), "pid": os.getpid(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
        _write_owner(descriptor, json.dumps(owner))
        yield
        _write_owner(descriptor, "")
    finally:
        os.close(descriptor)


def held(directory: Path) -> bool:
    """Whether a process holds the lock of a directory, as far as this host can see.

    The lock itself is tried, because the owner's process ID is not reliable: a killed process can remain as a zombie,
    its ID can be reused, and containers have their own IDs.
    """
    path = directory / LOCK_NAME
    try:
        with open(path) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    except OSError:  # no lock, or a file system without locks: only the recorded owner is known
        owner = owner_of(path)
        return bool(owner) and (owner["host"] != socket.gethostname() or _alive(owner["pid"]))


def shares_locks(directory: Path) -> bool:
    """Whether this host sees the locks that other hosts hold in a directory, as far as is known."""
    try:
        device = directory.stat().st_dev
        mounts = Path("/proc/self/mountinfo").read_text(errors="replace").splitlines()
    except OSError:
        return False
    for mount in mounts:  # "36 35 98:0 / /mnt rw - ext4 /dev/sda rw": the third is the device
        place, _, system = mount.partition(" - ")
        if place.split()[2] == f"{os.major(device)}:{os.minor(device)}":
            kind, _, options = system.split(" ")
            return kind in _LOCAL or _SHARING.get(kind) in options.split(",")
    return False


def refuse_held(directory: Path) -> None:
    """Raise `DirectoryInUse` if a process holds the lock of a directory."""
    if held(directory):
        path = directory / LOCK_NAME
        raise _in_use(path, owner_of(path))


def _write_owner(descriptor: int, text: str) -> None:
    """Record the owner for other processes to read. A full disk is no reason to stop."""
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, text.encode(), 0)
    except OSError:
        pass


def _take(descriptor: int, path: Path) -> None:
    until = time.monotonic() + _RETRY_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > until:
                raise _in_use(path, owner_of(path)) from None
            time.sleep(0.01)
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
                raise
            owner = owner_of(path)  # a file system without locks: only the recorded owner is known
            if owner and (owner["host"] != socket.gethostname() or _alive(owner["pid"])):
                raise _in_use(path, owner, " (if that process no longer exists, delete it)") from None
            return


def _in_use(path: Path, owner: dict[str, object], hint: str = "") -> DirectoryInUse:
    who = f"process {owner['pid']} on {owner['host']} since {owner['since']}" if owner else "another process"
    return DirectoryInUse(
        f"out: {path.parent} is in use by {who}, which holds {path.name}{hint}; wait for it, or choose another --out"
    )


def owner_of(path: Path) -> dict[str, object]:
    """The owner recorded in a lock file: host, pid and since; {} if there is none."""
    try:
        owner = json.loads(path.read_bytes())
        return {"host": str(owner["host"])[:100], "pid": int(owner["pid"]), "since": str(owner["since"])[:30]}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _alive(pid: object) -> bool:
    try:
        os.kill(int(str(pid)), 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True
