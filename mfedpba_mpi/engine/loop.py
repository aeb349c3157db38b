"""The round loop. Read this file to understand the program.

Every rank runs `run_rounds`: rank 0 is the server (and everything else, when it is alone), the others train their
clients. A round is in `round.py`, what the method does in `methods/`, how messages travel in `comm/`, every side
effect but checkpoints in the observers.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch

from mfedpba_mpi.cli.console import count
from mfedpba_mpi.comm.devices import cpu_kind, set_up
from mfedpba_mpi.comm.serial import Comm
from mfedpba_mpi.config.run_config import RunConfig
from mfedpba_mpi.data.shards import read_clients
from mfedpba_mpi.engine.observers import Observer, Round, Start
from mfedpba_mpi.engine.resume import StoredRun, find_run, resume_command
from mfedpba_mpi.engine.round import Federation, RoundStatus
from mfedpba_mpi.engine.setup import cost, prepare
from mfedpba_mpi.engine.signals import EXIT_INTERRUPTED, Stop
from mfedpba_mpi.errors import (
    COMPLETE,
    FAILED,
    INTERRUPTED,
    Ended,
    EndedByObserver,
    RankLost,
    UserError,
    describe_error,
)
from mfedpba_mpi.methods.base import Problem
from mfedpba_mpi.methods.params import load_method
from mfedpba_mpi.records.checkpoint import Checkpoints, Saved
from mfedpba_mpi.rng import seeded


def run_rounds(
    config: RunConfig,
    data_dir: Path,
    comm: Comm,
    observers: Sequence[Observer] = (),
    checkpoints: Checkpoints | None = None,
    stop: Stop | None = None,
    recovers: bool = False,
    scratch: str = "",
) -> None:
    """Run `config` to its end; on every rank of `comm`, with observers on rank 0.

    Parameters
    ----------
    checkpoints : where the run goes on from, if there are any, and where its state is kept; None: nowhere.
    stop : tells when the run is asked to end early; then, or when it fails, all ranks raise `Ended`.
    recovers : go on from the last checkpoint without ranks that have died.
    scratch : where shards and stand-ins are written  [default: `data.scratch` chooses].
    """
    comm.device = set_up(config.device, comm.local_rank, config.threads)
    watching = observers if comm.is_server else ()
    while True:
        try:
            return _run_rounds(config, data_dir, comm, watching, checkpoints, stop or Stop(), scratch)
        except RankLost:
            if not (recovers and checkpoints):
                raise
            dead = comm.recover()
            if not dead:
                raise
            who = ", ".join(map(str, dead))
            _warn(watching, f"died: rank {who}; going on from the last checkpoint with {count(comm.size, 'rank')}")


def _run_rounds(
    config: RunConfig,
    data_dir: Path,
    comm: Comm,
    watching: Sequence[Observer],
    checkpoints: Checkpoints | None,
    stop: Stop,
    scratch: str,
) -> None:
    began = time.perf_counter()
    run = checkpoints.run if checkpoints else None
    stored = find_run(checkpoints.run) if checkpoints and checkpoints.resume and comm.is_server else None
    if stored:
        stored.find_data(data_dir)
    logged = stored.partition() if stored else None
    problem, partition, store, shards = prepare(config, data_dir, comm, run, scratch, logged)
    if stored:
        stored.check_data(store.fingerprint, store.path)
        stored.check_partition(partition)
    about = {
        "data_fingerprint": store.fingerprint, "data_origin": store.origin, "data_dir": str(data_dir.resolve()),
        **versions(),
    }  # fmt: skip
    saved = _find(checkpoints, comm, stored, about, watching) if checkpoints else None
    federation = build(problem, shards, comm, stop, saved)
    environment = comm.environment()
    if " and " in str(environment["cpu"]):
        _warn(watching, f"ranks run on CPUs of different kinds ({environment['cpu']}): bits depend on who runs where")
    log = saved.log if saved else None
    start = Start(
        problem, partition, store, data_dir.resolve(), shards, comm.ranks, environment, time.perf_counter() - began,
        federation.finished, log,
    )  # fmt: skip
    for observer in watching:
        observer.start(start)

    comm.barrier()
    ended_by = ""
    for t in range(federation.finished + 1, config.rounds + 1):
        result, round_status = federation.round(t)
        if not round_status & RoundStatus.VOID:
            ended_by = _tell([observer for observer in watching if observer.decides], result)
            round_status |= RoundStatus.ENOUGH if ended_by else 0
        if checkpoints and (t == config.rounds or checkpoints.due(t)):
            round_status |= RoundStatus.SAVE
        round_status = RoundStatus(comm.agree(round_status))  # rank 0's
        if not round_status & RoundStatus.VOID:
            _tell([observer for observer in watching if not observer.decides], result)  # the others go on meanwhile
            federation.finished = t
            if checkpoints:
                federation.take_snapshot()
        early = round_status & (RoundStatus.STOP | RoundStatus.ENOUGH) and t < config.rounds
        stopping = round_status & RoundStatus.VOID or early
        if checkpoints and federation.snapshot and (round_status & RoundStatus.SAVE or stopping):
            comm.where = f"the checkpoint of round {federation.finished}"
            before = time.perf_counter()
            checkpoints.write(comm, federation.snapshot, config, about)
            federation.saving = time.perf_counter() - before
        if stopping:
            raise _end(comm, federation, round_status, checkpoints, data_dir, ended_by) from federation.failure
    end = federation.end()
    for observer in watching:
        observer.end(end)
    if checkpoints and comm.is_server:
        checkpoints.prune(checkpoints.keep)
    comm.finish(0)


def build(problem: Problem, shards: Path, comm: Comm, stop: Stop, saved: Saved | None) -> Federation:
    """The clients of this rank with their data, and the server if it is here; their state from `saved` if given."""
    config = problem.config
    method = load_method(config.method)(problem)
    comm.place([cost(problem, k) for k in range(problem.K)])
    clients = {}
    for k, data in zip(comm.mine, read_clients(shards, comm.mine), strict=True):
        with seeded(config.seed, "client", k):
            clients[k] = method.client(k, data, comm.device)
    with seeded(config.seed, "new server"):
        server = method.server(comm.device) if comm.is_server else None
    return Federation(config, comm, method, clients, server, stop, saved)


def _tell(watching: Sequence[Observer], result: Round) -> str:
    """Tell the observers of a round; why it is to be the last, if one of them says so."""
    answers = {type(observer).__name__: observer.round(result) for observer in watching}
    return "; ".join(f"{name}: {reason}" for name, reason in answers.items() if reason)


def _warn(watching: Sequence[Observer], words: str) -> None:
    for observer in watching:
        observer.warn(words)


def versions() -> dict[str, str]:
    """What the bits of a run depend on beside its configuration and data."""
    return {"torch": str(torch.__version__), "numpy": np.__version__, "cpu": cpu_kind()}


def _find(
    checkpoints: Checkpoints, comm: Comm, stored: StoredRun | None, about: Mapping[str, str],
    watching: Sequence[Observer],
) -> Saved | None:  # fmt: skip
    """The checkpoint to go on from, if there is one; `stored` is the run that is there, on rank 0."""
    saved = checkpoints.newest(comm, partial(_warn, watching))
    if stored and not saved:
        if stored.status == COMPLETE:
            raise UserError(
                f"rounds: the run in {checkpoints.run} is complete and has kept no checkpoint to extend it from "
                "(`clean`, or --keep-checkpoints none); start over with `run --rounds N --overwrite`, or another --out"
            )
        _warn(watching, "no checkpoint yet: starting again at round 1")
    for name, was in saved.about.items() if saved else ():
        if name in versions() and was != about[name]:
            _warn(
                watching, f"the run was started with {name} {was}, this is {about[name]}: bits may differ from here on"
            )
    return saved


def _end(
    comm: Comm, federation: Federation, round_status: RoundStatus, checkpoints: Checkpoints | None, data_dir: Path,
    ended_by: str,
) -> Ended:  # fmt: skip
    """How all ranks end after `round_status`."""
    if round_status & RoundStatus.FAILED:
        error = federation.failure
        where = f"rank {comm.rank}, " if comm.size > 1 else ""
        reasons = comm.collect(where + describe_error(error) if error else "")
        return Ended(FAILED, "; ".join(filter(None, reasons)), 1)
    if round_status & RoundStatus.ENOUGH and not round_status & RoundStatus.STOP:
        return EndedByObserver(INTERRUPTED, f"ended after round {federation.finished} by {ended_by}", 0)
    asked = sorted({reason for reason in comm.collect(federation.asked) if reason})
    hint = f"; go on with `{resume_command(checkpoints.run, data_dir)}`" if checkpoints else ""
    reason = f"stopped by {' and '.join(asked)} after round {federation.finished}{hint}"
    return Ended(INTERRUPTED, reason, EXIT_INTERRUPTED)
