"""Local training shared by all methods."""

import pytest

from tests.methods.hand import Data


@pytest.mark.parametrize(
    ("n", "size", "batchnorm", "cuts"),
    [
        (14, 12, False, [(0, 12), (12, 14)]),
        (14, 12, True, [(0, 12)]),  # the variance of two values may be almost 0
        (16, 12, True, [(0, 12), (12, 16)]),
        (3, 12, True, [(0, 3)]),  # the only batch is kept
        (5, 2, True, [(0, 2), (2, 4)]),  # small batches are kept if the batch size is small
    ],
)
def test_a_last_batch_too_small_for_batchnorm_is_dropped(make_federation, n, size, batchnorm, cuts):
    data = Data({0: [(i, i) for i in range(n)]}, [0] * n)
    client = make_federation("local", [data], modalities=1, batch_size=size).clients[0]
    client.model.has_batchnorm = batchnorm
    epoch = client.epoch(1, 0)
    assert epoch.cuts == cuts
    assert sorted(epoch.xs[0].values[:, 0].tolist()) == list(range(n))
    assert epoch.xs[0].values[:, 0].tolist() != client.epoch(2, 0).xs[0].values[:, 0].tolist()
