"""Timing and printing for all benchmarks: interleaved repeats, a table, and a line of JSON for each case."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from mfedpba_mpi.cli.console import console, table


@dataclass
class Case:
    """A measured case.

    Attributes
    ----------
    seconds : times that are compared, by name, ours first.
    notes : other measured numbers, by name and unit.
    """

    benchmark: str
    case: str
    seconds: Mapping[str, float]
    notes: Mapping[str, float] = field(default_factory=dict)

    def json(self) -> str:
        values = {name: float(f"{value:.4g}") for name, value in {**self.seconds, **self.notes}.items()}
        return json.dumps({"benchmark": self.benchmark, "case": self.case, **values})


def interleaved(
    functions: Mapping[str, Callable[[], object]], repeats: int = 7, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """Return the minimum seconds of each function; they run in turn, so that a busy machine slows all of them alike."""
    for function in functions.values():
        function()
    best = dict.fromkeys(functions, float("inf"))
    for _ in range(repeats):
        for name, function in functions.items():
            start = clock()
            function()
            best[name] = min(best[name], clock() - start)
    return best


def show(cases: list[Case]) -> None:
    """Print the cases of a benchmark: a table with times and ratios of the first time to each other one, and JSON."""
    for names in dict.fromkeys(tuple(case.seconds) for case in cases):
        same_columns = [case for case in cases if tuple(case.seconds) == names]
        first, *others = names
        headers = ["case", *(f"{name} (s)" for name in names), *(f"{first} / {other}" for other in others)]
        note_names = list(dict.fromkeys(name for case in same_columns for name in case.notes))
        rows = [
            [
                case.case,
                *(f"{case.seconds[name]:.4g}" for name in names),
                *(f"{case.seconds[first] / case.seconds[other]:.2f}" for other in others),
                *(f"{case.notes[name]:.4g}" if name in case.notes else "" for name in note_names),
            ]
            for case in same_columns
        ]
        console().print(table([*headers, *note_names], rows, same_columns[0].benchmark))
    for case in cases:
        print(case.json(), flush=True)
