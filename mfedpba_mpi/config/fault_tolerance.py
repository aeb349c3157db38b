"""The settings of a run that do not change its results: checkpoints, timeouts, failures and scratch space."""

from __future__ import annotations

from dataclasses import dataclass

from mfedpba_mpi.config.fields import option

FAULT_TOLERANCE = "Fault tolerance"  # heading in the help


@dataclass(frozen=True)
class FaultTolerance:
    """Checkpoints, timeouts and failures. None of these settings changes the results of a run."""

    checkpoint_every: int = option(
        0, "write a checkpoint every N rounds  [default: by time]", low=1, group=FAULT_TOLERANCE
    )
    checkpoint_minutes: float | None = option(
        None,
        "maximum minutes between checkpoints  [default: 0.5 to 5, so that they take at most 2 % of the time]",
        low=0,
        group=FAULT_TOLERANCE,
    )
    keep_checkpoints: str = option(
        "last", "checkpoints kept by a complete run: last, all (two), or none (the run cannot be extended)",
        choices=("last", "all", "none"), group=FAULT_TOLERANCE,
    )  # fmt: skip
    timeout: float = option(3600.0, "abort after waiting this many seconds for a rank", above=0, group=FAULT_TOLERANCE)
    on_failure: str = option(
        "stop", "when a rank dies: stop, or continue from the last checkpoint without it (mpirun --with-ft ulfm)",
        choices=("stop", "continue"), group=FAULT_TOLERANCE,
    )  # fmt: skip
    scratch: str = option(
        "", "directory for shards and stand-ins (or $MFEDPBA_SCRATCH)  [default: the data directory if it is writable, "
        "else a temporary one, or OUT on several hosts]", group=FAULT_TOLERANCE,
    )  # fmt: skip
