"""The server's autoencoder for feature prototypes, and the batching of a round's uploads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn


class PrototypeAutoencoder(nn.Module):
    r"""P = psi(Phi_m(E)), with an encoder Phi_m = Linear(d, d/2) + ReLU per modality and one psi = Linear(d/2, d).

    The M encoders are stored as one batch of weights, so that one batched product serves all modalities.

    Parameters
    ----------
    modalities : int
        Number of modalities M.
    d : int
        Dimension of a feature prototype; even.
    generator : torch.Generator
        CPU generator for the initial weights, U(-1/sqrt(fan_in), 1/sqrt(fan_in)) as in `nn.Linear`.
    """

    def __init__(self, modalities: int, d: int, generator: torch.Generator) -> None:
        super().__init__()
        if d < 2 or d % 2:
            raise ValueError(f"feature dimension d = {d}: the encoders halve it; use an even number of at least 2")
        h = d // 2

        def draw(fan_in: int, *shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(shape).uniform_(-(fan_in**-0.5), fan_in**-0.5, generator=generator))

        self.encoder_weight = draw(d, modalities, d, h)
        self.encoder_bias = draw(d, modalities, 1, h)
        self.decoder_weight = draw(h, h, d)
        self.decoder_bias = draw(h, d)

    def forward(self, E: Tensor) -> Tensor:
        """Compute P (M, R, d) from the prototypes E (M, R, d), with R rows per modality."""
        hidden = torch.baddbmm(self.encoder_bias, E, self.encoder_weight).relu()
        return hidden @ self.decoder_weight + self.decoder_bias


@dataclass(frozen=True)
class PrototypeBatch:
    r"""The feature prototypes of one round: one row per present (k, c) of a modality, zero-padded to R rows.

    Attributes
    ----------
    E : Tensor, shape (M, R, d)
        Uploaded prototypes in client order, classes ascending within a client.
    rows : Tensor, shape (M, R), bool
        Mask of the rows that are not padding.
    A : Tensor, shape (M, C, R)
        Averaging matrix: A[m, c, r] = 1 / (number of clients with both m and c) if row r is of class c, else 0.
    present : Tensor, shape (M, C), bool
        Mask of the classes with a prototype.
    """

    E: Tensor
    rows: Tensor
    A: Tensor
    present: Tensor

    @classmethod
    def from_uploads(cls, uploads: Sequence[tuple[int, Tensor, Tensor]], modalities: int) -> PrototypeBatch:
        """Batch uploads (modality, E_km (C, d), present (C,) bool), given in client order."""
        if not uploads:
            raise ValueError("no feature prototypes were uploaded; a round needs at least one")
        # The sort is stable and keeps the client order within a modality.
        uploads = sorted(uploads, key=lambda upload: upload[0])
        E_all = torch.stack([E for _, E, _ in uploads])
        u, c = torch.stack([present for _, _, present in uploads]).nonzero(as_tuple=True)
        m = torch.tensor([modality for modality, _, _ in uploads], device=E_all.device)[u]
        classes, d = E_all.shape[1:]

        sizes = torch.bincount(m, minlength=modalities)
        r = torch.arange(len(m), device=m.device) - (sizes.cumsum(0) - sizes)[m]
        counts = torch.bincount(m * classes + c, minlength=modalities * classes).view(modalities, classes)

        R = int(sizes.max())
        E = E_all.new_zeros(modalities, R, d)
        E[m, r] = E_all[u, c]
        A = E_all.new_zeros(modalities, classes, R)
        A[m, c, r] = 1 / counts[m, c].to(A.dtype)
        return cls(E, torch.arange(R, device=m.device) < sizes[:, None], A, counts > 0)

    def average(self, P: Tensor) -> Tensor:
        r"""P_G,c^m = mean of P_k,c^m over the clients with both m and c: (M, R, d) -> (M, C, d), 0 for absent ones."""
        return torch.bmm(self.A, P)
