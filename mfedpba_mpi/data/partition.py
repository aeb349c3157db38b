"""Who owns what: modalities and samples of every client, drawn from the seed alone.

`modality_sets` draws M_k, `deal_samples` the disjoint rows, `split` each client's 75/25 train and test rows, and, where
settings are to be chosen, its training rows once more: the part held out then takes the place of the test rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mfedpba_mpi.errors import UserError
from mfedpba_mpi.rng import generator

TEST_SHARE = 0.25


@dataclass(frozen=True)
class Partition:
    """Modalities M_k (sorted) and row numbers of the store, for each client; the rows are disjoint."""

    modalities: tuple[tuple[int, ...], ...]
    train: tuple[np.ndarray, ...]
    test: tuple[np.ndarray, ...]


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
    parts = [split(labels, rows[k], TEST_SHARE, generator(seed, "split", k)) for k in range(K)]
    if validation:
        parts = [split(labels, parts[k][0], validation, generator(seed, "validation", k)) for k in range(K)]
    return Partition(owned, tuple(train for train, _ in parts), tuple(test for _, test in parts))


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
