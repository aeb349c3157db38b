"""``python -m tests.chaos``: inject faults into small runs, resume them, and compare with undisturbed runs.

Every case starts a run on 3 ranks and injects up to four faults, each at a random moment or at a given point (see
`board`). After each fault the run is resumed on another number of ranks. The checks after each fault are the exit code,
the time until all processes have ended, the log and the checkpoints; at the end, all results of the run except times.
"""

import argparse
import resource
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.chaos.board import POINTS
from tests.chaos.case import SETTINGS, Chaos, Result
from tests.chaos.faults import KINDS

MIN_CASES_FOR_ALL_POINTS = 2 * len(POINTS)  # cases after which every point must have been hit


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos", description="Inject faults into small runs, and resume them."
    )
    parser.add_argument("--cases", type=int, default=100, help="[%(default)s]")
    parser.add_argument("--seed", type=int, default=0, help="[%(default)s]")
    parser.add_argument("--setting", choices=SETTINGS, help="only this one [all in turn]")
    parser.add_argument("--case", type=int, help="only the case of this number, to repeat a failure")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="working directory; keeps the files of failed cases")
    given = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # runs the cleanup of child processes
    began = time.monotonic()
    results = []
    with tempfile.TemporaryDirectory(prefix="chaos-") as scratch:
        chaos = Chaos((given.keep or Path(scratch)).absolute())
        for number in range(given.cases) if given.case is None else [given.case]:
            result = chaos.run(given.seed, number, given.setting, bool(given.keep))
            results.append(result)
            _print_result(result, given.seed)
    return _print_summary(results, time.monotonic() - began)


def _print_result(result: Result, seed: int) -> None:
    status = "FAILED" if result.problems else "ok"
    print(f"{result.number:4d} {status:6} {result.setting:9} " + "; ".join(result.history), flush=True)
    for problem in result.problems:
        print(f"     {problem}")
    if result.problems:
        print(f"     repeat with: --seed {seed} --case {result.number} --setting {result.setting}", flush=True)


def _print_summary(results: list[Result], seconds: float) -> int:
    kinds = sum((result.kinds for result in results), Counter[str]())
    points = sum((result.points for result in results), Counter[str]())
    failed = [result for result in results if result.problems]
    differences = sum(problem.startswith("difference") for result in results for problem in result.problems)
    print("\nfaults: " + ", ".join(f"{kind} {kinds[kind]}" for kind in KINDS))
    print("points: " + ", ".join(f"{point} {points[point]}" for point in (*POINTS, "elsewhere")))
    never = [point for point in POINTS if not points[point]]
    if never and len(results) >= MIN_CASES_FOR_ALL_POINTS:
        print(f"never hit: {', '.join(never)}")
    redone, longest = sum(result.redone for result in results), max((result.longest for result in results), default=0)
    print(
        f"{len(results)} cases, {kinds.total()} faults survived, {redone} rounds repeated, longest shutdown "
        f"{longest:.1f} s, {differences} differences, {len(failed)} failed ({seconds:.0f} s)"
    )
    return int(bool(failed) or (bool(never) and len(results) >= MIN_CASES_FOR_ALL_POINTS))


sys.exit(main())
