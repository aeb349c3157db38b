"""One run, one directory: rank 0 holds a lock on it, which the kernel takes back when the process ends, however."""

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
IN_USE = "is in use by"  # in what is said to those who come later
_PATIENCE = 0.5  # seconds; `held` takes the lock for a moment
_LOCAL = ("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "tmpfs", "overlay")  # one kernel serves all who see it
_SHARING = {"nfs": "local_lock=none", "nfs4": "local_lock=none", "lustre": "flock"}  # mounted with this option


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold the lock of a directory, or say who does."""
    path = directory / LOCK_NAME
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise UserError(f"out: cannot write in {directory}: {error.strerror}; choose another --out") from None
    try:
        _take(descriptor, path)
        owner = {"host": socket.gethostname(), "pid": os.getpid(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
        _replace(descriptor, json.dumps(owner))
        yield
        _replace(descriptor, "")
    finally:
        os.close(descriptor)


def held(directory: Path) -> bool:
    """Whether a process holds the lock of a directory, as far as this host can see.

    The lock is tried, since the owner's number says little: a killed process can stay as a zombie, its number can
    belong to another process by now, and a container has numbers of its own.
    """
    path = directory / LOCK_NAME
    try:
        with open(path) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    except OSError:  # no lock, or a file system without locks: all there is to go by is the name
        owner = owner_of(path)
        return bool(owner) and (owner["host"] != socket.gethostname() or _alive(owner["pid"]))


def shares_locks(directory: Path) -> bool:
    """Whether this host is known to see the locks that other hosts hold in a directory."""
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
    """Say who holds the lock of a directory, where a living process does."""
    if held(directory):
        path = directory / LOCK_NAME
        raise _taken(path, owner_of(path))


def _replace(descriptor: int, words: str) -> None:
    """The owner's name, for others to read; a full disk keeps nobody from running."""
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, words.encode(), 0)
    except OSError:
        pass


def _take(descriptor: int, path: Path) -> None:
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > until:
                raise _taken(path, owner_of(path)) from None
            time.sleep(0.01)
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
                raise
            owner = owner_of(path)  # a file system without locks: all there is to go by is the name
            if owner and (owner["host"] != socket.gethostname() or _alive(owner["pid"])):
                raise _taken(path, owner, " (if that process is no more, delete it)") from None
            return


def _taken(path: Path, owner: dict[str, object], hint: str = "") -> UserError:
    who = f"process {owner['pid']} on {owner['host']} since {owner['since']}" if owner else "another process"
    return UserError(
        f"out: {path.parent} {IN_USE} {who}, which holds {path.name}{hint}; wait for it, or choose another --out"
    )


def owner_of(path: Path) -> dict[str, object]:
    """Who wrote a lock: host, process and since when; nothing where it does not say."""
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
