"""K-means clustering of clients."""

from __future__ import annotations

import math

import numpy as np
from scipy.spatial.distance import cdist


def kmeans(X: np.ndarray, G: int, rng: np.random.Generator, restarts: int = 10) -> np.ndarray:
    """Cluster the points X (n, M) by Lloyd's algorithm from k-means++ starts; the best of `restarts` runs.

    Returns
    -------
    labels (n,), consecutive from 0. There are fewer than G clusters if there are fewer distinct points, or if a cluster
    loses all of its points.
    """
    lowest, best = math.inf, np.zeros(len(X), np.int64)
    for _ in range(restarts):
        centres = X[[rng.integers(len(X))]]
        while len(centres) < G and (gap := cdist(X, centres, "sqeuclidean").min(axis=1)).any():
            centres = np.vstack([centres, X[rng.choice(len(X), p=gap / gap.sum())]])
        for _ in range(100):
            labels = cdist(X, centres, "sqeuclidean").argmin(axis=1)
            members = [X[labels == g] for g in range(len(centres))]
            moved = np.stack([x.mean(axis=0) if len(x) else c for x, c in zip(members, centres, strict=True)])
            if np.array_equal(moved, centres):
                break
            centres = moved
        inertia = cdist(X, centres, "sqeuclidean").min(axis=1).sum()
        if inertia < lowest:
            lowest, best = inertia, labels
    return np.unique(best, return_inverse=True)[1]
