"""Before round 1: who owns what, which networks they have, and what each costs to train."""

from __future__ import annotations

import hashlib
import socket
from math import prod
from pathlib import Path

import numpy as np

from mfedpba_mpi.comm.serial import Comm
from mfedpba_mpi.config.run_config import MIN_SAMPLES, RunConfig
from mfedpba_mpi.data.catalog import Dataset
from mfedpba_mpi.data.partition import REVISION, Partition, make_partition
from mfedpba_mpi.data.partition_file import load_partition
from mfedpba_mpi.data.scratch import Scratch
from mfedpba_mpi.data.shards import has_shards, read_partition, write_shards
from mfedpba_mpi.data.sources import open_dataset
from mfedpba_mpi.data.store import FeatureStore
from mfedpba_mpi.methods.base import ClientSpec, Problem
from mfedpba_mpi.models.architecture import convolutions, macs, sample_architecture
from mfedpba_mpi.rng import generator


def prepare(
    config: RunConfig, data_dir: Path, comm: Comm, run: Path | None = None, scratch: str = "",
    logged: Partition | None = None,
) -> tuple[Problem, Partition, FeatureStore, Path]:  # fmt: skip
    """Rank 0 finds or makes the store and deals it out; then every rank reads who owns what.

    Parameters
    ----------
    run, scratch : the run's directory, and where shards are to be written if not beside the data (see `data.scratch`).
    logged : on rank 0, who owned what before the run was interrupted; counts where the partition's file is gone.
    """
    hosts = comm.collect(socket.gethostname())
    path = ""
    if comm.is_server:
        places = Scratch(data_dir, scratch, run, len(set(hosts)) == 1)
        store = open_dataset(config, data_dir, places)
        path = f"{store.path}\n{_ensure_shards(config, store, places, logged)}"
    store_path, shards_path = comm.share(path).split("\n")
    store, shards = FeatureStore(store_path), Path(shards_path)
    partition = read_partition(shards)
    return draw_problem(config, store.info, store.labels(), partition), partition, store, shards


def _ensure_shards(config: RunConfig, store: FeatureStore, scratch: Scratch, logged: Partition | None) -> Path:
    """The file of the run's shards, made where it is missing or unreadable."""
    given = None
    if config.partition_file:
        gone = not config.partition_file.is_file()
        given = logged if logged and gone else draw_partition(config, store.info, store.labels())
    key = shards_key(config, store, given)
    kind = Path(config.partition).stem[:40]
    name = f"shards/{store.info.name}-{kind}-k{config.clients}-s{config.seed}-{key[:12]}.h5"
    path, there = scratch.find(name, lambda path: has_shards(path, key))
    if not there:
        write_shards(path, store, given or draw_partition(config, store.info, store.labels()), key)
    return path


def draw_partition(config: RunConfig, info: Dataset, labels: np.ndarray) -> Partition:
    """Who owns what of the samples with these labels: drawn, or as the run's partition file says."""
    if config.partition_file:
        return load_partition(config.partition_file, info, labels, config.seed, config.validation)
    return make_partition(
        labels, len(info.modalities), config.clients, config.partition, config.alpha, config.seed, MIN_SAMPLES,
        config.validation,
    )  # fmt: skip


def draw_problem(config: RunConfig, info: Dataset, labels: np.ndarray, partition: Partition) -> Problem:
    """The clients of a partition of the samples with these labels, their networks drawn."""
    specs = []
    for k, owned in enumerate(partition.modalities):
        rng = generator(config.seed, "architecture", k)
        drawn = tuple(sample_architecture(rng, info.modalities[m], config.families) for m in owned)
        counts = np.bincount(labels[partition.train[k]], minlength=info.classes)
        specs.append(ClientSpec(owned, drawn, counts, len(partition.test[k])))
    return Problem(config, info, tuple(specs))


def shards_key(config: RunConfig, store: FeatureStore, given: Partition | None = None) -> str:
    """What the shards of a run depend on, as a hash: the settings that draw a partition, or the `given` one itself."""
    drawn = (REVISION, config.partition, config.clients, config.alpha, config.seed, config.validation)
    parts = (store.fingerprint, *((given.digest,) if given else drawn))
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def cost(problem: Problem, k: int) -> float:
    """What an epoch of client k costs, about in microseconds of a core; only ratios matter.

    With small batches operations cost more than arithmetic, and convolutions more than their multiply-accumulates say.
    The numbers are rounded from a fit to 460 clients of six datasets. On those same clients the deviation of log(cost /
    seconds) is 0.26, that of multiply-accumulates alone 0.68.
    """
    client = problem.clients[k]
    steps = -(-client.n_train // problem.config.batch_size)
    total = 250.0 * steps
    for m, architecture in zip(client.modalities, client.architectures, strict=True):
        modality = problem.info.modalities[m]
        layers = convolutions(architecture, modality.width)
        places = sum(layer.outputs * prod(layer.size) for layer in layers)
        total += steps * (70 * (len(architecture.widths) + 1) + 380 * len(layers))
        total += client.n_train * (8.5e-5 * macs(architecture, modality, problem.d) + 8.5e-3 * places)
    return total
