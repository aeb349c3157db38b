"""What all benchmarks share: interleaved repeats, a table and a line of JSON for each case."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from mfedpba_mpi.cli.console import console, table


@dataclass
class Case:
    """What was compared, in seconds; `notes` are other numbers worth knowing, by name and unit."""

    benchmark: str
    case: str
    seconds: Mapping[str, float]
    notes: Mapping[str, float] = field(default_factory=dict)

    def json(self) -> str:
        values = {name: float(f"{value:.4g}") for name, value in {**self.seconds, **self.notes}.items()}
        return json.dumps({"benchmark": self.benchmark, "case": self.case, **values})


def interleaved(functions: Mapping[str, Callable[[], object]], repeats: int = 7) -> dict[str, float]:
    """The shortest time of each function in seconds, all of them run in turn, so that a busy moment hits all alike."""
    for function in functions.values():
        function()
    best = dict.fromkeys(functions, float("inf"))
    for _ in range(repeats):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            best[name] = min(best[name], time.perf_counter() - start)
    return best


def show(cases: list[Case]) -> None:
    """A table of one benchmark's cases: times, and the first as a multiple of each other."""
    for names in dict.fromkeys(tuple(case.seconds) for case in cases):
        alike = [case for case in cases if tuple(case.seconds) == names]
        first, *others = names
        headers = ["case", *(f"{name} (s)" for name in names), *(f"{first} / {other}" for other in others)]
        noted = list(dict.fromkeys(name for case in alike for name in case.notes))
        rows = [
            [
                case.case,
                *(f"{case.seconds[name]:.4g}" for name in names),
                *(f"{case.seconds[first] / case.seconds[other]:.2f}" for other in others),
                *(f"{case.notes[name]:.4g}" if name in case.notes else "" for name in noted),
            ]
            for case in alike
        ]
        console().print(table([*headers, *noted], rows, alike[0].benchmark))
    for case in cases:
        print(case.json(), flush=True)
