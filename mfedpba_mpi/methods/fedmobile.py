"""FedMobile, our reading: reconstruction of missing features, and aggregation weighted by client contributions.

Only the abstract of Liu, Wang, Yuan (WWW 2025) and a summary were available, so this is not a reproduction. Clients
upload the classifier h_k and the local contribution l_k, P_h + 1 floats. The server broadcasts h_G and the generator
G_w, P_h + P_G floats with P_G = (n_z + C + M) h + h + 2 h + h d + d + 2 h; the last 2 h are the running statistics of
its BatchNorm.

* generator: G_w(y, m, eps) = B2 relu(BN(B1 [eps; onehot(y); onehot(m)])), eps ~ U(0, 1)^n_z;
* client: h_k <- h_G; zt = sum_m z^m; the student R_k reconstructs the missing features, with the teacher
  g = mean_{m not in M_k} G_w(y, m, eps); with y' drawn by the global label counts and m' uniformly,
  L = CE(h_k(zt + R_k(zt)), y) + lambda_r MSE(R_k(zt), g) + lambda_g CE(h_k(G_w(y', m', eps)), y');
  l_k = max(0, ce_off - ce_on) / max(ce_off, 1e-8), from the training cross-entropies without and with R_k;
* server: S_g steps on CE(teacher_m(G_w(y, m, eps)), y), where teacher_m averages h_k(v) over the owners of m by n_k;
  k-means clusters of h_k - h_G with Shapley values phi_j for U(S) = -CE of the mean classifier of S on generated
  features, phi_k = phi_j / |cluster|; h_G = sum_k a_k h_k, a_k ~ n_k (1 + minmax(phi_k)) (1 + minmax(l_k)).

Our choices, where the sources give no details or do not apply to this setting, and defects of HtFLlib's FedGen, in the
versions read, that are not copied ([A] and [F] as in the other methods; [C] in `base`):

* [A1] the components are FedGen's data-free distillation, with its loss weights, and exact Shapley values of clusters;
* [A2] the generator is trained by SGD, like everything in the paper. FedGen's Adam is an option; its moments persist
  over rounds. On mfeat with Adam the generated features keep growing until clients diverge after about 50 rounds;
* [A3] a generator step uses as many draws as a client's batch has samples, and so does the lambda_g term. BatchNorm
  statistics are updated in the server's steps only; elsewhere the running statistics are used;
* [A4] a modality on which the generator has not been trained yet (all of them before the server's first step) is
  excluded from g and m'; the mask `taught` is part of the reply. A modality that no participant owns is excluded from
  the generator's steps and from U;
* [A5] R_k is used, and trained by the cross-entropy, from the start; a client with all modalities has no R_k, and its
  l_k is 0;
* [A6] with fusion ``separate`` z^m of an item replaces zt, so an item is classified by h_k(z^m + R_k(z^m));
* [F1] clients leave the generator's BatchNorm in training mode, so that a feature depends on its batch;
* [F2] the server never saves the trained generator.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import count

import numpy as np
import torch
from scipy.special import comb
from torch import Tensor, nn
from torch.nn import functional as F

from mfedpba_mpi.comm.layout import Layout, Message
from mfedpba_mpi.data.shards import ClientData
from mfedpba_mpi.errors import check_finite
from mfedpba_mpi.methods.base import Problem, Server
from mfedpba_mpi.methods.clustering import kmeans
from mfedpba_mpi.methods.heads import (
    HeadClient,
    HeadMethod,
    average_heads,
    draw_head,
    head_message,
    head_shapes,
    set_head,
)
from mfedpba_mpi.methods.params import FedMobileParameters
from mfedpba_mpi.methods.training import AutogradLoss, Epoch, Loss, cross_entropy
from mfedpba_mpi.rng import generator, seeded, torch_seed

_COALITION_BATCH = 64  # coalitions evaluated at once; fixed, because results could depend on it bit for bit
_TRAINED = ("B1", "c1", "B2", "c2", "bn_scale", "bn_shift")


def generator_shapes(problem: Problem, params: FedMobileParameters) -> dict[str, tuple[int, ...]]:
    """Shapes of the generator's tensors w, P_G floats."""
    h, d = params.hidden, problem.d
    layers = {"B1": (h, params.noise + problem.C + problem.M), "c1": (h,), "B2": (d, h), "c2": (d,)}
    return layers | dict.fromkeys(("bn_scale", "bn_shift", "bn_mean", "bn_var"), (h,))


