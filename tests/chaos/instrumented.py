"""``python -m tests.chaos.instrumented ARGS``: the command, instrumented to record its point and follow a plan.

The environment has CHAOS_BOARDS, the directory of the boards (see `board`), and CHAOS_PLAN, JSON with

* hold {rank, point, round}: the first time this rank reaches the point in this round or later, it waits there until
  released (signal handlers still run);
* limit {ranks, round, bytes}: from the start of this round, files of these ranks cannot grow beyond this size.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import json
import os
import resource
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from mfedpba_mpi.comm.launcher import launcher_rank_and_size
from tests.chaos.board import NAMES, Board

LONGEST_HOLD = 60.0
RANK = launcher_rank_and_size()[0]
PLAN = json.loads(os.environ.get("CHAOS_PLAN", "{}"))
BOARD = Board(Path(os.environ["CHAOS_BOARDS"]) / f"rank-{RANK}", create=True)


@contextmanager
def at(point: str, hold: bool = True) -> Iterator[None]:
    """Record that the process is at a point; with `hold`, wait at its beginning if the plan demands it."""
    before = BOARD["point"]
    BOARD["point"] = NAMES.index(point)
    try:
        if hold:
            _hold(point)
        yield
    except OSError:
        BOARD["failed"] = BOARD["failed"] or NAMES.index(point)
        raise
    finally:
        BOARD["point"] = before


def _hold(point: str) -> None:
    """Wait until released, if the plan demands it at this point and round."""
    order = PLAN.get("hold")
    if not order or order["rank"] != RANK or order["point"] != point or BOARD["round"] < order["round"]:
        return
    del PLAN["hold"]
    BOARD["held"] = 1
    until = time.monotonic() + LONGEST_HOLD
    while not BOARD["release"] and time.monotonic() < until:
        time.sleep(1e-3)


def record_calls(owner: Any, name: str, point: str) -> None:
    """Patch ``owner.name`` to record `point` during every call."""
    function = getattr(owner, name)

    @functools.wraps(function)
    def recorded(*args: Any, **settings: Any) -> Any:
        with at(point):
            return function(*args, **settings)

    setattr(owner, name, recorded)


def _signals(module: ModuleType) -> None:
    listen = module.Stop.listen

    def recorded(self: Any) -> None:
        listen(self)
        BOARD["point"] = NAMES.index("importing")
        _hold("importing")

    module.Stop.listen = recorded


def _loop(module: ModuleType) -> None:
    record_calls(module, "prepare", "set-up")


def _round(module: ModuleType) -> None:
    record_calls(module, "_step", "server step")
    names = {
        "_restore": "restore",
        "_update": "training",
        "_evaluate": "evaluation",
        "take_snapshot": "snapshot",
        "end": "end",
    }
    for name, point in names.items():
        record_calls(module.Federation, name, point)
    work = module.Federation.round

    def recorded(self: Any, t: int) -> Any:
        BOARD["point"] = 0
        BOARD["round"] = t
        limit = PLAN.get("limit")
        if limit and RANK in limit["ranks"] and t >= limit["round"]:
            hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit["bytes"], hard))
        return work(self, t)

    module.Federation.round = recorded


class PausingTensors(dict[str, Any]):
    """Tensors with a possible hold in the middle of writing them."""

    def __init__(self, tensors: dict[str, Any], point: str):
        super().__init__(tensors)
        self.point = point

    def values(self) -> Any:
        for i, value in enumerate(super().values()):
            if i == len(self) // 2:
                _hold(self.point)
            yield value


def _checkpoint(module: ModuleType) -> None:
    save = module._save

    def recorded(path: Path, tensors: dict[str, Any], metadata: Any) -> Any:
        point = _write_point(path)
        with at(point, hold=False):
            return save(path, PausingTensors(tensors, point), metadata)

    module._save = recorded
    record_calls(module.Checkpoints, "newest", "find checkpoint")
    record_calls(module, "_describe", "file to disk")


def _serial(module: ModuleType) -> None:
    record_calls(module.SerialComm, "finish", "leaving")


def _mpi(module: ModuleType) -> None:
    record_calls(module.MPIComm, "_wait", "waiting")
    record_calls(module.MPIComm, "finish", "leaving")


PATCHES: dict[str, Callable[[ModuleType], None]] = {
    "mfedpba_mpi.engine.signals": _signals,
    "mfedpba_mpi.engine.loop": _loop,
    "mfedpba_mpi.engine.round": _round,
    "mfedpba_mpi.records.checkpoint": _checkpoint,
    "mfedpba_mpi.comm.serial": _serial,
    "mfedpba_mpi.comm.mpi": _mpi,
}


class Patching(importlib.abc.MetaPathFinder):
    """Patches modules when they are imported, which keeps the normal import order."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        if name not in PATCHES:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        assert spec
        assert spec.loader
        execute = spec.loader.exec_module

        def patched(module: ModuleType) -> None:
            execute(module)
            PATCHES[name](module)

        spec.loader.exec_module = patched  # type: ignore[method-assign]
        return spec


