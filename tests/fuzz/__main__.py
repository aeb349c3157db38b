"""``python -m tests.fuzz``: read damaged files of every kind and print a summary.

Every case changes some bytes of a valid file of a kind, with a random stream keyed by (seed, kind, number). A case
passes with the outcome

* same: the content read equals that of the valid file; other: it differs, in a format without our checksums,
* refused: an error of one line that names the file,

and fails with: different (a file with our checksums was read wrongly without an error), unclear (an error of several
lines or without the file name), traceback (any other exception, or a warning), crash, hang, litter (partly written
files were left).
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
    parser.add_argument("--case", type=int, help="only this case of the kind, to repeat a failure")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="save the damaged file of --case there")
    given = parser.parse_args()
    if given.case is not None and not given.kind:
        parser.error("--case needs --kind")
    warnings.simplefilter("error")
    importing.MIN_CPU_SECONDS = 2  # the files take milliseconds
    gc.freeze()  # garbage collection in a forked child would copy all memory pages
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as directory:
        if given.case is not None:
            result = Fuzz(given.kind, Path(directory, "one")).run(given.seed, given.case, given.keep)
            print(_describe(result, given.seed))
            return int(result.outcome in FAILURES)
        names = [given.kind] if given.kind else list(KINDS)
        progress = (lambda name: print(name, file=sys.stderr)) if sys.stderr.isatty() else (lambda name: None)
        results = list(run_cases(names, given.cases, given.seed, Path(directory), progress))
    failed = [result for result in results if result.outcome in FAILURES]
    _print_table(results, names)
    for result in failed:
        print(_describe(result, given.seed))
    seconds = time.monotonic() - started
    print(f"{len(results)} cases, seed {given.seed}: {len(failed)} failed ({seconds:.1f} s)")
    return int(bool(failed))


def _describe(result: Result, seed: int) -> str:
    """Describe a result, with the options that repeat it."""
    again = f"--seed {seed} --kind '{result.kind}' --case {result.case}"
    return f"\n{again}: {result.outcome}\n    {result.damage}\n    {result.detail}"


def _print_table(results: list[Result], names: list[str]) -> None:
    """Print the outcomes by kind; `crashed` counts the refused cases in which the guarded reader crashed or hung."""
    counts = {name: Counter[str]() for name in names}
    for result in results:
        counts[result.kind][result.outcome] += 1
        counts[result.kind]["crashed"] += result.outcome == "refused" and "its reader" in result.detail
    columns = (*FINE, "crashed", *FAILURES)
    print(f"{'':13}" + "".join(f"{column:>10}" for column in columns))
    for name, count in counts.items():
        print(f"{name:13}" + "".join(f"{count[column] or '.':>10}" for column in columns))


sys.exit(main())
