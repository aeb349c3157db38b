"""A step of plain SGD through an extractor, by hand: forward, backward and update without autograd.

A batch of twelve rows is so little work that recording it costs more than doing it. So every kind of layer has a
`Pass` here that keeps its input, and on the way back multiplies out the gradient and adds it to the weights in the same
product. The modules in `extractors` stay what defines the networks; the passes share their weights, and tests compare
the two.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.backends import mkldnn

from mfedpba_mpi.models.architecture import SHIPPED
from mfedpba_mpi.models.extractors import BUILDERS, Flat, Fold, Parallel, ResidualBlock, SparseLinear
from mfedpba_mpi.models.inputs import SparseRows

aten = torch.ops.aten
relu_backward = aten.threshold_backward.grad_input
OURS = {BUILDERS[family] for family in SHIPPED}
SMALL = 3000  # places of a convolution's output, below which PyTorch's own backward pass is faster than oneDNN's


@contextmanager
def _native(wanted: bool) -> Iterator[None]:
    """Without oneDNN, where that is `wanted`."""
    enabled = mkldnn.enabled
    mkldnn.enabled = enabled and not wanted  # type: ignore[assignment]
    try:
        yield
    finally:
        mkldnn.enabled = enabled


class Pass(ABC):
    """One layer's way forth and back."""

    by_hand = True  # without autograd
    learns = True  # whether there are weights to train

    def __init__(self, layer: Any):
        self.layer = layer

    @abstractmethod
    def forward(self, x: Any) -> Tensor:
        """The layer's output; keeps what `backward` needs."""

    @abstractmethod
    def backward(self, g: Tensor, lr: float, needs_input_grad: bool) -> Tensor:
        """From the gradient of the output to that of the input, with w <- w - lr dw on the way.

        Without `needs_input_grad` nobody wants the input's gradient, and what is returned means nothing. `g` may be
        overwritten, but not by a Linear layer, the last of every extractor: modalities may share it.
        """


def step_linear(W: Tensor, b: Tensor, x: Tensor, g: Tensor, lr: float) -> None:
    """A step of y = x W^T + b, from the input x (B, inputs) and the gradient g (B, outputs) of y."""
    g_t = g.t()
    W.addmm_(g_t, x, alpha=-lr)
    b.addmv_(g_t, _ones(g.shape[0], g.dtype, g.device), alpha=-lr)


