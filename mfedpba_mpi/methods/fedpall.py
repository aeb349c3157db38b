"""FedPall (Zhang et al., ICCV 2025): adversarial and contrastive alignment, global classifier on mixed features.

A round has two phases. z_i is the classifier's input: the sum of a sample's features, or each one with ``separate``.

* A, client: h_k <- (1 - rho) h_k + rho h_G, then E epochs of L = L_ce + beta L_adv + mu L_nce, with

      L_adv = mean_i KL(u || softmax(D(z_i))),  u = 1/K
      L_nce = mean_i -log[ exp(cos(z_i, Pbar_{y_i}) / T) / sum_c exp(cos(z_i, Pbar_c) / T) ]

  where D is frozen, c runs over the classes present in Pbar, and i over samples of these classes. Round 1 has no Pbar,
  and L_nce = 0. Upload: class means p_{k,c} of z_i.
* A, server: broadcast Pbar_c = sum_k n_{k,c} p_{k,c} / ||p_{k,c}|| / sum_k n_{k,c}.
* B, client: upload v_i = s_k * (g_k z_i + (1 - g_k) Pbar_{y_i}) and y_i. The mixing weight g_k ~ U(mix_low, 1) and the
  mask s_k of floor(keep d) ones are drawn once per round.
* B, server: r epochs of SGD with momentum on CE(h_G(v), y), then r on CE(D(v), k); broadcast h_G and D.

Clients predict with their trained h_k, before it is replaced.

Deviations from the published method ([A] adaptation to this setting, [F] defect that is not copied; [C] in `base`):

* [A1] features are mixed on the clients; the released simulator computes the same on the server, from raw features;
* [A2] D is d -> 64 -> 64 -> K instead of 2048 -> 512 -> 512 -> K. It keeps its BatchNorm; clients use it in evaluation
  mode, so its running statistics (4 x 64 floats) are part of the payload;
* [A3] h is linear instead of three layers with BatchNorm;
* [A4] an option uploads the mixed class means instead of all samples. Both server losses then weight them by n_{k,c},
  divided by the mean over the pool, so that step sizes are the same as with samples;
* [A5] with ``separate`` n_{k,c} counts items, not samples;
* [A6] g_k is not rounded to two decimals; D takes no step on a last batch that is too small for BatchNorm;
* [A7] with partial participation the server trains on the participants' features, and u stays 1/K;
* [F1] an InfoNCE with unnormalised prototypes in its denominator, which can become negative;
* [F2] prototypes stored without gaps, which fails if a class is absent;
* [F3] features collected in training mode.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mfedpba_mpi.comm.layout import Layout, Message
from mfedpba_mpi.errors import check_finite
from mfedpba_mpi.methods.base import MIN_BATCHNORM_BATCH, ClientSpec, Method, Problem, Server
from mfedpba_mpi.methods.heads import HeadClient, draw_head, head_shapes
from mfedpba_mpi.methods.params import FedPallParameters
from mfedpba_mpi.methods.training import AutogradLoss, Epoch, Loss, cross_entropy
from mfedpba_mpi.rng import generator, seeded

_EPS = 1e-5  # of BatchNorm


class FedPallClient(HeadClient):
    """Client that trains against the discriminator and towards global prototypes, and uploads mixed features."""

    params: FedPallParameters
    terms = ("ce", "adv", "nce")
    transient = ("z", "p")

    z: Tensor  # (items, n_k, d), passed from phase A to phase B of a round
    p: Tensor  # (C, d), class means; 0 for absent classes

    def update(self, t: int, phase: int, inbox: Message) -> Message:
        if phase == 1:
            return self._mixed_features(t, inbox["Pbar"])
        with torch.no_grad():
            self.model.classifier.weight.lerp_(inbox["W"], self.params.rho)
            self.model.classifier.bias.lerp_(inbox["b"], self.params.rho)
        self.train(t, lambda epoch: self._loss(epoch, inbox))
        self.z = torch.cat([self.model.fuse(Z) for _, Z in self.clean_pass(self.train_rows, len(self.train_labels))], 1)
        members = F.one_hot(self.train_labels, self.problem.C).to(self.z.dtype).T
        self.p = members @ self.z.mean(0) / members.sum(1, keepdim=True).clamp(min=1)
        return {"p": self.p}

    def _loss(self, epoch: Epoch, inbox: Message) -> Loss:
        """L_ce + beta L_adv + mu L_nce; L_nce = 0 before the first global prototypes."""
        beta, mu, T = self.params.beta, self.params.mu, self.params.temperature
        adversary = adversarial_term(inbox) if beta else None
        contrasts = mu and "Pbar" in inbox
        contrast = contrastive_term(epoch, inbox["Pbar"], inbox["Pbar_present"] > 0, T) if contrasts else None
        zero = torch.zeros((), device=self.device)

        def loss(number: int, rows: slice, Z: Tensor) -> tuple[Tensor, list[Tensor]]:
            z = self.model.fuse(Z)
            total = ce = cross_entropy(self.model.classifier(z), epoch.y[rows])
            adv = nce = zero
            if adversary:
                adv = adversary(z)
                total = total + beta * adv
            if contrast:
                nce = contrast(number, rows, z)
                total = total + mu * nce
            return total, [ce, adv, nce]

        return AutogradLoss(self, loss)

    def _mixed_features(self, t: int, Pbar: Tensor) -> Message:
        """Mix v = s_k * (g_k z + (1 - g_k) Pbar_y) for every item, with its y, or for the class means (C, d)."""
        rng, d, y = generator(self.config.seed, "mix", self.k, t), self.problem.d, self.train_labels
        g = rng.uniform(self.params.mix_low, 1)
        ones = math.floor(self.params.keep * d + 1e-9)  # rounding makes a product such as 0.29 * 100 less than 29
        s = torch.zeros(d, device=self.device)
        s[torch.from_numpy(rng.permutation(d)[:ones]).to(self.device)] = 1
        if self.params.upload == "prototypes":
            return {"V": s * (g * self.p + (1 - g) * Pbar)}
        V = s * (g * self.z + (1 - g) * Pbar[y])
        return {"V": V.flatten(0, 1), "y": y.repeat(len(V)).to(V.dtype)}


def adversarial_term(D: Message) -> Callable[[Tensor], Tensor]:
    """L_adv = mean_i KL(u || softmax(D(z_i))) = -log K - mean_ij log softmax(D(z_i))_j, as a function of z.

    z has the shape (items, b, d). D is frozen, so each BatchNorm, gamma (a - mean) / sqrt(var + eps) + beta, is folded
    into the layer before it.
    """
    layers = []
    for i in (1, 2):
        scale = D[f"D_gamma{i}"] / (D[f"D_var{i}"] + _EPS).sqrt()
        layers.append((scale[:, None] * D[f"D_W{i}"], D[f"D_beta{i}"] - scale * D[f"D_mean{i}"]))
    W_3, log_K = D["D_W3"], math.log(len(D["D_W3"]))

    def term(z: Tensor) -> Tensor:
        a = z
        for W, b in layers:
            a = F.relu(F.linear(a, W, b))
        return -log_K - F.log_softmax(F.linear(a, W_3), -1).mean()

    return term


def contrastive_term(epoch: Epoch, Pbar: Tensor, present: Tensor, T: float) -> Callable[[int, slice, Tensor], Tensor]:
    """L_nce, the mean cross-entropy of cos(z_i, Pbar_c) / T over present classes c; 0 for a batch without these.

    Parameters
    ----------
    Pbar : (C, d) global prototypes.
    present : (C,) bool, the classes with a prototype.

    Returns
    -------
    A function of (batch number, rows of the epoch, z (items, b, d)).
    """
    P = F.normalize(Pbar[present], dim=-1) / T
    target = torch.where(present, present.cumsum(0) - 1, -100)[epoch.y]  # rows of P; cross_entropy ignores -100
    has_target = (target >= 0).tolist()
    counts = [max(1, sum(has_target[start:stop])) for start, stop in epoch.cuts]

    def term(number: int, rows: slice, z: Tensor) -> Tensor:
        cos = F.linear(z, P) / torch.linalg.vector_norm(z, dim=-1, keepdim=True).clamp(min=1e-12)
        total = F.cross_entropy(cos.flatten(0, 1), target[rows].repeat(len(z)), reduction="sum")
        return total / (counts[number] * len(z))

    return term


def discriminator_shapes(problem: Problem, h: int) -> dict[str, tuple[int, ...]]:
    """Shapes of D: W_1, W_2, W_3 without biases, and gamma, beta, running mean and variance of each BatchNorm."""
    layers = {"D_W1": (h, problem.d), "D_W2": (h, h), "D_W3": (problem.K, h)}
    return layers | {f"D_{part}{i}": (h,) for i in (1, 2) for part in ("gamma", "beta", "mean", "var")}


def draw_discriminator(problem: Problem, h: int, device: torch.device) -> dict[str, Tensor]:
    """Initialise D with PyTorch's defaults for such layers; trained tensors require gradients."""
    D: dict[str, Tensor] = {}
    with seeded(problem.config.seed, "discriminator"):
        for name, shape in discriminator_shapes(problem, h).items():
            if name.startswith("D_W"):
                value = nn.Linear(shape[1], shape[0], bias=False).weight.detach()
            else:
                value = torch.full(shape, 1.0 if name.startswith(("D_gamma", "D_var")) else 0.0)
            D[name] = value.to(device).requires_grad_(not name.startswith(("D_mean", "D_var")))
    return D


