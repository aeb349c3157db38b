"""The server's rounds, compared with a reference by loops, torch's SGD and clipping, and a plain Sinkhorn."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.methods.hand import CPU, Data

C, d, M, LR, TAU, E_0 = 3, 4, 2, 0.05, 0.5, 6.0
OWNED = {0: [0, 1], 1: [0], 2: [1]}  # client -> modalities
CLASSES = {0: [0, 1, 2], 1: [0, 1], 2: [1, 2]}


class Reference:
    """Reference server that processes one prototype at a time."""

    def __init__(self, weights, clip, without, mean=False):
        self.clip, self.without, self.mean = clip, without, mean
        self.encoders, self.decoder = [nn.Linear(d, d // 2) for _ in range(M)], nn.Linear(d // 2, d)
        with torch.no_grad():
            for m, encoder in enumerate(self.encoders):
                encoder.weight.copy_(weights["encoder_weight"][m].T)
                encoder.bias.copy_(weights["encoder_bias"][m, 0])
            self.decoder.weight.copy_(weights["decoder_weight"].T)
            self.decoder.bias.copy_(weights["decoder_bias"])
        self.parameters = [p for layer in (*self.encoders, self.decoder) for p in layer.parameters()]
        self.sgd = torch.optim.SGD(self.parameters, lr=LR)
        self.restart_plans()

    def project(self, m, e):
        return self.decoder(F.relu(self.encoders[m](e)))

    def prototypes(self, uploads):
        """P_G (M, C, d); every class is present in both modalities."""
        return torch.stack([
            torch.stack([
                torch.stack([
                    self.project(m, uploads[k]["E"][OWNED[k].index(m), c])
                    for k in uploads if m in OWNED[k] and c in CLASSES[k]
                ]).mean(0)
                for c in range(C)
            ])
            for m in range(M)
        ])  # fmt: skip

    def reconstruction(self, uploads):
        total = 0.0
        for k, upload in uploads.items():
            for i, m in enumerate(OWNED[k]):
                for c in CLASSES[k]:
                    total += (self.project(m, upload["E"][i, c]) - upload["E"][i, c]).square().sum()
        prototypes = sum(len(OWNED[k]) * len(CLASSES[k]) for k in uploads)
        return total / (prototypes if self.mean else len(uploads))

    def contrast(self, P_G):
        total = 0.0
        for m, n in ((0, 1), (1, 0)):
            for c in range(C):
                s = torch.stack([F.cosine_similarity(P_G[m, c], P_G[n, other], dim=0) for other in range(C)]) / TAU
                total += F.cross_entropy(s[None], torch.tensor([c]))
        return total / (2 * C if self.mean else 1)

    def alignment(self, P_G, I_G):
        total = 0.0
        for m in range(M):
            costs = []
            for X in (I_G.double(), P_G[m].double()):
                D = torch.stack([torch.stack([(a - b).square().sum() for b in X]) for a in X])
                costs.append(D / D.mean())
            L = (costs[0][:, None, :, None] - costs[1][None, :, None, :]).square()  # (C1_ik - C2_jl)^2
            T = self.plans[m] = fixed_point(L.detach(), self.plans[m], E_0 / C)
            total += torch.einsum("ijkl,ij,kl->", L, T, T) + E_0 / C * (T * T.log()).sum()
        return total / (M if self.mean else 1)

    def norm(self, loss):
        self.sgd.zero_grad()
        loss.backward(retain_graph=True)
        return sum(p.grad.square().sum() for p in self.parameters if p.grad is not None).sqrt().item()

    def restart_plans(self):
        self.plans = {m: torch.eye(C, dtype=torch.float64) / C for m in range(M)}

    def round(self, uploads, I_G, steps):
        for _ in range(steps):
            P_G = self.prototypes(uploads)
            terms = {
                "rec": lambda: self.reconstruction(uploads),
                "con": lambda P_G=P_G: self.contrast(P_G),
                "align": lambda P_G=P_G: self.alignment(P_G, I_G),
            }
            losses = {name: term() for name, term in terms.items() if name not in self.without}
            self.norms = {f"gradient_{name}": self.norm(loss) for name, loss in losses.items()}
            self.sgd.zero_grad()
            sum(losses.values()).backward()
            if self.clip:
                nn.utils.clip_grad_norm_(self.parameters, self.clip)
            self.sgd.step()
        return self.prototypes(uploads).detach()


def fixed_point(L, T, epsilon):
    """Iterate T = Sinkhorn(2 L (x) T) to convergence."""
    before = torch.zeros_like(T)
    while (T - before).abs().max() > 1e-8:
        before, log_T, rows = T, -2 * torch.einsum("ijkl,kl->ij", L, T) / epsilon, 0
        while abs(rows - 1) > 1e-9:
            log_T = log_T.log_softmax(1).log_softmax(0)
            rows = log_T.exp().sum(1).max()
        T = log_T.exp() / C
    return T


def logits_by_entropy(uploads):
    rows = []
    for c in range(C):
        I = torch.stack([uploads[k]["I"][c] for k in uploads if c in CLASSES[k]])
        p = I.softmax(-1)
        w = 1 / (-(p * p.log()).sum(-1) + 1e-8)
        rows.append((w[:, None] * I).sum(0) / w.sum())
    return torch.stack(rows)


def server_of(make_federation, **params):
    data = [Data({m: torch.zeros(len(CLASSES[k]), d).tolist() for m in OWNED[k]}, CLASSES[k]) for k in OWNED]
    params = {"server_epochs": 3, "server_lr": LR, "tau": TAU, "gw_epsilon": E_0, **params}
    return make_federation("mfedpba", data, M, C, d, batch_size=2, mfedpba=params, track_gradients=True).server


def random_uploads(stream):
    """Random uploads of all clients."""
    return {
        k: {"E": torch.randn(len(m), C, d, generator=stream), "I": 2 * torch.randn(C, C, generator=stream)}
        for k, m in OWNED.items()
    }


@pytest.mark.parametrize(
    ("clip", "without"), [(0.0, ()), (0.5, ()), (0.5, ("rec",)), (0.5, ("con",)), (0.5, ("align",))]
)
def test_two_rounds_equal_the_reference(make_federation, clip, without):
    printed = {"server_loss": "sum", "gw_start": "last", "logit_weights": "entropy"}
    server = server_of(make_federation, server_clip=clip, without=without, **printed)
    server.alignment.tol = 1e-9
    reference = Reference(server.autoencoder.state_dict(), clip, without)
    stream = torch.Generator(CPU).manual_seed(0)
    for t in (1, 2):
        uploads = random_uploads(stream)
        reply, I_G = server.step(t, 0, uploads), logits_by_entropy(uploads)
        torch.testing.assert_close(reply["I_G"], I_G)
        torch.testing.assert_close(reply["P_G"], reference.round(uploads, I_G, 3), rtol=1e-4, atol=1e-5)
        norms = {name: value for name, value in server.record.items() if name.startswith("gradient_")}
        assert norms == pytest.approx(reference.norms, rel=1e-4)


def test_two_rounds_with_mean_losses_and_plans_from_the_identity_equal_the_reference(make_federation):
    server = server_of(make_federation, server_loss="mean", gw_start="identity", logit_weights="entropy")
    server.alignment.tol = 1e-9
    reference = Reference(server.autoencoder.state_dict(), 0.0, (), mean=True)
    stream = torch.Generator(CPU).manual_seed(0)
    for t in (1, 2):
        uploads = random_uploads(stream)
        reply = server.step(t, 0, uploads)
        reference.restart_plans()
        expected = reference.round(uploads, logits_by_entropy(uploads), 3)
        torch.testing.assert_close(reply["P_G"], expected, rtol=1e-4, atol=1e-5)
        norms = {name: value for name, value in server.record.items() if name.startswith("gradient_")}
        assert norms == pytest.approx(reference.norms, rel=1e-4)


def test_rounds_with_pots_solver_equal_ours(make_federation):
    ours, pots = (server_of(make_federation, gw_solver=solver) for solver in ("newton", "pot"))
    for server in (ours, pots):
        server.alignment.tol = 1e-8
    uploads = random_uploads(torch.Generator(CPU).manual_seed(0))
    torch.testing.assert_close(ours.step(1, 0, uploads)["P_G"], pots.step(1, 0, uploads)["P_G"], rtol=1e-5, atol=1e-6)


def test_global_prototypes_of_the_controls(make_federation):
    """Client 0 has all classes of both modalities, client 1 classes 0 and 1 of modality 0."""
    uploads = random_uploads(torch.Generator(CPU).manual_seed(0))
    E = [upload["E"] for upload in uploads.values()]
    found = {}
    for control in ("trained", "random", "mean", "zero"):
        server = server_of(make_federation, global_prototypes=control)
        before = Reference(server.autoencoder.state_dict(), 0.0, ())
        found[control] = server.step(1, 0, uploads)["P_G"]
    torch.testing.assert_close(found["random"], before.prototypes(uploads).detach())
    torch.testing.assert_close(found["mean"][0, :2], (E[0][0, :2] + E[1][0, :2]) / 2)
    torch.testing.assert_close(found["mean"][0, 2], E[0][0, 2])
    assert torch.equal(found["zero"], torch.zeros(M, C, d))
    assert not torch.equal(found["trained"], found["random"])


def test_a_client_of_confident_nonsense_hardly_moves_bounded_logits(make_federation):
    """Client 1 is sure of class 2 whatever it sees. With the paper's weights it decides I_G of its classes alone."""
    uploads = random_uploads(torch.Generator(CPU).manual_seed(0))
    for k in uploads:
        uploads[k]["I"] = 2 * torch.eye(C)
    uploads[1]["I"] = 60 * torch.eye(C)[2].expand(C, C)
    predicted = {
        weights: server_of(make_federation, logit_weights=weights).step(1, 0, uploads)["I_G"].argmax(-1).tolist()
        for weights in ("entropy", "correct")
    }
    assert predicted == {"entropy": [2, 2, 2], "correct": [0, 1, 2]}


