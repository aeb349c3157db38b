"""Who owns what: modalities and samples of every client, drawn from the seed alone or given by the user.

`modality_sets` draws M_k, `deal_samples` the disjoint rows, `split` each client's 75/25 train and test rows, and, where
settings are to be chosen, its training rows once more: the part held out then takes the place of the test rows.
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
REVISION = 1  # raise it with any change in what is drawn: shards of another revision are made again


@dataclass(frozen=True)
class Partition:
    """Modalities M_k and row numbers of the store, both sorted, for each client; the rows are disjoint.

    `names` are those of all M modalities, or their numbers. Where nobody has test rows, the rows are yet to be split.
    `samples` is how many the dataset has to have, where that is known.
    """

    modalities: tuple[tuple[int, ...], ...]
    train: tuple[np.ndarray, ...]
    test: tuple[np.ndarray, ...]
    names: tuple[str, ...]
    samples: int | None = None

    @classmethod
    def of(cls, owner: Any, modalities: Any, test: Any = None, names: Sequence[str] = ()) -> Partition:
        """A partition of your own.

        Parameters
        ----------
        owner : (N,) client of every sample of the dataset, from 0 on; -1: nobody's.
        modalities : (K, M) whether a client owns a modality.
        test : (N,) whether a sample is for testing  [default: 75/25, drawn by the run's seed].
        names : of the modalities, to be compared with the dataset's.
        """
        owner, owned = np.asarray(owner), np.asarray(modalities)
        K = len(owned) if owned.ndim == 2 else 0
        if not K or not np.isin(owned, (0, 1)).all():
            raise UserError(f"partition: modalities has the shape {owned.shape}; it must be true and false, (K, M)")
        if owner.ndim != 1 or owner.dtype.kind not in "iu" or ((owner < -1) | (owner >= K)).any():
            raise UserError(f"partition: owner must be whole numbers (N,) from -1, nobody, to {K - 1}, the last client")
        names = tuple(names) or numbered(owned.shape[1])
        if len(names) != owned.shape[1]:
            raise UserError(f"partition: {len(names)} names for {owned.shape[1]} modalities; give one for each")
        is_test = np.zeros(len(owner), bool) if test is None else np.asarray(test)
        if is_test.shape != owner.shape or is_test.dtype != bool:
            raise UserError(f"partition: test must be true and false for each of the {len(owner)} samples of owner")
        if test is not None and not is_test[owner >= 0].any():
            raise UserError("partition: test has no sample of any client; leave it out to have them split by the seed")
        train, held = (tuple(np.flatnonzero((owner == k) & part) for k in range(K)) for part in (~is_test, is_test))
        return cls(_sets(owned), train, held, names, len(owner))

    @classmethod
    def of_log(cls, arrays: Mapping[str, np.ndarray], names: Sequence[str] = ()) -> Partition:
        """What `arrays` gives, and what a log has in /partition; a ValueError where that is not a partition."""
        owned = arrays["modalities"]
        if owned.ndim != 2 or not np.isin(owned, (0, 1)).all():
            raise ValueError("modalities is not (K, M) of true and false")
        train, test = (
            _cut(arrays[f"{name}_rows"], arrays[f"{name}_offsets"], len(owned)) for name in ("train", "test")
        )
        return cls(_sets(owned), train, test, tuple(names) or numbered(owned.shape[1]))

    def arrays(self) -> dict[str, np.ndarray]:
        """The partition as it is in a log: modalities (K, M) bool, the clients' rows in turn, and where each begins."""
        owned = np.zeros((len(self.modalities), len(self.names)), bool)
        for k, own in enumerate(self.modalities):
            owned[k, list(own)] = True
        found = {"modalities": owned}
        for name, rows in (("train", self.train), ("test", self.test)):
            found |= {f"{name}_rows": np.concatenate(rows), f"{name}_offsets": np.cumsum([0, *map(len, rows)])}
        return found

    @property
    def digest(self) -> str:
        """SHA-256 of who owns what, whatever the modalities are called."""
        rows = [part.tolist() for part in (*self.train, *self.test)]
        return hashlib.sha256(repr((self.modalities, rows)).encode()).hexdigest()

    @property
    def is_split(self) -> bool:
        return any(len(rows) for rows in self.test)

    def divided(self, labels: np.ndarray, seed: int, validation: float = 0.0) -> Partition:
        """With test rows, where there are none yet, and with validation rows in their place, where a share is given."""
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
    """Numbers as names of modalities."""
    return tuple(map(str, range(M)))


def _sets(owned: np.ndarray) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(np.flatnonzero(own).tolist()) for own in owned)


def _cut(rows: np.ndarray, offsets: np.ndarray, K: int) -> tuple[np.ndarray, ...]:
    """Each client's rows, sorted."""
    if any(array.ndim != 1 or array.dtype.kind not in "iu" for array in (rows, offsets)):
        raise ValueError("rows and offsets are not lists of whole numbers")
    rows, offsets = rows.astype(np.int64), offsets.astype(np.int64)
    sizes = np.diff(offsets, prepend=0, append=len(rows))  # before the first client, of each, after the last
    if len(sizes) != K + 2 or sizes.min() < 0 or sizes[0] or sizes[-1]:
        raise ValueError(f"its offsets do not divide {len(rows)} rows among {K} clients")
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
    """The partition of a run.

    Parameters
    ----------
    labels : (N,) class of every sample.
    kind : ``m1``, ``m2`` or ``m1+``.
    alpha : concentration of the label skew over clients, or None for shares without skew.
    validation : share of the training rows to measure on instead of the test rows, which are then in nobody's hands.
    """
    owned = modality_sets(M, K, kind, generator(seed, "modalities"))
    rows = deal_samples(labels, K, kind, alpha, min_samples, generator(seed, "samples"))
    nothing = (np.empty(0, np.int64),) * K
    return Partition(owned, tuple(rows), nothing, numbered(M)).divided(labels, seed, validation)


def modality_sets(M: int, K: int, kind: str, rng: np.random.Generator) -> tuple[tuple[int, ...], ...]:
    """M_k for every client; each modality has an owner when K >= M."""
    if kind == "m1":
        return tuple((k % M,) for k in range(K))
    sizes = [2 if kind == "m2" else int(rng.integers(1, M + 1)) for _ in range(K)]
    sets = [set(rng.choice(M, size, replace=False).tolist()) for size in sizes]
    if K >= M:
        _give_every_modality_an_owner(sets, M, rng)
    return tuple(tuple(sorted(s)) for s in sets)


def _give_every_modality_an_owner(sets: list[set[int]], M: int, rng: np.random.Generator) -> None:
    """Exchange modalities that several clients own for those that nobody owns; the sizes stay as drawn."""
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
    """Disjoint rows of every client, all samples used: by shares, or label-skewed by Dirichlet(alpha).

    Shares are equal for ``m1``; otherwise evenly spaced from 1 to 2 and shuffled, as in the paper's tables.
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
    """Move rows from whichever client has most until every client has `minimum`; no random draw."""
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
    """A client's (train, test) rows: a share to test, stratified; a class of one sample stays in training.

    The quota of each class is its share rounded down, then the largest fractions get one more until the whole has its
    share. Only a client with nothing but one-sample classes gives some of those to its test rows.
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
