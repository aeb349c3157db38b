"""Timing of a round."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager


class Clock:
    """Wall-clock seconds by phase, and CPU seconds by client, which other processes on the core do not lengthen."""

    def __init__(self) -> None:
        self.seconds = {"train": 0.0, "eval": 0.0, "server": 0.0}
        self.clients: dict[int, float] = defaultdict(float)

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.seconds[phase] += time.perf_counter() - began

    @contextmanager
    def client(self, k: int) -> Iterator[None]:
        """Add the CPU seconds of this block to client k."""
        began = time.process_time()
        yield
        self.clients[k] += time.process_time() - began
