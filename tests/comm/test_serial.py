"""The communicator of a single process."""

import torch

from mfedpba_mpi.comm.layout import Layout
from mfedpba_mpi.comm.serial import SerialComm


def test_one_process_receives_what_it_sends():
    comm = SerialComm()
    comm.place([1.0, 1.0, 1.0])
    layouts = {k: Layout({"x": (k + 1,)}) for k in (0, 2)}
    messages = {k: {"x": torch.full((k + 1,), float(k))} for k in (0, 2)}
    for found in (comm.gather(messages, layouts), comm.scatter(messages, layouts)):
        assert list(found) == [0, 2]
        assert all(torch.equal(found[k]["x"], messages[k]["x"]) for k in found)
    assert torch.equal(comm.broadcast(messages[2], layouts[2])["x"], messages[2]["x"])
