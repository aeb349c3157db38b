"""`load_clients`: the trained clients of a run, from its last checkpoint."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import nn

from mfedpba_mpi.comm.devices import process_settings_restored, set_up
from mfedpba_mpi.comm.layout import Message
from mfedpba_mpi.comm.serial import SerialComm
from mfedpba_mpi.config.run_config import RunConfig
from mfedpba_mpi.data.store import FeatureStore
from mfedpba_mpi.engine.loop import build
from mfedpba_mpi.engine.resume import stored_run
from mfedpba_mpi.engine.setup import prepare
from mfedpba_mpi.engine.signals import Stop
from mfedpba_mpi.errors import UserError
from mfedpba_mpi.methods.base import Client
from mfedpba_mpi.models.inputs import modality_rows
from mfedpba_mpi.records.checkpoint import Checkpoints
from mfedpba_mpi.records.run import Run
from mfedpba_mpi.rng import seed_generators


class TrainedClient:
    """Client k after round `t`.

    Attributes
    ----------
    model : its extractors and classifier, an `nn.Module` in evaluation mode.
    modalities : names of its modalities, in the order of ``model.extractors``.
    train_rows, test_rows : its rows of the store.
    """

    def __init__(self, client: Client, inbox: Message, t: int, store: FeatureStore, rows: Sequence[np.ndarray]):
        self.k, self.t = client.k, t
        self.model: nn.Module = client.model.eval()
        self.modalities = [store.info.modalities[m].name for m in client.spec.modalities]
        self.train_rows, self.test_rows = rows
        self._client, self._inbox, self._store = client, inbox, store

    def __repr__(self) -> str:
        return f"<TrainedClient {self.k}: {', '.join(self.modalities)}, after round {self.t}>"

    def predict(self, rows: Sequence[int] | np.ndarray) -> np.ndarray:
        """The predicted classes (n,) of n rows of the store; (|M_k|, n) with fusion "separate".

        Features are normalised as in training, with the statistics of the client's training rows.
        """
        client, n_train, wanted = self._client, len(self.train_rows), np.asarray(rows)
        N = self._store.info.samples
        if wanted.ndim != 1 or (
            wanted.size and (wanted.dtype.kind not in "iu" or wanted.min() < 0 or wanted.max() >= N)
        ):
            raise UserError(f"rows: expected row numbers of {self._store.path}, integers from 0 to {N - 1}")
        if not wanted.size:
            return self.predict(np.zeros(1, np.int64))[..., :0]
        order = np.concatenate([self.train_rows, wanted.astype(np.int64)])
        with _settings_of_a_run(client.config), torch.no_grad():
            inputs = []
            for m in client.spec.modalities:
                values = self._store.modality(m)[order].astype(np.float32)
                own = modality_rows(values, n_train, client.config.normalise, client.device)
                inputs.append(own.take(np.arange(n_train, len(order))))
            seed_generators(client.config.seed, "evaluate", self.k, self.t)
            classes = client.predict_rows(self.t, inputs, self._inbox)[0].cpu().numpy()
        return classes[0] if len(classes) == 1 else classes


def load_clients(run: Run | str | Path, data_dir: str | Path | None = None) -> list[TrainedClient]:
    """Load the clients of a run, with their data, from its last checkpoint.

    Parameters
    ----------
    run : Run, str or Path
        The run, or its directory.
    data_dir : str or Path
        Directory of the datasets  [default: the one that the run was started with].

    Returns
    -------
    list of TrainedClient
        One for each client; ``.model`` is its network, ``.predict(rows)`` classifies rows of the store.
    """
    directory = run.path.parent if isinstance(run, Run) else Path(run)
    stored, comm = stored_run(directory), SerialComm()
    place = Path(data_dir or stored.data_dir)
    problem, partition, store, shards = prepare(stored.config, place, comm, directory, logged=stored.partition())
    stored.check_data(store.fingerprint, store.path)
    stored.check_partition(partition)
    for text in stored.plugin_warnings():
        warnings.warn(text, stacklevel=2)
    saved = Checkpoints(directory).newest(comm, warnings.warn)
    if saved is None:
        raise UserError(f"{directory} has no checkpoint to load the clients from; run it again with --overwrite")
    with _settings_of_a_run(stored.config):
        federation = build(problem, shards, comm, Stop(), saved)
    return [
        TrainedClient(client, federation.inbox[k], saved.round, store, (partition.train[k], partition.test[k]))
        for k, client in sorted(federation.clients.items())
    ]


@contextmanager
def _settings_of_a_run(config: RunConfig) -> Iterator[None]:
    """torch's settings as in a run on the CPU; the caller's settings and random generators are restored at the end."""
    with process_settings_restored():
        set_up("cpu", 0, config.threads)
        yield
