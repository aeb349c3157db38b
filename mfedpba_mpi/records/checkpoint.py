"""Checkpoints: the state of all ranks after a round. A checkpoint is on disk completely or not at all.

::

    OUT/checkpoints/round-00000012/
        manifest.json          round, configuration, fingerprint of the data, versions, device, and size and SHA-256 of
                               every file
        rank-3.safetensors     client/<k>/state/<name>, client/<k>/inbox/<name> of the rank's clients
        server.safetensors     server/<name>: the server's state, broadcast/<name>: its last broadcast
        log.h5                 the run's log so far

Every rank writes its own file, with fsync, into a temporary directory. Rank 0 adds the manifest and renames the
directory; from then on the checkpoint exists. The last two are kept, in case the last one is damaged. A complete run
keeps one, from which it can be extended (see `prune`). Random streams are keyed by the round (see `rng`), so no
generator states are saved.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import safetensors
import torch
from torch import Tensor

from mfedpba_mpi import __version__
from mfedpba_mpi.comm.base import Comm
from mfedpba_mpi.comm.layout import Message
from mfedpba_mpi.config.run_config import RunConfig
from mfedpba_mpi.errors import FAILED, Ended, UserError
from mfedpba_mpi.records.run import CHECKPOINTS, LOG_NAME

FORMAT, VERSION = "mfedpba-checkpoint", 3
GENERATIONS = 2
KEEP = {"last": 1, "all": GENERATIONS, "none": 0}  # checkpoints of a complete run
LONGEST, SHORTEST, SHARE = 300.0, 30.0, 0.02  # by default: seconds between checkpoints, their share of the run time
SERVER, LOG, MANIFEST = "server.safetensors", "log.h5", "manifest.json"
_NAME = re.compile(r"(server|rank-\d+)\.safetensors|log\.h5")


class Snapshot:
    """A copy of a rank's state after its last finished round: clients, inboxes, last broadcast and server."""

    def __init__(self) -> None:
        self.round = 0
        self.clients: dict[int, dict[str, Tensor]] = {}
        self.inbox: dict[int, Message] = {}
        self.last_broadcast: Message = {}
        self.server: dict[str, Tensor] = {}

    def take(
        self,
        t: int,
        clients: Mapping[int, Message],
        inbox: Mapping[int, Message],
        last_broadcast: Message,
        server: Message,
    ) -> None:
        """Copy the state after round `t`. Messages are never changed in place, so they need no copy."""
        self.round, self.inbox, self.last_broadcast = t, dict(inbox), last_broadcast
        for k, state in clients.items():
            self.clients[k] = _copied(state, self.clients.get(k, {}))
        self.server = _copied(server, self.server)


def _copied(state: Message, copies: dict[str, Tensor]) -> dict[str, Tensor]:
    """A copy of `state`, in the memory of the earlier `copies` if names, shapes and types are the same."""
    if {n: (x.shape, x.dtype) for n, x in state.items()} != {n: (x.shape, x.dtype) for n, x in copies.items()}:
        return {name: x.detach().clone() for name, x in state.items()}
    for name, x in state.items():
        copies[name].copy_(x.detach())
    return copies


