"""Assignment of clients to ranks."""

from mfedpba_mpi.comm.placement import place


def test_one_process_does_everything():
    assert place([3, 1, 2], 1) == [[0, 1, 2]]


def test_with_one_rank_per_client_rank_k_plus_one_owns_client_k():
    assert place([3, 1, 2], 4) == [[], [0], [1], [2]]


def test_more_ranks_are_spare():
    assert place([3, 1], 5) == [[], [0], [1], [], []]


def test_fewer_ranks_share_the_work_longest_first():
    assert place([5, 1, 1, 1, 1, 1], 3) == [[], [0], [1, 2, 3, 4, 5]]


def test_a_heavy_load_is_balanced():
    costs = [float(c % 7 + 1) for c in range(100)]
    ranks = place(costs, 9)
    loads = [sum(costs[k] for k in clients) for clients in ranks[1:]]
    assert max(loads) - min(loads) <= 1
    assert sorted(k for clients in ranks for k in clients) == list(range(100))
