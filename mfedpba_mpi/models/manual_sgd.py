"""Manual SGD steps through an extractor: forward, backward and weight update without autograd.

On a batch of twelve rows autograd's bookkeeping costs more than the arithmetic. Each layer type therefore has a `Pass`
that stores its input and computes the gradients itself. A Linear layer multiplies out its weight gradient and adds it
to the weights in a single matrix product. The modules in `extractors` define the networks; the passes share their
weights, and tests compare the two.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
SHIPPED_EXTRACTORS = {BUILDERS[family] for family in SHIPPED}
ONEDNN_MIN_OUTPUT = 3000  # batch x height x breadth; below it PyTorch's native convolution backward is faster


@contextmanager
def _onednn_disabled(disable: bool) -> Iterator[None]:
    """Disable oneDNN inside the block if `disable` is true."""
    enabled = mkldnn.enabled
    mkldnn.enabled = enabled and not disable  # type: ignore[assignment]
    try:
        yield
    finally:
        mkldnn.enabled = enabled


class Pass(ABC):
    """Forward and backward pass of one layer; its `leaves` make the SGD step."""

    uses_autograd = False
    trainable = True  # whether the layer has weights to train

    def __init__(self, layer: Any):
        self.layer = layer

    @abstractmethod
    def forward(self, x: Any) -> Tensor:
        """Compute the layer's output and store what `backward` needs."""

    @abstractmethod
    def gradient(self, g: Tensor, needs_input_grad: bool) -> Tensor:
        """Store what `step` needs, and return the gradient with respect to the input.

        Parameters
        ----------
        g : gradient with respect to the output. A pass may overwrite it, except that of a Linear layer: this is the
            last layer of every extractor, and modalities may share the memory of its `g`.
        needs_input_grad : if false, the return value is undefined.
        """

    def leaves(self) -> list[Leaf]:
        """The layers that have weights themselves."""
        return []

    def input_leaf(self) -> LinearLeaf | None:
        """The Linear layer that receives the rows themselves, if the first layer is one."""
        return None


class LinearLeaf(Pass):
    """A Linear layer y = x W^T + b; stores its input x (B, inputs) and the gradient g (B, outputs) of y."""

    x: Any
    g: Tensor

    @abstractmethod
    def step(self, lr: float) -> None:
        """Update the weights, w <- w - lr dL/dw."""

    def leaves(self) -> list[Leaf]:
        return [self]

    def input_leaf(self) -> LinearLeaf:
        return self

    def gradient(self, g: Tensor, needs_input_grad: bool) -> Tensor:
        self.g, self.g_t = g, g.t()
        return g

    def scale(self, factor: Tensor) -> None:
        """Multiply the stored gradient by a scalar tensor."""
        self.g = self.g * factor
        self.g_t = self.g.t()

    def dense(self) -> Tensor:
        """The stored input x."""
        return self.x


class LinearPass(LinearLeaf):
    """y = x W^T + b."""

    def __init__(self, layer: nn.Linear):
        self.W, self.b = layer.weight.detach(), layer.bias.detach()
        self.W_t = self.W.t()

    def forward(self, x: Tensor) -> Tensor:
        self.x = x
        return torch.addmm(self.b, x, self.W_t)

    def gradient(self, g: Tensor, needs_input_grad: bool) -> Tensor:
        self.g, self.g_t = g, g.t()
        return g.mm(self.W) if needs_input_grad else g

    def step(self, lr: float) -> None:
        self.W.addmm_(self.g_t, self.x, alpha=-lr)
        self.b.addmv_(self.g_t, _ones(len(self.g), self.g.dtype, self.g.device), alpha=-lr)


