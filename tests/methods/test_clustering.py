"""K-means, compared with an exhaustive search over all partitions of a few points."""

from itertools import product

import numpy as np
import pytest

from mfedpba_mpi.methods.clustering import kmeans
from mfedpba_mpi.rng import generator


def inertia(X, labels):
    return sum(((X[labels == g] - X[labels == g].mean(0)) ** 2).sum() for g in set(labels.tolist()))


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize(("n", "G"), [(2, 2), (5, 2), (7, 3), (6, 4)])
def test_kmeans_finds_the_optimum_of_small_cases(seed, n, G):
    X = np.random.default_rng(seed).random((n, 3)) ** 2
    best = min(inertia(X, np.array(labels)) for labels in product(range(G), repeat=n))
    assert inertia(X, kmeans(X, G, generator(seed, "test"), restarts=60)) == pytest.approx(best, abs=1e-12)
    labels = kmeans(X, G, generator(seed, "test"))
    assert inertia(X, labels) <= 1.1 * best + 1e-12  # with ten restarts, unclustered points may end in a local optimum
    assert (labels == kmeans(X, G, generator(seed, "test"))).all()


@pytest.mark.parametrize("G", [1, 2, 3, 6])
def test_kmeans_on_fewer_distinct_points_than_clusters(G):
    X = np.array([[0, 0], [1, 0], [0, 0], [1, 0], [0, 0], [0, 0]], float)
    labels = kmeans(X, G, generator(0, "test"))
    assert sorted(set(labels.tolist())) == list(range(min(G, 2)))
    assert len(set(labels[[0, 2, 4, 5]].tolist())) == len(set(labels[[1, 3]].tolist())) == 1
    assert (kmeans(np.zeros((4, 2)), G, generator(0, "test")) == 0).all()
