"""FedMobile, our reading: missing features rebuilt from other clients' knowledge, clients weighted by contribution.

Only the abstract of Liu, Wang, Yuan (WWW 2025) and a summary of it could be read: what follows is no reproduction.
Up go the classifier h_k and the local contribution l_k, P_h + 1 floats; down come h_G and the generator G_w, P_h + P_G
with P_G = (n_z + C + M) h + h + 2 h + h d + d + 2 h, the last 2 h being the running statistics of its BatchNorm.

* generator: G_w(y, m, eps) = B2 relu(BN(B1 [eps; onehot(y); onehot(m)])), eps ~ U(0, 1)^n_z;
* client: h_k <- h_G; zt = sum_m z^m; the student R_k rebuilds what is missing, and the teacher g is
  mean_{m not in M_k} G_w(y, m, eps); with y' by the global label counts and m' uniform,
  L = CE(h_k(zt + R_k(zt)), y) + lambda_r MSE(R_k(zt), g) + lambda_g CE(h_k(G_w(y', m', eps)), y');
  l_k = max(0, ce_off - ce_on) / max(ce_off, 1e-8), the training cross-entropies without and with R_k;
* server: S_g steps on CE(teacher_m(G_w(y, m, eps)), y), where teacher_m averages h_k(v) over the owners of m by n_k;
  clusters of h_k - h_G by k-means, their Shapley values phi_j for U(S) = -CE of the mean classifier of S on generated
  features, phi_k = phi_j / |cluster|; h_G = sum_k a_k h_k, a_k ~ n_k (1 + minmax(phi_k)) (1 + minmax(l_k)).

Ours, where the sources are silent or this setting lacks something:

* the blocks are FedGen's data-free distillation, with its weights, and exact Shapley values of clusters;
* the generator learns by SGD, as all is learned in the paper. FedGen's Adam is an option; its moments persist over
  rounds. On mfeat it makes generated features ever larger, until clients diverge after some 50 rounds;
* a generator step takes as many draws as a client's batch has samples, and so does lambda_g's term. BatchNorm learns
  in the server's steps alone; everywhere else its running statistics are used;
* a modality that the generator has not been taught yet (before the server's first step, all of them) is left out of g
  and m': the mask `taught` travels along. One that no participant owns is left out of the generator's steps and of U;
* R_k is in use, and trained by the cross-entropy, from the start; a client with all modalities has none, and l_k = 0;
* fusion ``separate``: what is written on zt holds for each item's z^m, so an item is classified by h_k(z^m + R_k(z^m)).

Not copied from HtFLlib's FedGen, in the versions read: its clients leave the generator's BatchNorm in training
mode, so that a feature depends on its batch; its server never saves the generator that it has trained.
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
from mfedpba_mpi.methods.params import FedMobile as Params
from mfedpba_mpi.methods.training import AutogradLoss, Epoch, Loss, cross_entropy
from mfedpba_mpi.rng import generator, seeded, torch_seed

_COALITIONS = 64  # valued at a time; fixed, since bits could depend on it
_LEARNED = ("B1", "c1", "B2", "c2", "bn_scale", "bn_shift")


def generator_shapes(problem: Problem, params: Params) -> dict[str, tuple[int, ...]]:
    """The layout of w, P_G floats."""
    h, d = params.hidden, problem.d
    layers = {"B1": (h, params.noise + problem.C + problem.M), "c1": (h,), "B2": (d, h), "c2": (d,)}
    return layers | dict.fromkeys(("bn_scale", "bn_shift", "bn_mean", "bn_var"), (h,))


def draw_generator(problem: Problem, params: Params, device: torch.device) -> dict[str, Tensor]:
    """The first w, distributed as PyTorch's Linear and BatchNorm layers start."""
    shapes = generator_shapes(problem, params)
    stream = torch.Generator().manual_seed(torch_seed(problem.config.seed, "generator"))
    w = {name: torch.full(shape, float(name in ("bn_scale", "bn_var"))) for name, shape in shapes.items()}
    for layer in "12":
        bound = shapes[f"B{layer}"][1] ** -0.5
        for name in (f"B{layer}", f"c{layer}"):
            w[name].uniform_(-bound, bound, generator=stream)
    return {name: value.to(device) for name, value in w.items()}


def generate(w: Message, x: Tensor, training: bool = False) -> Tensor:
    """v (n, d) = G_w(x), for inputs x (n, n_z + C + M); in training BatchNorm's running statistics in w move."""
    a = F.linear(x, w["B1"], w["c1"])
    a = F.batch_norm(a, w["bn_mean"], w["bn_var"], w["bn_scale"], w["bn_shift"], training)
    return F.linear(a.relu(), w["B2"], w["c2"])


