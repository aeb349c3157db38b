"""The communicator in one process: its staging buffers grow with the largest message, and are as many as purposes."""

import torch

from mfedpba_mpi.comm.layout import Layout
from mfedpba_mpi.comm.serial import SerialComm


def test_messages_of_many_sizes_need_one_buffer_a_purpose():
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
