"""Extractor architectures: random sampling, layer geometry and cost (the paper's Table "HM").

This module does not import torch, so that planning a run and placing its clients stay fast.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from math import ceil, prod, sqrt
from typing import Any, NamedTuple

import numpy as np

from mfedpba_mpi.data.catalog import Modality
from mfedpba_mpi.errors import UserError

FAMILIES: dict[str, str] = {"DNN": "ILAT", "CNN1D": "LAT", "CNN2D": "I", "TextCNN": "L", "Resmodel": "AT"}
"""Family name -> supported modality types: Image, Language, Audio, Time series. `extractors.register` adds entries."""

SHIPPED = tuple(FAMILIES)

TEXT_KERNELS = (3, 4, 5)
TEXT_POOLED = 64  # TextCNN's length after pooling; 16 loses half of the accuracy above chance on Reuters
MAX_SIGNAL_LENGTH = 1024  # of a 1-D convolution's output
NONZEROS = 100  # assumed number per sparse row, for cost estimates


@dataclass(frozen=True)
class Architecture:
    """An extractor's family, the widths of its n = len(widths) hidden layers, and its convolution channels.

    ``channels`` has n entries for CNN1D and CNN2D, one for TextCNN (shared by its three kernels), and none otherwise.
    """

    family: str
    widths: tuple[int, ...]
    channels: tuple[int, ...] = ()

    def __str__(self) -> str:
        parts = ["-".join(map(str, numbers)) for numbers in (self.channels, self.widths) if numbers]
        return f"{self.family} {' + '.join(parts)}"

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as a JSON-compatible dict; the inverse of `from_dict`."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Architecture:
        """Create an architecture from the output of `as_dict`."""
        return cls(fields["family"], tuple(fields["widths"]), tuple(fields["channels"]))


def sample_architecture(rng: np.random.Generator, modality: Modality, families: Sequence[str] = ()) -> Architecture:
    """Sample an architecture: a family that supports the modality, depth 2 to 5, widths and channels.

    The family is one of `families` (default: the shipped ones). Widths are multiples of 32 up to 256, constant or
    non-increasing; channels are multiples of 8 up to 32, non-decreasing. The result depends neither on other registered
    families nor on the order of registration.
    """
    families = families or SHIPPED
    known = [*SHIPPED, *sorted(FAMILIES.keys() - SHIPPED)]
    fitting = [name for name in known if modality.type in FAMILIES[name]]
    allowed = [name for name in fitting if name in families]
    if not allowed:
        raise UserError(
            f"families: none of {', '.join(families)} supports modality {modality.name} of type {modality.type}; "
            + (f"add one of {', '.join(fitting)}" if fitting else "no registered family does")
        )
    family = allowed[rng.integers(len(allowed))]
    n = int(rng.integers(2, 6))
    distinct = n if rng.integers(2) else 1  # non-increasing or constant widths, with equal probability
    widths = np.sort(32 * rng.integers(1, 9, distinct))[::-1]
    channels = np.sort(8 * rng.integers(1, 5, {"CNN1D": n, "CNN2D": n, "TextCNN": 1}.get(family, 0)))
    return Architecture(family, tuple(np.resize(widths, n).tolist()), tuple(channels.tolist()))


class Convolution(NamedTuple):
    """A convolution followed by max-pooling; pairs are (height, breadth), and 1-D signals have height 1."""

    inputs: int
    outputs: int
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    size: tuple[int, int]
    pool: int = 1

    @property
    def breadth(self) -> int:
        """Output breadth after pooling; the last window may be shorter."""
        return -(-self.size[1] // self.pool)

    @property
    def macs(self) -> int:
        """Multiply-accumulate operations for one sample."""
        return self.inputs * self.outputs * prod(self.kernel) * prod(self.size)


def _on_signal(inputs: int, outputs: int, kernel: int, length: int, pooled: int) -> Convolution:
    """1-D convolution with "same" padding, strided to an output length of about 1024, pooled to at most `pooled`.

    A stride s widens the kernel by s - 1, so that every input is covered. An even kernel pads one element too many.
    """
    stride = -(-length // MAX_SIGNAL_LENGTH)
    kernel += stride - 1
    padding = (-(-length // stride) * stride - stride + kernel - length + 1) // 2
    size = (length + 2 * padding - kernel) // stride + 1
    return Convolution(inputs, outputs, (1, kernel), (1, stride), (0, padding), (1, size), -(-size // pooled))


def _on_image(inputs: int, outputs: int, side: int) -> Convolution:
    """2-D convolution with kernel 3 and "same" padding; stride 2 while the side is above 8."""
    stride = 2 if side > 8 else 1
    return Convolution(inputs, outputs, (3, 3), (stride, stride), (1, 1), (-(-side // stride),) * 2)


def image_shape(architecture: Architecture, width: int) -> tuple[int, int]:
    """(height, breadth) of a row folded to an image: the smallest square that holds it for CNN2D, else (1, width)."""
    side = ceil(sqrt(width))
    return (side, side) if architecture.family == "CNN2D" else (1, width)


def convolutions(architecture: Architecture, width: int) -> list[Convolution]:
    """List the convolutions for rows of `width` values: in sequence, or in parallel for TextCNN."""
    if architecture.family == "TextCNN":
        return [_on_signal(1, architecture.channels[0], kernel, width, TEXT_POOLED) for kernel in TEXT_KERNELS]
    layers: list[Convolution] = []
    breadth = image_shape(architecture, width)[1]
    for i, (inputs, outputs) in enumerate(pairwise((1, *architecture.channels))):
        if architecture.family == "CNN2D":
            layers.append(_on_image(inputs, outputs, breadth))
        else:
            layers.append(_on_signal(inputs, outputs, 5, breadth, 128 >> i))
        breadth = layers[-1].breadth
    return layers


def flat_width(architecture: Architecture, width: int) -> int:
    """Number of inputs of the first Linear layer."""
    layers = convolutions(architecture, width)
    if architecture.family != "TextCNN":
        layers = layers[-1:]
    return sum(layer.outputs * layer.size[0] * layer.breadth for layer in layers) if layers else width


def macs(architecture: Architecture, modality: Modality, d: int) -> int:
    """Multiply-accumulate operations of one sample's forward pass, the cost estimate for placing clients."""
    widths = architecture.widths
    first = flat_width(architecture, modality.width)
    if modality.sparse and not architecture.channels:
        first = min(first, NONZEROS)
    if architecture.family == "Resmodel":  # one Linear per block, and a projection where the width changes
        hidden = widths[0] ** 2 + sum(a * b * (1 if a == b else 2) for a, b in pairwise(widths))
    else:
        hidden = sum(a * b for a, b in pairwise(widths))
    convolved = sum(layer.macs for layer in convolutions(architecture, modality.width))
    return convolved + first * widths[0] + hidden + widths[-1] * d


def weights(architecture: Architecture, modality: Modality, d: int) -> int:
    """Number of weights of an extractor; a Linear layer has as many as multiply-accumulates on a dense row."""
    layers = convolutions(architecture, modality.width)
    dense = replace(modality, sparse=False)
    linear = macs(architecture, dense, d) - sum(layer.macs for layer in layers)
    return linear + sum(layer.inputs * layer.outputs * prod(layer.kernel) for layer in layers)
