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


@contextmanager
def seeded(seed: int, purpose: str, *key: int) -> Iterator[None]:
    """Everything drawn inside from a global generator, torch's, NumPy's or Python's, comes from one stream.

    So a module that draws, such as `nn.Dropout`, gives the same numbers on any number of ranks and after a resume.
    The generators are left as they were found.
    """
    import torch

    python, legacy = random.getstate(), np.random.get_state()  # noqa: NPY002
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices):
        start = torch_seed(seed, purpose, *key)
        torch.manual_seed(start)
        np.random.seed(start % 2**32)  # noqa: NPY002
        random.seed(start)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(legacy)  # noqa: NPY002