class Checkpoints:
    """The checkpoints in a run's directory; one object on every rank.

    Parameters
    ----------
    directory : the run's directory.
    every : write one every N rounds (0: by time only).
    minutes : maximum minutes between two (None: five, and fewer if writing is fast).
    keep : how many a complete run keeps, a key of `KEEP`.
    resume : resume from the existing ones; if False they are removed when the run starts.
    """

    def __init__(
        self, directory: Path, every: int = 0, minutes: float | None = None, keep: str = "last", resume: bool = True
    ):
        self.run, self.path = directory, directory / CHECKPOINTS
        self.every, self.minutes, self.keep, self.resume = every, minutes, keep, resume
        self.newest_round = 0
        self._cost, self._last = 0.0, time.monotonic()

    def due(self, t: int) -> bool:
        """Whether to write one after round `t`."""
        if self.every and t % self.every == 0:
            return True
        if self.minutes is None and self.every:
            return False
        pause = min(LONGEST, max(SHORTEST, self._cost / SHARE)) if self.minutes is None else 60 * self.minutes
        return time.monotonic() - self._last >= pause

    def write(self, comm: Comm, state: Snapshot, config: RunConfig, about: Mapping[str, str]) -> None:
        """Write `state` as the newest checkpoint. Called on every rank; if one cannot write, all raise `Ended`.

        `about` goes into the manifest, see `Saved.about`.
        """
        if state.round == self.newest_round:
            return
        began = time.monotonic()
        part, place = self.path / f".{_name(state.round)}.part", self.path / _name(state.round)
        written = comm.collect(_attempt(lambda: self._write_part(part, comm, state)))
        error_text = ""
        if comm.is_server:
            reports = [json.loads(report) for report in written]
            error_text = next((report["error"] for report in reports if "error" in report), "")
            if not error_text:
                files = {name: about for report in reports for name, about in report.items()}
                body = {
                    "format": FORMAT, "version": VERSION, "round": state.round, "config": config.as_dict(),
                    "program": __version__, "about": dict(about), "files": files,
                }  # fmt: skip
                error_text = json.loads(_attempt(lambda: self._publish(part, place, body))).get("error", "")
        error_text = comm.share(error_text)
        if error_text:
            with suppress(OSError):
                shutil.rmtree(part)
            safe = f"that of round {self.newest_round} is intact" if self.newest_round else "there is no earlier one"
            raise Ended(FAILED, f"cannot write the checkpoint of round {state.round}: {error_text}; {safe}", 1)
        self.newest_round = state.round
        self._last = time.monotonic()
        self._cost = self._last - began

    def _write_part(self, part: Path, comm: Comm, state: Snapshot) -> dict[str, Any]:
        """Write this rank's files with fsync. Returns their sizes and digests."""
        part.mkdir(parents=True, exist_ok=True)
        made = {}
        if state.clients:
            path = part / f"rank-{comm.rank}.safetensors"
            shared = {k: _from_broadcast(inbox, state.last_broadcast) for k, inbox in state.inbox.items()}
            tensors = {f"client/{k}/state/{n}": x for k, own in state.clients.items() for n, x in own.items()}
            for k, inbox in state.inbox.items():
                tensors |= {f"client/{k}/inbox/{n}": x for n, x in inbox.items() if n not in shared[k]}
            made[path.name] = {
                **_save(path, tensors, {"from_broadcast": json.dumps(shared)}),
                "clients": list(state.clients),
            }
        if comm.is_server:
            path = part / SERVER
            tensors = {f"server/{n}": x for n, x in state.server.items()}
            tensors |= {f"broadcast/{n}": x for n, x in state.last_broadcast.items()}
            made[path.name] = _save(path, tensors, {})
            if (self.run / LOG_NAME).exists():
                shutil.copyfile(self.run / LOG_NAME, part / LOG)
                made[LOG] = _describe(part / LOG)
        return made

    def _publish(self, part: Path, place: Path, body: Mapping[str, Any]) -> dict[str, Any]:
        """Turn the written files into a checkpoint by one rename; remove the third last."""
        text = json.dumps(body)
        manifest = part / MANIFEST
        manifest.write_text(json.dumps({"sha256": _digest(text.encode()), "body": text}))
        _to_disk(manifest)
        _to_disk(part)
        if place.exists():  # a damaged one, written again after resuming from its predecessor
            shutil.rmtree(place)
        os.rename(part, place)
        _to_disk(self.path)
        for old in self._directories()[GENERATIONS:]:
            shutil.rmtree(old, ignore_errors=True)
        return {}

    def _directories(self) -> list[Path]:
        """The directories of all checkpoints, newest first."""
        found = [path for path in self.path.glob("round-*") if re.fullmatch(r"round-\d{8}", path.name)]
        return sorted(found, reverse=True)

    def prune(self, keep: str) -> None:
        """Remove what a complete run need not keep. Called on rank 0 after the log says complete."""
        for spare in (*self._directories()[KEEP[keep] :], *self._parts()):
            shutil.rmtree(spare, ignore_errors=True)
        with suppress(OSError):
            self.path.rmdir()  # if it is empty

    def _parts(self) -> list[Path]:
        """Directories left by checkpoints that were never completed."""
        return list(self.path.glob(".round-*.part"))

    def manifests(self) -> Iterator[Saved]:
        """All checkpoints with a valid manifest, newest first. Their files are not checked."""
        for place in self._directories():
            with suppress(UserError):
                yield Saved(place)

    def newest(self, comm: Comm, warn: Callable[[str], None]) -> Saved | None:
        """The newest intact checkpoint, on every rank; None if there is none. Rank 0 checks it.

        `warn` is called, on rank 0, for every damaged checkpoint.
        """
        found = ""
        if comm.is_server:
            if not self.resume and self.path.exists():
                shutil.rmtree(self.path)
            self.resume = True  # also when the run recovers from the death of a rank
            for stale in self._parts():
                shutil.rmtree(stale, ignore_errors=True)
            places = self._directories()
            for place in places:
                try:
                    Saved(place).check()
                    found = str(place)
                    break
                except UserError as error:
                    warn(str(error))
            if places and not found:
                raise UserError(f"no checkpoint in {self.path} is intact; start over with `run --overwrite`")
        found = comm.share(found)
        if not found:
            return None
        saved = Saved(Path(found))
        self.newest_round = saved.round
        return saved


