"""Runs beside each other: which of them belong together, and what they are called."""

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

LONGEST = 40  # letters about what sets a group apart, beyond which its directory says it
DATA = "data_fingerprint"


def grouped(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Groups of runs that differ in nothing but the seed, by names of their own; each run once.

    A name is the method's (on which dataset, if there are several), where that is the same, the settings in which the
    groups differ, or their directories, and how far runs have come that are not complete.
    Runs of one seed repeat each other. They say nothing about the spread over seeds, so each is a group of its own.
    """
    alike: dict[str, list[Run]] = {}
    for run in {run.path.resolve(): run for run in runs}.values():
        settings = {name: value for name, value in run.attributes["config"].items() if name not in (SEED, *HARMLESS)}
        alike.setdefault(json.dumps([settings, run.attributes[DATA]]), []).append(run)
    groups: list[list[Run]] = []
    for own in alike.values():
        repeated = len({run.attributes["config"][SEED] for run in own}) < len(own)
        groups += [[run] for run in own] if repeated else [own]
    several = len({run.attributes["dataset"] for run in runs}) > 1
    labels = [
        group[0].attributes["label"] + (f" on {group[0].attributes['dataset']}" if several else "") for group in groups
    ]
    names = list(labels)
    for label in dict.fromkeys(labels):
        same = [i for i, other in enumerate(labels) if other == label]
        if len(same) > 1:
            for i, words in zip(same, _apart([groups[i][0] for i in same]), strict=True):
                names[i] = f"{label} ({words})"
    return {name + _progress(group): group for name, group in zip(names, groups, strict=True)}


def _progress(runs: Sequence[Run]) -> str:
    """How far runs have come, unless all are complete."""
    done = sorted({len(run.rounds["tested"]) for run in runs if run.status != COMPLETE})
    rounds = runs[0].attributes["config"]["rounds"]
    return f" ({' and '.join(map(str, done))} of {count(rounds, 'round')})" if done else ""


def differing(runs: Sequence[Run]) -> dict[str, list[Any]]:
    """The settings in which runs differ, by name, with each run's value; but for what one method alone has."""
    settings = [flat(run.attributes["config"]) for run in runs]
    data = {(run.attributes["dataset"], run.attributes[DATA]) for run in runs}
    if len(data) > len({dataset for dataset, _ in data}):  # one dataset, other values
        settings = [own | {DATA: run.attributes[DATA][:12]} for own, run in zip(settings, runs, strict=True)]
    names = dict.fromkeys(name for values in settings for name in values)
    found = {name: [values[name] for values in settings if name in values] for name in names}
    uneven = [
        name for name, values in found.items() if name not in HARMLESS and any(value != values[0] for value in values)
    ]
    return {name: [values.get(name, "") for values in settings] for name in uneven}


def _apart(runs: Sequence[Run]) -> list[str]:
    """What sets runs of one method apart, in a few words each."""
    settings = {name.rpartition(".")[2]: own for name, own in differing(runs).items() if name not in (SEED, DATA)}
    words = [", ".join(f"{name} {_text(own[i])}" for name, own in settings.items()) for i in range(len(runs))]
    if len(set(words)) == len(words) and max(map(len, words)) <= LONGEST:
        return words
    return _directories(runs)


def _text(value: Any) -> str:
    text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    return "none" if text in ("", "None") else text


def _directories(runs: Sequence[Run]) -> list[str]:
    """The directories of runs without the parts that all begin and end with, but at least one part each."""
    files = [run.path.resolve() for run in runs]
    parts = [(file.parent if file.name == LOG_NAME else file).parts for file in files]
    shortest = min(map(len, parts))
    first = min(_common(parts), shortest - 1)
    last = min(_common([own[::-1] for own in parts]), shortest - first - 1)
    return ["/".join(own[first : len(own) - last]) for own in parts]


def _common(parts: Sequence[Sequence[str]]) -> int:
    """How many parts all begin with."""
    return len(list(takewhile(lambda level: len(set(level)) == 1, zip(*parts, strict=False))))
