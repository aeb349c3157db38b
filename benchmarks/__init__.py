"""How long things take, each beside what it is compared with, measured in one run; see `docs/performance.md`."""
