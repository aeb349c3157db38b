"""The five families of feature extractors (the paper's Table "HM"): (B, width) -> (B, d), one small class each.

Three things differ from the letter of the table, for speed and for equal bits. A one-dimensional convolution is a
two-dimensional one of height 1 in channels-last order, up to three times as fast on a CPU. Pooling comes before the
ReLU: the result is the same and the ReLU has less to do. Pooling windows do not overlap (`nn.AdaptiveMaxPool1d`'s do
where the lengths do not divide, and its CUDA backward is not deterministic).

Weights start as PyTorch starts them, but for convolutions: stacks of those fade the signal so much that at depth 4 or 5
they stay at chance under plain SGD, so they start by He's rule. Families that users register keep the weights their
builder gave them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mfedpba_mpi.data.catalog import TYPES, Modality
from mfedpba_mpi.errors import UserError
from mfedpba_mpi.models.architecture import (
    FAMILIES,
    SHIPPED,
    Architecture,
    Convolution,
    convolutions,
    flat_width,
    image_shape,
)
from mfedpba_mpi.models.inputs import SparseRows

OUTPUT_SCALE = 0.2  # of the last layer's weights under He's rule, relative to PyTorch's default


class SparseLinear(nn.Module):
    """A Linear layer on sparse rows, weight (width, hidden)."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        bound = width**-0.5  # nn.Linear's own
        self.weight = nn.Parameter(torch.empty(width, hidden).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(hidden).uniform_(-bound, bound))

    def forward(self, rows: SparseRows) -> Tensor:
        """SparseRows of B rows -> (B, hidden)."""
        return self.bias + F.embedding_bag(
            rows.indices,
            self.weight,
            rows.offsets,
            mode="sum",
            per_sample_weights=rows.values,
            include_last_offset=True,
        )


class Fold(nn.Module):
    """Rows (B, width), dense or sparse -> images (B, 1, height, breadth) in channels-last order, padded with zeros."""

    def __init__(self, architecture: Architecture, width: int) -> None:
        super().__init__()
        self.height, self.breadth = image_shape(architecture, width)
        self.missing = self.height * self.breadth - width

    def forward(self, x: Tensor | SparseRows) -> Tensor:
        """Make sparse rows dense, this batch only, and fold them."""
        x = x.dense() if isinstance(x, SparseRows) else x
        x = F.pad(x, (0, self.missing)) if self.missing else x
        return x.view(-1, self.height, self.breadth, 1).permute(0, 3, 1, 2)


class Flat(nn.Module):
    """(B, channels, height, breadth) in channels-last order -> (B, height x breadth x channels), without a copy."""

    def forward(self, x: Tensor) -> Tensor:
        """Flatten the image as it lies in memory."""
        return x.permute(0, 2, 3, 1).flatten(1)


class Parallel(nn.ModuleList):
    """Branches side by side on one input, their outputs joined."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, 1, 1, width) -> (B, features)."""
        return torch.cat([branch(x) for branch in self], 1)