def classify(h_G: Message, v: Tensor) -> Tensor:
    """Compute h_G(v) (b, C)."""
    return F.linear(v, h_G["W"], h_G["b"])


def discriminate(D: Message, v: Tensor) -> Tensor:
    """Compute D(v) = W_3 a_2 (b, K), a_i = relu(BatchNorm(W_i a_{i-1})), in training mode.

    BatchNorm uses the batch statistics and updates the running ones.
    """
    a = v
    for i in (1, 2):
        mean, var, gamma, beta = (D[f"D_{part}{i}"] for part in ("mean", "var", "gamma", "beta"))
        a = F.relu(F.batch_norm(F.linear(a, D[f"D_W{i}"]), mean, var, gamma, beta, training=True, eps=_EPS))
    return F.linear(a, D["D_W3"])


class FedPallServer(Server):
    """Server that averages prototypes and trains h_G and D, which persist with the momentum of their SGD."""

    params: FedPallParameters
    persistent = ("weights", "velocity")

    def __init__(self, problem: Problem, device: torch.device):
        super().__init__(problem, device)
        head, D = draw_head(problem, device), draw_discriminator(problem, self.params.disc_hidden, device)
        self.weights: dict[str, Tensor] = {"W": head.weight, "b": head.bias, **D}
        self.trained = {"ce": ["W", "b"], "disc": [name for name in D if D[name].requires_grad]}
        self.velocity = {
            f"{name}_velocity": torch.zeros_like(self.weights[name], requires_grad=False)
            for names in self.trained.values()
            for name in names
        }
        counts = [items_per_sample(problem, c) * torch.from_numpy(c.counts) for c in problem.clients]
        self.n = torch.stack(counts).to(device, torch.float32)  # (K, C)

    def first_message(self) -> Message:
        return self._message()

    def _message(self) -> Message:
        return {name: w.detach().clone() for name, w in self.weights.items()}

    def step(self, t: int, phase: int, uploads: Mapping[int, Message]) -> Message:
        if phase == 0:
            return self._prototypes(uploads)
        V, y, owner, w = self._pool(uploads)
        self.record = {
            "server_ce": self._train(t, "ce", classify, (V, y, w)),
            "server_disc": self._train(t, "disc", discriminate, (V, owner, w)),
        }
        return self._message()

    def _prototypes(self, uploads: Mapping[int, Message]) -> Message:
        """Pbar_c = sum_k n_{k,c} p_{k,c} / ||p_{k,c}|| / sum_k n_{k,c} over the participants."""
        n = self.n[list(uploads)]
        directions = F.normalize(torch.stack([upload["p"] for upload in uploads.values()]), dim=-1)
        total = n.sum(0)
        Pbar = torch.einsum("kc,kcd->cd", n, directions) / total.clamp(min=1)[:, None]
        return {"Pbar": Pbar, "Pbar_present": total > 0}

    def _pool(self, uploads: Mapping[int, Message]) -> tuple[Tensor, ...]:
        """Concatenate the uploads: V (N, d), classes (N,), clients (N,), and weights (N,) of mean 1."""
        parts = []
        for k, upload in uploads.items():
            if self.params.upload == "prototypes":
                y = self.n[k].nonzero().flatten()
                V, w = upload["V"][y], self.n[k, y]
            else:
                V, y, w = upload["V"], upload["y"].long(), torch.ones_like(upload["y"])
            parts.append((V, y, torch.full_like(y, k), w))
        V, y, owner, w = (torch.cat(part) for part in zip(*parts, strict=True))
        return V, y, owner, w / w.mean()

    def _train(self, t: int, term: str, network: Callable[[Message, Tensor], Tensor], pool: Sequence[Tensor]) -> float:
        """Train for r epochs of SGD on mean_j w_j CE(network(v_j), target_j); return the mean loss over batches.

        Each parameter x is updated by u <- momentum u + gradient + weight_decay x, x <- x - lr u. A last batch that is
        too small for BatchNorm is dropped. `pool` holds V (N, d), targets (N,) and w (N,).
        """
        config = self.problem.config
        min_batch = min(MIN_BATCHNORM_BATCH, config.batch_size) if network is discriminate else 1
        lr = self.params.server_lr or config.lr
        velocity = [self.velocity[f"{name}_velocity"] for name in self.trained[term]]
        parameters = [self.weights[name] for name in self.trained[term]]
        total, steps = torch.zeros((), device=self.device), 0
        for epoch in range(self.params.server_epochs):
            order = generator(config.seed, f"server {term}", t, epoch).permutation(len(pool[0]))
            index = torch.from_numpy(order).to(self.device)
            for v, target, w in zip(*(part[index].split(config.batch_size) for part in pool), strict=True):
                if len(v) < min_batch:
                    continue
                share = w / len(w)
                losses = F.cross_entropy(network(self.weights, v), target, reduction="none")
                gradients = torch.autograd.grad(losses, parameters, share)  # of share . losses
                with torch.no_grad():
                    torch._foreach_mul_(velocity, self.params.momentum)
                    torch._foreach_add_(velocity, gradients)
                    torch._foreach_add_(velocity, parameters, alpha=self.params.weight_decay)
                    torch._foreach_add_(parameters, velocity, alpha=-lr)
                    total += share @ losses
                steps += 1
        value = total.item() / max(steps, 1)
        for x in (value, *parameters):
            check_finite(f"server, round {t}: L_{term} or a parameter trained by it", x, "lower server_lr")
        return value


