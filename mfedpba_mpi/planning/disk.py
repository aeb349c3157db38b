"""Predict the disk space of a run from the sizes of its clients, data and log.

::

    checkpoint = 4 bytes per weight of all clients + the log so far + the server's state (counted as /final)
    log        = headers + 8 bytes per number, client and round, in whole chunks + rows of the partition + /final
    shards     = rows of all clients, each with label and row number; a sparse row has NONZEROS columns and values
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mfedpba_mpi.methods.base import Problem
from mfedpba_mpi.models.architecture import NONZEROS, weights

HEADER_BYTES = 85e3  # of the log
PER_CLIENT, PER_ROUND = 14, 11  # datasets in /rounds with one number per client and round, and with one per round
CHUNK_BYTES = 2**14  # maximum chunk size of these datasets (see `records.run_log`)


@dataclass(frozen=True)
class Disk:
    """Bytes of a run's log, of one checkpoint, and of its shards, which runs with the same partition share."""

    log: float
    checkpoint: float
    shards: float


def disk_of(problem: Problem) -> Disk:
    """Predict the disk space of a run of `problem`."""
    C, d, K, M, rounds = problem.C, problem.d, problem.K, problem.M, problem.config.rounds
    rows = parameters = prototypes = shards = 0
    for spec in problem.clients:
        modalities = [problem.info.modalities[m] for m in spec.modalities]
        n = spec.n_train + spec.n_test
        rows += n
        prototypes += len(modalities) * C * d
        shards += n * (16 + sum(8 * NONZEROS + 8 if m.sparse else 4 * m.width for m in modalities))
        parameters += sum(weights(a, m, d) for a, m in zip(spec.architectures, modalities, strict=True))
        parameters += C * d * (len(modalities) if problem.config.fusion == "concat" else 1)
    final = 4 * (prototypes + K * C**2 + M * C * (d + 2 * C) + C**2 + (M + 1) * d**2 // 2)
    log = HEADER_BYTES + 8 * rows + PER_CLIENT * _chunked(rounds, 8 * K) + PER_ROUND * _chunked(rounds, 8) + final
    return Disk(log, 4 * parameters + log, shards)


def _chunked(rounds: int, size: int) -> int:
    """Return the bytes of a dataset with `size` bytes per round, rounded up to whole chunks."""
    rows = int(np.clip(CHUNK_BYTES // size, 1, 256))
    return -(-rounds // rows) * rows * size