@cache
def _ones(n: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.ones(n, dtype=dtype, device=device)


class SparseLinearPass(LinearLeaf):
    """Linear layer on sparse rows; updates only the weight rows of nonzero inputs."""

    def __init__(self, layer: SparseLinear):
        self.layer, self.W, self.b = layer, layer.weight.detach(), layer.bias.detach()

    def forward(self, x: SparseRows) -> Tensor:
        self.x = x
        return self.layer(x)

    def step(self, lr: float) -> None:
        rows = self.g.repeat_interleave(self.x.offsets.diff(), 0, output_size=len(self.x.values))
        self.W.index_add_(0, self.x.indices, self.x.values[:, None] * rows, alpha=-lr)
        self.b.sub_(self.g.sum(0), alpha=lr)

    def dense(self) -> Tensor:
        return self.x.dense()


class ReLUPass(Pass):
    """ReLU, in place in both directions."""

    trainable = False

    def forward(self, x: Tensor) -> Tensor:
        self.y = x.relu_()
        return self.y

    def gradient(self, g: Tensor, needs_input_grad: bool) -> Tensor:
        return relu_backward(g, self.y, 0, grad_input=g)


class BuiltGradient:
    """Weights with built gradients, in `gradients`."""

    weights: Sequence[Tensor]
    gradients: Sequence[Tensor]

    def leaves(self) -> list[Leaf]:
        return [self] if self.weights else []

    def step(self, lr: float) -> None:
        """Update the weights, w <- w - lr dL/dw."""
        for w, gw in zip(self.weights, self.gradients, strict=True):
            w.sub_(gw, alpha=lr)

    def scale(self, factor: Tensor) -> None:
        """Multiply the gradients by a scalar tensor."""
        self.gradients = [gw * factor for gw in self.gradients]


Leaf = LinearLeaf | BuiltGradient
"""Weights and their gradients: what an SGD step changes."""


class JointNorm:
    """The joint norm of the gradients of some leaves, without building dW = g^T x of Linear layers.

    For these, ||dW||_F^2 + ||db||^2 = <g g^T, x x^T + 1>. The products g g^T of all layers lie in one vector, those
    x x^T in another, so that one dot product adds all layers.

    Parameters
    ----------
    given : x x^T of every batch of the epoch, for the layers where they are known.
    """

    def __init__(self, leaves: Sequence[Leaf], given: Mapping[LinearLeaf, Sequence[Tensor]] | None = None):
        self.linear = [leaf for leaf in leaves if isinstance(leaf, LinearLeaf)]
        self.built = [leaf for leaf in leaves if isinstance(leaf, BuiltGradient)]
        self.given = given or {}
        self.products: dict[int, tuple[Tensor, Tensor, list[tuple[LinearLeaf, Tensor, Tensor]]]] = {}  # by batch size

    def norm2(self, number: int = 0) -> Tensor:
        """The square of the norm in batch `number` of the epoch, a scalar."""
        parts = [self._linear(number)] if self.linear else []
        built = (gw for leaf in self.built for gw in leaf.gradients)
        gradients = [gw.coalesce().values() if gw.is_sparse else gw for gw in built]
        vectors = [gw for gw in gradients if gw.dim() == 1]  # many and short
        if vectors:
            joined = torch.cat(vectors)
            parts.append(joined.dot(joined))
        others = [gw for gw in gradients if gw.dim() != 1]
        if others:
            norms = torch.stack(torch._foreach_norm(others))
            parts.append(norms.dot(norms))
        return sum(parts[1:], parts[0]) if parts else torch.zeros(())

    def _linear(self, number: int) -> Tensor:
        batch = len(self.linear[0].g)
        if batch not in self.products:
            self.products[batch] = self._allocate()
        X, G, products = self.products[batch]
        for leaf, xx, gg in products:
            if leaf in self.given:
                xx.copy_(self.given[leaf][number])
            else:
                x = leaf.dense()
                torch.mm(x, x.t(), out=xx)
            torch.mm(leaf.g, leaf.g_t, out=gg)
        return X.add_(1).dot(G)

    def _allocate(self) -> tuple[Tensor, Tensor, list[tuple[LinearLeaf, Tensor, Tensor]]]:
        rows = [len(leaf.g) for leaf in self.linear]
        sizes = [n * n for n in rows]
        X, G = self.linear[0].g.new_empty(2, sum(sizes))
        views = [[part.view(n, n) for n, part in zip(rows, v.split(sizes), strict=True)] for v in (X, G)]
        return X, G, list(zip(self.linear, *views, strict=True))


class ConvolutionPass(BuiltGradient, Pass):
    """2-D convolution by oneDNN, except the backward pass of small images."""

    def __init__(self, layer: nn.Conv2d):
        self.weights = self.W, self.b = layer.weight.detach(), layer.bias.detach()  # type: ignore[union-attr]
        self.stride, self.padding = layer.stride, layer.padding

    def forward(self, x: Tensor) -> Tensor:
        self.x = x
        return torch.conv2d(x, self.W, self.b, self.stride, self.padding)

    def gradient(self, g: Tensor, needs_input_grad: bool) -> Tensor:
        geometry = self.stride, self.padding, (1, 1), False, (0, 0), 1
        with _onednn_disabled(needs_input_grad and len(g) * g.shape[2] * g.shape[3] < ONEDNN_MIN_OUTPUT):
            gx, *self.gradients = aten.convolution_backward(
                g, self.x, self.W, self.b.shape, *geometry, (needs_input_grad, True, True)
            )
        return gx if needs_input_grad else g


class MaxPoolPass(Pass):
    """Max-pooling; stores the indices of the maxima."""

    trainable = False

    def __init__(self, layer: nn.MaxPool2d):
        self.window = (layer.kernel_size, layer.stride, (0, 0), (1, 1), layer.ceil_mode)

    def forward(self, x: Tensor) -> Tensor:
        self.x = x
        y, self.indices = aten.max_pool2d_with_indices(x, *self.window)
        return y

    def gradient(self, g: Tensor, needs_input_grad: bool) -> Tensor:
        return aten.max_pool2d_with_indices_backward(g, self.x, *self.window, self.indices)


class FlatPass(Pass):
    """Flattening, a view in both directions."""

    trainable = False

    def forward(self, x: Tensor) -> Tensor:
        _, self.channels, self.height, self.breadth = x.shape
        return self.layer(x)

    def gradient(self, g: Tensor, needs_input_grad: bool) -> Tensor:
        return g.view(-1, self.height, self.breadth, self.channels).permute(0, 3, 1, 2)


class FoldPass(Pass):
    """Rows to images; always the first layer, so it has no backward pass."""

    trainable = False

    def forward(self, x: Tensor | SparseRows) -> Tensor:
        return self.layer(x)

    def gradient(self, g: Tensor, needs_input_grad: bool) -> Tensor:
        raise AssertionError("Fold is the first layer and has no backward pass")


class ParallelPass(Pass):
    """Parallel branches on the extractor's input; the input gradient is never needed."""

    def __init__(self, branches: Parallel):
        self.branches = [SequentialPass(branch) for branch in branches]  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        parts = [branch.forward(x) for branch in self.branches]
        self.widths = [part.shape[1] for part in parts]
        return torch.cat(parts, 1)

    def gradient(self, g: Tensor, needs_input_grad: bool) -> Tensor:
        for branch, part in zip(self.branches, g.split(self.widths, 1), strict=True):
            branch.gradient(part, needs_input_grad)
        return g

    def leaves(self) -> list[Leaf]:
        return [leaf for branch in self.branches for leaf in branch.leaves()]


class BatchNormPass(BuiltGradient, Pass):
    """BatchNorm in training mode: normalises by the batch statistics and updates the running ones."""

    def __init__(self, layer: nn.BatchNorm1d):
        self.weights = self.w, self.b = layer.weight.detach(), layer.bias.detach()
        self.running = (layer.running_mean, layer.running_var)
        self.momentum, self.eps = layer.momentum, layer.eps

    def forward(self, x: Tensor) -> Tensor:
        self.x = x
        y, *self.batch = aten.native_batch_norm(x, self.w, self.b, *self.running, True, self.momentum, self.eps)
        return y

    def gradient(self, g: Tensor, needs_input_grad: bool) -> Tensor:
        gx, *self.gradients = aten.native_batch_norm_backward(
            g, self.x, self.w, *self.running, *self.batch, True, self.eps, (True, True, True)
        )
        return gx


class ResidualPass(Pass):
    """skip(x) + branch(x)."""

    def __init__(self, block: ResidualBlock):
        self.branch = SequentialPass(block.branch)
        self.skip = None if isinstance(block.skip, nn.Identity) else LinearPass(block.skip)

    def forward(self, x: Tensor) -> Tensor:
        return (self.skip.forward(x) if self.skip else x) + self.branch.forward(x)

    def gradient(self, g: Tensor, needs_input_grad: bool) -> Tensor:
        gx = self.branch.gradient(g.clone(), needs_input_grad)
        return gx + (self.skip.gradient(g, needs_input_grad) if self.skip else g)

    def leaves(self) -> list[Leaf]:
        return [*self.branch.leaves(), *(self.skip.leaves() if self.skip else [])]


class AutogradPass(BuiltGradient, Pass):
    """Any module, differentiated by autograd.

    As in plain PyTorch, parameters that are frozen or receive no gradient stay unchanged.

    Parameters
    ----------
    has_previous : whether other layers precede the module, so that `backward` may have to return an input gradient.
    """

    uses_autograd = True

    def __init__(self, layer: nn.Module, has_previous: bool = True):
        self.layer, self.has_previous = layer, has_previous
        self.weights = [p for p in layer.parameters() if p.requires_grad]
        self.trainable = bool(self.weights)

    def forward(self, x: Any) -> Tensor:
        with torch.set_grad_enabled(self.has_previous or self.trainable):
            self.x = x.detach().requires_grad_() if self.has_previous and isinstance(x, Tensor) else x
            self.y = self.layer(self.x)
        return self.y.detach()

    def gradient(self, g: Tensor, needs_input_grad: bool) -> Tensor:
        if not self.y.requires_grad:  # the module detached its output
            self.gradients = [torch.zeros_like(w) for w in self.weights]
            return torch.zeros_like(self.x) if needs_input_grad else g
        variables = [*self.weights, *([self.x] if needs_input_grad else [])]
        gradients = torch.autograd.grad(self.y, variables, g, materialize_grads=True)
        self.gradients = gradients[: len(self.weights)]
        return gradients[-1] if needs_input_grad else g


class SequentialPass(Pass):
    """Layers in sequence; the backward pass ends at the first trainable layer."""

    def __init__(self, layers: Iterable[nn.Module]):
        self.passes = [PASSES.get(type(layer), AutogradPass)(layer) for layer in layers]
        self.uses_autograd = any(layer.uses_autograd for layer in self.passes)
        first = next(i for i, layer in enumerate(self.passes) if layer.trainable)
        # (pass, whether a trainable layer precedes it), last layer first
        self.backward_order = [(layer, i > first) for i, layer in enumerate(self.passes)][first:][::-1]

    def forward(self, x: Any) -> Tensor:
        for layer in self.passes:
            x = layer.forward(x)
        return x

    def gradient(self, g: Tensor, needs_input_grad: bool) -> Tensor:
        for layer, has_trainable_before in self.backward_order:
            g = layer.gradient(g, has_trainable_before or needs_input_grad)
        return g

    def leaves(self) -> list[Leaf]:
        return [leaf for layer in self.passes for leaf in layer.leaves()]

    def input_leaf(self) -> LinearLeaf | None:
        return self.passes[0].input_leaf()


PASSES: dict[type[nn.Module], Callable[[Any], Pass]] = {
    nn.Linear: LinearPass, SparseLinear: SparseLinearPass, nn.ReLU: ReLUPass, nn.Conv2d: ConvolutionPass,
    nn.MaxPool2d: MaxPoolPass, Flat: FlatPass, Fold: FoldPass, Parallel: ParallelPass, nn.BatchNorm1d: BatchNormPass,
    ResidualBlock: ResidualPass,
}  # fmt: skip


def training_pass(extractor: nn.Module, autograd: bool = False) -> Pass:
    """Build the training pass of an extractor; it shares the current weight tensors.

    Shipped extractors are trained manually if every parameter is trainable and no two layers share one. All others are
    trained by autograd, or every extractor with `autograd`.
    """
    weights = [p for _, p in extractor.named_parameters(remove_duplicate=False)]
    all_trainable, untied = all(p.requires_grad for p in weights), len(weights) == len({*weights})
    if not autograd and type(extractor) in SHIPPED_EXTRACTORS and all_trainable and untied:
        return SequentialPass(extractor)  # type: ignore[arg-type]
    return AutogradPass(extractor, has_previous=False)