def draw_generator(problem: Problem, params: FedMobileParameters, device: torch.device) -> dict[str, Tensor]:
    """Initialise w with PyTorch's default distributions for Linear and BatchNorm layers."""
    shapes = generator_shapes(problem, params)
    stream = torch.Generator().manual_seed(torch_seed(problem.config.seed, "generator"))
    w = {name: torch.full(shape, float(name in ("bn_scale", "bn_var"))) for name, shape in shapes.items()}
    for layer in "12":
        bound = shapes[f"B{layer}"][1] ** -0.5
        for name in (f"B{layer}", f"c{layer}"):
            w[name].uniform_(-bound, bound, generator=stream)
    return {name: value.to(device) for name, value in w.items()}


def generate(w: Message, x: Tensor, training: bool = False) -> Tensor:
    """Generate v (n, d) = G_w(x) from inputs x (n, n_z + C + M); training updates the running statistics in w."""
    a = F.linear(x, w["B1"], w["c1"])
    a = F.batch_norm(a, w["bn_mean"], w["bn_var"], w["bn_scale"], w["bn_shift"], training)
    return F.linear(a.relu(), w["B2"], w["c2"])


class GeneratorInputs:
    """Generator inputs from the random stream (`purpose`, *`key`); `modalities` (M,) bool are those to sample."""

    def __init__(self, problem: Problem, modalities: Tensor, purpose: str, *key: int):
        self.stream = torch.Generator().manual_seed(torch_seed(problem.config.seed, purpose, *key))
        self.noise = problem.config.params.noise
        self.labels = torch.tensor(np.sum([client.counts for client in problem.clients], 0)).double()
        self.modalities, self.device = modalities.double().cpu(), modalities.device

    def inputs(self, y: Tensor, m: Tensor) -> Tensor:
        """Return x (n, n_z + C + M) = [eps; onehot(y); onehot(m)] for classes y (n,) and modalities m (n,)."""
        eps = torch.rand(len(y), self.noise, generator=self.stream).to(self.device)
        return torch.cat([eps, F.one_hot(y, len(self.labels)), F.one_hot(m, len(self.modalities))], 1)

    def draw(self, n: int) -> tuple[Tensor, Tensor, Tensor]:
        """Draw n classes y by the label counts of all clients and n modalities m uniformly; return y, m, inputs x."""
        y, m = (
            torch.multinomial(weights, n, replacement=True, generator=self.stream).to(self.device)
            for weights in (self.labels, self.modalities)
        )
        return y, m, self.inputs(y, m)


