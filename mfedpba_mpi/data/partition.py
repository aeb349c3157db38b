"""Partitions: the modalities and samples of every client, drawn from the seed alone or given by the user.

`modality_sets` draws M_k, `deal_samples` the disjoint rows, and `split` the 75/25 train/test split of each client. For
model selection, `split` also divides the training rows; the held-out part then replaces the test rows.
`partition_file` reads and writes partitions as files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from mfedpba_mpi.errors import UserError
from mfedpba_mpi.rng import generator

TEST_SHARE = 0.25
REVISION = 1  # increase it when the drawn partitions change: shards of another revision are recreated


@dataclass(frozen=True)
class Partition:
    """Modalities M_k and row numbers in the store, both sorted, for each client; the rows are disjoint.

    Attributes
    ----------
    train, test : rows of each client; if no client has test rows, the rows are not split yet.
    names : names (or numbers) of all M modalities.
    samples : required number of samples of the dataset, if known.
    """

    modalities: tuple[tuple[int, ...], ...]
    train: tuple[np.ndarray, ...]
    test: tuple[np.ndarray, ...]
    names: tuple[str, ...]
    samples: int | None = None

    @classmethod
    def of(cls, owner: Any, modalities: Any, test: Any = None, names: Sequence[str] = ()) -> Partition:
        """Build a partition from arrays.

        Parameters
        ----------
        owner : (N,) client of every sample of the dataset, from 0; -1 leaves a sample out.
        modalities : (K, M) whether a client owns a modality.
        test : (N,) whether a sample is a test sample  [default: 75/25 split, drawn from the run's seed].
        names : names of the modalities, checked against the dataset.
        """
        owner, owned = np.asarray(owner), np.asarray(modalities)
        K = len(owned) if owned.ndim == 2 else 0
        if not K or not np.isin(owned, (0, 1)).all():
            raise UserError(f"partition: modalities has shape {owned.shape}; it must be a (K, M) array of booleans")
        if owner.ndim != 1 or owner.dtype.kind not in "iu" or ((owner < -1) | (owner >= K)).any():
            raise UserError(f"partition: owner must be (N,) integers from -1 (left out) to {K - 1}, the last client")
        names = tuple(names) or numbered(owned.shape[1])
        if len(names) != owned.shape[1]:
            raise UserError(f"partition: {len(names)} names for {owned.shape[1]} modalities; give one name for each")
        is_test = np.zeros(len(owner), bool) if test is None else np.asarray(test)
        if is_test.shape != owner.shape or is_test.dtype != bool:
            raise UserError(f"partition: test must be a boolean for each of the {len(owner)} samples of owner")
        if test is not None and not is_test[owner >= 0].any():
            raise UserError("partition: no client has a test sample; omit `test` for a split drawn from the seed")
        train, held = (tuple(np.flatnonzero((owner == k) & part) for k in range(K)) for part in (~is_test, is_test))
        return cls(_sets_from_mask(owned), train, held, names, len(owner))

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray], names: Sequence[str] = ()) -> Partition:
        """Build a partition from the output of `arrays`, as stored in /partition of a log; ValueError if invalid."""
        owned = arrays["modalities"]
        if owned.ndim != 2 or not np.isin(owned, (0, 1)).all():
            raise ValueError("modalities is not a (K, M) array of booleans")
        train, test = (
            _split_at_offsets(arrays[f"{name}_rows"], arrays[f"{name}_offsets"], len(owned))
            for name in ("train", "test")
        )
        return cls(_sets_from_mask(owned), train, test, tuple(names) or numbered(owned.shape[1]))

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays of a log's /partition: modalities (K, M) bool, concatenated rows, and client offsets."""
        owned = np.zeros((len(self.modalities), len(self.names)), bool)
        for k, own in enumerate(self.modalities):
            owned[k, list(own)] = True
        found = {"modalities": owned}
        for name, rows in (("train", self.train), ("test", self.test)):
            found |= {f"{name}_rows": np.concatenate(rows), f"{name}_offsets": np.cumsum([0, *map(len, rows)])}
        return found

    @property
    def digest(self) -> str:
        """SHA-256 of the modality sets and rows; the names of the modalities do not enter."""
        rows = [part.tolist() for part in (*self.train, *self.test)]
        return hashlib.sha256(repr((self.modalities, rows)).encode()).hexdigest()

    @property
    def is_split(self) -> bool:
        """Whether train and test rows are separated."""
        return any(len(rows) for rows in self.test)

    def with_splits(self, labels: np.ndarray, seed: int, validation: float = 0.0) -> Partition:
        """Return the partition with a train/test split; an existing split is kept.

        With `validation` > 0, this share of the training rows replaces the test rows.
        """
        parts = list(zip(self.train, self.test, strict=True))
        if not self.is_split:
            parts = [split(labels, rows, TEST_SHARE, generator(seed, "split", k)) for k, (rows, _) in enumerate(parts)]
        if validation:
            parts = [
                split(labels, rows, validation, generator(seed, "validation", k)) for k, (rows, _) in enumerate(parts)
            ]
        return replace(self, train=tuple(train for train, _ in parts), test=tuple(test for _, test in parts))

    def save(self, path: str | Path) -> None:
        """Write a FILE.csv or FILE.h5 for `--partition`."""
        from mfedpba_mpi.data.partition_file import write_partition

        write_partition(Path(path), self)


def numbered(M: int) -> tuple[str, ...]:
    """Return the numbers 0..M-1 as modality names."""
    return tuple(map(str, range(M)))


def _sets_from_mask(owned: np.ndarray) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(np.flatnonzero(own).tolist()) for own in owned)