@pytest.mark.parametrize("weights", ["entropy", "bounded", "correct", "equal"])
def test_a_dominant_client_causes_one_warning(make_federation, weights):
    """Client 1 has very confident logits for classes 0 and 1, which other clients have too."""
    server, uploads = (
        server_of(make_federation, logit_weights=weights),
        random_uploads(torch.Generator(CPU).manual_seed(0)),
    )
    server.step(1, 0, uploads)
    assert server.warnings == []
    uploads[1]["I"] = 100 * uploads[1]["I"]
    server.step(2, 0, uploads)
    server.step(3, 0, uploads)  # no second warning
    found = [text for text in server.warnings if text.startswith("client 1 dominates I_G in 2 of its 2 classes")]
    assert len(found) == len(server.warnings) == (weights == "entropy")


@pytest.mark.parametrize("made_by", ["trained", "random", "mean", "zero"])
def test_the_log_has_the_autoencoder_that_made_the_last_prototypes(finished, made_by):
    final = finished(method="mfedpba", mfedpba={"global_prototypes": made_by}).final
    names = ("encoder_weight", "encoder_bias", "decoder_weight", "decoder_bias")
    if made_by in ("mean", "zero"):
        assert not set(names) & set(final)
        return
    W, b, V, c = (final[name] for name in names)
    for m in range(len(W)):
        P = np.maximum(final["E"][final["E_modality"] == m] @ W[m] + b[m], 0) @ V + c
        np.testing.assert_allclose(P.mean(axis=0), final["P_G"][m], rtol=1e-4, atol=1e-6)
