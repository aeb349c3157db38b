"""The server's prototype losses L_rec and L_con, and the aggregation of logit prototypes."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def reconstruction_loss(P: Tensor, E: Tensor, rows: Tensor, uploads: int | None = None) -> Tensor:
    r"""L_rec = 1/\|K\| sum_{k,m,c} \|\|P_k,c^m - E_k,c^m\|\|^2, or the mean over the present (k, m, c).

    Parameters
    ----------
    P, E : Tensor, shape (M, R, d)
        Projected and uploaded prototypes.
    rows : Tensor, shape (M, R), bool
        Mask of the rows that are not padding.
    uploads : int, optional
        Number of participants \|K\| of the round, for the printed sum; without it the result is the mean.
    """
    return ((P - E) * rows[..., None]).square().sum() / (uploads or rows.sum().clamp(min=1))


def contrastive_loss(P_G: Tensor, present: Tensor, tau: float, mean: bool = False) -> Tensor:
    r"""L_con = - sum_c sum_{m != m'} log( exp(s_{c,c}^{m,m'} / tau) / sum_{c'} exp(s_{c,c'}^{m,m'} / tau) ).

    s_{c,c'}^{m,m'} is the cosine similarity of P_G,c^m and P_G,c'^m'; c and c' run over the classes present in both
    modalities. The loss is 0 if fewer than two modalities are present. With `mean`, it is divided by the number of
    terms (c, m, m').

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
    total = torch.where(both, terms, 0.0).sum()
    return total / both.sum().clamp(min=1) if mean else total


def aggregate_logits(I: Tensor, present: Tensor, weights: str = "entropy") -> tuple[Tensor, Tensor, Tensor]:
    r"""I_G,c = sum_k q_k,c I_k,c with q_k,c = (H(I_k,c) + eps)^-1 / sum_k' (H(I_k',c) + eps)^-1.

    H is the entropy of softmax(I_k,c) in nats; k runs over the clients with class c. Computed in float64.

    Parameters
    ----------
    I : Tensor, shape (K, C, C)
        Logit prototypes in client order.
    present : Tensor, shape (K, C), bool
    weights : str
        * ``entropy``: eps = 1e-8 as in the paper, so that a client with H near 0 has all the weight;
        * ``bounded``: eps = log C, the largest entropy, so that no client has more than twice the weight of another;
          and the deviation of I_k,c from its mean over j has at most twice the median norm of all clients with c;
        * ``correct``: as ``bounded``, over the clients whose prototype of class c predicts c. Where there are none,
          I_G,c is that of ``bounded`` for L_align, but L_logit leaves the class out;
        * ``equal``: q is constant (the paper's ablation "EA").

    Returns
    -------
    I_G : Tensor, shape (C, C), float32
        Rows of absent classes are 0.
    known : Tensor, shape (C,), bool
        The classes with a row that clients may be aligned with.
    q : Tensor, shape (K, C), float64
    """
    logits = torch.where(present[..., None], I.double(), 0.0)
    if weights == "bounded":
        logits = _bounded(logits, present)
    log_sigma = logits.log_softmax(-1)
    H = -(log_sigma.exp() * log_sigma).sum(-1)
    voters, known = present, present.any(0)
    if weights == "correct":
        right = present & (logits.argmax(-1) == torch.arange(logits.shape[-1], device=logits.device))
        known = right.any(0)
        voters = torch.where(known, right, present)
    eps = 1e-8 if weights == "entropy" else math.log(logits.shape[-1])
    w = voters.double() if weights == "equal" else voters / (H + eps)
    q = w / w.sum(0).clamp_min(torch.finfo(w.dtype).tiny)
    return torch.einsum("kc,kcj->cj", q, logits).float(), known, q


def _bounded(logits: Tensor, present: Tensor) -> Tensor:
    """Logits (K, C, C) whose deviations from their means have at most twice the median norm over clients."""
    mean = logits.mean(-1, keepdim=True)
    norm = torch.linalg.vector_norm(logits - mean, dim=-1)
    median = torch.where(present, norm, math.nan).nanmedian(0).values.nan_to_num()
    factor = (2 * median / norm.clamp(min=torch.finfo(norm.dtype).tiny)).clamp(max=1)
    return mean + factor[..., None] * (logits - mean)