def _write_point(path: Path) -> str:
    """Return the point at which this file is half written, or "" if it is not a file of a run."""
    if path.name == ".run.h5.part":
        return "log half written"
    if path.name == "log.h5":
        return "log half copied"
    if path.name == "server.safetensors":
        return "server file half written"
    if path.name.startswith("rank-") and path.suffix == ".safetensors":
        return "file half written"
    return "manifest half written" if path.name == "manifest.json" else ""


def _patch_files() -> None:
    """Patch file functions: write files and remove directories in two steps; add points before and after moves."""
    write_bytes, write_text, rmtree = Path.write_bytes, Path.write_text, shutil.rmtree
    replace, rename, copyfile = os.replace, os.rename, shutil.copyfile

    def recorded_write_bytes(self: Path, data: Any) -> int:
        point = _write_point(self)
        if not point:
            return write_bytes(self, data)
        data = bytes(data)
        with at(point, hold=False), open(self, "wb", buffering=0) as file:
            _write(file.fileno(), data[: len(data) // 2])
            _hold(point)
            _write(file.fileno(), data[len(data) // 2 :])
        return len(data)

    def recorded_write_text(self: Path, data: str, *args: Any, **settings: Any) -> int:
        if not _write_point(self):
            return write_text(self, data, *args, **settings)
        return recorded_write_bytes(self, data.encode())

    def record_moves(function: Callable[..., None], what: str) -> Callable[..., None]:
        def recorded(source: Any, target: Any, **settings: Any) -> None:
            name = Path(target).name
            if name != "run.h5" and not name.startswith("round-"):
                return function(source, target, **settings)
            with at(f"{what} not yet moved"):
                function(source, target, **settings)
            with at(f"{what} moved"):
                return None

        return recorded

    def recorded_copy(source: Any, target: Any, **settings: Any) -> Any:
        if not _write_point(Path(target)):
            return copyfile(source, target)
        return recorded_write_bytes(Path(target), Path(source).read_bytes())

    def recorded_rmtree(path: Any, *args: Any, **settings: Any) -> None:
        if Path(path).name.startswith("round-"):
            with at("pruning", hold=False):
                os.unlink(os.path.join(path, min(os.listdir(path))))
                _hold("pruning")
                return rmtree(path, *args, **settings)
        return rmtree(path, *args, **settings)

    Path.write_bytes = recorded_write_bytes  # type: ignore[method-assign]
    Path.write_text = recorded_write_text  # type: ignore[method-assign]
    os.replace, os.rename = record_moves(replace, "log"), record_moves(rename, "checkpoint")
    shutil.copyfile = recorded_copy  # type: ignore[assignment]
    shutil.rmtree = recorded_rmtree  # type: ignore[assignment]


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


if __name__ == "__main__":
    with at("start"):
        sys.meta_path.insert(0, Patching())
        _patch_files()
    BOARD["point"] = NAMES.index("start")
    from mfedpba_mpi.cli.main import main

    sys.argv[0] = "mfedpba-mpi"
    main()
