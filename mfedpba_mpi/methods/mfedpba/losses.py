"""The server's prototype losses L_rec and L_con, and the aggregation of logit prototypes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def reconstruction_loss(P: Tensor, E: Tensor, rows: Tensor, uploads: int) -> Tensor:
    r"""L_rec = 1/\|K\| sum_{k,m,c} \|\|P_k,c^m - E_k,c^m\|\|^2.

    Parameters
    ----------
    P, E : Tensor, shape (M, R, d)
        Projected and uploaded prototypes.
    rows : Tensor, shape (M, R), bool
        Mask of the rows that are not padding.
    uploads : int
        Number of participants \|K\| of the round.
    """
    return ((P - E) * rows[..., None]).square().sum() / uploads


def contrastive_loss(P_G: Tensor, present: Tensor, tau: float) -> Tensor:
    r"""L_con = - sum_c sum_{m != m'} log( exp(s_{c,c}^{m,m'} / tau) / sum_{c'} exp(s_{c,c'}^{m,m'} / tau) ).

    s_{c,c'}^{m,m'} is the cosine similarity of P_G,c^m and P_G,c'^m'; c and c' run over the classes present in both
    modalities. The loss is 0 if fewer than two modalities are present.

    Parameters
    ----------
    P_G : Tensor, shape (M, C, d)
    present : Tensor, shape (M, C), bool
    tau : float
        Temperature.
    """
    M = len(P_G)
    unit = F.normalize(P_G, dim=-1, eps=1e-8)
    s = torch.einsum("mcd,nkd->mnck", unit, unit) / tau
    both = present[:, None] & present & ~torch.eye(M, dtype=torch.bool, device=present.device)[..., None]
    # A finite fill value, because a row of -inf gives NaN gradients.
    s = s.masked_fill(~both[:, :, None], torch.finfo(s.dtype).min)
    terms = s.logsumexp(-1) - s.diagonal(dim1=-2, dim2=-1)
    return torch.where(both, terms, 0.0).sum()


def aggregate_logits(I: Tensor, present: Tensor, equal: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    r"""I_G,c = sum_k q_k,c I_k,c with q_k,c = (H(I_k,c) + eps)^-1 / sum_k' (H(I_k',c) + eps)^-1.

    H is the entropy of softmax(I_k,c) in nats and eps = 1e-8; k runs over the clients with class c. Computed in
    float64.

    Parameters
    ----------
    I : Tensor, shape (K, C, C)
        Logit prototypes in client order.
    present : Tensor, shape (K, C), bool
    equal : bool
        Use equal weights instead (ablation "EA").

    Returns
    -------
    I_G : Tensor, shape (C, C), float32
        Rows of absent classes are 0.
    present : Tensor, shape (C,), bool
    q : Tensor, shape (K, C), float64
    """
    logits = torch.where(present[..., None], I.double(), 0.0)
    log_sigma = logits.log_softmax(-1)
    H = -(log_sigma.exp() * log_sigma).sum(-1)
    weights = present.double() if equal else present / (H + 1e-8)
    q = weights / weights.sum(0).clamp_min(torch.finfo(weights.dtype).tiny)
    return torch.einsum("kc,kcj->cj", q, logits).float(), present.any(0), q
