"""``python -m benchmarks NAME...`` runs the named benchmarks; ``all`` runs those that take seconds on two cores."""

from __future__ import annotations

import importlib
import sys

from benchmarks.common import show

QUICK = ("client", "sparse", "server", "server-cost", "parallel", "scale", "start")
BY_NAME = {"memory": "sparse", "ranks33": "parallel", "ranks65": "parallel"}  # run only by name: function and module


def main(names: list[str]) -> int:
    known = (*QUICK, *BY_NAME)
    if not names or not set(names) <= {*known, "all"}:
        print(f"usage: python -m benchmarks all|{'|'.join(known)} ...", file=sys.stderr)
        return 2
    for name in QUICK if "all" in names else names:
        module = importlib.import_module(f"benchmarks.{BY_NAME.get(name, name).replace('-', '_')}")
        show(list(getattr(module, name if name in BY_NAME else "run")()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
