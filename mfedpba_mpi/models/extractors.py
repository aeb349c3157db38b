"""The five families of feature extractors (the paper's Table "HM"), (B, width) -> (B, d).

Three details differ from the table, for speed and reproducibility:

* a 1-D convolution is a 2-D convolution of height 1 in channels-last order, up to three times as fast on a CPU;
* pooling comes before the ReLU: the result is the same, and the ReLU has fewer elements to process;
* pooling windows do not overlap. Those of `nn.AdaptiveMaxPool1d` overlap where the lengths do not divide, and its CUDA
  backward pass is not deterministic.

Weights have PyTorch's default initialisation, except those of convolutions, which have He initialisation: with the
defaults, stacks of 4 or 5 convolutions attenuate the signal so much that plain SGD stays at chance. Families registered
by users keep the weights from their builder.
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

OUTPUT_SCALE = 0.2  # scale of the last layer's weights with init "he", relative to PyTorch's default


class SparseLinear(nn.Module):
    """A Linear layer on sparse rows, weight (width, hidden)."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        bound = width**-0.5  # as in nn.Linear
        self.weight = nn.Parameter(torch.empty(width, hidden).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(hidden).uniform_(-bound, bound))

    def forward(self, rows: SparseRows) -> Tensor:
        """Map B sparse rows to (B, hidden)."""
        return self.bias + F.embedding_bag(
            rows.indices,
            self.weight,
            rows.offsets,
            mode="sum",
            per_sample_weights=rows.values,
            include_last_offset=True,
            sparse=True,  # the gradient
        )


class Fold(nn.Module):
    """Fold rows (B, width), dense or sparse, to channels-last images (B, 1, height, breadth), padded with zeros."""

    def __init__(self, architecture: Architecture, width: int) -> None:
        super().__init__()
        self.height, self.breadth = image_shape(architecture, width)
        self.missing = self.height * self.breadth - width

    def forward(self, x: Tensor | SparseRows) -> Tensor:
        """Convert the batch to dense rows if it is sparse, and fold it."""
        x = x.dense() if isinstance(x, SparseRows) else x
        x = F.pad(x, (0, self.missing)) if self.missing else x
        return x.view(-1, self.height, self.breadth, 1).permute(0, 3, 1, 2)


class Flat(nn.Module):
    """Flatten channels-last images (B, channels, height, breadth) to (B, height x breadth x channels), no copy."""

    def forward(self, x: Tensor) -> Tensor:
        """Flatten the images in memory order."""
        return x.permute(0, 2, 3, 1).flatten(1)


class Parallel(nn.ModuleList):
    """Parallel branches on one input; the outputs are concatenated."""

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


def _input_layer(modality: Modality, hidden: int) -> nn.Module:
    """Linear layer on the input; its weights are stored input-major, a sixth faster for few wide rows."""
    if modality.sparse:
        return SparseLinear(modality.width, hidden)
    layer = nn.Linear(modality.width, hidden)
    layer.weight.data = layer.weight.data.T.contiguous().T
    return layer


def _hidden_layers(widths: tuple[int, ...], d: int) -> list[nn.Module]:
    """Layers after the first Linear: ReLU, (n - 1) x (Linear, ReLU), Linear d."""
    hidden = [layer for a, b in pairwise(widths) for layer in (nn.ReLU(inplace=True), nn.Linear(a, b))]
    return [*hidden, nn.ReLU(inplace=True), nn.Linear(widths[-1], d)]


def _mlp(architecture: Architecture, modality: Modality, d: int) -> list[nn.Module]:
    """Layers after the convolutions: n x (Linear, ReLU), Linear d."""
    first = nn.Linear(flat_width(architecture, modality.width), architecture.widths[0])
    return [first, *_hidden_layers(architecture.widths, d)]


def _conv_layers(layer: Convolution) -> list[nn.Module]:
    """The convolution and, if it has any, its pooling."""
    convolution = nn.Conv2d(layer.inputs, layer.outputs, layer.kernel, layer.stride, layer.padding)
    return [convolution, nn.MaxPool2d((1, layer.pool), ceil_mode=True)] if layer.pool > 1 else [convolution]


class Extractor(nn.Sequential):
    """Base class of the shipped extractors; all layer types have a pass in `manual_sgd`."""


class DNN(Extractor):
    """n x (Linear, ReLU), Linear."""

    def __init__(self, architecture: Architecture, modality: Modality, d: int) -> None:
        widths = architecture.widths
        super().__init__(_input_layer(modality, widths[0]), *_hidden_layers(widths, d))


class CNN(Extractor):
    """CNN1D and CNN2D: n x (convolution, max-pooling in 1-D, ReLU), n x (Linear, ReLU), Linear."""

    def __init__(self, architecture: Architecture, modality: Modality, d: int) -> None:
        layers = convolutions(architecture, modality.width)
        blocks = [part for layer in layers for part in (*_conv_layers(layer), nn.ReLU(inplace=True))]
        fold = Fold(architecture, modality.width)
        super().__init__(fold, *blocks, Flat(), *_mlp(architecture, modality, d))


