"""Which rank trains whom, on which device."""

import pytest

from mfedpba_mpi.comm.devices import choose_device
from mfedpba_mpi.comm.placement import place
from mfedpba_mpi.errors import UserError


def test_one_process_does_everything():
    assert place([3, 1, 2], 1) == [[0, 1, 2]]


def test_with_a_rank_each_rank_k_plus_one_owns_client_k():
    assert place([3, 1, 2], 4) == [[], [0], [1], [2]]


def test_what_is_beyond_is_spare():
    assert place([3, 1], 5) == [[], [0], [1], [], []]


def test_fewer_ranks_share_the_work_longest_first():
    assert place([5, 1, 1, 1, 1, 1], 3) == [[], [0], [1, 2, 3, 4, 5]]


def test_a_heavy_load_is_balanced():
    costs = [float(c % 7 + 1) for c in range(100)]
    ranks = place(costs, 9)
    loads = [sum(costs[k] for k in clients) for clients in ranks[1:]]
    assert max(loads) - min(loads) <= 1
    assert sorted(k for clients in ranks for k in clients) == list(range(100))


@pytest.mark.parametrize(
    ("requested", "local_rank", "visible", "expected"),
    [
        ("auto", 0, 0, "cpu"),
        ("cpu", 3, 4, "cpu"),
        ("auto", 0, 4, "cuda:0"),
        ("auto", 3, 4, "cuda:3"),
        ("auto", 6, 4, "cuda:2"),  # several ranks on a GPU
        ("cuda", 5, 1, "cuda:0"),  # the launcher shows each rank its own GPU
    ],
)
def test_ranks_of_a_node_take_its_gpus_in_turn(requested, local_rank, visible, expected):
    assert choose_device(requested, local_rank, visible) == expected


def test_asking_for_a_gpu_that_is_not_there_is_an_error():
    with pytest.raises(UserError, match="none is visible to this rank"):
        choose_device("cuda", 0, 0)
