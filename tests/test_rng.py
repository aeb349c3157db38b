"""Random streams: fixed by seed, purpose and key, and independent of the global generators."""

import random

import numpy as np
import pytest
import torch

from mfedpba_mpi.rng import generator, generators_restored, seed_generators, seeded, torch_seed


def draws():
    """Draw from the global generators of torch, NumPy and Python."""
    return torch.rand(2, device="cpu").tolist(), np.random.rand(2).tolist(), random.random()  # noqa: NPY002


def test_global_generators_are_seeded_inside_the_block_and_restored_after_it():
    torch.manual_seed(1), np.random.seed(1), random.seed(1)  # noqa: NPY002
    free = draws(), draws()
    torch.manual_seed(1), np.random.seed(1), random.seed(1)  # noqa: NPY002
    found = [draws()]
    for key in (0, 1, 0):
        with seeded(0, "test", key):
            found.append(draws())
    assert found[1] == found[3] != found[2]
    assert (found[0], draws()) == free


def test_global_generators_are_restored_after_an_error():
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # noqa: NPY002

    def fail():
        with seeded(0, "test"):
            draws()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state()[1].tolist(), random.getstate()) == before[1:]  # noqa: NPY002


def test_seeding_fixes_all_global_generators():
    with generators_restored():
        seed_generators(5, "update", 1, 2)
        found = draws()
        seed_generators(5, "update", 1, 2)
        assert draws() == found
        seed_generators(5, "update", 2, 1)
        assert all(a != b for a, b in zip(draws(), found, strict=True))


def test_streams_differ_by_seed_purpose_and_key():
    keys = [
        (0, "shuffle", 0, 1),
        (0, "shuffle", 1, 0),
        (0, "shuffle", 1, 1),
        (1, "shuffle", 0, 1),
        (0, "weights", 0, 1),
    ]
    assert len({generator(*key).integers(2**63) for key in keys}) == len(keys)
    assert len({torch_seed(*key) for key in keys}) == len(keys)
    assert all(0 <= torch_seed(*key) < 2**63 for key in keys)


def test_streams_are_the_same_in_every_version_of_the_program():
    """The bits of all runs depend on these numbers."""
    assert generator(3, "shuffle", 1, 2).integers(1000, size=4).tolist() == [708, 377, 471, 995]
    assert torch_seed(3, "weights", 1) == 979856692103760078