class FedMobileClient(HeadClient):
    """Client with a student network R_k that reconstructs the features of all missing modalities as one token."""

    params: FedMobileParameters
    terms = ("ce", "rec", "gen")

    def __init__(self, k: int, problem: Problem, data: ClientData, device: torch.device):
        super().__init__(k, problem, data, device)
        self.missing = sorted(set(range(problem.M)) - set(self.spec.modalities))
        self.R: nn.Module | None = None
        if self.missing:
            d = problem.d
            with seeded(self.config.seed, "reconstruction", k):
                self.R = self.model.R = nn.Sequential(nn.Linear(d, d), nn.ReLU(), nn.Linear(d, d)).to(device)

    def update(self, t: int, phase: int, inbox: Message) -> Message:
        set_head(self.model.classifier, inbox)
        numbers = count()
        self.train(t, lambda epoch: self._client_loss(epoch, inbox, t, next(numbers)))
        return {**head_message(self.model.classifier), "l": self._contribution()}

    def predict(self, t: int, Z: Tensor, inbox: Message) -> Sequence[Tensor]:
        return [self._reconstruct(Z)[0].argmax(-1)]

    def _reconstruct(self, Z: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits o (items, b, C) = h_k(zt + r) and tokens r (items, b, d) = R_k(zt); r = 0 without R_k."""
        zt = self.model.fuse(Z)
        r = self.R(zt) if self.R else torch.zeros_like(zt)
        return self.model.classifier(zt + r), r

    def _client_loss(self, epoch: Epoch, inbox: Message, t: int, number: int) -> Loss:
        """CE + lambda_r MSE(r, g) + lambda_g CE(h_k(v), y'), without modalities that the generator has not learned."""
        taught = inbox["taught"] > 0
        sampler = GeneratorInputs(self.problem, taught, "generated", self.k, t, number)
        n, is_taught = len(epoch.y), taught.tolist()
        lambda_r = self.params.lambda_r if any(is_taught[m] for m in self.missing) else 0.0
        lambda_g = self.params.lambda_g if any(is_taught) else 0.0
        if lambda_r:
            sources = torch.tensor([m for m in self.missing if is_taught[m]], device=self.device)
            x = sampler.inputs(epoch.y.repeat(len(sources)), sources.repeat_interleave(n))
            g = generate(inbox, x).view(len(sources), n, -1).mean(0)
        if lambda_g:
            y_drawn, _, x = sampler.draw(n)
            v = generate(inbox, x)
        zero = torch.zeros((), device=self.device)

        def loss(number: int, rows: slice, Z: Tensor) -> tuple[Tensor, list[Tensor]]:
            logits, r = self._reconstruct(Z)
            total = ce = cross_entropy(logits, epoch.y[rows])
            rec = gen = zero
            if lambda_r:
                rec = F.mse_loss(r, g[rows].expand_as(r))
                total = total + lambda_r * rec
            if lambda_g:
                gen = F.cross_entropy(self.model.classifier(v[rows]), y_drawn[rows])
                total = total + lambda_g * gen
            return total, [ce, rec, gen]

        return AutogradLoss(self, loss)

    @torch.no_grad()
    def _contribution(self) -> Tensor:
        """l_k = max(0, ce_off - ce_on) / max(ce_off, 1e-8) over the training rows; 0 if no modality is missing."""
        n, ce = len(self.train_labels), torch.zeros(2, device=self.device)
        for rows, Z in self.clean_pass(self.train_rows, n):
            y = self.train_labels[rows]
            both = [cross_entropy(logits, y) for logits in (self.model.logits(Z), self._reconstruct(Z)[0])]
            ce += torch.stack(both) * (len(y) / n)
        off, on = ce
        return (off - on).clamp(min=0) / off.clamp(min=1e-8)


def coalitions(J: int) -> np.ndarray:
    """Membership matrix (2^J, J) of 0/1: coalition S contains j if bit j of S is set."""
    return np.arange(2**J)[:, None] >> np.arange(J) & 1


def shapley(U: np.ndarray) -> np.ndarray:
    """Shapley values phi_j = sum over S without j of |S|! (J - |S| - 1)! / J! (U(S + j) - U(S)), of U (2^J,)."""
    J = len(U).bit_length() - 1
    A = coalitions(J)
    others = A.sum(1, keepdims=True) - A
    return ((2 * A - 1) / (J * comb(J - 1, others)) * U[:, None]).sum(0)


@torch.no_grad()
def utilities(W: Tensor, b: Tensor, n: Tensor, clusters: np.ndarray, v: Tensor, y: Tensor) -> np.ndarray:
    """U(S) = -CE on (v, y) of the mean classifier, weighted by n, of the clients in the clusters S; U({}) = -log C.

    Parameters
    ----------
    W, b : (clients, C, d) and (clients, C) classifiers.
    n : (clients,) training samples.
    clusters : (clients,) cluster labels.
    v, y : (draws, d) generated features and (draws,) their classes.

    Returns
    -------
    U (2^J,) in the order of `coalitions`.
    """
    members = coalitions(int(clusters.max()) + 1)[1:, clusters]
    share = torch.tensor(members, device=n.device) * n
    U = []
    for a in (share / share.sum(1, keepdim=True)).split(_COALITION_BATCH):
        logits = v @ torch.einsum("sk,kcd->sdc", a, W) + (a @ b)[:, None]  # (coalitions, draws, C)
        ce = F.cross_entropy(logits.flatten(0, 1), y.repeat(len(a)), reduction="none")
        U.append(-ce.view(len(a), -1).mean(1))
    return np.concatenate([[-math.log(b.shape[1])], torch.cat(U).cpu().numpy()])


def minmax(x: np.ndarray) -> np.ndarray:
    """(x - min) / (max - min); 0 if all are equal."""
    return (x - x.min()) / (np.ptp(x) or 1.0)


def aggregation_weights(n: np.ndarray, phi: np.ndarray, l: np.ndarray) -> np.ndarray:
    """Weights a_k ~ n_k (1 + minmax(phi_k)) (1 + minmax(l_k)) with sum 1."""
    a = n * (1 + minmax(phi)) * (1 + minmax(l))
    return a / a.sum()


class FedMobileServer(Server):
    """Server that distils the generator, computes contributions, and aggregates classifiers."""

    params: FedMobileParameters
    persistent = ("head", "w", "moments", "steps", "taught")
    transient = ("trained",)  # shares memory with `w`

    def __init__(self, problem: Problem, device: torch.device):
        super().__init__(problem, device)
        self.head = draw_head(problem, device)
        w = draw_generator(problem, self.params, device)
        self.trained = torch.cat(
            [w[name].flatten() for name in _TRAINED]
        )  # parameters in w, without running statistics
        views = self.trained.split([w[name].numel() for name in _TRAINED])
        self.w = w | {name: view.view_as(w[name]) for name, view in zip(_TRAINED, views, strict=True)}
        self.moments = torch.zeros(2, len(self.trained), device=device)  # of Adam
        self.steps = torch.zeros((), dtype=torch.int64)
        self.taught = torch.zeros(problem.M, device=device)
        self.n = torch.tensor([client.n_train for client in problem.clients], device=device, dtype=torch.float32)
        owned = [[m in client.modalities for m in range(problem.M)] for client in problem.clients]
        self.owned = torch.tensor(owned, device=device)  # (K, M)

    def first_message(self) -> Message:
        w = {name: value.clone() for name, value in self.w.items()}
        return {**head_message(self.head), **w, "taught": self.taught.clone()}

    def step(self, t: int, phase: int, uploads: Mapping[int, Message]) -> Message:
        clients = list(uploads)
        W, b, l = (torch.stack([uploads[k][name] for k in clients]) for name in ("W", "b", "l"))
        n, owned = self.n[clients], self.owned[clients]
        if self.params.generator_steps:
            share = owned.T * n
            share = share / share.sum(1, keepdim=True).clamp(min=1)
            self._distil(t, torch.einsum("mk,kcd->mcd", share, W), share @ b, owned.any(0))
        y, _, x = GeneratorInputs(self.problem, owned.any(0), "utility", t).draw(self.params.draws)
        phi = self._contributions(t, W, b, n, generate(self.w, x), y)
        a = aggregation_weights(n.cpu().numpy(), phi, l.cpu().numpy())
        set_head(self.head, average_heads(uploads, torch.tensor(a, device=self.device, dtype=torch.float32)))
        reply = self.first_message()
        for name, value in reply.items():
            check_finite(f"server, round {t}: reply {name}", value, "lower --lr or generator_lr")
        return reply

    def _distil(self, t: int, W: Tensor, b: Tensor, owned: Tensor) -> None:
        """Train the generator for S_g steps on CE(teacher_m(G_w(y, m, eps)), y).

        Classifiers are linear, so teacher_m is the linear classifier W[m], b[m].

        Parameters
        ----------
        W, b : (M, C, d) and (M, C), the mean classifier of each modality's owners.
        owned : (M,) bool, the modalities owned by a participant.
        """
        size, steps = self.problem.config.batch_size, self.params.generator_steps
        drawn = GeneratorInputs(self.problem, owned, "distillation", t).draw(steps * size)
        leaves = [self.w[name].detach().requires_grad_() for name in _TRAINED]  # share memory with w
        w = self.w | dict(zip(_TRAINED, leaves, strict=True))
        losses = []
        for y, m, x in zip(*(part.split(size) for part in drawn), strict=True):
            v = generate(w, x, training=True)
            loss = F.cross_entropy(torch.baddbmm(b[m][..., None], W[m], v[..., None]).squeeze(2), y)
            self._generator_step(torch.cat([g.flatten() for g in torch.autograd.grad(loss, leaves)]))
            losses.append(loss.detach())
        self.taught[owned] = 1
        self.record["server_gen"] = value = torch.stack(losses).mean().item()
        check_finite(f"server, round {t}: generator loss", value, "lower generator_lr")

    def _generator_step(self, g: Tensor) -> None:
        """One step of SGD, or of Adam with PyTorch's default constants, with the gradient g of all parameters."""
        lr = self.params.generator_lr
        if self.params.generator_optimizer == "sgd":
            self.trained.sub_(g, alpha=lr)
            return
        self.steps += 1
        s = int(self.steps)
        first, second = self.moments
        first.lerp_(g, 0.1)
        second.mul_(0.999).addcmul_(g, g, value=0.001)
        self.trained.addcdiv_(first, (second / (1 - 0.999**s)).sqrt_().add_(1e-8), value=-lr / (1 - 0.9**s))

    def _contributions(self, t: int, W: Tensor, b: Tensor, n: Tensor, v: Tensor, y: Tensor) -> np.ndarray:
        """phi_k (clients,): Shapley values of clusters of similar updates h_k - h_G, divided equally among members."""
        updates = torch.cat([(W - self.head.weight).flatten(1), b - self.head.bias], 1).detach()
        rng = generator(self.problem.config.seed, "clusters", t)
        clusters = kmeans(updates.double().cpu().numpy(), min(self.params.clusters, len(n)), rng)
        phi = shapley(utilities(W, b, n, clusters, v, y))
        return (phi / np.bincount(clusters))[clusters]


class FedMobileMethod(HeadMethod):
    """P_h + 1 floats up; P_h + P_G floats and the mask of taught modalities down."""

    client_class = FedMobileClient
    server_class = FedMobileServer

    def upload(self, t: int, phase: int, k: int) -> Layout:
        return Layout({**head_shapes(self.problem), "l": ()})

    def first(self) -> Layout:
        payload = {**head_shapes(self.problem), **generator_shapes(self.problem, self.params)}
        return Layout(payload, {"taught": (self.problem.M,)})


METHOD = FedMobileMethod
