"""A round of client training, compared with a plain eager torch loop and with a lower bound.

* ours: `Client.update` of the method, with everything a run does (shuffling, loss terms for the log, prototypes).
* plain: indexing, forward, loss, autograd backward, foreach SGD, and a pass for the prototypes, on the same networks
  and batches; well written, but not optimised further.
* clipped: ours with ``--clip``.
* floor: only the matrix products of training: forward, weight gradient and, except for the first layer, input gradient,
  with preallocated outputs. Only for networks of Linear layers.

The six clients have the shapes of youtube (250 training samples, batches of 12, E = 2, d = 48). One core.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.common import Case, interleaved
from mfedpba_mpi.config.run_config import fit_to_data, make_config
from mfedpba_mpi.data.catalog import Dataset, Modality
from mfedpba_mpi.data.shards import ClientData
from mfedpba_mpi.methods.base import Client, ClientSpec, Problem
from mfedpba_mpi.methods.params import load_method
from mfedpba_mpi.models.architecture import Architecture
from mfedpba_mpi.rng import generator

C, D, N, B, E = 10, 48, 250, 12, 2
HIDDEN = (256, 128, 64)
WIDTHS = (2000, 1024, 64, 512, 64, 647)
PAIRS = ((0, 1), (2, 3), (4, 5), (0, 2), (1, 4), (3, 5))  # modalities of two-modality clients
FAMILIES = {  # families that a run draws with equal probability, with widths of modalities of their type
    "CNN1D": (Architecture("CNN1D", (128, 128, 64), (8, 16, 24)), (512, 64, 647)),
    "CNN2D": (Architecture("CNN2D", (128, 128, 64), (8, 16, 24)), (2000, 1024, 64)),
    "TextCNN": (Architecture("TextCNN", (128, 128, 64), (16,)), (512, 64, 647)),
    "Resmodel": (Architecture("Resmodel", (128, 128, 64)), (512, 64, 647)),
}


def run() -> Iterator[Case]:
    torch.set_num_threads(1)
    single = [(m,) for m in range(6)]
    dnn = {m: Architecture("DNN", HIDDEN) for m in range(6)}
    for name, method, owned in (("fedproto-m1", "fedproto", single), ("mfedpba-m2", "mfedpba", PAIRS)):
        clients, inbox = federation(method, WIDTHS, owned, dnn)
        clipped = federation(method, WIDTHS, owned, dnn, clip=1.0)
        loops = {**ours_and_plain(method, clients, inbox), "clipped": ours(*clipped), "floor": floor(clients)}
        yield Case("client", name, interleaved(loops))
    for family, (architecture, widths) in FAMILIES.items():
        networks, owned = dict.fromkeys(range(3), architecture), [(0,), (1,), (2,)]
        loops = ours_and_plain("mfedpba", *federation("mfedpba", widths, owned, networks))
        loops["clipped"] = ours(*federation("mfedpba", widths, owned, networks, clip=1.0))
        yield Case("client", f"mfedpba-{family}", interleaved(loops, repeats=5))


def federation(
    method: str,
    widths: Sequence[int],
    owned: Sequence[tuple[int, ...]],
    networks: dict[int, Architecture],
    clip: float = 0.0,
) -> tuple[list[Client], dict[str, Tensor]]:
    """Return clients with random data, and a random reply of the server."""
    info = Dataset("synthetic", 10_000, C, tuple(Modality(f"M{m}", "A", w) for m, w in enumerate(widths)))
    given = {"dataset": "synthetic", "method": method, "feature_dim": D, "epochs": E, "batch_size": B, "clip": clip}
    config = fit_to_data(make_config({**given, "clients": len(owned), "partition": "m1+"}), info)
    rng = generator(0, "benchmark")
    labels = np.arange(N + 10) % C
    counts = np.bincount(labels[:N], minlength=C)
    specs = tuple(ClientSpec(own, tuple(networks[m] for m in own), counts, 10) for own in owned)
    instance = load_method(method)(Problem(config, info, specs))
    cpu = torch.device("cpu")
    clients = [
        instance.client(
            k,
            ClientData(labels, N, {m: rng.standard_normal((N + 10, widths[m]), np.float32) for m in own}),
            cpu,
        )
        for k, own in enumerate(owned)
    ]
    shapes = instance.reply(1, 0, 0).shapes
    inbox = {name: torch.ones(x) if "present" in name else torch.randn(x) / 10 for name, x in shapes.items()}
    return clients, inbox


def ours_and_plain(method: str, clients: Sequence[Client], inbox: dict[str, Tensor]) -> dict[str, Callable[[], None]]:
    """Return a round of our clients, and one of `PlainClient`s."""
    loops = [PlainClient(client, method, inbox) for client in clients]

    def plain() -> None:
        for loop in loops:
            loop.round()

    return {"ours": ours(clients, inbox), "plain": plain}


def ours(clients: Sequence[Client], inbox: dict[str, Tensor]) -> Callable[[], None]:
    """Return a round of our clients."""

    def update() -> None:
        for client in clients:
            client.update(1, 0, inbox)

    return update


class PlainClient:
    """A client with the same networks and data, trained by a plain torch loop."""

    def __init__(self, client: Client, method: str, inbox: dict[str, Tensor]):
        self.model, self.inbox, self.lr = copy.deepcopy(client.model), inbox, client.config.lr
        for p in self.model.parameters():
            p.data = p.data.contiguous()  # the memory layout of nn.Linear
        self.xs = [rows.values for rows in client.train_rows]
        self.y, self.modalities = client.train_labels, list(client.spec.modalities)
        self.regularizer = {"fedproto": self.fedproto, "mfedpba": self.mfedpba}[method]
        self.params = client.problem.config.params

    def fedproto(self, Z: Tensor, z: Tensor, logits: Tensor, y: Tensor) -> Tensor:
        return self.params.lam * F.mse_loss(z, self.inbox["P_G"][y])

    def mfedpba(self, Z: Tensor, z: Tensor, logits: Tensor, y: Tensor) -> Tensor:
        members = F.one_hot(y, C).T.float()
        present = members.sum(1) > 0
        means = members[present] / members[present].sum(1, keepdim=True)
        feature = ((means @ Z - self.inbox["P_G"][self.modalities][:, present]) ** 2).sum(-1).mean()
        target = F.log_softmax(self.inbox["I_G"][present], -1)
        logit = F.kl_div(F.log_softmax(means @ logits, -1), target, reduction="batchmean", log_target=True)
        return self.params.lambda_1 * feature + self.params.lambda_2 * logit

    def round(self) -> None:
        model, parameters = self.model.train(), list(self.model.parameters())
        for _ in range(E):
            order = torch.randperm(N)
            for start in range(0, N, B):
                rows = order[start : start + B]
                y = self.y[rows]
                Z = torch.stack([f(x[rows]) for f, x in zip(model.extractors, self.xs, strict=True)])
                z = Z.sum(0)
                logits = model.classifier(z)
                loss = F.cross_entropy(logits, y) + self.regularizer(Z, z, logits, y)
                gradients = torch.autograd.grad(loss, parameters)
                with torch.no_grad():
                    torch._foreach_add_(parameters, gradients, alpha=-self.lr)
        model.eval()
        with torch.no_grad():
            members = F.one_hot(self.y, C).T.float()
            members /= members.sum(1, keepdim=True)
            Z = torch.stack([f(x) for f, x in zip(model.extractors, self.xs, strict=True)])
            members @ Z, members @ model.classifier(Z.sum(0))


def floor(clients: Sequence[Client]) -> Callable[[], None]:
    """Return a function that computes the matrix products of all Linear layers in all steps of a round."""
    jobs = []
    for client in clients:
        chains = [
            [m.weight.detach().contiguous() for m in f.modules() if isinstance(m, nn.Linear)]
            for f in client.model.extractors
        ]
        chains.append([client.model.classifier.weight.detach()])
        for chain in chains:
            hidden = [torch.randn(B, W.shape[0]) for W in chain]
            gradients = [torch.empty_like(W) for W in chain]
            jobs.append((torch.randn(B, chain[0].shape[1]), chain, hidden, gradients, chain is not chains[-1]))
    sizes = [min(B, N - start) for start in range(0, N, B)] * E

    def products() -> None:
        for x, chain, hidden, gradients, is_extractor in jobs:
            for b in sizes:
                h = x[:b]
                for W, out in zip(chain, hidden, strict=True):
                    h = torch.mm(h, W.t(), out=out[:b])
                for i in range(len(chain) - 1, -1, -1):
                    below = hidden[i - 1][:b] if i else x[:b]
                    torch.mm(hidden[i][:b].t(), below, out=gradients[i])
                    if i or not is_extractor:
                        torch.mm(hidden[i][:b], chain[i], out=below)

    return products
