"""Random streams keyed by purpose.

Every random number of a run comes from a stream identified by ``(seed, purpose, *key)``, for example
``(seed, "shuffle", client, round)``. The numbers therefore do not depend on the number of ranks, the placement of
clients, or earlier draws.
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
    """Return the NumPy generator of the stream ``(seed, purpose, *key)``."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(_entropy(seed, purpose, key))))


def torch_seed(seed: int, purpose: str, *key: int) -> int:
    """Return a 63-bit seed for a torch generator of the same stream."""
    state = np.random.SeedSequence(_entropy(seed, purpose, key)).generate_state(1, np.uint64)
    return int(state[0]) >> 1


def seed_generators(seed: int, purpose: str, *key: int) -> None:
    """Seed the global generators of torch, NumPy and Python from the stream ``(seed, purpose, *key)``.

    Modules that use a global generator, such as `nn.Dropout`, then give the same numbers on any number of ranks and
    after a resume. This is called for every client and round, so it does not save the previous state (see
    `generators_restored`).
    """
    import torch

    stream_seed = torch_seed(seed, purpose, *key)
    torch.default_generator.manual_seed(stream_seed)  # torch.manual_seed takes 90 times as long without a GPU
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed(stream_seed)
    np.random.seed(stream_seed % 2**32)  # noqa: NPY002
    random.seed(stream_seed)


@contextmanager
def generators_restored() -> Iterator[None]:
    """Restore the state of the global generators on exit."""
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
    """Seed the global generators from one stream inside the block, and restore them on exit."""
    with generators_restored():
        seed_generators(seed, purpose, *key)
        yield