def items_per_sample(problem: Problem, client: ClientSpec) -> int:
    """Number of items per sample of a client."""
    return len(client.modalities) if problem.config.fusion == "separate" else 1


class FedPallMethod(Method):
    """Floats per round: C d + N_k (d + 1) up, or 2 C d with ``upload=prototypes``; C d + P_h + P_D + 4 h down.

    N_k is the number of items of the client. P_h = C d + C and P_D = h d + h^2 + h K + 4 h are the parameters of
    classifier and discriminator, h is the hidden width of the latter, and 4 h are its running statistics.
    """

    client_class = FedPallClient
    server_class = FedPallServer
    phases = 2

    def upload(self, t: int, phase: int, k: int) -> Layout:
        C, d, client = self.problem.C, self.problem.d, self.problem.clients[k]
        if phase == 0:
            return Layout({"p": (C, d)})
        if self.params.upload == "prototypes":
            return Layout({"V": (C, d)})
        items = client.n_train * items_per_sample(self.problem, client)
        return Layout({"V": (items, d), "y": (items,)})

    def first(self) -> Layout:
        return Layout(head_shapes(self.problem) | discriminator_shapes(self.problem, self.params.disc_hidden))

    def reply(self, t: int, phase: int, k: int) -> Layout:
        if phase == 0:
            return Layout({"Pbar": (self.problem.C, self.problem.d)}, {"Pbar_present": (self.problem.C,)})
        return self.first()


METHOD = FedPallMethod
