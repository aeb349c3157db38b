"""Going on with a run: as it was begun, or longer, but never with other settings."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from mfedpba_mpi.config import RunConfig
from mfedpba_mpi.errors import UserError
from mfedpba_mpi.options import flat
from mfedpba_mpi.records.run import CHECKPOINTS, LOG_NAME, load_run


def stored_config(directory: Path) -> tuple[RunConfig, str]:
    """Configuration and status of the run in a directory, from its log or, where that is damaged, a checkpoint."""
    try:
        run = load_run(directory)
        return RunConfig.from_json(json.dumps(run.attributes["config"])), run.status
    except UserError:
        if not (directory / CHECKPOINTS).is_dir():
            raise
        from mfedpba_mpi.records.checkpoint import Checkpoints

        for saved in Checkpoints(directory).manifests():
            return RunConfig.from_json(json.dumps(saved.config)), "damaged"
        raise


def status_of_same(directory: Path, config: RunConfig) -> str | None:
    """The status of the run in a directory, None where there is none; one with other settings is refused."""
    if not any((directory / name).exists() for name in (LOG_NAME, CHECKPOINTS)):
        return None
    there, status = stored_config(directory)
    old, new = flat(there.as_dict()), flat(config.as_dict())
    names = [name for name in old | new if old.get(name) != new.get(name)]
    if names:
        differences = "; ".join(f"{name} is {old.get(name)}, not {new.get(name)}" for name in names)
        raise UserError(
            f"out: the run in {directory} was begun with other settings: {differences}; use these, or another --out"
        )
    return status


def extended(config: RunConfig, rounds: int) -> RunConfig:
    """The same run with more rounds."""
    if rounds < config.rounds:
        raise UserError(f"rounds: the run has {config.rounds} rounds, a resumed one cannot have fewer ({rounds})")
    if rounds == config.rounds:
        return config
    return dataclasses.replace(config, rounds=rounds, params=config.params.settled(config.rounds))
