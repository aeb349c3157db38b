"""Writing the run log, ``run.h5``; documented here.

The log grows in memory, and after every round the whole of it is written aside and moved into place. So another process
can read it at any time with plain h5py (and cannot stop the run by doing so), and a killed run, a dead node or a full
disk leaves the log of the last finished round, never half of one. HDF5's single-writer mode gives none of this. Only
rank 0 writes. A resumed run goes on from the log in its checkpoint, so no round is in it twice, and none is missing.

::

    /                attributes: config (JSON), seed, method, label (the method's name for people), dataset,
                     data_origin ("real" or "synthetic"), data_fingerprint, data_dir, version, status ("running",
                     "complete", "interrupted", "failed"), reason, ranks, mpi, hosts, torch, numpy, cpu (instruction
                     set), device, threads, started, modalities, classes, seconds_setup (of the slowest rank, from its
                     first step to round 1), resumed (JSON: for each time that the run went on from a checkpoint the
                     round, and when, where and on how many ranks), plugins (JSON: file and sha256 of each plugin)
    /rounds/         one row a round, T rows so far
        accuracy, correct, tested (T, K)    NaN and -1 in rounds without evaluation
        accuracy_prototype, accuracy_classifier (T, K)    where a method has both ways to predict; one is accuracy
        loss_ce, loss_fea, loss_logit (T, K)    means over the round's batches; NaN for clients that did not take part
        gradient_norm2 (T, K)    with --track-gradients: means over the round's SGD steps of ||g||^2, g the stochastic
            gradient of the client's whole loss in all that it trains; NaN as for losses, rounding below some 1e-8
        server_rec, server_con, server_align (T,)    at the last server step of the round
        gradient_rec, gradient_con, gradient_align (T,)    with --track-gradients: norms of the gradients of MFedPBA's
            terms in the server's autoencoder, at the last server step of the round, before they are added and clipped
        gw_residual, gw_iterations (T,)    MFedPBA's transport plans: the round's largest residual, all its iterations
        gw_trace, gw_epsilon (T, M)    of each modality's plan after the last server step; NaN where there is none
        loss_<term> (T, K), server_<term> (T,)    of the other methods' own terms, see their modules
        cluster (T, K), modality_bias (T, K, M)    Harmony's; -1 and NaN where there is none
        bytes_up, bytes_down, wire_up, wire_down (T, K)    payload by the method's definition; the whole messages
        seconds_train, seconds_server, seconds_comm, seconds_eval, seconds_total (T,)
        seconds_checkpoint (T,)    of a checkpoint between the round before and this one, part of seconds_total
        seconds_client (T, K)    CPU seconds of each client's training and evaluation
        participants (T, K) bool
    /partition/      modalities (K, M) bool, train_rows and test_rows with train_offsets and test_offsets (K+1)
                     (test_rows is what accuracies are measured on: with --validation, training rows held out),
                     architectures (K,) JSON, rank (K,), counts (K, C) of training samples
    /final/          client_sha256 (K,), server_sha256, E (sum |M_k|, C, d) with E_client and E_modality, I (K, C, C),
                     predicted (predictors, sum of items x test rows): each client's classes in the last round, item by
                     item; predicted_items (K,) is 1, or |M_k| with fusion "separate"; test_labels: the true classes;
                     and the newest of what the server has sent to all (MFedPBA: P_G, P_present, I_G, I_present);
                     plan (M, C, C), where MFedPBA has L_align: the transport plan of each modality as the last server
                     step left it, from the classes of I_G (rows) to those of P_G (columns), n classes present with
                     marginals 1/n; NaN where a class or the modality is absent
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from pathlib import Path

import h5py
import numpy as np
import torch

from mfedpba_mpi import __version__, plugins
from mfedpba_mpi.data.sealed import open_image, seal
from mfedpba_mpi.engine.observers import End, Observer, Round, Start
from mfedpba_mpi.errors import COMPLETE, RUNNING, RunError
from mfedpba_mpi.methods.params import METHODS
from mfedpba_mpi.records.run import LOG_NAME

TIME = "%Y-%m-%dT%H:%M:%S%z"
_FIXED = ("loss_ce", "loss_fea", "loss_logit", "server_rec", "server_con", "server_align")  # there for every method
# of every run, beside what its method broadcasts
IN_FINAL = ("client_sha256", "E", "E_client", "E_modality", "I", "predicted", "predicted_items", "test_labels")


class RunLog(Observer):
    """The observer that writes ``OUT/run.h5``."""

    decides = False

    def __init__(self, directory: Path):
        self.path = directory / LOG_NAME
        self._file: h5py.File | None = None

    def start(self, start: Start) -> None:
        """Create the log with everything known before round 1, or take up that of the checkpoint."""
        if self._file:  # the run goes on without a rank that died
            self._file.close()
        file = self._file = open_image(start.log) if start.log else self._create(start)
        if start.log:
            # another configuration than before only in its number of rounds
            file.attrs.update(config=start.problem.config.to_json(), status=RUNNING)
            file.attrs["plugins"] = plugins.to_json(default=file.attrs.get("plugins", "[]"))
            went_on = {
                "round": start.finished, "ranks": start.environment["ranks"], "hosts": start.environment["hosts"],
                "started": time.strftime(TIME),
            }  # fmt: skip
            file.attrs["resumed"] = json.dumps([*json.loads(file.attrs["resumed"]), went_on])
        self._labels = start.store.labels()
        self._shapes = {name: (start.problem.K,) if name.startswith("loss_") else () for name in _FIXED}
        self._publish(file)

    def _create(self, start: Start) -> h5py.File:
        config = start.problem.config
        name = f"log {id(self)}"  # HDF5 wants one that no other open file has
        file = h5py.File(name, "w", driver="core", backing_store=False, libver=("v108", "v108"))
        file.attrs.update(
            config=config.to_json(), seed=config.seed, method=config.method, label=METHODS[config.method].label,
            dataset=start.store.info.name,
            data_origin=start.store.origin, data_fingerprint=start.store.fingerprint, data_dir=str(start.data_dir),
            version=__version__,
            status=RUNNING, torch=str(torch.__version__), numpy=np.__version__,
            cpu=start.environment["cpu"], device=config.device, threads=config.threads,
            started=time.strftime(TIME), ranks=start.environment["ranks"],
            mpi=start.environment["mpi"], hosts=json.dumps(start.environment["hosts"]),
            modalities=json.dumps([m.name for m in start.store.info.modalities]), classes=start.store.info.classes,
            seconds_setup=start.seconds, resumed="[]", plugins=plugins.to_json(),
        )  # fmt: skip
        _write_partition(file.create_group("partition"), start)
        file.create_group("rounds")
        return file

    def round(self, result: Round) -> None:
        """Append one row to every dataset of /rounds."""
        assert self._file
        values = {name: np.full(shape, np.nan) for name, shape in self._shapes.items()} | result.values
        for name, value in values.items():
            _append(self._file["rounds"], name, result.t - 1, np.asarray(value))
        self._publish(self._file)

    def warn(self, words: str) -> None:
        """Not for the log."""

    def end(self, end: End) -> None:
        """Add what is known at the end, and say that the run is complete."""
        assert self._file
        owned, rows = (self._file[f"partition/{name}"][()] for name in ("modalities", "test_rows"))
        classes = int(self._file.attrs["classes"])
        _write_final(self._file.create_group("final"), owned, self._labels[rows], classes, end)
        self._close(COMPLETE)

    def abandon(self, status: str, reason: str) -> None:
        """Say why a run that was begun will not end; nothing where there is no log, as off rank 0."""
        if self._file:
            self._file.attrs["reason"] = reason
            self._close(status)

    def _close(self, status: str) -> None:
        assert self._file
        self._file.attrs["status"] = status
        self._publish(self._file)
        self._file.close()

    def _publish(self, file: h5py.File) -> None:
        """Put the log as it is now in the place of the last one, in one step."""
        file.flush()
        aside = self.path.with_name(f".{LOG_NAME}.part")
        try:
            aside.write_bytes(seal(file.id.get_file_image()))
            os.replace(aside, self.path)
        except OSError as error:
            with suppress(OSError):
                aside.unlink(missing_ok=True)
            raise RunError(f"cannot write {self.path}: {error.strerror}; the rounds before are safe in it") from error


def _append(group: h5py.Group, name: str, row: int, value: np.ndarray) -> None:
    if name not in group:
        rows = max(1, min(256, 2**14 // max(1, value.nbytes)))
        fill = np.nan if value.dtype.kind == "f" else 0
        group.create_dataset(
            name, (0, *value.shape), value.dtype, maxshape=(None, *value.shape), chunks=(rows, *value.shape),
            fletcher32=True, fillvalue=fill,
        )  # fmt: skip
    dataset = group[name]
    dataset.resize(row + 1, axis=0)
    dataset[row] = value


def _write_partition(group: h5py.Group, start: Start) -> None:
    problem = start.problem
    for name, array in start.partition.arrays().items():
        group[name] = array
    architectures = [json.dumps([a.as_dict() for a in client.architectures]) for client in problem.clients]
    group.create_dataset("architectures", data=architectures, dtype=h5py.string_dtype())
    rank_of = {k: rank for rank, clients in enumerate(start.ranks) for k in clients}
    group["rank"] = [rank_of[k] for k in range(problem.K)]
    group["counts"] = np.stack([client.counts for client in problem.clients])


def _write_final(group: h5py.Group, owned: np.ndarray, labels: np.ndarray, classes: int, end: End) -> None:
    group.create_dataset("client_sha256", data=list(end.sha256), dtype=h5py.string_dtype())
    group.attrs["server_sha256"] = end.server_sha256
    group["E"] = np.concatenate([message["E"].cpu().numpy() for message in end.prototypes.values()])
    group["E_client"], group["E_modality"] = np.nonzero(owned)
    group["I"] = np.stack([message["I"].cpu().numpy() for message in end.prototypes.values()])
    items = [p.shape[1] for p in end.predicted]
    small = np.min_scalar_type(classes - 1)
    predicted = np.concatenate([p.flatten(1).cpu().numpy() for p in end.predicted], axis=1)
    group["predicted"], group["predicted_items"] = predicted.astype(small), items
    group["predicted"].attrs["predictors"] = json.dumps(end.predictors)
    group["test_labels"] = labels.astype(small)
    for name, value in (*end.last_broadcast.items(), *end.server.items()):
        group[name] = value.cpu().numpy()
