"""Random damage to file contents."""

from collections.abc import Callable

import numpy as np

Rng = np.random.Generator


def _draw_range(rng: Rng, size: int, longest: int) -> tuple[int, int]:
    """Draw the start and end of a range of 1 to `longest` bytes; its length is log-uniform."""
    length = min(size, int(longest ** rng.random()))
    start = int(rng.integers(size - length + 1))
    return start, start + length


def flip_one(content: bytearray, rng: Rng) -> str:
    at, bit = int(rng.integers(len(content))), int(rng.integers(8))
    content[at] ^= 1 << bit
    return f"bit {bit} of byte {at} flipped"


def flip_several(content: bytearray, rng: Rng) -> str:
    return ", ".join(flip_one(content, rng) for _ in range(int(rng.integers(2, 20))))


def scramble(content: bytearray, rng: Rng) -> str:
    start, end = _draw_range(rng, len(content), 4096)
    content[start:end] = rng.bytes(end - start)
    return f"bytes {start}..{end - 1} random"


def blank(content: bytearray, rng: Rng) -> str:
    start, end = _draw_range(rng, len(content), 4096)
    content[start:end] = bytes(end - start)
    return f"bytes {start}..{end - 1} zero"


def cut(content: bytearray, rng: Rng) -> str:
    at = int(rng.integers(len(content)))
    del content[at:]
    return f"truncated at {at}"


def append(content: bytearray, rng: Rng) -> str:
    more = rng.bytes(int(rng.integers(1, 4096)))
    content += more
    return f"{len(more)} random bytes at the end"


def swap(content: bytearray, rng: Rng) -> str:
    length = max(1, min(int(2048 ** rng.random()), len(content) // 2))
    a, b = sorted(int(at) for at in rng.integers(len(content) - length + 1, size=2))
    b = max(b, a + length) if a + 2 * length <= len(content) else b
    first, second = content[a : a + length], content[b : b + length]
    content[a : a + length] = second
    content[b : b + length] = first
    return f"{length} bytes at {a} and at {b} swapped"


DAMAGES: tuple[Callable[[bytearray, Rng], str], ...] = (flip_one, flip_several, scramble, blank, cut, append, swap)


def damage(content: bytes, rng: Rng) -> tuple[bytes, str]:
    """Return a damaged copy and a description; the copy may equal the original, e.g. if zeroed bytes were zero."""
    copy = bytearray(content)
    done = DAMAGES[int(rng.integers(len(DAMAGES)))](copy, rng)
    return bytes(copy), done
