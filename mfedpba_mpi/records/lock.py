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
    """Whether a living process holds the lock of a directory, as far as can be seen from here."""
    path = directory / LOCK_NAME
    owner = owner_of(path)
    if not owner or owner["host"] == socket.gethostname():
        return bool(owner) and _alive(owner["pid"])
    try:
        with open(path) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except OSError:
        return True


def _replace(descriptor: int, words: str) -> None:
    """The owner's name, for others to read; a full disk keeps nobody from running."""
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, words.encode(), 0)
    except OSError:
        pass


def _take(descriptor: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise _taken(path, owner_of(path)) from None
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
            raise
        owner = owner_of(path)  # a file system without locks: all there is to go by is the name
        if owner and (owner["host"] != socket.gethostname() or _alive(owner["pid"])):
            raise _taken(path, owner, " (if that process is no more, delete it)") from None


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
