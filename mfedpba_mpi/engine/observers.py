"""The observer protocol: what observers receive before the first round, after every round, and at the end of a run."""

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
    """A run before its first round.

    Attributes
    ----------
    problem : configuration, dataset and clients.
    partition : the rows and modalities of every client.
    store : the dataset.
    data_dir : directory of the datasets.
    shards : file with the clients' rows.
    ranks : the clients of every rank.
    environment : number of ranks, MPI library, hosts, kind of CPU, device of every rank.
    seconds : set-up time of the slowest rank.
    finished : rounds finished before, if the run resumes from a checkpoint.
    log : the log of those rounds, None for a new run.
    """

    problem: Problem
    partition: Partition
    store: FeatureStore
    data_dir: Path
    shards: Path
    ranks: Sequence[Sequence[int]]
    environment: Mapping[str, Any]
    seconds: float
    finished: int = 0
    log: Path | None = None


@dataclass
class Round:
    """Results of round `t`: `values` by their names in /rounds of the log."""

    t: int
    values: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class End:
    """Results of a complete run.

    Attributes
    ----------
    sha256, server_sha256 : digests of every client's and the server's final state.
    prototypes : by client, E (|M_k|, C, d) and I (C, C) of its final model.
    predictors : names of the ways to predict; accuracies count the first.
    predicted : by client, predicted classes in the last round (predictors, items, test rows).
    last_broadcast : the newest value of everything that the server has broadcast.
    server : further arrays of the server's state to be logged.
    """

    sha256: Sequence[str]
    server_sha256: str
    prototypes: Mapping[int, Mapping[str, Tensor]]
    predictors: Sequence[str]
    predicted: Sequence[Tensor]
    last_broadcast: Message
    server: Message


class Observer:
    """Base class of observers (callbacks). Subclass it and override the methods you need.

    Observers are called on rank 0 only. The log and the screen are observers too. An exception in an observer ends the
    run as failed.

    Attributes
    ----------
    decides : bool
        Whether `round` may end the run. False lets the other ranks start the next round while `round` is running.
    """

    decides: ClassVar[bool] = True

    def start(self, start: Start) -> None:
        """Called before the first round, and again after a resume."""

    def round(self, result: Round) -> str | None:
        """Called after every round. Return a reason to end the run here, in good order, or None to continue.

        A run ended by an observer is logged as interrupted, with the reason, and can be resumed.
        """

    def warn(self, t: int, text: str) -> None:
        """Called for every warning; `t` is the last round it concerns, 0 before the first round."""

    def end(self, end: End) -> None:
        """Called after the last round; not if the run ends early."""
