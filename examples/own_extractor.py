"""Example of a new extractor family with gated layers; any module (B, width) -> (B, d) is possible.

The input of a sparse modality is a `SparseRows` object.

mfedpba-mpi --plugin examples/own_extractor.py --dataset mfeat --families Gated --rounds 20 --out runs/gated

`python examples/own_extractor.py` with the same options (without --plugin) is equivalent.
"""

from itertools import pairwise

import torch
from torch import Tensor, nn

from mfedpba_mpi import Architecture, Modality, SparseRows, main, register_extractor


class Gate(nn.Module):
    """Gated layer x -> (A x) sigmoid(B x)."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.value, self.gate = nn.Linear(inputs, outputs), nn.Linear(inputs, outputs)

    def forward(self, x: Tensor | SparseRows) -> Tensor:
        """(B, inputs) -> (B, outputs)."""
        x = x.dense() if isinstance(x, SparseRows) else x
        return self.value(x) * torch.sigmoid(self.gate(x))


def gated(architecture: Architecture, modality: Modality, d: int) -> nn.Module:
    """Build 2 to 5 gated layers with the sampled widths of 32 to 256, then Linear d."""
    widths = (modality.width, *architecture.widths)
    return nn.Sequential(*(Gate(a, b) for a, b in pairwise(widths)), nn.Linear(widths[-1], d))


register_extractor("Gated", "ILAT", gated)  # modality types: image, language, audio, time series

if __name__ == "__main__":
    main()
