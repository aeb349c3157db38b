"""``python -m tests.chaos``: break small runs in every way, resume them, and compare with the unbroken ones.

In every case a run on 3 ranks meets up to four faults, each at a random moment or at a chosen point (see `board`), and
is resumed after each, on another number of ranks. After each fault the exit code, the time to the end of all processes,
the log and the checkpoints are checked, and at the end every number of the run but its times.
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

ENOUGH = 2 * len(POINTS)  # cases after which every point must have been hit


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description="Break small runs, and resume them.")
    parser.add_argument("--cases", type=int, default=100, help="[%(default)s]")
    parser.add_argument("--seed", type=int, default=0, help="[%(default)s]")
    parser.add_argument("--setting", choices=SETTINGS, help="only this one [all in turn]")
    parser.add_argument("--case", type=int, help="only the case of this number, as a failure is reported")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="work here, and leave the files of failed cases")
    given = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # what was started is ended then
    began = time.monotonic()
    results = []
    with tempfile.TemporaryDirectory(prefix="chaos-") as scratch:
        chaos = Chaos((given.keep or Path(scratch)).absolute())
        for number in range(given.cases) if given.case is None else [given.case]:
            result = chaos.run(given.seed, number, given.setting, bool(given.keep))
            results.append(result)
            _tell(result, given.seed)
    return _sum_up(results, time.monotonic() - began)


def _tell(result: Result, seed: int) -> None:
    round_status = "FAILED" if result.problems else "ok"
    print(f"{result.number:4d} {round_status:6} {result.setting:9} " + "; ".join(result.words), flush=True)
    for problem in result.problems:
        print(f"     {problem}")
    if result.problems:
        print(f"     again: --seed {seed} --case {result.number} --setting {result.setting}", flush=True)


def _sum_up(results: list[Result], seconds: float) -> int:
    kinds = sum((result.kinds for result in results), Counter[str]())
    points = sum((result.points for result in results), Counter[str]())
    failed = [result for result in results if result.problems]
    differ = sum(problem.startswith("difference") for result in results for problem in result.problems)
    print("\nfaults: " + ", ".join(f"{kind} {kinds[kind]}" for kind in KINDS))
    print("points: " + ", ".join(f"{point} {points[point]}" for point in (*POINTS, "elsewhere")))
    never = [point for point in POINTS if not points[point]]
    if never and len(results) >= ENOUGH:
        print(f"never hit: {', '.join(never)}")
    redone, longest = sum(result.redone for result in results), max((result.longest for result in results), default=0)
    print(
        f"{len(results)} cases, {kinds.total()} faults survived, {redone} rounds redone, longest time to end "
        f"{longest:.1f} s, {differ} differences, {len(failed)} failed ({seconds:.0f} s)"
    )
    return int(bool(failed) or (bool(never) and len(results) >= ENOUGH))


sys.exit(main())
