"""Packed messages: unpacking returns what was packed, and payload bytes are counted separately from wire bytes."""

import pytest
import torch

from mfedpba_mpi.comm.layout import Layout


def test_a_message_survives_packing():
    layout = Layout({"E": (2, 3, 4), "I": (3, 3)}, {"present": (3,)})
    message = {"E": torch.randn(2, 3, 4), "I": torch.randn(3, 3), "present": torch.tensor([True, False, True])}
    flat = torch.empty(layout.size)
    layout.pack(message, flat)
    found = layout.unpack(flat, torch.device("cpu"))
    assert all(torch.equal(found[name], message[name].float()) for name in message)
    flat.zero_()
    assert found["E"].any()  # a copy, so that the buffer can be reused


def test_payload_excludes_the_extra_arrays():
    layout = Layout({"E": (2, 3, 4)}, {"present": (3,)})
    assert (layout.payload_bytes, layout.wire_bytes) == (4 * 24, 4 * 27)


@pytest.mark.parametrize("message", [{}, {"E": torch.zeros(2, 2)}, {"E": torch.zeros(2, 3), "F": torch.zeros(1)}])
def test_a_message_that_differs_from_its_layout_is_refused(message):
    with pytest.raises(ValueError, match="layout"):
        Layout({"E": (2, 3)}).pack(message, torch.empty(6))
