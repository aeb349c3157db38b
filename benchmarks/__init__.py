"""Benchmarks: each measures our code and its reference in the same run; results are in `docs/performance.md`."""
