"""Reference implementation of Harmony by loops in double precision, with linear extractors A x + c.

Replies are applied at the end of each round.
"""

from itertools import product

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from tests.methods.hand import Data

OWNED = [(0, 1, 2), (1,), (0, 2), (0, 1), (2,), (0,)]
SIZES = [7, 5, 9, 6, 1, 8]


def assert_close(found, expected, tolerance=1e-6):
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=tolerance, atol=tolerance)


def head(linear):
    return torch.cat([linear.weight, linear.bias[:, None]], 1).detach()


def linear_extractors(clients, seed=None):
    """Set linear extractors x -> A x + c: the identity, or with a seed a random perturbation of it."""
    g = torch.Generator().manual_seed(seed or 0)
    for client in clients:
        extractors = [nn.utils.skip_init(nn.Linear, 2, 2) for _ in client.spec.modalities]
        for extractor in extractors:
            noise = torch.randn(2, 3, generator=g) * (0.0 if seed is None else 0.3)
            extractor.weight.data = torch.eye(2) + noise[:, :2]
            extractor.bias.data = noise[:, 2].clone()
        client.model.extractors = nn.ModuleList(extractors)


def random_clients():
    rng = np.random.default_rng(5)
    labels = [rng.integers(0, 3, n).tolist() for n in SIZES]  # no client has class 3
    return [
        Data({m: (rng.normal(size=(len(y), 2)) + [[c, m - c] for c in y]).tolist() for m in owned}, y)
        for owned, y in zip(OWNED, labels, strict=True)
    ]


class ReferenceClient:
    """A client of the reference; theta[m], heads[m] and h are [A c] matrices."""

    def __init__(self, k, data, client, start):
        self.values, self.y = data
        self.owned = OWNED[k]
        self.x = [torch.tensor(self.values[m], dtype=torch.float64) for m in self.owned]
        self.theta = [head(f).double() for f in client.model.extractors]
        self.heads = [start.clone() for _ in self.owned]
        self.h = start.clone()

    @staticmethod
    def apply(h, x):
        return x @ h[:, :-1].T + h[:, -1]

    def fused(self, theta, fusion):
        z = [self.apply(a, x) for a, x in zip(theta, self.x, strict=True)]
        return z if fusion == "separate" else [sum(z)]

    def train(self, compute_loss, groups, epochs):
        for _ in range(epochs):
            parameters = [p for group, _ in groups for p in group]
            for p in parameters:
                p.requires_grad_(True)
                p.grad = None
            compute_loss().backward()
            with torch.no_grad():
                for group, lr in groups:
                    for p in group:
                        p -= lr * p.grad
            for p in parameters:
                p.requires_grad_(False)

    def loss(self, logits):
        return F.cross_entropy(logits, torch.tensor(self.y))

    def unimodal_loss(self):
        return sum(
            self.loss(self.apply(h, self.apply(a, x))) for h, a, x in zip(self.heads, self.theta, self.x, strict=True)
        )

    def fusion_loss(self, fusion):
        items = self.fused(self.theta, fusion)
        return sum(self.loss(self.apply(self.h, z)) for z in items) / len(items)

    def correct(self, stage, fusion):
        if stage == "fusion":
            guesses = [self.apply(self.h, z).argmax(1) for z in self.fused(self.theta, fusion)]
        else:
            p = [
                self.apply(h, self.apply(a, x)).softmax(1)
                for h, a, x in zip(self.heads, self.theta, self.x, strict=True)
            ]
            guesses = [q.argmax(1) for q in p] if fusion == "separate" else [sum(p).argmax(1)]
        return sum(int((g == torch.tensor(self.y)).sum()) for g in guesses)


def cosine_distance(a, b):
    a, b = a.flatten().numpy(), b.flatten().numpy()
    return 1 - a @ b / np.sqrt((a @ a) * (b @ b))


def inertia(X, labels):
    return sum(((X[labels == g] - X[labels == g].mean(0)) ** 2).sum() for g in set(labels.tolist()))


def brute_force_clusters(bias, G):
    X = bias.copy()
    for m in range(X.shape[1]):
        if X[:, m].max() > 0:
            X[:, m] = X[:, m] / X[:, m].max()
    G = min(G, len(X))
    return min((np.array(g) for g in product(range(G), repeat=len(X))), key=lambda labels: inertia(X, labels))


def run_reference(clients, participants_of, T, T1, fusion, lr, epochs, G, options):
    """Run T rounds; return the number of correct test items by round and client."""
    multimodal = options.get("stage2_clients") == "multimodal"
    start = clients[0].h.clone()
    scores = []
    for t in range(1, T + 1):
        stages = ["unimodal" if t <= T1 else "alone" if multimodal and len(c.owned) == 1 else "fusion" for c in clients]
        if t == T1 + 1:
            for c in clients:
                c.theta_init = [a.clone() for a in c.theta]
                if options.get("fusion_init") == "random":
                    c.h = start.clone()
                else:
                    c.h = sum(c.heads) / len(c.heads)
        before = {}
        for k in participants_of(t):
            c = clients[k]
            if stages[k] == "fusion":
                before[k] = c.h.clone()
                c.train(lambda c=c: c.fusion_loss(fusion), [(c.theta, 0.5 * lr), ([c.h], lr)], epochs)
            else:
                c.train(c.unimodal_loss, [(c.theta, lr), (c.heads, lr)], epochs)
        scores.append([c.correct(stage, fusion) for c, stage in zip(clients, stages, strict=True)])
        if t <= T1:
            for m in range(3):
                owners = [k for k in participants_of(t) if m in OWNED[k]]
                trained = [clients[k].heads[OWNED[k].index(m)] for k in owners]
                for k in owners:
                    clients[k].heads[OWNED[k].index(m)] = sum(trained) / len(trained)
        elif before:
            bias = np.zeros((len(before), 3))
            for row, k in zip(bias, before, strict=True):
                for m, now, then in zip(OWNED[k], clients[k].theta, clients[k].theta_init, strict=True):
                    row[m] = cosine_distance(now, then)
            labels = brute_force_clusters(bias, G)
            trained = {k: clients[k].h for k in before}
            for k, g in zip(before, labels, strict=True):
                members = [j for j, label in zip(before, labels, strict=True) if label == g]
                if options.get("average") == "weights":
                    clients[k].h = sum(trained[j] for j in members) / len(members)
                else:
                    clients[k].h = before[k] + sum(trained[j] - before[j] for j in members) / len(members)
    return scores
