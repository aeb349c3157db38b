"""Layouts of messages: named float32 arrays packed into one flat buffer. Sender and receiver know the layout."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

Message = Mapping[str, Tensor]


class Layout:
    """The names and shapes of a message, in packing order.

    Parameters
    ----------
    payload : mapping of str to tuple of int
        Names and shapes of what the method sends by definition; counted as payload and as wire bytes.
    extra : mapping of str to tuple of int
        Names and shapes of what is sent along with it (such as presence masks); counted as wire bytes only.
    """

    def __init__(self, payload: Mapping[str, tuple[int, ...]], extra: Mapping[str, tuple[int, ...]] | None = None):
        self.shapes = {**payload, **(extra or {})}
        self.size = sum(math.prod(shape) for shape in self.shapes.values())
        self.payload_bytes = 4 * sum(math.prod(shape) for shape in payload.values())
        self.wire_bytes = 4 * self.size

    def pack(self, message: Message, flat: Tensor) -> None:
        """Copy the arrays of `message` into `flat` (size,)."""
        if message.keys() != self.shapes.keys():
            raise ValueError(f"message has {sorted(message)}, its layout {sorted(self.shapes)}")
        start = 0
        for name, shape in self.shapes.items():
            value = message[name]
            if tuple(value.shape) != shape:
                raise ValueError(f"{name}: shape {tuple(value.shape)}, its layout says {shape}")
            stop = start + value.numel()
            flat[start:stop].copy_(value.reshape(-1))
            start = stop

    def unpack(self, flat: Tensor, device: torch.device) -> dict[str, Tensor]:
        """The arrays of a packed message, copied to `device`."""
        message, start = {}, 0
        for name, shape in self.shapes.items():
            stop = start + math.prod(shape)
            message[name] = flat[start:stop].reshape(shape).to(device, copy=True)
            start = stop
        return message

    def blank(self) -> dict[str, Tensor]:
        """A message of zeros, sent in a round that is void."""
        return {name: torch.zeros(shape) for name, shape in self.shapes.items()}


NOTHING = Layout({})
