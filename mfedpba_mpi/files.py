"""Replacing files atomically."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def replacing(path: Path, temporary: str = "") -> Iterator[Path]:
    """Yield a temporary path beside `path`; at the end, the file written there replaces `path` in one step.

    So a reader sees the old file or the new one, never a part of it. After an error the temporary file is removed and
    `path` stays as it was.

    Parameters
    ----------
    temporary : name of the temporary file  [default: a unique one, ``.NAME.PID-RANDOM.part``].
    """
    part = path.with_name(temporary or f".{path.name}.{os.getpid()}-{uuid.uuid4().hex[:8]}.part")
    try:
        yield part
        os.replace(part, path)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise


def write_text(path: Path, text: str) -> None:
    """Write a small text file in one step."""
    with replacing(path) as part:
        part.write_text(text, encoding="utf-8")
