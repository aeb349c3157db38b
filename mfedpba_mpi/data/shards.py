"""Shards: the values of a store reordered by client, so that a rank reads only the rows of its clients.

One HDF5 file per store and partition, client-major; the rows of a client are its training rows, then its test rows::

    /                 attributes: format "mfedpba-shards", version 2, key (identifies store and partition), classes
    /offsets          (K+1,) int64: client k has rows offsets[k] .. offsets[k+1]-1 of labels and rows
    /train            (K,) int64: number of training rows of each client
    /owned            (K, M) bool: M_k
    /labels, /rows    (n,) int64: class, and row number in the store
    /modalities/m     the rows of the clients that own m, client by client: dense or CSR as in the store
        offsets       (K+1,) int64 into these rows; length zero for a client that does not own m
        checksums     (K,) uint32: CRC-32 of each client's rows, since a rank does not read the whole HDF5 dataset

A chunk holds about half a client (16 kB to 1 MB), so a client reads few chunks and little beyond its own rows. There
are no HDF5 objects per client, so thousands of clients have no extra cost.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import h5py
import numpy as np

from mfedpba_mpi.data.partition import Partition, numbered
from mfedpba_mpi.data.store import (
    FeatureStore,
    Values,
    checksum_rows,
    decode_text,
    encode_text,
    get,
    get_rows,
    member,
    new_file,
    put,
    put_rows,
    reading,
)
from mfedpba_mpi.errors import UserError

FORMAT, VERSION = "mfedpba-shards", 2
SMALLEST_CHUNK, LARGEST_CHUNK = 2**14, 2**20
REMEDY = "delete it, the next run recreates it"


@dataclass(frozen=True)
class ClientData:
    """The n samples of one client, training rows first; `values` maps each m in M_k to float32 (n, width)."""

    labels: np.ndarray
    n_train: int
    values: dict[int, Values]


def write_shards(path: Path, store: FeatureStore, partition: Partition, key: str) -> None:
    """Write the shards of a store and a partition, one modality in memory at a time; on an error no file is left."""
    rows = [np.concatenate(pair) for pair in zip(partition.train, partition.test, strict=True)]
    sizes = np.array([len(r) for r in rows])
    owned = np.zeros((len(rows), len(store.info.modalities)), bool)
    for k, own in enumerate(partition.modalities):
        owned[k, list(own)] = True
    order = np.concatenate(rows).astype(np.int64)
    with new_file(Path(path), FORMAT, VERSION) as file:
        file.attrs.update(key=encode_text(key), classes=store.info.classes)
        small = {
            "offsets": _offsets(sizes),
            "train": np.array([len(t) for t in partition.train], np.int64),
            "owned": owned,
            "labels": store.labels()[order],
            "rows": order,
        }
        for name, array in small.items():
            put(file, name, array, SMALLEST_CHUNK)
        for m in np.flatnonzero(owned.any(axis=0)).tolist():
            group = file.create_group(f"modalities/{m}")
            offsets = _offsets(sizes * owned[:, m])
            put(group, "offsets", offsets, SMALLEST_CHUNK)
            values = store.modality(m)[order[np.repeat(owned[:, m], sizes)]]
            checksums = [checksum_rows(values[start:stop]) for start, stop in pairwise(offsets.tolist())]
            put(group, "checksums", np.array(checksums, np.uint32), SMALLEST_CHUNK)
            half = values.data.nbytes // (2 * int(owned[:, m].sum()))
            put_rows(group, values, int(np.clip(half, SMALLEST_CHUNK, LARGEST_CHUNK)))


def _offsets(sizes: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def read_clients(path: Path, clients: Iterable[int]) -> list[ClientData]:
    """Read the data of some clients, opening the file once; several processes may read at the same time."""
    with reading(path, FORMAT, VERSION, REMEDY) as file:
        offsets, train, owned = (get(file, name) for name in ("offsets", "train", "owned"))
        labels = get(file, "labels")
        parts = {m: _ModalityRows(member(file, f"modalities/{m}")) for m in np.flatnonzero(owned.any(axis=0)).tolist()}
        return [
            ClientData(
                labels[offsets[k] : offsets[k + 1]],
                int(train[k]),
                {m: parts[m].client(k) for m in np.flatnonzero(owned[k]).tolist()},
            )
            for k in clients
        ]


class _ModalityRows:
    """Reads the rows of one modality by client."""

    def __init__(self, group: h5py.Group) -> None:
        self._group, self._offsets, self._checksums = group, get(group, "offsets"), get(group, "checksums")

    def client(self, k: int) -> Values:
        values = get_rows(self._group, self._offsets[k], self._offsets[k + 1])
        if checksum_rows(values) != self._checksums[k]:
            raise ValueError(f"wrong checksum of client {k}")
        return values.astype(np.float32, copy=False)


def read_partition(path: Path) -> Partition:
    """Read the partition of the shards."""
    with reading(path, FORMAT, VERSION, REMEDY) as file:
        offsets, train, owned, rows = (get(file, name) for name in ("offsets", "train", "owned", "rows"))
    middle = offsets[:-1] + train
    return Partition(
        tuple(tuple(np.flatnonzero(own).tolist()) for own in owned),
        tuple(rows[a:b] for a, b in zip(offsets[:-1], middle, strict=True)),
        tuple(rows[a:b] for a, b in zip(middle, offsets[1:], strict=True)),
        numbered(owned.shape[1]),
    )


def has_shards(path: Path, key: str) -> bool:
    """Whether `path` is a readable shards file with this key."""
    try:
        with reading(path, FORMAT, VERSION, REMEDY) as file:
            return decode_text(file.attrs["key"]) == key
    except UserError:
        return False
