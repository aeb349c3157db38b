"""Writing the run log, ``run.h5``, and its format.

The log is kept in memory. After every round it is written to a temporary file, which then replaces ``run.h5``. So other
processes can read it at any time with plain h5py, without disturbing the run. After a kill, a dead node or a full disk
the log of the last finished round remains intact. HDF5's single-writer mode offers none of this. Only rank 0 writes. A
resumed run continues the log in its checkpoint, so no round is logged twice and none is missing.

::

    /                attributes: format "mfedpba-run", format_version, config (JSON), seed, method, label (the method's
                     name in tables), dataset, data_origin ("real" or "synthetic"), data_fingerprint, data_dir, version
                     (of the program), status ("running", "complete", "interrupted", "failed"), reason, ranks, mpi,
                     hosts, torch, numpy, cpu (vendor and instruction set), device (the kinds used), devices (JSON: type
                     and model of every rank's device), threads, started, modalities, classes, seconds_setup (set-up
                     time of the slowest rank), resumed (JSON: for every resume the round, time, hosts, number of ranks,
                     devices, and the plugins used before), plugins (JSON: file and sha256 of each plugin)
    /warnings/       round (n,), text (n,): every warning with the round that it concerns (0: before the first)
    /rounds/         one row per round, T rows so far
        accuracy, correct, tested (T, K)    NaN and -1 in rounds without evaluation
        accuracy_prototype, accuracy_classifier (T, K)    of methods with both predictors; accuracy is one of them
        loss_ce, loss_fea, loss_logit (T, K)    means over the round's batches; NaN for clients that did not take part
        gradient_norm2 (T, K)    with --track-gradients: mean over the round's SGD steps of ||g||^2, where g is the
            stochastic gradient of the client's total loss; NaN as for losses; values below about 1e-8 are rounding
        server_rec, server_con, server_align (T,)    at the last server step of the round
        gradient_rec, gradient_con, gradient_align (T,)    with --track-gradients: norms of the gradients of MFedPBA's
            terms in the server's autoencoder, at the last server step of the round, before they are added and clipped
        arrival_old, arrival_new (T, K)    of MFedPBA with --track-gradients: a client's L_client before it trains, with
            the model of the end of its last round, under the prototypes of that round and under the newest ones
        arrival_clients, arrival_server, arrival_drift, arrival_bias (T, K)    the same: what the round's new prototypes
            change in L_client of its participants, caused by clients and by the server, and the two terms that bound
            the sum of these (Lemma 2, see methods/mfedpba/arrival.py). The change is seen at the start of the next
            round: if a client takes part in rounds t and t+1, arrival_new - arrival_old of t+1 is
            arrival_clients + arrival_server of t, up to rounding
        gw_residual, gw_iterations (T,)    MFedPBA's transport plans: largest residual and total iterations of the round
        gw_trace, gw_epsilon (T, M)    of each modality's plan after the last server step; NaN if there is none
        loss_<term> (T, K), server_<term> (T,)    the terms of other methods, see their modules
        cluster (T, K), modality_bias (T, K, M)    of Harmony; -1 and NaN if there is none
        bytes_up, bytes_down, wire_up, wire_down (T, K)    payload by the method's definition; size of the messages
        seconds_train, seconds_server, seconds_comm, seconds_eval, seconds_total (T,)
        seconds_checkpoint (T,)    of the checkpoint before this round, part of seconds_total
        seconds_client (T, K)    CPU seconds of each client's training and evaluation
        participants (T, K) bool
    /partition/      modalities (K, M) bool, train_rows and test_rows with train_offsets and test_offsets (K+1)
                     (accuracies are measured on test_rows; with --validation these are held-out training rows),
                     architectures (K,) JSON, rank (K,), counts (K, C) of training samples
    /final/          client_sha256 (K,), server_sha256, E (sum |M_k|, C, d) with E_client and E_modality, I (K, C, C),
                     predicted (predictors, sum of items x test rows): predicted classes of the last round, client by
                     client; predicted_items (K,) is 1, or |M_k| with fusion "separate"; test_labels: the true classes;
                     the newest value of everything the server has broadcast (MFedPBA: P_G, P_present, I_G, I_present);
                     plan (M, C, C), for MFedPBA with L_align: the transport plan of each modality after the last server
                     step, from the classes of I_G (rows) to those of P_G (columns), with marginals 1/n for the n
                     classes present; NaN where a class or the modality is absent;
                     encoder_weight (M, d, d/2), encoder_bias (M, 1, d/2), decoder_weight (d/2, d), decoder_bias (d,),
                     for MFedPBA with an autoencoder: P_k^m = max(E_k^m @ encoder_weight[m] + encoder_bias[m], 0)
                     @ decoder_weight + decoder_bias
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

import h5py
import numpy as np
import torch

from mfedpba_mpi import __version__, plugins
from mfedpba_mpi.comm.devices import compute_kind
from mfedpba_mpi.data.seal import open_image, seal
from mfedpba_mpi.engine.observers import End, Observer, Round, Start
from mfedpba_mpi.errors import COMPLETE, RUNNING, RunError
from mfedpba_mpi.files import replacing
from mfedpba_mpi.methods.params import METHODS
from mfedpba_mpi.records.run import FORMAT, FORMAT_VERSION, LOG_NAME

TIME = "%Y-%m-%dT%H:%M:%S%z"
_FIXED = ("loss_ce", "loss_fea", "loss_logit", "server_rec", "server_con", "server_align")  # logged for every method
# names in /final of every run, which no method may broadcast
IN_FINAL = ("client_sha256", "E", "E_client", "E_modality", "I", "predicted", "predicted_items", "test_labels")


class RunLog(Observer):
    """The observer that writes ``OUT/run.h5``."""

    decides = False

    def __init__(self, directory: Path):
        self.path = directory / LOG_NAME
        self._file: h5py.File | None = None
        self._unwritten: list[tuple[int, str]] = []  # warnings

    def start(self, start: Start) -> None:
        """Create the log, or continue the one in the checkpoint."""
        if self._file:  # the run recovers from the death of a rank
            self._file.close()
        file = self._file = open_image(start.log) if start.log else self._create(start)
        if start.log:
            # the configuration can differ in the number of rounds only
            file.attrs.update(config=start.problem.config.to_json(), status=RUNNING)
            before = file.attrs.get("plugins", "[]")
            file.attrs["plugins"] = plugins.to_json(default=before)
            resumed = {
                "round": start.finished, "ranks": start.environment["ranks"], "hosts": start.environment["hosts"],
                "devices": start.environment["devices"], "started": time.strftime(TIME),
                "plugins_before": json.loads(before),
            }  # fmt: skip
            file.attrs["resumed"] = json.dumps([*json.loads(file.attrs["resumed"]), resumed])
        self._labels = start.store.labels()
        self._shapes = {name: (start.problem.K,) if name.startswith("loss_") else () for name in _FIXED}
        self._publish(file)

    def _create(self, start: Start) -> h5py.File:
        config = start.problem.config
        name = f"log {id(self)}"  # HDF5 requires a name that no other open file has
        file = h5py.File(name, "w", driver="core", backing_store=False, libver=("v108", "v108"))
        file.attrs.update(
            format=FORMAT, format_version=FORMAT_VERSION,
            config=config.to_json(), seed=config.seed, method=config.method, label=METHODS[config.method].label,
            dataset=start.store.info.name,
            data_origin=start.store.origin, data_fingerprint=start.store.fingerprint, data_dir=str(start.data_dir),
            version=__version__,
            status=RUNNING, torch=str(torch.__version__), numpy=np.__version__,
            cpu=start.environment["cpu"],
            device=" and ".join(sorted(set(map(compute_kind, start.environment["devices"])))),
            devices=json.dumps(start.environment["devices"]), threads=config.threads,
            started=time.strftime(TIME), ranks=start.environment["ranks"],
            mpi=start.environment["mpi"], hosts=json.dumps(start.environment["hosts"]),
            modalities=json.dumps([m.name for m in start.store.info.modalities]), classes=start.store.info.classes,
            seconds_setup=start.seconds, resumed="[]", plugins=plugins.to_json(),
        )  # fmt: skip
        _write_partition(file.create_group("partition"), start)
        file.create_group("rounds")
        return file

    def warn(self, t: int, text: str) -> None:
        """Keep a warning; it is written with the next round, or when the log is created."""
        self._unwritten.append((t, text))

    def round(self, result: Round) -> None:
        """Append one row to every dataset of /rounds."""
        assert self._file
        values = {name: np.full(shape, np.nan) for name, shape in self._shapes.items()} | result.values
        for name, value in values.items():
            _append(self._file["rounds"], name, result.t - 1, np.asarray(value))
        self._publish(self._file)

    def end(self, end: End) -> None:
        """Add the final state and set the status to complete."""
        assert self._file
        owned, rows = (self._file[f"partition/{name}"][()] for name in ("modalities", "test_rows"))
        classes = int(self._file.attrs["classes"])
        _write_final(self._file.create_group("final"), owned, self._labels[rows], classes, end)
        self._close(COMPLETE)

    def abandon(self, status: str, reason: str) -> None:
        """Set the status of a run that ends early, and the reason. Does nothing if there is no log, as off rank 0."""
        if self._file:
            self._file.attrs["reason"] = reason
            self._close(status)

    def _close(self, status: str) -> None:
        assert self._file
        self._file.attrs["status"] = status
        self._publish(self._file)
        self._file.close()

    def _publish(self, file: h5py.File) -> None:
        """Replace the log file by the log in memory."""
        _append_warnings(file, self._unwritten)
        self._unwritten = []
        file.flush()
        try:
            with replacing(self.path, f".{LOG_NAME}.part") as part:  # a fixed name: kills leave at most one
                part.write_bytes(seal(file.id.get_file_image()))
        except OSError as error:
            raise RunError(f"cannot write {self.path}: {error.strerror}; it still holds the earlier rounds") from error


def _append_warnings(file: h5py.File, warnings: Sequence[tuple[int, str]]) -> None:
    group = file.require_group("warnings")
    for name, kind in (("round", np.dtype(np.int64)), ("text", h5py.string_dtype())):
        if name not in group:
            group.create_dataset(name, (0,), kind, maxshape=(None,), chunks=(64,))
    for warning in warnings:
        for data, value in zip((group["round"], group["text"]), warning, strict=True):
            data.resize(len(data) + 1, axis=0)
            data[-1] = value


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
