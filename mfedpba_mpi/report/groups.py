"""Grouping runs that differ in the seed only, and naming the groups."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from mfedpba_mpi.cli.console import count
from mfedpba_mpi.config.fields import flat
from mfedpba_mpi.config.run_config import HARMLESS
from mfedpba_mpi.errors import COMPLETE
from mfedpba_mpi.records.run import LOG_NAME, Run
from mfedpba_mpi.studies.study import SEED

MAX_SETTINGS_LENGTH = 40  # characters of settings in a group's name; above this, its directory is shown instead
FINGERPRINT = "data_fingerprint"


def grouped(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Group runs that differ in the seed only. Returns the groups by unique names; duplicate runs are dropped.

    A name consists of the method, the dataset if there are several, and, if that is not unique, the settings or
    directories that differ. The number of finished rounds is appended if a run is not complete. Runs with the same seed
    are repetitions and contribute nothing to the spread over seeds, so each becomes a group of its own.
    """
    same_settings: dict[str, list[Run]] = {}
    for run in {run.path.resolve(): run for run in runs}.values():
        settings = {name: value for name, value in run.attributes["config"].items() if name not in (SEED, *HARMLESS)}
        same_settings.setdefault(json.dumps([settings, run.attributes[FINGERPRINT]]), []).append(run)
    groups: list[list[Run]] = []
    for members in same_settings.values():
        repeated = len({run.attributes["config"][SEED] for run in members}) < len(members)
        groups += [[run] for run in members] if repeated else [members]
    several = len({run.attributes["dataset"] for run in runs}) > 1
    labels = [
        group[0].attributes["label"] + (f" on {group[0].attributes['dataset']}" if several else "") for group in groups
    ]
    names = list(labels)
    for label in dict.fromkeys(labels):
        same = [i for i, other in enumerate(labels) if other == label]
        if len(same) > 1:
            for i, text in zip(same, _distinctions([groups[i][0] for i in same]), strict=True):
                names[i] = f"{label} ({text})"
    return {name + _progress(group): group for name, group in zip(names, groups, strict=True)}


def _progress(runs: Sequence[Run]) -> str:
    """The finished rounds of incomplete runs; "" if all are complete."""
    done = sorted({len(run.rounds["tested"]) for run in runs if run.status != COMPLETE})
    rounds = runs[0].attributes["config"]["rounds"]
    return f" ({' and '.join(map(str, done))} of {count(rounds, 'round')})" if done else ""


def differing(runs: Sequence[Run]) -> dict[str, list[Any]]:
    """The settings in which runs differ: by name, the value of every run.

    A setting counts if it differs among the runs that have it; "" stands for runs of methods without it.
    """
    settings = [flat(run.attributes["config"]) for run in runs]
    data = {(run.attributes["dataset"], run.attributes[FINGERPRINT]) for run in runs}
    if len(data) > len({dataset for dataset, _ in data}):  # different data under the same name
        settings = [
            values | {FINGERPRINT: run.attributes[FINGERPRINT][:12]} for values, run in zip(settings, runs, strict=True)
        ]
    names = dict.fromkeys(name for values in settings for name in values)
    found = {name: [values[name] for values in settings if name in values] for name in names}
    different = [
        name for name, values in found.items() if name not in HARMLESS and any(value != values[0] for value in values)
    ]
    return {name: [values.get(name, "") for values in settings] for name in different}


def _distinctions(runs: Sequence[Run]) -> list[str]:
    """A short text for every run of a method that distinguishes it from the others."""
    settings = {
        name.rpartition(".")[2]: values for name, values in differing(runs).items() if name not in (SEED, FINGERPRINT)
    }
    texts = [", ".join(f"{name} {_text(values[i])}" for name, values in settings.items()) for i in range(len(runs))]
    if len(set(texts)) == len(texts) and max(map(len, texts)) <= MAX_SETTINGS_LENGTH:
        return texts
    return _directories(runs)


def _text(value: Any) -> str:
    text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    return "none" if text in ("", "None") else text


def _directories(runs: Sequence[Run]) -> list[str]:
    """The directories of runs without common leading and trailing parts; at least one part of each is kept."""
    files = [run.path.resolve() for run in runs]
    parts = [(file.parent if file.name == LOG_NAME else file).parts for file in files]
    shortest = min(map(len, parts))
    first = min(_common_prefix(parts), shortest - 1)
    last = min(_common_prefix([own[::-1] for own in parts]), shortest - first - 1)
    return ["/".join(own[first : len(own) - last]) for own in parts]


def _common_prefix(parts: Sequence[Sequence[str]]) -> int:
    """The number of leading parts that all sequences share."""
    return len(list(takewhile(lambda level: len(set(level)) == 1, zip(*parts, strict=False))))
