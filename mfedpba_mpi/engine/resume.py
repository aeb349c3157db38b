"""Resuming a run with its own settings and data. Only the number of rounds may grow."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from mfedpba_mpi import plugins
from mfedpba_mpi.cli.console import count
from mfedpba_mpi.config.fields import flat
from mfedpba_mpi.config.run_config import HARMLESS, RunConfig
from mfedpba_mpi.data.catalog import default_data_dir
from mfedpba_mpi.data.partition import Partition
from mfedpba_mpi.data.sources import find_store
from mfedpba_mpi.engine.setup import draw_partition
from mfedpba_mpi.errors import COMPLETE, UserError
from mfedpba_mpi.records.run import CHECKPOINTS, LOG_NAME, load_run

DAMAGED = "damaged"  # status of a run whose log is damaged: only its checkpoints can be read


@dataclass(frozen=True)
class StoredRun:
    """A run as recorded in its files.

    Attributes
    ----------
    fingerprint, origin : of its data; the origin is "real" or "synthetic".
    recorded : the data directory that it was started with.
    changed_plugins : its plugins whose source has changed since.
    """

    directory: Path
    config: RunConfig
    status: str
    fingerprint: str
    origin: str
    recorded: str
    changed_plugins: Sequence[str] = ()

    @property
    def data_dir(self) -> Path:
        """The recorded data directory, or the default one if that no longer exists."""
        recorded = Path(self.recorded)
        return recorded if self.recorded and recorded.is_dir() else default_data_dir()

    def check_data(self, fingerprint: str, path: Path) -> None:
        """Raise a UserError if the data are not those that the run was started with."""
        if fingerprint != self.fingerprint:
            raise UserError(
                f"data-dir: {path} is not the data that the run in {self.directory} was started with (fingerprint "
                f"{fingerprint[:12]}, expected {self.fingerprint[:12]}); {self._fix(path)}"
            )

    def _fix(self, path: Path) -> str:
        """How to fix wrong data at `path`."""
        full = path.resolve()  # a directory of stores, or a store in it or in its directory of stand-ins
        elsewhere = self.recorded and Path(self.recorded) not in (full, full.parent, full.parent.parent)
        where = f"use --data-dir {self.recorded}, as at its start" if elsewhere else "restore the data"
        return f"{where}, or choose another --out"

    def plugin_warnings(self) -> list[str]:
        """One warning for each plugin that has changed since the run was started."""
        return [f"{file} has changed since the run was started: results may differ" for file in self.changed_plugins]

    def find_data(self, data_dir: Path) -> None:
        """Raise a UserError if the data have changed, or if real data are missing, before a stand-in is made."""
        store = find_store(self.config, data_dir)
        if self.origin == "real" and (store is None or store.origin != "real"):
            raise UserError(
                f"data-dir: the run in {self.directory} was started with real data, but {data_dir.resolve()} has no "
                f"real {self.config.dataset}; {self._fix(data_dir)}"
            )
        if store:
            self.check_data(store.fingerprint, store.path)

    def partition(self) -> Partition | None:
        """The partition from its log or, if that is damaged, from a checkpoint's log; None if neither can be read."""
        from mfedpba_mpi.records.checkpoint import Checkpoints

        for log in (self.directory, *(saved.log for saved in Checkpoints(self.directory).manifests())):
            with suppress(UserError):
                if log:
                    return load_run(log).as_partition()
        return None

    def check_partition(self, partition: Partition) -> None:
        """Raise a UserError if the clients are not those that the run was started with."""
        logged = self.partition()
        if logged and logged.digest != partition.digest:
            raise UserError(
                f"partition: {self.config.partition} now gives other clients than the run in {self.directory} has; "
                "restore the partition file or the program version it was started with, or start over with --overwrite"
            )


def stored_run(directory: Path) -> StoredRun:
    """The run in a directory, from its log or, if that is damaged, from a checkpoint."""
    changed = _load_plugins(directory)
    try:
        attributes = load_run(directory).attributes
        config = RunConfig.from_json(json.dumps(attributes["config"]))
        status, data_dir = str(attributes["status"]), str(attributes.get("data_dir", ""))
        data = attributes["data_fingerprint"], attributes["data_origin"], data_dir
        return StoredRun(directory, config, status, *data, changed)
    except UserError:
        log = directory / LOG_NAME
        if not (directory / CHECKPOINTS).is_dir() or (log.exists() and not os.access(log, os.R_OK)):  # not damage
            raise
        from mfedpba_mpi.records.checkpoint import Checkpoints

        for saved in Checkpoints(directory).manifests():
            config = RunConfig.from_json(json.dumps(saved.config))
            data = saved.fingerprint, saved.about["data_origin"], saved.data_dir
            return StoredRun(directory, config, DAMAGED, *data, changed)
        raise


def _load_plugins(directory: Path) -> Sequence[str]:
    """Load the plugins that the run in a directory was started with. Returns those that have changed since."""
    for log in (directory / LOG_NAME, *(directory / CHECKPOINTS).glob("*/log.h5")):
        try:
            entries = load_run(log).attributes["plugins"]
        except UserError:  # damaged: try the log in a checkpoint
            continue
        return plugins.restore(entries)
    return ()


def find_run(directory: Path) -> StoredRun | None:
    """The run in a directory, None if there is none."""
    there = any((directory / name).exists() for name in (LOG_NAME, CHECKPOINTS))
    return stored_run(directory) if there else None


def find_same(directory: Path, config: RunConfig) -> StoredRun | None:
    """The run in a directory, None if there is none. Raises a UserError if it has other settings, or more rounds."""
    stored = find_run(directory)
    if stored is None:
        return None
    extended(stored.config, config.rounds)  # raises an error if impossible
    old, new = (flat(c.as_dict()) for c in (stored.config, config))
    free = {*HARMLESS, *(["rounds"] if config.rounds > stored.config.rounds else [])}
    names = [name for name in old | new if old.get(name) != new.get(name) and name not in free]
    if names:
        differences = "; ".join(f"{name} is {old.get(name)}, not {new.get(name)}" for name in names)
        raise UserError(
            f"out: the run in {directory} was started with other settings: {differences}; use those, or another --out"
        )
    return stored


def resumed(stored: StoredRun | None, config: RunConfig, data_dir: Path) -> tuple[RunConfig, bool]:
    """The configuration to continue with, and whether the run is complete. `config` may ask for more rounds."""
    if stored is None:
        return config, False
    if stored.status == COMPLETE and config.rounds == stored.config.rounds:
        if store := find_store(config, data_dir):
            stored.check_data(store.fingerprint, store.path)
            if config.partition_file:
                stored.check_partition(draw_partition(config, store.info, store.labels()))
        return config, True
    return extended(stored.config, config.rounds), False


def resume_command(directory: Path, data_dir: Path) -> str:
    """The command that resumes a run."""
    data = [] if data_dir == Path("data") else ["--data-dir", str(data_dir)]
    return shlex.join(["mfedpba-mpi", "resume", str(directory), *data, *plugins.arguments()])


def extended(config: RunConfig, rounds: int) -> RunConfig:
    """The same run with more rounds."""
    if rounds < config.rounds:
        has = count(config.rounds, "round")
        raise UserError(f"rounds: the run has {has} and cannot be resumed with fewer ({rounds})")
    if rounds == config.rounds:
        return config
    return dataclasses.replace(config, rounds=rounds, params=config.params.resolve(config.rounds))
