"""Which extractor a client gets for a modality: the draw, the geometry and the cost (the paper's Table "HM").

Nothing here needs torch, so that planning a run and placing its clients stay cheap.
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
"""Family name -> the modality types it serves: Image, Language, Audio, Time-series. `register` adds to it."""

SHIPPED = tuple(FAMILIES)

TEXT_KERNELS = (3, 4, 5)
TEXT_POOLED = 64  # 16 loses half of the accuracy above chance on Reuters
LONGEST = 1024  # of a one-dimensional convolution's output
NONZEROS = 100  # of a sparse row, an estimate for the cost


@dataclass(frozen=True)
class Architecture:
    """An extractor's shape: n = len(widths) hidden layers, and the convolutions' channels.

    ``channels`` has n numbers for CNN1D and CNN2D, one for TextCNN (shared by its three kernels), none otherwise.
    """

    family: str
    widths: tuple[int, ...]
    channels: tuple[int, ...] = ()

    def __str__(self) -> str:
        parts = ["-".join(map(str, numbers)) for numbers in (self.channels, self.widths) if numbers]
        return f"{self.family} {' + '.join(parts)}"

    def as_dict(self) -> dict[str, Any]:
        """The fields as JSON has them; ``Architecture.from_dict`` reads them back."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Architecture:
        """The architecture that ``as_dict`` wrote."""
        return cls(fields["family"], tuple(fields["widths"]), tuple(fields["channels"]))


def sample_architecture(rng: np.random.Generator, modality: Modality, families: Sequence[str] = ()) -> Architecture:
    """Draw a family that serves the modality (out of `families`, or the shipped ones), depth 2 to 5, widths, channels.

    The draw does not depend on what else is registered, nor on the order of registration.
    Widths are multiples of 32 up to 256, constant or shrinking; channels multiples of 8 up to 32, constant or growing.
    """
    families = families or SHIPPED
    known = [*SHIPPED, *sorted(FAMILIES.keys() - SHIPPED)]
    fitting = [name for name in known if modality.type in FAMILIES[name]]
    allowed = [name for name in fitting if name in families]
    if not allowed:
        raise UserError(
            f"no extractor for modality {modality.name} of type {modality.type} among the families "
            f"{', '.join(families)}; add one of {', '.join(fitting) or 'none fits'}"
        )
    family = allowed[rng.integers(len(allowed))]
    n = int(rng.integers(2, 6))
    distinct = n if rng.integers(2) else 1  # shrinking or constant, a coin each time
    widths = np.sort(32 * rng.integers(1, 9, distinct))[::-1]
    channels = np.sort(8 * rng.integers(1, 5, {"CNN1D": n, "CNN2D": n, "TextCNN": 1}.get(family, 0)))
    return Architecture(family, tuple(np.resize(widths, n).tolist()), tuple(channels.tolist()))


class Convolution(NamedTuple):
    """A convolution and the max-pooling behind it; pairs are (height, breadth), and signals have height 1."""

    inputs: int
    outputs: int
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    size: tuple[int, int]
    pool: int = 1

    @property
    def breadth(self) -> int:
        """The output's breadth after pooling; the last window may be shorter."""
        return -(-self.size[1] // self.pool)

    @property
    def macs(self) -> int:
        """Multiply-accumulates for one sample."""
        return self.inputs * self.outputs * prod(self.kernel) * prod(self.size)


def _on_signal(inputs: int, outputs: int, kernel: int, length: int, pooled: int) -> Convolution:
    """Same padding, a stride that keeps the output within 1024, then pooled to at most `pooled`.

    The stride widens the kernel by as much, so that no input goes unseen; an even kernel pads one place too many.
    """
    stride = -(-length // LONGEST)
    kernel += stride - 1
    padding = (-(-length // stride) * stride - stride + kernel - length + 1) // 2
    size = (length + 2 * padding - kernel) // stride + 1
    return Convolution(inputs, outputs, (1, kernel), (1, stride), (0, padding), (1, size), -(-size // pooled))


def _on_image(inputs: int, outputs: int, side: int) -> Convolution:
    """Kernel 3, same padding, stride 2 while the side is above 8."""
    stride = 2 if side > 8 else 1
    return Convolution(inputs, outputs, (3, 3), (stride, stride), (1, 1), (-(-side // stride),) * 2)


def image_shape(architecture: Architecture, width: int) -> tuple[int, int]:
    """(height, breadth) of the image a row becomes: a line, or for CNN2D the smallest square that holds it."""
    side = ceil(sqrt(width))
    return (side, side) if architecture.family == "CNN2D" else (1, width)


def convolutions(architecture: Architecture, width: int) -> list[Convolution]:
    """The convolutions on a `width`-wide row, one after the other (TextCNN: side by side)."""
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
    """How many numbers enter the first Linear layer."""
    layers = convolutions(architecture, width)
    if architecture.family != "TextCNN":
        layers = layers[-1:]
    return sum(layer.outputs * layer.size[0] * layer.breadth for layer in layers) if layers else width


def macs(architecture: Architecture, modality: Modality, d: int) -> int:
    """Multiply-accumulates of one sample's forward pass: what a client costs, so where to place it."""
    widths = architecture.widths
    first = flat_width(architecture, modality.width)
    if modality.sparse and not architecture.channels:
        first = min(first, NONZEROS)
    if architecture.family == "Resmodel":  # each block, and a projection wherever its width shrinks
        hidden = widths[0] ** 2 + sum(a * b * (1 if a == b else 2) for a, b in pairwise(widths))
    else:
        hidden = sum(a * b for a, b in pairwise(widths))
    convolved = sum(layer.macs for layer in convolutions(architecture, modality.width))
    return convolved + first * widths[0] + hidden + widths[-1] * d


def weights(architecture: Architecture, modality: Modality, d: int) -> int:
    """How many weights an extractor has: linear layers have as many as they multiply for a row, if it is dense."""
    layers = convolutions(architecture, modality.width)
    dense = replace(modality, sparse=False)
    linear = macs(architecture, dense, d) - sum(layer.macs for layer in layers)
    return linear + sum(layer.inputs * layer.outputs * prod(layer.kernel) for layer in layers)