def _split_at_offsets(rows: np.ndarray, offsets: np.ndarray, K: int) -> tuple[np.ndarray, ...]:
    """Each client's rows, sorted."""
    if any(array.ndim != 1 or array.dtype.kind not in "iu" for array in (rows, offsets)):
        raise ValueError("rows and offsets are not lists of integers")
    rows, offsets = rows.astype(np.int64), offsets.astype(np.int64)
    sizes = np.diff(
        offsets, prepend=0, append=len(rows)
    )  # rows before the first client, of each client, and after the last
    if len(sizes) != K + 2 or sizes.min() < 0 or sizes[0] or sizes[-1]:
        raise ValueError(f"the offsets do not divide {len(rows)} rows among {K} clients")
    return tuple(np.sort(part) for part in np.split(rows, offsets[1:-1]))


def make_partition(
    labels: np.ndarray,
    M: int,
    K: int,
    kind: str,
    alpha: float | None,
    seed: int,
    min_samples: int,
    validation: float = 0.0,
) -> Partition:
    """Draw the partition of a run.

    Parameters
    ----------
    labels : (N,) class of every sample.
    M, K : number of modalities and of clients.
    kind : ``m1``, ``m2`` or ``m1+``.
    alpha : concentration of the Dirichlet label skew over clients, or None for no skew.
    min_samples : minimum number of samples of a client.
    validation : share of the training rows to evaluate on instead of the test rows, which are then unused.
    """
    owned = modality_sets(M, K, kind, generator(seed, "modalities"))
    rows = deal_samples(labels, K, kind, alpha, min_samples, generator(seed, "samples"))
    no_test = (np.empty(0, np.int64),) * K
    return Partition(owned, tuple(rows), no_test, numbered(M)).with_splits(labels, seed, validation)


def modality_sets(M: int, K: int, kind: str, rng: np.random.Generator) -> tuple[tuple[int, ...], ...]:
    """Draw M_k for every client; each modality has an owner if K >= M."""
    if kind == "m1":
        return tuple((k % M,) for k in range(K))
    sizes = [2 if kind == "m2" else int(rng.integers(1, M + 1)) for _ in range(K)]
    sets = [set(rng.choice(M, size, replace=False).tolist()) for size in sizes]
    if K >= M:
        _give_every_modality_an_owner(sets, M, rng)
    return tuple(tuple(sorted(s)) for s in sets)


