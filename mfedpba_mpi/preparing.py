"""Before round 1: who owns what, which networks they have, and what each costs to train."""

from __future__ import annotations

import hashlib
from math import prod
from pathlib import Path

import numpy as np

from mfedpba_mpi.comm.serial import Comm
from mfedpba_mpi.config import MIN_SAMPLES, RunConfig
from mfedpba_mpi.data.catalog import Dataset
from mfedpba_mpi.data.partition import Partition, make_partition
from mfedpba_mpi.data.shards import has_shards, read_partition, write_shards
from mfedpba_mpi.data.sources import open_dataset
from mfedpba_mpi.data.store import FeatureStore
from mfedpba_mpi.methods.base import ClientSpec, Problem
from mfedpba_mpi.models.architecture import convolutions, macs, sample_architecture
from mfedpba_mpi.rng import generator


def prepare(config: RunConfig, data_dir: Path, comm: Comm) -> tuple[Problem, Partition, FeatureStore, Path]:
    """Rank 0 finds or makes the store and deals it out; then every rank reads who owns what."""
    path = ""
    if comm.is_server:
        store = open_dataset(config, data_dir)
        key = shards_key(config, store)
        shards = (
            data_dir / "shards" / f"{store.info.name}-{config.partition}-k{config.clients}-s{config.seed}-{key[:12]}.h5"
        )
        if not has_shards(shards, key):
            write_shards(shards, store, draw_partition(config, store.info, store.labels()), key)
        path = f"{store.path}\n{shards}"
    store_path, shards_path = comm.share(path).split("\n")
    store, shards = FeatureStore(store_path), Path(shards_path)
    partition = read_partition(shards)
    return draw_problem(config, store.info, store.labels(), partition), partition, store, shards


def draw_partition(config: RunConfig, info: Dataset, labels: np.ndarray) -> Partition:
    """Who owns what of the samples with these labels."""
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


def shards_key(config: RunConfig, store: FeatureStore) -> str:
    """What the shards of a run depend on, as a hash."""
    parts = (store.fingerprint, config.partition, config.clients, config.alpha, config.seed, config.validation)
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
