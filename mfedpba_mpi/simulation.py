"""The round loop. Read this file to understand the program.

Every rank runs `federate`: rank 0 is the server (and everything else, when it is alone), the others train their
clients. A round is in `federation.py`, what the method does in `methods/`, how messages travel in `comm/`, every side
effect but checkpoints in the observers.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import torch

from mfedpba_mpi.comm.devices import set_up
from mfedpba_mpi.comm.serial import Comm
from mfedpba_mpi.config import RunConfig
from mfedpba_mpi.data.shards import read_clients
from mfedpba_mpi.data.store import FeatureStore
from mfedpba_mpi.errors import FAILED, INTERRUPTED, Ended, RankLost, UserError, describe_error
from mfedpba_mpi.federation import Federation, Verdict
from mfedpba_mpi.methods.catalog import load_method
from mfedpba_mpi.observing import Observer, Start
from mfedpba_mpi.preparing import cost, prepare
from mfedpba_mpi.records.checkpoint import Checkpoints, Saved
from mfedpba_mpi.stopping import EXIT_INTERRUPTED, Stop


def federate(
    config: RunConfig,
    data_dir: Path,
    comm: Comm,
    observers: Sequence[Observer] = (),
    checkpoints: Checkpoints | None = None,
    stop: Stop | None = None,
    recovers: bool = False,
) -> None:
    """Run `config` to its end; on every rank of `comm`, with observers on rank 0.

    Parameters
    ----------
    checkpoints : where the run goes on from, if there are any, and where its state is kept; None: nowhere.
    stop : tells when the run is asked to end early; then, or when it fails, all ranks raise `Ended`.
    recovers : go on from the last checkpoint without ranks that have died.
    """
    comm.device = set_up(config.device, comm.local_rank, config.threads)
    watching = observers if comm.is_server else ()
    while True:
        try:
            return _federate(config, data_dir, comm, watching, checkpoints, stop or Stop())
        except RankLost:
            if not (recovers and checkpoints):
                raise
            dead = comm.recover()
            if not dead:
                raise
            who = ", ".join(map(str, dead))
            for observer in watching:
                observer.warn(f"died: rank {who}; going on from the last checkpoint with {comm.size} ranks")


def _federate(
    config: RunConfig,
    data_dir: Path,
    comm: Comm,
    watching: Sequence[Observer],
    checkpoints: Checkpoints | None,
    stop: Stop,
) -> None:
    began = time.perf_counter()
    problem, partition, store, shards = prepare(config, data_dir, comm)
    saved = _find(checkpoints, comm, store, watching) if checkpoints else None
    method = load_method(config.method)(problem)
    comm.place([cost(problem, k) for k in range(problem.K)])
    clients = {
        k: method.client(k, data, comm.device)
        for k, data in zip(comm.mine, read_clients(shards, comm.mine), strict=True)
    }
    server = method.server(comm.device) if comm.is_server else None
    federation = Federation(config, comm, method, clients, server, stop, saved)
    environment = comm.environment()
    log = saved.log if saved else None
    start = Start(
        problem, partition, store, comm.ranks, environment, time.perf_counter() - began, federation.finished, log
    )
    for observer in watching:
        observer.start(start)

    comm.barrier()
    for t in range(federation.finished + 1, config.rounds + 1):
        result, verdict = federation.round(t)
        if checkpoints and (t == config.rounds or checkpoints.due(t)):
            verdict |= Verdict.SAVE
        verdict = Verdict(comm.agree(verdict))  # rank 0's
        if not verdict & Verdict.VOID:
            for observer in watching:
                observer.round(result)
            federation.finished = t
            if checkpoints:
                federation.keep()
        stopping = verdict & Verdict.VOID or (verdict & Verdict.STOP and t < config.rounds)
        if checkpoints and federation.kept and (verdict & Verdict.SAVE or stopping):
            comm.where = f"the checkpoint of round {federation.finished}"
            before = time.perf_counter()
            checkpoints.write(comm, federation.kept, config, store.fingerprint)
            federation.saving = time.perf_counter() - before
        if stopping:
            raise _end(comm, federation, verdict, checkpoints) from federation.failure
    end = federation.end()
    for observer in watching:
        observer.end(end)
    comm.finish(0)


def _find(checkpoints: Checkpoints, comm: Comm, store: FeatureStore, watching: Sequence[Observer]) -> Saved | None:
    """The checkpoint to go on from, if there is one, and if it is of the same data."""

    def warn(words: str) -> None:
        for observer in watching:
            observer.warn(words)

    saved = checkpoints.newest(comm, warn)
    if saved and saved.fingerprint != store.fingerprint:
        raise UserError(
            f"{store.path} is not the data that the run was begun with (fingerprint {store.fingerprint[:12]}, then "
            f"{saved.fingerprint[:12]}); name the directory that has them with --data-dir"
        )
    if saved and saved.torch != torch.__version__:
        warn(f"the run was begun with torch {saved.torch}, this is {torch.__version__}: bits may differ from here on")
    return saved


def _end(comm: Comm, federation: Federation, verdict: Verdict, checkpoints: Checkpoints | None) -> Ended:
    """How all ranks end after `verdict`."""
    if verdict & Verdict.FAILED:
        error = federation.failure
        where = f"rank {comm.rank}, " if comm.size > 1 else ""
        reasons = comm.collect(where + describe_error(error) if error else "")
        return Ended(FAILED, "; ".join(filter(None, reasons)), 1)
    asked = sorted({reason for reason in comm.collect(federation.asked) if reason})
    hint = f"; go on with `mfedpba-mpi resume {checkpoints.run}`" if checkpoints else ""
    reason = f"stopped by {' and '.join(asked)} after round {federation.finished}{hint}"
    return Ended(INTERRUPTED, reason, EXIT_INTERRUPTED)