class ResidualBlock(nn.Module):
    """x + ReLU(BatchNorm(Linear(x))), with a Linear projection of x where the width changes."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(nn.Linear(inputs, outputs), nn.BatchNorm1d(outputs), nn.ReLU(inplace=True))
        self.skip = nn.Identity() if inputs == outputs else nn.Linear(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """(B, inputs) -> (B, outputs)."""
        return self.skip(x) + self.branch(x)


def _first(modality: Modality, hidden: int) -> nn.Module:
    """The Linear layer on the input; its weights lie by inputs, a sixth faster for a few rows of many numbers."""
    if modality.sparse:
        return SparseLinear(modality.width, hidden)
    layer = nn.Linear(modality.width, hidden)
    layer.weight.data = layer.weight.data.T.contiguous().T
    return layer


def _rest(widths: tuple[int, ...], d: int) -> list[nn.Module]:
    """What follows the first Linear layer: ReLU, (n - 1) x (Linear, ReLU), Linear d."""
    hidden = [layer for a, b in pairwise(widths) for layer in (nn.ReLU(inplace=True), nn.Linear(a, b))]
    return [*hidden, nn.ReLU(inplace=True), nn.Linear(widths[-1], d)]


def _head(architecture: Architecture, modality: Modality, d: int) -> list[nn.Module]:
    """The n x (Linear, ReLU), Linear d that follow convolutions."""
    first = nn.Linear(flat_width(architecture, modality.width), architecture.widths[0])
    return [first, *_rest(architecture.widths, d)]


def _convolve(layer: Convolution) -> list[nn.Module]:
    """The convolution, and its pooling if it has any."""
    convolution = nn.Conv2d(layer.inputs, layer.outputs, layer.kernel, layer.stride, layer.padding)
    return [convolution, nn.MaxPool2d((1, layer.pool), ceil_mode=True)] if layer.pool > 1 else [convolution]


class Extractor(nn.Sequential):
    """Layers of the kinds that `manual_sgd` knows its way through."""


class DNN(Extractor):
    """n x (Linear, ReLU), Linear."""

    def __init__(self, architecture: Architecture, modality: Modality, d: int) -> None:
        super().__init__(_first(modality, architecture.widths[0]), *_rest(architecture.widths, d))


class CNN(Extractor):
    """CNN1D and CNN2D: n x (convolution, max-pooling in 1-D, ReLU), n x (Linear, ReLU), Linear."""

    def __init__(self, architecture: Architecture, modality: Modality, d: int) -> None:
        layers = convolutions(architecture, modality.width)
        blocks = [part for layer in layers for part in (*_convolve(layer), nn.ReLU(inplace=True))]
        fold = Fold(architecture, modality.width)
        super().__init__(fold, *blocks, Flat(), *_head(architecture, modality, d))


class TextCNN(Extractor):
    """Convolutions with kernels 3, 4, 5 side by side, each max-pooled, ReLU, n x (Linear, ReLU), Linear."""

    def __init__(self, architecture: Architecture, modality: Modality, d: int) -> None:
        branches = [nn.Sequential(*_convolve(layer), Flat()) for layer in convolutions(architecture, modality.width)]
        fold = Fold(architecture, modality.width)
        super().__init__(fold, Parallel(branches), nn.ReLU(inplace=True), *_head(architecture, modality, d))


class Resmodel(Extractor):
    """Linear, n residual blocks, Linear."""

    def __init__(self, architecture: Architecture, modality: Modality, d: int) -> None:
        widths = architecture.widths
        blocks = [ResidualBlock(a, b) for a, b in pairwise((widths[0], *widths))]
        super().__init__(_first(modality, widths[0]), *blocks, nn.Linear(widths[-1], d))


Builder = Callable[[Architecture, Modality, int], nn.Module]
"""``builder(architecture, modality, d)`` makes the module (B, width) -> (B, d)."""

BUILDERS: dict[str, Builder] = {
    "DNN": DNN,
    "CNN1D": CNN,
    "CNN2D": CNN,
    "TextCNN": TextCNN,
    "Resmodel": Resmodel,
}


def register(family: str, types: str, builder: Builder) -> None:
    """Make a family of extractors of your own known, for modalities of these types (letters of I, L, A, T).

    Networks are drawn from it where ``--families`` names it, and only there. See examples/.
    """
    if family in SHIPPED:
        raise ValueError(f"{family} comes with the program; call yours something else")
    if not types or not set(types) <= set(TYPES):
        raise ValueError(f"{family}: types are letters of {''.join(TYPES)}, not {types!r}")
    FAMILIES[family], BUILDERS[family] = types, builder


def build_extractor(architecture: Architecture, modality: Modality, d: int, init: str = "pytorch") -> nn.Module:
    """The extractor f of a modality: (B, width) tensor, or SparseRows where the modality is sparse -> (B, d).

    `init` is for the shipped families; any other keeps the weights that its builder gave it.
    """
    if architecture.family not in SHIPPED:
        return _build_own(architecture, modality, d)
    extractor = BUILDERS[architecture.family](architecture, modality, d)
    if init == "he":
        initialise_by_he(extractor)
    else:
        for layer in extractor.modules():
            if isinstance(layer, nn.Conv2d):
                _he(layer)
    return extractor


def _build_own(architecture: Architecture, modality: Modality, d: int) -> nn.Module:
    """What a registered builder makes, tried on a few rows; a copy, since the builder may return one module twice."""
    try:
        module = BUILDERS[architecture.family](architecture, modality, d)
        if not isinstance(module, nn.Module):
            raise UserError(f"the builder must return an nn.Module, not {type(module).__name__}")
        for name, parameter in module.named_parameters():
            if nn.parameter.is_lazy(parameter):
                raise UserError(f"{name} has no shape yet; use a layer that is not lazy (modality.width is known)")
        module = copy.deepcopy(module)
        for rows in (3, 1):  # the last batch may have one
            _try(copy.deepcopy(module).cpu().eval(), modality, rows, d)
    except Exception as error:
        error.add_note(f"extractor family {architecture.family}, modality {modality.name}")
        raise
    return module


@torch.no_grad()
def _try(module: nn.Module, modality: Modality, rows: int, d: int) -> None:
    """Refuse a module whose output is not float32 (rows, d), or that changes its input, which later rounds read."""
    x: Tensor | SparseRows = torch.linspace(-1, 1, rows * modality.width).view(rows, -1)
    if modality.sparse:
        offsets = torch.arange(rows + 1)
        x = SparseRows(torch.zeros(rows).long(), torch.ones(rows), offsets, modality.width, offsets.numpy())
    values = x.values if isinstance(x, SparseRows) else x
    before = values.clone()
    with torch.random.fork_rng(devices=[]):
        y = module(x)
    shape = f"{str(y.dtype).removeprefix('torch.')} {tuple(y.shape)}" if isinstance(y, Tensor) else type(y).__name__
    if shape != f"float32 {(rows, d)}":
        raise UserError(
            f"the output must have shape (B, d): for {rows} x {modality.width} inputs float32 {(rows, d)}, not {shape}"
        )
    if not torch.equal(values, before):
        raise UserError("forward changes its input in place; let it work on a copy, x.clone()")


def _he(layer: nn.Module) -> None:
    """Weights of variance 2 / fan-in, no bias: the signal keeps its size through a ReLU."""
    weight = layer.weight.T if isinstance(layer, SparseLinear) else layer.weight
    nn.init.kaiming_normal_(weight, nonlinearity="relu")  # type: ignore[arg-type]
    nn.init.zeros_(layer.bias)  # type: ignore[arg-type]


def initialise_by_he(extractor: nn.Module) -> None:
    """He's weights in all hidden layers (but those that BatchNorm looks after); the last layer small.

    He's alone start ||z||^2 20 times as large as PyTorch's defaults, to which the weights of losses on prototypes, the
    paper's lambda_1 among them, are calibrated; hence the small last layer.
    """
    *hidden, last = [m for m in extractor.modules() if isinstance(m, nn.Linear | nn.Conv2d | SparseLinear)]
    for layer in () if has_batchnorm(extractor) else hidden:
        _he(layer)
    bound = OUTPUT_SCALE * last.weight.shape[1] ** -0.5
    nn.init.uniform_(last.weight, -bound, bound)
    nn.init.zeros_(last.bias)  # type: ignore[arg-type]


def has_batchnorm(module: nn.Module) -> bool:
    """Whether the module cannot train on batches of any size."""
    return any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in module.modules())