class Draws:
    """The generator's inputs, from the random stream (`purpose`, *`key`) and the `modalities` (M,) bool."""

    def __init__(self, problem: Problem, modalities: Tensor, purpose: str, *key: int):
        self.stream = torch.Generator().manual_seed(torch_seed(problem.config.seed, purpose, *key))
        self.noise = problem.config.params.noise
        self.labels = torch.tensor(np.sum([client.counts for client in problem.clients], 0)).double()
        self.modalities, self.device = modalities.double().cpu(), modalities.device

    def inputs(self, y: Tensor, m: Tensor) -> Tensor:
        """x (n, n_z + C + M) = [eps; onehot(y); onehot(m)] of the classes y (n,) and modalities m (n,)."""
        eps = torch.rand(len(y), self.noise, generator=self.stream).to(self.device)
        return torch.cat([eps, F.one_hot(y, len(self.labels)), F.one_hot(m, len(self.modalities))], 1)

    def draw(self, n: int) -> tuple[Tensor, Tensor, Tensor]:
        """y by the label counts of all clients, m uniform, and the inputs x."""
        y, m = (
            torch.multinomial(weights, n, replacement=True, generator=self.stream).to(self.device)
            for weights in (self.labels, self.modalities)
        )
        return y, m, self.inputs(y, m)


class FedMobileClient(HeadClient):
    """A client whose student R_k rebuilds, in one token, the features of the modalities it lacks."""

    params: Params
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
        return [self._rebuilt(Z)[0].argmax(-1)]

    def _rebuilt(self, Z: Tensor) -> tuple[Tensor, Tensor]:
        """Logits o (items, b, C) = h_k(zt + r) and tokens r (items, b, d) = R_k(zt), r = 0 where nothing is missing."""
        zt = self.model.fuse(Z)
        r = self.R(zt) if self.R else torch.zeros_like(zt)
        return self.model.classifier(zt + r), r

    def _client_loss(self, epoch: Epoch, inbox: Message, t: int, number: int) -> Loss:
        """CE + lambda_r MSE(r, g) + lambda_g CE(h_k(v), y'); what the generator has not been taught is left out."""
        taught = inbox["taught"] > 0
        draws = Draws(self.problem, taught, "generated", self.k, t, number)
        n, known = len(epoch.y), taught.tolist()
        lambda_r = self.params.lambda_r if any(known[m] for m in self.missing) else 0.0
        lambda_g = self.params.lambda_g if any(known) else 0.0
        if lambda_r:
            sources = torch.tensor([m for m in self.missing if known[m]], device=self.device)
            x = draws.inputs(epoch.y.repeat(len(sources)), sources.repeat_interleave(n))
            g = generate(inbox, x).view(len(sources), n, -1).mean(0)
        if lambda_g:
            y_drawn, _, x = draws.draw(n)
            v = generate(inbox, x)
        zero = torch.zeros((), device=self.device)

        def loss(number: int, rows: slice, Z: Tensor) -> tuple[Tensor, list[Tensor]]:
            logits, r = self._rebuilt(Z)
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
        """l_k = max(0, ce_off - ce_on) / max(ce_off, 1e-8) over the training rows; 0 where nothing is missing."""
        n, ce = len(self.train_labels), torch.zeros(2, device=self.device)
        for rows, Z in self.clean_pass(self.train_rows, n):
            y = self.train_labels[rows]
            both = [cross_entropy(logits, y) for logits in (self.model.logits(Z), self._rebuilt(Z)[0])]
            ce += torch.stack(both) * (len(y) / n)
        off, on = ce
        return (off - on).clamp(min=0) / off.clamp(min=1e-8)


def coalitions(J: int) -> np.ndarray:
    """(2^J, J) 0/1: coalition S has member j where bit j of S is set."""
    return np.arange(2**J)[:, None] >> np.arange(J) & 1


def shapley(U: np.ndarray) -> np.ndarray:
    """phi_j = sum over S without j of |S|! (J - |S| - 1)! / J! (U(S + j) - U(S)), from the utilities U (2^J,)."""
    J = len(U).bit_length() - 1
    A = coalitions(J)
    others = A.sum(1, keepdims=True) - A
    return ((2 * A - 1) / (J * comb(J - 1, others)) * U[:, None]).sum(0)


@torch.no_grad()
def utilities(W: Tensor, b: Tensor, n: Tensor, clusters: np.ndarray, v: Tensor, y: Tensor) -> np.ndarray:
    """U(S) = -CE on (v, y) of the classifier that averages the clients in the clusters S by n; U({}) = -log C.

    Parameters
    ----------
    W, b : (clients, C, d) and (clients, C), with the clients' samples n (clients,) and clusters (clients,).
    v, y : (draws, d) and (draws,).

    Returns
    -------
    (2^J,) in the order of `coalitions`.
    """
    members = coalitions(int(clusters.max()) + 1)[1:, clusters]
    share = torch.tensor(members, device=n.device) * n
    U = []
    for a in (share / share.sum(1, keepdim=True)).split(_COALITIONS):
        logits = v @ torch.einsum("sk,kcd->sdc", a, W) + (a @ b)[:, None]  # (coalitions, draws, C)
        ce = F.cross_entropy(logits.flatten(0, 1), y.repeat(len(a)), reduction="none")
        U.append(-ce.view(len(a), -1).mean(1))
    return np.concatenate([[-math.log(b.shape[1])], torch.cat(U).cpu().numpy()])


