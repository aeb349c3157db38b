"""A client's network: one extractor per owned modality, the fusion of their features, and one classifier."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from mfedpba_mpi.data.catalog import Modality
from mfedpba_mpi.models.architecture import Architecture
from mfedpba_mpi.models.extractors import build_extractor, has_batchnorm
from mfedpba_mpi.models.inputs import SparseRows

Rows = Tensor | SparseRows  # a batch of one modality, (B, width)


class ClientModel(nn.Module):
    """Extractors f_k^m : x^m -> (B, d) and classifier h_k.

    Parameters
    ----------
    fusion : ``sum`` classifies the sum of the features, ``concat`` their concatenation, and ``separate`` each feature
        on its own. An item is one input of the classifier: a sample, or with ``separate`` a pair (sample, modality).
    """

    def __init__(
        self,
        modalities: Sequence[Modality],
        architectures: Sequence[Architecture],
        d: int,
        classes: int,
        fusion: str,
        init: str = "pytorch",
    ):
        super().__init__()
        self.fusion = fusion
        self.extractors = nn.ModuleList(
            build_extractor(architecture, modality, d, init)
            for architecture, modality in zip(architectures, modalities, strict=True)
        )
        self.classifier = nn.Linear(d * len(modalities) if fusion == "concat" else d, classes)
        self.has_batchnorm = has_batchnorm(self)

    def features(self, xs: Sequence[Rows]) -> Tensor:
        """Extract the features Z (|M_k|, B, d), one slice per owned modality."""
        return torch.stack([extractor(x) for extractor, x in zip(self.extractors, xs, strict=True)])

    def fuse(self, Z: Tensor) -> Tensor:
        """Return the classifier's input (items, B, width): 1 item per sample, or |M_k| items for ``separate``."""
        if self.fusion == "separate" or len(Z) == 1:
            return Z
        if self.fusion == "sum":
            return Z.sum(0, keepdim=True)
        return Z.transpose(0, 1).flatten(1).unsqueeze(0)

    def unfuse(self, g: Tensor, modalities: int) -> Tensor:
        """Map the gradient g of `fuse(Z)` to that of Z (|M_k|, B, d); modalities may share its memory."""
        if self.fusion == "separate" or modalities == 1:
            return g
        if self.fusion == "sum":
            return g.expand(modalities, -1, -1)
        return g[0].unflatten(1, (modalities, -1)).transpose(0, 1)

    def logits(self, Z: Tensor) -> Tensor:
        """Compute the logits (items, B, C) of the features Z (|M_k|, B, d)."""
        return self.classifier(self.fuse(Z))
