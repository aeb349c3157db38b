"""Observers: what they are told of a run, before the first round, after each, and at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from mfedpba_mpi.comm.layout import Message
from mfedpba_mpi.data.partition import Partition
from mfedpba_mpi.data.store import FeatureStore
from mfedpba_mpi.methods.base import Problem


@dataclass(frozen=True)
class Start:
    """Before the first round."""

    problem: Problem
    partition: Partition
    store: FeatureStore
    data_dir: Path  # where stores are looked for
    shards: Path  # the file of the clients' rows
    ranks: Sequence[Sequence[int]]
    environment: Mapping[str, object]
    seconds: float  # of setting up, until the slowest rank was ready
    finished: int = 0  # rounds, where the run goes on from a checkpoint
    log: Path | None = None  # of these rounds


@dataclass
class Round:
    """After a round: `values` by their name in the log's /rounds."""

    t: int
    values: dict[str, Any] = field(default_factory=dict)
    warnings: Sequence[str] = ()


@dataclass(frozen=True)
class End:
    """At the end."""

    sha256: Sequence[str]  # of each client's final state
    server_sha256: str
    prototypes: Mapping[int, Mapping[str, Tensor]]  # each client's final E (|M_k|, C, d) and I (C, C)
    predictors: Sequence[str]
    predicted: Sequence[Tensor]  # of each client (predictors, items, test rows), classes in the last round
    last_broadcast: Message  # the newest of everything the server has sent to all
    server: Message  # what else of its state is shown


class Observer:
    """Is told of a run, on rank 0 only; the log and the screen are observers. Subclass it and override what you need.

    An exception ends the run as failed. Where `round` never ends a run, `decides = False` lets the other ranks go on to
    the next round meanwhile.
    """

    decides: ClassVar[bool] = True

    def start(self, start: Start) -> None:
        """Before the first round, or the first after a resume."""

    def round(self, result: Round) -> str | None:
        """After a round; a reason to end the run here, in good order, or None. It can be resumed."""

    def warn(self, words: str) -> None:
        """Something is not as it should be, but the run goes on; warnings of a round are in its `Round`."""

    def end(self, end: End) -> None:
        """After the last round; not told of a run that ends early."""
