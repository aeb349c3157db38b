"""Packed messages: what goes in comes out, and payload is counted apart from what travels with it."""

import pytest
import torch

from mfedpba_mpi.comm.layout import Layout
from mfedpba_mpi.comm.serial import SerialComm


def test_a_message_survives_packing():
    layout = Layout({"E": (2, 3, 4), "I": (3, 3)}, {"present": (3,)})
    message = {"E": torch.randn(2, 3, 4), "I": torch.randn(3, 3), "present": torch.tensor([True, False, True])}
    flat = torch.empty(layout.size)
    layout.pack(message, flat)
    found = layout.unpack(flat, torch.device("cpu"))
    assert all(torch.equal(found[name], message[name].float()) for name in message)
    flat.zero_()
    assert found["E"].any()  # a copy, so that the buffer can be used again


def test_payload_leaves_out_what_only_travels_along():
    layout = Layout({"E": (2, 3, 4)}, {"present": (3,)})
    assert (layout.payload_bytes, layout.wire_bytes) == (4 * 24, 4 * 27)


@pytest.mark.parametrize("message", [{}, {"E": torch.zeros(2, 2)}, {"E": torch.zeros(2, 3), "F": torch.zeros(1)}])
def test_a_message_that_is_not_as_laid_out_is_refused(message):
    with pytest.raises(ValueError, match="layout"):
        Layout({"E": (2, 3)}).pack(message, torch.empty(6))


def test_one_process_gathers_broadcasts_and_scatters_to_itself():
    comm = SerialComm()
    comm.place([1.0, 1.0, 1.0])
    layouts = {k: Layout({"x": (k + 1,)}) for k in (0, 2)}
    messages = {k: {"x": torch.full((k + 1,), float(k))} for k in (0, 2)}
    for found in (comm.gather(messages, layouts), comm.scatter(messages, layouts)):
        assert list(found) == [0, 2]
        assert all(torch.equal(found[k]["x"], messages[k]["x"]) for k in found)
    assert torch.equal(comm.broadcast(messages[2], layouts[2])["x"], messages[2]["x"])
