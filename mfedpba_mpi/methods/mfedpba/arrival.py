"""What new prototypes do to a client's loss when they arrive: Lemma 2 of the paper, measured.

Client k has ended its round with the class means E_k and I_k over its training rows, and P_G and I_G become P_G' and
I_G'. L_ce stays as it is, so the loss changes by lambda_1 (L_fea' - L_fea) + lambda_2 (L_logit' - L_logit). Both losses
are means over the classes that the client uploads and that the old and the new prototypes have.

What causes the change is exact. With s = P_G' + P_G - 2 E_k, and P the prototypes that the old autoencoder makes of
the new uploads,

    ||P_G' - E_k||^2 - ||P_G - E_k||^2 = <P_G' - P_G, s>,   P_G' - P_G = (P_G' - P) + (P - P_G):

* server  = lambda_1 mean_{m,c} <P_G' - P, s>, because the autoencoder was trained, with the uploads fixed;
* clients = lambda_1 mean_{m,c} <P - P_G, s> + lambda_2 (L_logit' - L_logit), because the clients have moved.

What bounds it is as in the proof: with the plain mean A of the uploads, ||P_G' - P_G|| <= ||P_G' - A'|| + ||A' - A|| +
||A - P_G||, which are its parts A1, A2 and A3.

* drift = lambda_1 mean_{m,c} ||s|| ||A' - A|| + lambda_2 |L_logit' - L_logit|, the paper's Gamma_d E eta_c;
* bias  = lambda_1 mean_{m,c} ||s|| (||P_G' - A'|| + ||P_G - A||), the paper's Gamma_s.

So L_after - L_before = clients + server <= drift + bias. The paper's proof writes norms for the losses, where they are
squares and a KL divergence; ||s|| and the difference of L_logit make up for that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

TERMS = ("arrival_clients", "arrival_server", "arrival_drift", "arrival_bias")  # names in /rounds
NAMES = ("P_G", "P_present", "I_G", "I_present")


def common_classes(old: Mapping[str, Tensor], new: Mapping[str, Tensor], uploaded: Tensor) -> tuple[Tensor, Tensor]:
    """Return the classes of L_fea (M, C) and of L_logit (C,): `uploaded` (C,), and in old and new prototypes."""
    of_features, of_logits = ((old[name] > 0) & (new[name] > 0) & uploaded for name in ("P_present", "I_present"))
    return of_features, of_logits


def feature_mean(values: Tensor, classes: Tensor) -> Tensor:
    """Mean over modalities of the mean over `classes` (m, C) of values (m, C)."""
    return (values.where(classes, 0).sum(-1) / classes.sum(-1).clamp(min=1)).mean()


def feature_loss(E: Tensor, P_G: Tensor, classes: Tensor) -> Tensor:
    """L_fea of the class means E (m, C, d) and the prototypes P_G of their modalities, over `classes` (m, C)."""
    return feature_mean((P_G - E).square().sum(-1), classes)


def logit_loss(I: Tensor, I_G: Tensor, classes: Tensor) -> Tensor:
    """L_logit of the class means I (C, C) and the prototypes I_G, over `classes` (C,)."""
    divergence = F.kl_div(I.log_softmax(-1), I_G.log_softmax(-1), reduction="none", log_target=True).sum(-1)
    return divergence.where(classes, 0).sum() / classes.sum().clamp(min=1)


def change_terms(
    upload: Mapping[str, Tensor], modalities: Sequence[int], old: Mapping[str, Tensor], new: Mapping[str, Tensor],
    uploaded: Tensor, lambdas: tuple[float, float],
) -> list[float]:  # fmt: skip
    """Return the `TERMS` of a client with these modalities, its upload, and the classes (C,) that it uploads.

    `old` and `new` are global prototypes with the means "A" (M, C, d) of the uploads; `new` also has "P" (M, C, d).
    """
    own, (lambda_1, lambda_2) = list(modalities), lambdas
    of_features, of_logits = common_classes(old, new, uploaded)
    of_features = of_features[own]
    P_G, A = new["P_G"][own], new["A"][own]
    old_P_G, old_A = old["P_G"][own], old["A"][own]
    P, I = new["P"][own], upload["I"]
    s = P_G + old_P_G - 2 * upload["E"]

    def product(difference: Tensor) -> Tensor:
        return lambda_1 * feature_mean((difference * s).sum(-1), of_features)

    def bound(*differences: Tensor) -> Tensor:
        lengths = [torch.linalg.vector_norm(x, dim=-1) for x in (s, *differences)]
        return lambda_1 * feature_mean(lengths[0] * torch.stack(lengths[1:]).sum(0), of_features)

    logit = lambda_2 * (logit_loss(I, new["I_G"], of_logits) - logit_loss(I, old["I_G"], of_logits))
    terms = (
        product(P - old_P_G) + logit,
        product(P_G - P),
        bound(A - old_A) + logit.abs(),
        bound(P_G - A, old_P_G - old_A),
    )
    return torch.stack(terms).tolist()
