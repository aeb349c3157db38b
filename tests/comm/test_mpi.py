"""The MPI twin on three ranks: rank 0 the server, four clients spread over ranks 1 and 2."""

import numpy as np
import pytest
import torch

from mfedpba_mpi.comm.layout import Layout

pytestmark = pytest.mark.mpi(min_size=3)
COSTS = [5.0, 1.0, 1.0, 3.0]


@pytest.fixture
def comm():
    from mfedpba_mpi.comm.mpi import MPIComm

    comm = MPIComm(clients=len(COSTS))
    comm.place(COSTS)
    return comm


def layouts(clients=(0, 1, 2, 3)):
    return {k: Layout({"x": (k + 1,)}) for k in clients}


def message(k):
    return {"x": torch.full((k + 1,), float(10 * k))}


def test_clients_are_spread_over_the_workers(comm):
    assert comm.ranks == [[], [0], [1, 2, 3]]
    assert comm.own_clients == comm.ranks[comm.rank]
    assert comm.is_server == (comm.rank == 0)


def test_gather_brings_every_upload_to_the_server_in_client_order(comm):
    found = comm.gather({k: message(k) for k in comm.own_clients}, layouts())
    assert list(found) == ([0, 1, 2, 3] if comm.is_server else [])
    assert all(torch.equal(found[k]["x"], message(k)["x"]) for k in found)


def test_gather_with_some_participants(comm):
    active = [1, 3]  # rank 1 sends nothing
    found = comm.gather({k: message(k) for k in comm.own_clients if k in active}, layouts(active))
    assert list(found) == (active if comm.is_server else [])


def test_broadcast_reaches_every_rank(comm):
    found = comm.broadcast(message(2) if comm.is_server else None, layouts()[2])
    assert torch.equal(found["x"], message(2)["x"])


def test_scatter_brings_each_client_its_own(comm):
    replies = {k: message(k) for k in range(4)} if comm.is_server else {}
    found = comm.scatter(replies, layouts())
    assert list(found) == comm.own_clients
    assert all(torch.equal(found[k]["x"], message(k)["x"]) for k in found)


@pytest.mark.parametrize("down", ["broadcast", "scatter"])
def test_a_round_that_one_rank_gives_up_is_void_for_the_server_and_then_for_all(comm, down):
    comm.void = comm.rank == 2
    comm.gather({k: message(k) for k in comm.own_clients}, layouts())
    assert comm.void == (comm.rank != 1)
    if down == "broadcast":
        comm.broadcast(message(0) if comm.is_server else None, layouts()[0])
    else:
        comm.scatter({k: message(k) for k in range(4)} if comm.is_server else {}, layouts())
    assert comm.void


def test_rows_are_gathered_by_rank(comm):
    rows = np.full((len(comm.own_clients) + 1, 2), float(comm.rank))
    gathered = comm.gather_rows(rows)
    if comm.is_server:
        assert [part.shape for part in gathered] == [(1, 2), (2, 2), (4, 2)]
        assert all((part == rank).all() for rank, part in enumerate(gathered))
    else:
        assert gathered == []


def test_set_up_values_are_shared_and_the_environment_known(comm):
    assert comm.share("from rank 0" if comm.is_server else "") == "from rank 0"
    assert comm.environment()["ranks"] == 3
    assert 0 <= comm.local_rank < 3
