"""Random streams keyed by what they are for, never by who draws them.

Every random number of a run comes from a stream named by ``(seed, purpose, *key)``, for example
``(seed, "shuffle", client, round)``. So the numbers do not depend on the number of ranks, on the placement of clients,
or on what was drawn before.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np


def _entropy(seed: int, purpose: str, key: tuple[int, ...]) -> list[int]:
    tag = int.from_bytes(hashlib.sha256(purpose.encode()).digest()[:8], "little")
    return [seed, tag, *key]


def generator(seed: int, purpose: str, *key: int) -> np.random.Generator:
    """The NumPy generator of the stream ``(seed, purpose, *key)``."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(_entropy(seed, purpose, key))))


def torch_seed(seed: int, purpose: str, *key: int) -> int:
    """A 63-bit seed for a torch generator of the same stream."""
    state = np.random.SeedSequence(_entropy(seed, purpose, key)).generate_state(1, np.uint64)
    return int(state[0]) >> 1


def seed_generators(seed: int, purpose: str, *key: int) -> None:
    """Start the global generators, torch's, NumPy's and Python's, at the stream (seed, purpose, *key).

    So a module that draws by itself, such as `nn.Dropout`, gives the same numbers on any number of ranks and after a
    resume. It is called for every client and round, so it takes no copies (see `generators_restored`).
    """
    import torch

    start = torch_seed(seed, purpose, *key)
    torch.default_generator.manual_seed(start)  # torch.manual_seed takes 90 times as long where there is no GPU
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed(start)
    np.random.seed(start % 2**32)  # noqa: NPY002
    random.seed(start)


@contextmanager
def generators_restored() -> Iterator[None]:
    """Leave the global generators as they were found."""
    import torch

    python, legacy = random.getstate(), np.random.get_state()  # noqa: NPY002
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(legacy)  # noqa: NPY002


@contextmanager
def seeded(seed: int, purpose: str, *key: int) -> Iterator[None]:
    """Everything drawn inside from a global generator comes from one stream; they are left as they were found."""
    with generators_restored():
        seed_generators(seed, purpose, *key)
        yield
