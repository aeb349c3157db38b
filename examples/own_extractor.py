"""A family of extractors of your own: layers that gate themselves. Any module (B, width) -> (B, d) will do.

Modalities that are stored sparse come as `SparseRows`.

mfedpba-mpi --plugin examples/own_extractor.py --dataset mfeat --families Gated --rounds 20 --out runs/gated

`python examples/own_extractor.py`, with the same options, does the same.
"""

from itertools import pairwise

import torch
from torch import Tensor, nn

from mfedpba_mpi import Modality, register_extractor
from mfedpba_mpi.cli.main import main
from mfedpba_mpi.models.architecture import Architecture
from mfedpba_mpi.models.inputs import SparseRows


class Gate(nn.Module):
    """x -> (A x) sigmoid(B x)."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.value, self.gate = nn.Linear(inputs, outputs), nn.Linear(inputs, outputs)

    def forward(self, x: Tensor | SparseRows) -> Tensor:
        """(B, inputs) -> (B, outputs)."""
        x = x.dense() if isinstance(x, SparseRows) else x
        return self.value(x) * torch.sigmoid(self.gate(x))


def gated(architecture: Architecture, modality: Modality, d: int) -> nn.Module:
    """Gates as wide as was drawn (2 to 5 of them, 32 to 256 wide), then Linear d."""
    widths = (modality.width, *architecture.widths)
    return nn.Sequential(*(Gate(a, b) for a, b in pairwise(widths)), nn.Linear(widths[-1], d))


register_extractor("Gated", "ILAT", gated)  # for modalities of all types: image, language, audio, time series

if __name__ == "__main__":
    main()
