"""Clusters of clients, for the methods that treat like ones alike."""

from __future__ import annotations

import math

import numpy as np
from scipy.spatial.distance import cdist


def kmeans(X: np.ndarray, G: int, rng: np.random.Generator, restarts: int = 10) -> np.ndarray:
    """Labels (n,) of the points X (n, M): the best of some runs of Lloyd's algorithm from k-means++ starts.

    Labels count from 0 without gaps. There are fewer than G clusters where there are fewer distinct points, or where
    one loses all of its points.
    """
    least, best = math.inf, np.zeros(len(X), np.int64)
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
        scatter = cdist(X, centres, "sqeuclidean").min(axis=1).sum()
        if scatter < least:
            least, best = scatter, labels
    return np.unique(best, return_inverse=True)[1]
