"""Logging of the command: standard `logging` on stderr, with the rank in each line."""

from __future__ import annotations

import logging
import os
import warnings

from mfedpba_mpi.comm.launcher import launcher_rank_and_size
from mfedpba_mpi.errors import PROGRAM, UserError

LOG_LEVEL = "MFEDPBA_LOG_LEVEL"  # environment variable
LEVELS = ("debug", "info", "warning", "error")


def set_up_logging() -> None:
    """Print log messages and Python warnings on stderr, with the rank if there are several.

    Ranks other than 0 print errors only, unless $MFEDPBA_LOG_LEVEL sets a level for all of them.
    """
    rank, size = launcher_rank_and_size()
    level = os.environ.get(LOG_LEVEL, "").lower() or ("error" if rank else "warning")
    if level not in LEVELS:
        raise UserError(f"{LOG_LEVEL}: {level!r} is not one of {', '.join(LEVELS)}")
    prefix = f"{PROGRAM}: rank {rank}: " if size > 1 else f"{PROGRAM}: "
    handler = logging.StreamHandler()
    handler.setFormatter(_LowerCaseLevels(f"{prefix}%(levelname)s: %(message)s"))
    logger = logging.getLogger("mfedpba_mpi")
    logger.addHandler(handler)
    logger.setLevel(level.upper())
    warnings.formatwarning = lambda message, *_, **__: f"{prefix}warning: {message}\n"


class _LowerCaseLevels(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        record.levelname = record.levelname.lower()
        return super().format(record)