def _give_every_modality_an_owner(sets: list[set[int]], M: int, rng: np.random.Generator) -> None:
    """Replace modalities with many owners by those without an owner, in place; the set sizes stay as drawn."""
    for m in range(M):
        if any(m in s for s in sets):
            continue
        owners = np.zeros(M, int)
        for s in sets:
            owners[list(s)] += 1
        giver, given = max(
            ((k, other) for k in rng.permutation(len(sets)) for other in sorted(sets[k])),
            key=lambda pair: owners[pair[1]],
        )
        sets[giver].remove(given)
        sets[giver].add(m)


def deal_samples(
    labels: np.ndarray, K: int, kind: str, alpha: float | None, min_samples: int, rng: np.random.Generator
) -> list[np.ndarray]:
    """Assign all samples to the clients, disjointly: by shares, or with Dirichlet(alpha) label skew.

    Shares are equal for ``m1``; otherwise they are evenly spaced from 1 to 2 and shuffled, as in the paper's tables.
    """
    N = len(labels)
    if K * min_samples > N:
        raise UserError(f"clients: {K} is too many for {N} samples; each needs at least {min_samples}")
    if alpha is None:
        shares = np.ones(K) if kind == "m1" else rng.permutation(np.linspace(1, 2, K))
        cuts = np.round(np.cumsum(shares / shares.sum()) * N).astype(int)[:-1]
        rows = [np.sort(part) for part in np.split(rng.permutation(N), cuts)]
    else:
        owner = np.empty(N, int)
        for c in range(int(labels.max()) + 1):
            members = rng.permutation(np.flatnonzero(labels == c))
            cuts = np.round(np.cumsum(rng.dirichlet(np.full(K, alpha))) * len(members)).astype(int)[:-1]
            owner[members] = np.repeat(np.arange(K), np.diff([0, *cuts, len(members)]))
        rows = [np.flatnonzero(owner == k) for k in range(K)]
    return _raise_to_minimum(rows, min_samples)


def _raise_to_minimum(rows: list[np.ndarray], minimum: int) -> list[np.ndarray]:
    """Move rows from the largest clients until every client has `minimum` rows; deterministic."""
    sizes = np.array([len(r) for r in rows])
    for k in np.flatnonzero(sizes < minimum):
        while sizes[k] < minimum:
            giver = int(sizes.argmax())
            moved = min(minimum - sizes[k], max(1, (sizes[giver] - minimum) // 2))
            rows[k] = np.sort(np.concatenate([rows[k], rows[giver][-moved:]]))
            rows[giver] = rows[giver][:-moved]
            sizes[k] += moved
            sizes[giver] -= moved
    return rows


def split(
    labels: np.ndarray, rows: np.ndarray, share: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Split the rows of a client into (train, test), stratified by class; `share` is the share of test rows.

    The quota of each class is its share rounded down; then the classes with the largest fractions get one more until
    the total reaches its share. A class with one sample stays in training, unless the client has only such classes.
    """
    rows = rng.permutation(rows)
    _, inverse, counts = np.unique(labels[rows], return_inverse=True, return_counts=True)
    target = max(1, round(share * len(rows)))
    quota = np.floor(share * counts).astype(int)
    for c in np.argsort(quota - share * counts, kind="stable"):
        if quota.sum() < target and counts[c] >= 2:
            quota[c] += 1
    if not quota.any():
        quota[:target] = 1
    rank = np.empty(len(rows), int)  # position of each row inside its class
    order = np.argsort(inverse, kind="stable")
    rank[order] = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    is_test = rank < quota[inverse]
    return np.sort(rows[~is_test]), np.sort(rows[is_test])