def minmax(x: np.ndarray) -> np.ndarray:
    """(x - min) / (max - min); 0 where all are equal."""
    return (x - x.min()) / (np.ptp(x) or 1.0)


def weights(n: np.ndarray, phi: np.ndarray, l: np.ndarray) -> np.ndarray:
    """a_k ~ n_k (1 + minmax(phi_k)) (1 + minmax(l_k)), summing to one."""
    a = n * (1 + minmax(phi)) * (1 + minmax(l))
    return a / a.sum()


class FedMobileServer(Server):
    """The generator and its distillation, the contributions, and the global classifier."""

    params: Params
    persistent = ("head", "w", "moments", "steps", "taught")
    transient = ("learned",)  # the memory of `w`

    def __init__(self, problem: Problem, device: torch.device):
        super().__init__(problem, device)
        self.head = draw_head(problem, device)
        w = draw_generator(problem, self.params, device)
        self.learned = torch.cat([w[name].flatten() for name in _LEARNED])  # the values of w that a step changes
        views = self.learned.split([w[name].numel() for name in _LEARNED])
        self.w = w | {name: view.view_as(w[name]) for name, view in zip(_LEARNED, views, strict=True)}
        self.moments = torch.zeros(2, len(self.learned), device=device)  # Adam's
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
        y, _, x = Draws(self.problem, owned.any(0), "utility", t).draw(self.params.draws)
        phi = self._contributions(t, W, b, n, generate(self.w, x), y)
        a = weights(n.cpu().numpy(), phi, l.cpu().numpy())
        set_head(self.head, average_heads(uploads, torch.tensor(a, device=self.device, dtype=torch.float32)))
        reply = self.first_message()
        for name, value in reply.items():
            check_finite(f"server, round {t}: reply {name}", value, "lower --lr or generator_lr")
        return reply

    def _distil(self, t: int, W: Tensor, b: Tensor, owned: Tensor) -> None:
        """S_g steps on CE(teacher_m(G_w(y, m, eps)), y); classifiers are linear, so teacher_m is one: W[m], b[m].

        Parameters
        ----------
        W, b : (M, C, d) and (M, C), the mean classifiers of each modality's owners; `owned` (M,) says which have any.
        """
        size, steps = self.problem.config.batch_size, self.params.generator_steps
        drawn = Draws(self.problem, owned, "distillation", t).draw(steps * size)
        leaves = [self.w[name].detach().requires_grad_() for name in _LEARNED]  # they share memory with w
        w = self.w | dict(zip(_LEARNED, leaves, strict=True))
        losses = []
        for y, m, x in zip(*(part.split(size) for part in drawn), strict=True):
            v = generate(w, x, training=True)
            loss = F.cross_entropy(torch.baddbmm(b[m][..., None], W[m], v[..., None]).squeeze(2), y)
            self._descend(torch.cat([g.flatten() for g in torch.autograd.grad(loss, leaves)]))
            losses.append(loss.detach())
        self.taught[owned] = 1
        self.record["server_gen"] = value = torch.stack(losses).mean().item()
        check_finite(f"server, round {t}: the generator's loss", value, "lower generator_lr")

    def _descend(self, g: Tensor) -> None:
        """A step of SGD, or of Adam with PyTorch's constants, down the gradient g of all that is learned."""
        lr = self.params.generator_lr
        if self.params.generator_optimizer == "sgd":
            self.learned.sub_(g, alpha=lr)
            return
        self.steps += 1
        s = int(self.steps)
        first, second = self.moments
        first.lerp_(g, 0.1)
        second.mul_(0.999).addcmul_(g, g, value=0.001)
        self.learned.addcdiv_(first, (second / (1 - 0.999**s)).sqrt_().add_(1e-8), value=-lr / (1 - 0.9**s))

    def _contributions(self, t: int, W: Tensor, b: Tensor, n: Tensor, v: Tensor, y: Tensor) -> np.ndarray:
        """phi_k (clients,): the Shapley values of clusters of like updates h_k - h_G, shared among their members."""
        updates = torch.cat([(W - self.head.weight).flatten(1), b - self.head.bias], 1).detach()
        rng = generator(self.problem.config.seed, "clusters", t)
        clusters = kmeans(updates.double().cpu().numpy(), min(self.params.clusters, len(n)), rng)
        phi = shapley(utilities(W, b, n, clusters, v, y))
        return (phi / np.bincount(clusters))[clusters]


class FedMobileMethod(HeadMethod):
    """Up P_h + 1 floats, down P_h + P_G; the mask of taught modalities travels along."""

    client_class = FedMobileClient
    server_class = FedMobileServer

    def upload(self, t: int, phase: int, k: int) -> Layout:
        return Layout({**head_shapes(self.problem), "l": ()})

    def first(self) -> Layout:
        payload = {**head_shapes(self.problem), **generator_shapes(self.problem, self.params)}
        return Layout(payload, {"taught": (self.problem.M,)})


METHOD = FedMobileMethod
