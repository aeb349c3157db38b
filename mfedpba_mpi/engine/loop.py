"""The loop over rounds. Read this file first to understand the program.

Every rank runs `run_rounds`. Rank 0 is the server (and trains all clients if it is the only rank); the other ranks
train their clients. A round is in `round.py`, the methods are in `methods/`, communication is in `comm/`. All side
effects but checkpoints are in observers.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from mfedpba_mpi.cli.console import count
from mfedpba_mpi.comm.base import Comm
from mfedpba_mpi.comm.devices import check_devices, compute_kind, cpu_kind, device_kind, set_up
from mfedpba_mpi.config.run_config import RunConfig
from mfedpba_mpi.data.shards import read_clients
from mfedpba_mpi.data.sources import stale_store
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

logger = logging.getLogger(__name__)


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
    """Run `config` to its end. Called on every rank of `comm`; observers are called on rank 0 only.

    Parameters
    ----------
    checkpoints : where checkpoints are written, and read to resume; None for no checkpoints.
    stop : a request to stop early. All ranks then raise `Ended`, as they do after an error.
    recovers : continue from the last checkpoint without ranks that have died.
    scratch : directory for shards and stand-ins  [default: chosen by `data.scratch`].
    """
    comm.device = set_up(config.device, comm.local_rank, config.threads)
    observers = observers if comm.is_server else ()
    while True:
        try:
            return _run_rounds(config, data_dir, comm, observers, checkpoints, stop or Stop(), scratch)
        except RankLost:
            if not (recovers and checkpoints):
                raise
            dead = comm.recover()
            if not dead:
                raise
            if comm.is_server:
                text = f"rank {', '.join(map(str, dead))} died; continuing with {count(comm.size, 'rank')}"
                warn(observers, checkpoints.newest_round, f"{text} from the last checkpoint")


def _run_rounds(
    config: RunConfig,
    data_dir: Path,
    comm: Comm,
    observers: Sequence[Observer],
    checkpoints: Checkpoints | None,
    stop: Stop,
    scratch: str,
) -> None:
    began = time.perf_counter()
    directory = checkpoints.run if checkpoints else None
    stored = find_run(checkpoints.run) if checkpoints and checkpoints.resume and comm.is_server else None
    if stored:
        stored.find_data(data_dir)
    logged = stored.partition() if stored else None
    problem, partition, store, shards = prepare(config, data_dir, comm, directory, scratch, logged)
    if stored:
        stored.check_data(store.fingerprint, store.path)
        stored.check_partition(partition)
    about = {
        "data_fingerprint": store.fingerprint, "data_origin": store.origin, "data_dir": str(data_dir.resolve()),
        **versions(comm.device),
    }  # fmt: skip
    saved = _find_checkpoint(checkpoints, comm, stored, about, observers) if checkpoints else None
    finished = saved.round if saved else 0
    for text in stored.plugin_warnings() if stored else ():
        warn(observers, finished, text)
    if comm.is_server and (text := stale_store(config, store)):
        warn(observers, finished, text)
    federation = build(problem, shards, comm, stop, saved)
    environment = comm.environment()
    if comm.is_server:
        _check_machines(environment, config, observers, federation.finished)
    start = Start(
        problem, partition, store, data_dir.resolve(), shards, comm.ranks, environment, time.perf_counter() - began,
        federation.finished, saved.log if saved else None,
    )  # fmt: skip
    for observer in observers:
        observer.start(start)

    comm.barrier()
    ended_by = ""
    for t in range(federation.finished + 1, config.rounds + 1):
        result, round_status = federation.round(t)
        if not round_status & RoundStatus.VOID:
            ended_by = _notify([observer for observer in observers if observer.decides], result)
            round_status |= RoundStatus.ENOUGH if ended_by else 0
        if checkpoints and (t == config.rounds or checkpoints.due(t)):
            round_status |= RoundStatus.SAVE
        round_status = RoundStatus(comm.share_status(round_status))
        if not round_status & RoundStatus.VOID:
            # the other ranks start the next round meanwhile
            for text in federation.warnings:
                warn(observers, t, text)
            _notify([observer for observer in observers if not observer.decides], result)
            federation.finished = t
            if checkpoints:
                federation.take_snapshot()
        early = round_status & (RoundStatus.STOP | RoundStatus.ENOUGH) and t < config.rounds
        stopping = round_status & RoundStatus.VOID or early
        if checkpoints and federation.snapshot and (round_status & RoundStatus.SAVE or stopping):
            comm.activity = f"the checkpoint of round {federation.finished}"
            before = time.perf_counter()
            checkpoints.write(comm, federation.snapshot, config, about)
            federation.saving = time.perf_counter() - before
            if comm.is_server:
                logger.info("checkpoint of round %d written in %.2f s", federation.finished, federation.saving)
        if stopping:
            raise _end(comm, federation, round_status, checkpoints, data_dir, ended_by) from federation.failure
    end = federation.end()
    for observer in observers:
        observer.end(end)
    if checkpoints and comm.is_server:
        checkpoints.prune(checkpoints.keep)
    comm.finish(0)


def build(problem: Problem, shards: Path, comm: Comm, stop: Stop, saved: Saved | None) -> Federation:
    """The federation of this rank: its clients with their data, the server on rank 0, their state from `saved`."""
    config = problem.config
    method = load_method(config.method)(problem)
    comm.place([cost(problem, k) for k in range(problem.K)])
    logger.info("device %s, clients %s", device_kind(comm.device), comm.own_clients)
    clients = {}
    for k, data in zip(comm.own_clients, read_clients(shards, comm.own_clients), strict=True):
        with seeded(config.seed, "client", k):
            clients[k] = method.client(k, data, comm.device)
    with seeded(config.seed, "new server"):
        server = method.server(comm.device) if comm.is_server else None
    return Federation(config, comm, method, clients, server, stop, saved)


def warn(observers: Sequence[Observer], t: int, text: str) -> None:
    """On rank 0: log a warning about round `t` (0: before the first), and tell the observers, so that run.h5 has it."""
    logger.warning("round %d: %s", t, text) if t else logger.warning("%s", text)
    for observer in observers:
        observer.warn(t, text)


def _notify(observers: Sequence[Observer], result: Round) -> str:
    """Tell the observers of a round. Returns the reasons to end the run after it, "" if there are none."""
    answers = {type(observer).__name__: observer.round(result) for observer in observers}
    return "; ".join(f"{name}: {reason}" for name, reason in answers.items() if reason)


def versions(device: torch.device) -> dict[str, str]:
    """What the bits of a run depend on, apart from its configuration and data."""
    kind = compute_kind(device_kind(device))
    return {"torch": str(torch.__version__), "numpy": np.__version__, "cpu": cpu_kind(), "device": kind}


def _check_machines(
    environment: Mapping[str, object], config: RunConfig, observers: Sequence[Observer], finished: int
) -> None:
    """On rank 0: warn if ranks run on different kinds of CPUs or, where that is allowed, of devices."""
    if " and " in str(cpus := environment["cpu"]):
        warn(
            observers,
            finished,
            f"the ranks have different CPUs ({cpus}): bits depend on which rank has which client",
        )
    if text := check_devices(environment["devices"], config.device):  # type: ignore[arg-type]
        warn(observers, finished, text)


def _find_checkpoint(
    checkpoints: Checkpoints, comm: Comm, stored: StoredRun | None, about: Mapping[str, str],
    observers: Sequence[Observer],
) -> Saved | None:  # fmt: skip
    """The checkpoint to resume from, None if there is none. `stored` is the run in the directory, on rank 0."""
    damage: list[str] = []
    try:
        saved = checkpoints.newest(comm, damage.append)
    finally:
        for text in damage:
            warn(observers, checkpoints.newest_round, text)
    finished = checkpoints.newest_round
    if stored and not saved:
        if stored.status == COMPLETE:
            raise UserError(
                f"rounds: the run in {checkpoints.run} is complete and has no checkpoint to extend it from (removed by "
                "`clean` or --keep-checkpoints none); start over with `run --rounds N --overwrite`, or another --out"
            )
        warn(observers, 0, "no checkpoint yet: starting again at round 1")
    for name, before in saved.about.items() if saved and comm.is_server else ():
        if name in versions(comm.device) and before != about[name]:
            warn(
                observers,
                finished,
                f"the run was started with {name} {before} and continues with {about[name]}: bits may differ from here",
            )
    return saved


def _end(
    comm: Comm, federation: Federation, round_status: RoundStatus, checkpoints: Checkpoints | None, data_dir: Path,
    ended_by: str,
) -> Ended:  # fmt: skip
    """The exception with which all ranks end after `round_status`."""
    if round_status & RoundStatus.FAILED:
        error = federation.failure
        where = f"rank {comm.rank}, " if comm.size > 1 else ""
        reasons = comm.collect(where + describe_error(error) if error else "")
        return Ended(FAILED, "; ".join(filter(None, reasons)), 1)
    if round_status & RoundStatus.ENOUGH and not round_status & RoundStatus.STOP:
        return EndedByObserver(INTERRUPTED, f"ended after round {federation.finished} by {ended_by}", 0)
    signals = sorted(set(filter(None, comm.collect(federation.stop_signal))))
    hint = f"; resume with `{resume_command(checkpoints.run, data_dir)}`" if checkpoints else ""
    reason = f"stopped by {' and '.join(signals)} after round {federation.finished}{hint}"
    return Ended(INTERRUPTED, reason, EXIT_INTERRUPTED)