class TextCNN(Extractor):
    """Parallel convolutions with kernels 3, 4, 5, each max-pooled, then ReLU, n x (Linear, ReLU), Linear."""

    def __init__(self, architecture: Architecture, modality: Modality, d: int) -> None:
        branches = [nn.Sequential(*_conv_layers(layer), Flat()) for layer in convolutions(architecture, modality.width)]
        fold = Fold(architecture, modality.width)
        super().__init__(fold, Parallel(branches), nn.ReLU(inplace=True), *_mlp(architecture, modality, d))


class Resmodel(Extractor):
    """Linear, n residual blocks, Linear."""

    def __init__(self, architecture: Architecture, modality: Modality, d: int) -> None:
        widths = architecture.widths
        blocks = [ResidualBlock(a, b) for a, b in pairwise((widths[0], *widths))]
        super().__init__(_input_layer(modality, widths[0]), *blocks, nn.Linear(widths[-1], d))


Builder = Callable[[Architecture, Modality, int], nn.Module]
"""``builder(architecture, modality, d)`` returns a module (B, width) -> (B, d)."""

BUILDERS: dict[str, Builder] = {
    "DNN": DNN,
    "CNN1D": CNN,
    "CNN2D": CNN,
    "TextCNN": TextCNN,
    "Resmodel": Resmodel,
}


def register(family: str, types: str, builder: Builder) -> None:
    """Register a new extractor family; see examples/.

    Clients get networks of this family only if ``--families`` lists it.

    Parameters
    ----------
    family : str
        Its name.
    types : str
        Types of modalities that it supports, letters of I, L, A, T.
    builder : callable
        Called with the architecture, the modality and the feature width d; returns an `nn.Module` from (n, width) to
        (n, d).
    """
    if family in SHIPPED:
        raise ValueError(f"extractor family {family} is built in; choose another name")
    if not types or not set(types) <= set(TYPES):
        raise ValueError(f"extractor family {family}: types must be letters of {''.join(TYPES)}, not {types!r}")
    FAMILIES[family], BUILDERS[family] = types, builder


def build_extractor(architecture: Architecture, modality: Modality, d: int, init: str = "pytorch") -> nn.Module:
    """Build the extractor of a modality: a (B, width) tensor, or `SparseRows` if it is sparse, -> (B, d).

    `init` applies to the shipped families; registered ones keep the weights from their builder.
    """
    if architecture.family not in SHIPPED:
        return _build_registered(architecture, modality, d)
    extractor = BUILDERS[architecture.family](architecture, modality, d)
    if init == "he":
        he_init(extractor)
    else:
        for layer in extractor.modules():
            if isinstance(layer, nn.Conv2d):
                _he_init_layer(layer)
    return extractor


def _build_registered(architecture: Architecture, modality: Modality, d: int) -> nn.Module:
    """Call a registered builder, check the module on a few rows, and copy it: a builder may return one module twice."""
    try:
        module = BUILDERS[architecture.family](architecture, modality, d)
        if not isinstance(module, nn.Module):
            raise UserError(f"the builder must return an nn.Module, not {type(module).__name__}")
        for name, parameter in module.named_parameters():
            if nn.parameter.is_lazy(parameter):
                raise UserError(f"{name} is a lazy parameter without a shape; use a regular layer with modality.width")
        module = copy.deepcopy(module)
        for rows in (3, 1):  # the last batch may have a single row
            _check_output(copy.deepcopy(module).cpu().eval(), modality, rows, d)
    except Exception as error:
        error.add_note(f"extractor family {architecture.family}, modality {modality.name}")
        raise
    return module


@torch.no_grad()
def _check_output(module: nn.Module, modality: Modality, rows: int, d: int) -> None:
    """Raise if the module's output is not float32 (rows, d), or if it changes its input, which later rounds reuse."""
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
        raise UserError("forward changes its input in place; work on a copy, x.clone()")


def _he_init_layer(layer: nn.Module) -> None:
    """He initialisation, which preserves the signal's scale through a ReLU: weight variance 2 / fan-in, bias 0."""
    weight = layer.weight.T if isinstance(layer, SparseLinear) else layer.weight
    nn.init.kaiming_normal_(weight, nonlinearity="relu")  # type: ignore[arg-type]
    nn.init.zeros_(layer.bias)  # type: ignore[arg-type]


def he_init(extractor: nn.Module) -> None:
    """He initialisation of all hidden layers, unless the extractor has BatchNorm, and a small last layer.

    He initialisation alone makes ||z||^2 20 times as large as PyTorch's defaults. The weights of prototype losses, such
    as the paper's lambda_1, are calibrated to the latter; hence the small last layer.
    """
    *hidden, last = [m for m in extractor.modules() if isinstance(m, nn.Linear | nn.Conv2d | SparseLinear)]
    for layer in () if has_batchnorm(extractor) else hidden:
        _he_init_layer(layer)
    bound = OUTPUT_SCALE * last.weight.shape[1] ** -0.5
    nn.init.uniform_(last.weight, -bound, bound)
    nn.init.zeros_(last.bias)  # type: ignore[arg-type]


def has_batchnorm(module: nn.Module) -> bool:
    """Whether the module contains BatchNorm, which cannot train on arbitrarily small batches."""
    return any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in module.modules())
