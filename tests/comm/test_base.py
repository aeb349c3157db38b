"""Messages through a communicator: each one reaches its receiver with every bit, and buffers are reused."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from mfedpba_mpi.comm.layout import Layout
from mfedpba_mpi.comm.serial import SerialComm
from tests.comm.test_layout_properties import LAID_OUT, same
from tests.properties import examples


class Rank(SerialComm):
    """One of several simulated ranks, called one after the other; `buffers` holds the buffer of each rank."""

    def __init__(self, rank: int, ranks: list[list[int]], buffers: list[torch.Tensor]) -> None:
        super().__init__()
        self.rank, self.size, self.ranks, self.buffers = rank, len(ranks), ranks, buffers

    def _gather(self, send: torch.Tensor, counts: list[int]) -> torch.Tensor | None:
        assert len(send) == counts[self.rank]
        self.buffers[self.rank] = send.clone()
        return torch.cat(self.buffers) if self.is_server else None

    def _scatter(self, send: torch.Tensor, counts: list[int]) -> torch.Tensor:
        if self.is_server:
            self.buffers[:] = send.clone().split(counts)
        assert len(self.buffers[self.rank]) == counts[self.rank]
        return self.buffers[self.rank]


@st.composite
def exchanges(draw) -> tuple[list[Rank], dict[int, Layout], dict[int, dict[str, torch.Tensor]]]:
    """Ranks with any placement of the clients, and the layouts and messages of the participants."""
    size = draw(st.integers(1, 4))
    homes = draw(st.lists(st.integers(0, size - 1), max_size=6))
    ranks = [[k for k, home in enumerate(homes) if home == rank] for rank in range(size)]
    participants = [k for k in range(len(homes)) if draw(st.booleans())]
    laid_out = {k: draw(LAID_OUT) for k in participants}
    buffers = [torch.empty(0)] * size
    comms = [Rank(rank, ranks, buffers) for rank in range(size)]
    return comms, {k: pair[0] for k, pair in laid_out.items()}, {k: pair[1] for k, pair in laid_out.items()}


@examples(100)
@given(exchanges())
def test_the_server_gathers_every_message_in_client_order(exchange):
    comms, layouts, messages = exchange
    for comm in reversed(comms):  # the server last
        found = comm.gather({k: messages[k] for k in comm.own_clients if k in messages}, layouts)
        assert comm.is_server or found == {}
    assert list(found) == sorted(messages)
    assert all(same(found[k], messages[k]) for k in messages)


@examples(100)
@given(exchanges())
def test_every_client_receives_its_own_message(exchange):
    comms, layouts, messages = exchange
    for comm in comms:  # the server first
        found = comm.scatter(messages if comm.is_server else {}, layouts)
        assert list(found) == [k for k in comm.own_clients if k in messages]
        assert all(same(found[k], messages[k]) for k in found)


@examples(100)
@given(LAID_OUT, LAID_OUT)
def test_a_received_message_is_not_changed_by_the_next_one(one, two):
    comm = SerialComm()
    comm.place([1.0])
    first = [comm.gather({0: one[1]}, {0: one[0]})[0], comm.broadcast(one[1], one[0])]
    comm.gather({0: two[1]}, {0: two[0]})
    comm.broadcast(two[1], two[0])
    assert all(same(found, one[1]) for found in first)


def test_there_is_one_buffer_per_purpose_as_large_as_the_largest_message():
    comm = SerialComm()
    comm.place([1.0] * 8)
    for n in (3, 1, 8, 5, 8, 2):
        layouts = {k: Layout({"x": (k + 1,)}) for k in range(n)}
        sent = {k: {"x": torch.full((k + 1,), float(n))} for k in range(n)}
        for found in (comm.gather(sent, layouts), comm.scatter(sent, layouts)):
            assert all(torch.equal(found[k]["x"], sent[k]["x"]) for k in range(n))
        assert torch.equal(comm.broadcast(sent[n - 1], layouts[n - 1])["x"], sent[n - 1]["x"])
    assert {purpose: len(buffer) for purpose, buffer in comm._buffers.items()} == {
        "send": 37, "scatter": 37, "broadcast": 9
    }  # fmt: skip