class Saved:
    """A checkpoint on disk. The constructor reads and checks the manifest, `check` checks the other files.

    Attributes
    ----------
    about : data (``data_fingerprint``, ``data_origin``, ``data_dir``) and what bits depend on (``torch``, ``numpy``,
        ``cpu``, ``device``) when it was written.
    """

    def __init__(self, path: Path):
        self.path = path
        with _damage_named(path / MANIFEST):
            outer = json.loads((path / MANIFEST).read_bytes())
            if _digest(outer["body"].encode()) != outer["sha256"]:
                raise ValueError("its checksum is wrong")
            body = json.loads(outer["body"])
            if body["format"] != FORMAT or body["version"] != VERSION:
                raise ValueError(f"it has format version {body['version']}, this program reads version {VERSION}")
            self.round, self.files = int(body["round"]), dict(body["files"])
            self.config: dict[str, Any] = body["config"]
            self.about: dict[str, str] = body["about"]
            self.fingerprint, self.data_dir = str(self.about["data_fingerprint"]), str(self.about["data_dir"])
            if not all(_NAME.fullmatch(name) for name in self.files):
                raise ValueError("it lists files that do not belong to a checkpoint")

    def check(self) -> None:
        """Compare every file with its digest."""
        for name, about in self.files.items():
            with _damage_named(self.path / name):
                found = _describe(self.path / name)
                if any(found[key] != about[key] for key in found):
                    raise ValueError("its checksum is wrong")

    @property
    def log(self) -> Path | None:
        """The run's log up to this round."""
        return self.path / LOG if LOG in self.files else None

    def server(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The server's state and its last broadcast."""
        parts: dict[str, dict[str, Tensor]] = {"server": {}, "broadcast": {}}
        with _damage_named(self.path / SERVER), safetensors.safe_open(self.path / SERVER, "pt") as file:
            for key in file.keys():  # noqa: SIM118
                kind, _, name = key.partition("/")
                parts[kind][name] = file.get_tensor(key).clone()
        return parts["server"], parts["broadcast"]

    def client(self, k: int) -> tuple[dict[str, Tensor], dict[str, Tensor], list[str]]:
        """The state of client k, its inbox, and the names in its inbox that are those of the last broadcast."""
        name = self._file_of[k]
        parts: dict[str, dict[str, Tensor]] = {"state": {}, "inbox": {}}
        with _damage_named(self.path / name):
            file, keys, shared = self._open_rank_file(name)
            for key in keys[k]:
                _, _, kind, tensor = key.split("/", 3)
                parts[kind][tensor] = file.get_tensor(key).clone()
            return parts["state"], parts["inbox"], shared[str(k)]

    @cached_property
    def _file_of(self) -> dict[int, str]:
        """The name of each client's file."""
        return {int(k): name for name, about in self.files.items() for k in about.get("clients", ())}

    def _open_rank_file(self, name: str) -> tuple[Any, dict[int, list[str]], dict[str, list[str]]]:
        """(file, tensor names by client, names shared with the last broadcast by client); the last file stays open."""
        if getattr(self, "_open", ("",))[0] != name:
            file = safetensors.safe_open(self.path / name, "pt").__enter__()
            keys: dict[int, list[str]] = {}
            for key in file.keys():  # noqa: SIM118
                keys.setdefault(int(key.split("/")[1]), []).append(key)
            self._open = name, file, keys, json.loads(file.metadata()["from_broadcast"])
        return self._open[1:]


@contextmanager
def _damage_named(path: Path) -> Iterator[None]:
    """Turn errors in reading a file into a UserError that names it."""
    try:
        yield
    except (
        OSError, ValueError, KeyError, TypeError, AttributeError, safetensors.SafetensorError, RecursionError,
    ) as error:  # fmt: skip
        raise UserError(f"{path} is damaged: {error}; trying an older checkpoint") from None


def _from_broadcast(inbox: Mapping[str, Tensor], last_broadcast: Mapping[str, Tensor]) -> list[str]:
    """Names in a client's inbox that hold the last broadcast itself, which is saved only once."""
    return [name for name, value in inbox.items() if last_broadcast.get(name) is value]


def _name(t: int) -> str:
    return f"round-{t:08d}"


_DTYPES = {
    torch.float32: "F32", torch.float64: "F64", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint64: "U64", torch.uint32: "U32",
    torch.uint16: "U16", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip


def _save(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> dict[str, Any]:
    """Write a safetensors file tensor by tensor. The library's own writer needs two more copies of everything."""
    header: dict[str, Any] = {"__metadata__": {"format": FORMAT, **metadata}}
    end = 0
    for name, x in tensors.items():
        start, end = end, end + x.numel() * x.element_size()
        header[name] = {"dtype": _DTYPES[x.dtype], "shape": list(x.shape), "data_offsets": [start, end]}
    words = json.dumps(header).encode()
    words += b" " * (-len(words) % 8)
    with open(path, "wb") as file:
        file.write(len(words).to_bytes(8, "little") + words)
        for x in tensors.values():
            file.write(x.detach().contiguous().cpu().view(-1).view(torch.uint8).numpy().data)
    return _describe(path)


def _describe(path: Path) -> dict[str, Any]:
    """Size and SHA-256 of a file, after an fsync."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        return {"bytes": os.fstat(file.fileno()).st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _attempt(work: Callable[[], dict[str, Any]]) -> str:
    """The result of `work`, or its OSError, as JSON."""
    try:
        return json.dumps(work())
    except OSError as error:
        return json.dumps({"error": error.strerror or str(error)})