@cache
def _ones(n: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.ones(n, dtype=dtype, device=device)


class LinearPass(Pass):
    """y = x W^T + b."""

    def __init__(self, layer: nn.Linear):
        self.W, self.b = layer.weight.detach(), layer.bias.detach()
        self.W_t = self.W.t()

    def forward(self, x: Tensor) -> Tensor:
        self.x = x
        return torch.addmm(self.b, x, self.W_t)

    def backward(self, g: Tensor, lr: float, needs_input_grad: bool) -> Tensor:
        gx = g.mm(self.W) if needs_input_grad else g
        step_linear(self.W, self.b, self.x, g, lr)
        return gx


class SparseLinearPass(Pass):
    """Touches only the rows of the weights whose inputs are not 0."""

    def __init__(self, layer: SparseLinear):
        self.layer, self.W, self.b = layer, layer.weight.detach(), layer.bias.detach()

    def forward(self, x: SparseRows) -> Tensor:
        self.x = x
        return self.layer(x)

    def backward(self, g: Tensor, lr: float, needs_input_grad: bool) -> Tensor:
        rows = g.repeat_interleave(self.x.offsets.diff(), 0, output_size=len(self.x.values))
        self.W.index_add_(0, self.x.indices, self.x.values[:, None] * rows, alpha=-lr)
        self.b.sub_(g.sum(0), alpha=lr)
        return g


class ReLUPass(Pass):
    """In place, forth and back."""

    learns = False

    def forward(self, x: Tensor) -> Tensor:
        self.y = x.relu_()
        return self.y

    def backward(self, g: Tensor, lr: float, needs_input_grad: bool) -> Tensor:
        return relu_backward(g, self.y, 0, grad_input=g)


class ConvolutionPass(Pass):
    """By oneDNN, but for small images on the way back."""

    def __init__(self, layer: nn.Conv2d):
        self.W, self.b = layer.weight.detach(), layer.bias.detach()  # type: ignore[union-attr]
        self.stride, self.padding = layer.stride, layer.padding

    def forward(self, x: Tensor) -> Tensor:
        self.x = x
        return torch.conv2d(x, self.W, self.b, self.stride, self.padding)

    def backward(self, g: Tensor, lr: float, needs_input_grad: bool) -> Tensor:
        places = self.stride, self.padding, (1, 1), False, (0, 0), 1
        with _native(needs_input_grad and len(g) * g.shape[2] * g.shape[3] < SMALL):
            gx, gW, gb = aten.convolution_backward(
                g, self.x, self.W, self.b.shape, *places, (needs_input_grad, True, True)
            )
        self.W.sub_(gW, alpha=lr)
        self.b.sub_(gb, alpha=lr)
        return gx if needs_input_grad else g


class MaxPoolPass(Pass):
    """Keeps where the largest was."""

    learns = False

    def __init__(self, layer: nn.MaxPool2d):
        self.window = (layer.kernel_size, layer.stride, (0, 0), (1, 1), layer.ceil_mode)

    def forward(self, x: Tensor) -> Tensor:
        self.x = x
        y, self.places = aten.max_pool2d_with_indices(x, *self.window)
        return y

    def backward(self, g: Tensor, lr: float, needs_input_grad: bool) -> Tensor:
        return aten.max_pool2d_with_indices_backward(g, self.x, *self.window, self.places)


class FlatPass(Pass):
    """A view, forth and back."""

    learns = False

    def forward(self, x: Tensor) -> Tensor:
        _, self.channels, self.height, self.breadth = x.shape
        return self.layer(x)

    def backward(self, g: Tensor, lr: float, needs_input_grad: bool) -> Tensor:
        return g.view(-1, self.height, self.breadth, self.channels).permute(0, 3, 1, 2)


class FoldPass(Pass):
    """Inputs as images; nobody is further on."""

    learns = False

    def forward(self, x: Tensor | SparseRows) -> Tensor:
        return self.layer(x)

    def backward(self, g: Tensor, lr: float, needs_input_grad: bool) -> Tensor:
        raise AssertionError("only inputs are folded")


class ParallelPass(Pass):
    """Only inputs are seen by several branches, so nobody is further on."""

    def __init__(self, branches: Parallel):
        self.branches = [Chain(branch) for branch in branches]  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        parts = [branch.forward(x) for branch in self.branches]
        self.widths = [part.shape[1] for part in parts]
        return torch.cat(parts, 1)

    def backward(self, g: Tensor, lr: float, needs_input_grad: bool) -> Tensor:
        for branch, part in zip(self.branches, g.split(self.widths, 1), strict=True):
            branch.backward(part, lr, needs_input_grad)
        return g


class BatchNormPass(Pass):
    """By the batch's own mean and variance, as in training."""

    def __init__(self, layer: nn.BatchNorm1d):
        self.w, self.b = layer.weight.detach(), layer.bias.detach()
        self.running = (layer.running_mean, layer.running_var)
        self.momentum, self.eps = layer.momentum, layer.eps

    def forward(self, x: Tensor) -> Tensor:
        self.x = x
        y, *self.batch = aten.native_batch_norm(x, self.w, self.b, *self.running, True, self.momentum, self.eps)
        return y

    def backward(self, g: Tensor, lr: float, needs_input_grad: bool) -> Tensor:
        gx, gw, gb = aten.native_batch_norm_backward(
            g, self.x, self.w, *self.running, *self.batch, True, self.eps, (True, True, True)
        )
        self.w.sub_(gw, alpha=lr)
        self.b.sub_(gb, alpha=lr)
        return gx


class ResidualPass(Pass):
    """skip(x) + branch(x)."""

    def __init__(self, block: ResidualBlock):
        self.branch = Chain(block.branch)
        self.skip = None if isinstance(block.skip, nn.Identity) else LinearPass(block.skip)

    def forward(self, x: Tensor) -> Tensor:
        return (self.skip.forward(x) if self.skip else x) + self.branch.forward(x)

    def backward(self, g: Tensor, lr: float, needs_input_grad: bool) -> Tensor:
        gx = self.branch.backward(g.clone(), lr, needs_input_grad)
        return gx + (self.skip.backward(g, lr, needs_input_grad) if self.skip else g)


class AutogradPass(Pass):
    """Any module, by autograd: as in plain PyTorch, parameters that are frozen or without a gradient stay.

    `inside` a chain layers before it may want the gradient of its input.
    """

    by_hand = False

    def __init__(self, layer: nn.Module, inside: bool = True):
        self.layer, self.inside = layer, inside
        self.weights = [p for p in layer.parameters() if p.requires_grad]
        self.learns = bool(self.weights)

    def forward(self, x: Any) -> Tensor:
        with torch.set_grad_enabled(self.inside or self.learns):
            self.x = x.detach().requires_grad_() if self.inside and isinstance(x, Tensor) else x
            self.y = self.layer(self.x)
        return self.y.detach()

    def backward(self, g: Tensor, lr: float, needs_input_grad: bool) -> Tensor:
        if not self.y.requires_grad:  # the module has cut it off
            return torch.zeros_like(self.x) if needs_input_grad else g
        wanted = [*self.weights, *([self.x] if needs_input_grad else [])]
        gradients = torch.autograd.grad(self.y, wanted, g, materialize_grads=True)
        for w, gw in zip(self.weights, gradients, strict=not needs_input_grad):
            w.sub_(gw, alpha=lr)
        return gradients[-1] if needs_input_grad else g


class Chain(Pass):
    """Layers one after the other; on the way back it stops at the first one that learns, if nobody is further on."""

    def __init__(self, layers: Iterable[nn.Module]):
        self.passes = [PASSES.get(type(layer), AutogradPass)(layer) for layer in layers]
        self.by_hand = all(each.by_hand for each in self.passes)
        first = next(i for i, each in enumerate(self.passes) if each.learns)
        self.back = [(each, i > first) for i, each in enumerate(self.passes)][first:][::-1]

    def forward(self, x: Any) -> Tensor:
        for each in self.passes:
            x = each.forward(x)
        return x

    def backward(self, g: Tensor, lr: float, needs_input_grad: bool) -> Tensor:
        for each, inside in self.back:
            g = each.backward(g, lr, inside or needs_input_grad)
        return g


PASSES: dict[type[nn.Module], Callable[[Any], Pass]] = {
    nn.Linear: LinearPass, SparseLinear: SparseLinearPass, nn.ReLU: ReLUPass, nn.Conv2d: ConvolutionPass,
    nn.MaxPool2d: MaxPoolPass, Flat: FlatPass, Fold: FoldPass, Parallel: ParallelPass, nn.BatchNorm1d: BatchNormPass,
    ResidualBlock: ResidualPass,
}  # fmt: skip


def training_pass(extractor: nn.Module) -> Pass:
    """The way through an extractor, on its weights as they lie now.

    By hand through ours, where every parameter is trained and has one place; by autograd through any other.
    """
    weights = [p for _, p in extractor.named_parameters(remove_duplicate=False)]
    if type(extractor) in OURS and all(p.requires_grad for p in weights) and len(weights) == len({*weights}):
        return Chain(extractor)  # type: ignore[arg-type]
    return AutogradPass(extractor, inside=False)
