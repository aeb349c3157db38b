"""Before round 1: the partition, the clients' networks, and the estimated cost of training each client."""

from __future__ import annotations

import hashlib
import socket
from math import prod
from pathlib import Path

import numpy as np

from mfedpba_mpi.comm.base import Comm
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
    """Rank 0 opens or makes the store and writes the shards; then every rank reads the partition.

    Parameters
    ----------
    run, scratch : the run's directory, and the directory for shards if not beside the data (see `data.scratch`).
    logged : on rank 0, the partition of a resumed run; used if its partition file no longer exists.
    """
    hosts = comm.collect(socket.gethostname())
    path = ""
    if comm.is_server:
        scratch_dirs = Scratch(data_dir, scratch, run, len(set(hosts)) == 1)
        store = open_dataset(config, data_dir, scratch_dirs)
        path = f"{store.path}\n{_ensure_shards(config, store, scratch_dirs, logged)}"
    store_path, shards_path = comm.share(path).split("\n")
    store, shards = FeatureStore(store_path), Path(shards_path)
    partition = read_partition(shards)
    return draw_problem(config, store.info, store.labels(), partition), partition, store, shards


def _ensure_shards(config: RunConfig, store: FeatureStore, scratch: Scratch, logged: Partition | None) -> Path:
    """The file of the run's shards, written if it is missing or unreadable."""
    given = None
    if config.partition_file:
        gone = not config.partition_file.is_file()
        given = logged if logged and gone else draw_partition(config, store.info, store.labels())
    key = shards_key(config, store, given)
    kind = Path(config.partition).stem[:40]
    name = f"shards/{store.info.name}-{kind}-k{config.clients}-s{config.drawn_problem_seed}-{key[:12]}.h5"
    path, there = scratch.find(name, lambda path: has_shards(path, key))
    if not there:
        write_shards(path, store, given or draw_partition(config, store.info, store.labels()), key)
    return path


def draw_partition(config: RunConfig, info: Dataset, labels: np.ndarray) -> Partition:
    """The partition of the samples with these labels: drawn, or read from the partition file."""
    if config.partition_file:
        return load_partition(config.partition_file, info, labels, config.drawn_problem_seed, config.validation)
    return make_partition(
        labels, len(info.modalities), config.clients, config.partition, config.alpha, config.drawn_problem_seed,
        MIN_SAMPLES, config.validation,
    )  # fmt: skip


def draw_problem(config: RunConfig, info: Dataset, labels: np.ndarray, partition: Partition) -> Problem:
    """The clients of a partition, with their networks drawn at random."""
    specs = []
    for k, owned in enumerate(partition.modalities):
        rng = generator(config.drawn_problem_seed, "architecture", k)
        drawn = tuple(sample_architecture(rng, info.modalities[m], config.families) for m in owned)
        counts = np.bincount(labels[partition.train[k]], minlength=info.classes)
        specs.append(ClientSpec(owned, drawn, counts, len(partition.test[k])))
    return Problem(config, info, tuple(specs))


def shards_key(config: RunConfig, store: FeatureStore, given: Partition | None = None) -> str:
    """A hash of everything the shards depend on: the data, and the partition's settings or the `given` partition."""
    drawn = (REVISION, config.partition, config.clients, config.alpha, config.drawn_problem_seed, config.validation)
    parts = (store.fingerprint, *((given.digest,) if given else drawn))
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def cost(problem: Problem, k: int) -> float:
    """Estimated cost of an epoch of client k, roughly in microseconds of a core; only ratios matter.

    With small batches the overhead of operations dominates the arithmetic, and convolutions cost more than their
    multiply-accumulates suggest. The constants are rounded from a fit to 460 clients of six datasets. On these clients
    the standard deviation of log(cost / seconds) is 0.26; for multiply-accumulates alone it is 0.68.
    """
    client = problem.clients[k]
    steps = -(-client.n_train // problem.config.batch_size)
    total = 250.0 * steps
    for m, architecture in zip(client.modalities, client.architectures, strict=True):
        modality = problem.info.modalities[m]
        layers = convolutions(architecture, modality.width)
        outputs = sum(layer.outputs * prod(layer.size) for layer in layers)
        total += steps * (70 * (len(architecture.widths) + 1) + 380 * len(layers))
        total += client.n_train * (8.5e-5 * macs(architecture, modality, problem.d) + 8.5e-3 * outputs)
    return total
