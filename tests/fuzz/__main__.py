"""``python -m tests.fuzz``: read damaged files of every kind, and tell how it went.

Every case is the good file of a kind with some of its bytes changed, by a stream keyed by (seed, kind, number). It ends

* same: everything was read as it is in the good file; other: something else was read from a file that is not ours,
* refused: an error of one line that names the file,

or fails: different (from ours something else was read unnoticed), unclear (an error of several lines or without the
file), traceback (any other exception, or a warning), crash, hang, litter (half-written files were left).
"""

import argparse
import gc
import sys
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path

from mfedpba_mpi.data import importing
from tests.fuzz.cases import FAILURES, FINE, Fuzz, Result, run_cases
from tests.fuzz.kinds import KINDS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Read damaged files of every kind.")
    parser.add_argument("--cases", type=int, default=1000, help="in total [%(default)s]")
    parser.add_argument("--seed", type=int, default=0, help="[%(default)s]")
    parser.add_argument("--kind", choices=KINDS, help="only this one [all]")
    parser.add_argument("--case", type=int, help="only this case of the kind, as a failure is reported")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave the damaged file of --case there")
    given = parser.parse_args()
    if given.case is not None and not given.kind:
        parser.error("--case needs --kind")
    warnings.simplefilter("error")
    importing.PATIENCE = 2  # seconds of CPU time, for files that take milliseconds
    gc.freeze()  # a collection in a fork would copy all that is loaded
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as directory:
        if given.case is not None:
            result = Fuzz(given.kind, Path(directory, "one")).run(given.seed, given.case, given.keep)
            print(_told(result, given.seed))
            return int(result.outcome in FAILURES)
        names = [given.kind] if given.kind else list(KINDS)
        progress = (lambda name: print(name, file=sys.stderr)) if sys.stderr.isatty() else (lambda name: None)
        results = list(run_cases(names, given.cases, given.seed, Path(directory), progress))
    failed = [result for result in results if result.outcome in FAILURES]
    _table(results, names)
    for result in failed:
        print(_told(result, given.seed))
    seconds = time.monotonic() - started
    print(f"{len(results)} cases, seed {given.seed}: {len(failed)} failed ({seconds:.1f} s)")
    return int(bool(failed))


def _told(result: Result, seed: int) -> str:
    again = f"--seed {seed} --kind '{result.kind}' --case {result.case}"
    return f"\n{again}: {result.outcome}\n    {result.damage}\n    {result.detail}"


def _table(results: list[Result], names: list[str]) -> None:
    """Outcomes by kind; `crashed` are those refused ones whose reader crashed or hung, as its guard said."""
    counts = {name: Counter[str]() for name in names}
    for result in results:
        counts[result.kind][result.outcome] += 1
        counts[result.kind]["crashed"] += result.outcome == "refused" and "its reader" in result.detail
    columns = (*FINE, "crashed", *FAILURES)
    print(f"{'':13}" + "".join(f"{column:>10}" for column in columns))
    for name, count in counts.items():
        print(f"{name:13}" + "".join(f"{count[column] or '.':>10}" for column in columns))


sys.exit(main())
