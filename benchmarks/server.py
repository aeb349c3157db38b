"""The MFedPBA server with S = 10 steps per round, compared with local training and with POT.

* clients: local training of the same round in plain eager torch (autograd, losses from one-hot means, foreach SGD).
  Some batches of each kind of client are timed and scaled to all clients and E = 2 epochs.
* pot: `ot.gromov.entropic_gromov_wasserstein2` with at most 20 iterations and the same epsilon, called once per
  modality and step as in the authors' code. One call is timed and scaled. If its kernel underflows, POT returns at once
  without a plan; then epsilon is doubled until there is one. `pot_epsilon` is the resulting factor.

Uploads are synthetic: all clients share the geometry of the classes and add a map and noise of their own. The noise
shrinks from round to round, so that the transport plans start as close to the solution as in a run, and need about as
many iterations. `residual` is the largest ||T - Sinkhorn(T)||_1 of the measured rounds (tolerance 1e-4).
"""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
import ot
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.common import Case, interleaved
from mfedpba_mpi.config.run_config import MIN_SAMPLES, fit_to_data, make_config
from mfedpba_mpi.data.catalog import CATALOG, Dataset
from mfedpba_mpi.data.partition import make_partition
from mfedpba_mpi.methods.base import ClientSpec, Problem
from mfedpba_mpi.methods.mfedpba.server import MFedPBAServer
from mfedpba_mpi.methods.params import load_method
from mfedpba_mpi.models.architecture import Architecture

CASES = (("youtube", 6, "m2"), ("caltech101", 3, "m2"), ("caltech101", 50, "m1+"))
WARM_UP, MEASURED, BATCHES = 4, 3, 12  # rounds before and in a measurement; timed batches of each kind of client
WIDTHS = (256, 128, 64)


def run() -> Iterator[Case]:
    """The three problem sizes."""
    torch.set_num_threads(1)
    for dataset, K, partition in CASES:
        problem = make_problem(CATALOG[dataset], dataset=dataset, clients=K, partition=partition)
        ours = Rounds(problem)
        server = ours.server
        reply = server.step(WARM_UP, 0, ours.uploads[WARM_UP - 1])
        kinds = Counter(client.modalities for client in problem.clients)
        loops = {kind: client_loop(problem, kind, reply) for kind in kinds}
        best = interleaved({"ours": ours, **loops}, repeats=5)
        pot, factor = pot_call(server, reply)
        batches: Counter = Counter()
        for client in problem.clients:
            batches[client.modalities] += problem.config.epochs * -(-client.n_train // problem.config.batch_size)
        seconds = {
            "ours": best["ours"] / MEASURED,
            "clients": sum(best[kind] / BATCHES * count for kind, count in batches.items()),
            "pot": pot * problem.M * server.params.server_epochs,
        }
        notes = {
            "share_of_clients": seconds["ours"] / seconds["clients"],
            "pot_over_ours": seconds["pot"] / seconds["ours"],
            "iterations": float(np.mean(ours.iterations)),
            "residual": max(ours.residuals),
            "pot_epsilon": factor,
        }
        yield Case("server", f"{dataset} K {K} {partition}", seconds, notes)


class Rounds:
    """A server after some rounds. Every call repeats the same `MEASURED` rounds from there.

    Attributes
    ----------
    iterations, residuals : of the transport plans, for every measured round.
    """

    def __init__(self, problem: Problem):
        server = load_method("mfedpba")(problem).server(torch.device("cpu"))
        assert isinstance(server, MFedPBAServer)
        self.server, self.uploads = server, make_uploads(problem, WARM_UP + MEASURED)
        self.iterations: list[int] = []
        self.residuals: list[float] = []
        for t in range(WARM_UP):
            server.step(t + 1, 0, self.uploads[t])
        self._weights = {n: v.clone() for n, v in server.autoencoder.state_dict().items()}
        self._plans = server.alignment.state_dict()

    def __call__(self) -> None:
        self.server.autoencoder.load_state_dict(self._weights)
        self.server.alignment.load_state_dict(self._plans)
        for t in range(WARM_UP, WARM_UP + MEASURED):
            self.server.step(t + 1, 0, self.uploads[t])
            self.residuals.append(self.server.record["gw_residual"])
            self.iterations.append(self.server.record["gw_iterations"])


def make_problem(info: Dataset, **settings: object) -> Problem:
    """Return the problem of a run with random labels, with the same network for every client and modality."""
    config = fit_to_data(make_config({"method": "mfedpba", **settings}), info)
    labels = np.random.default_rng(0).integers(0, info.classes, info.samples)
    drawn = make_partition(labels, len(info.modalities), config.clients, config.partition, config.alpha, 0, MIN_SAMPLES)
    clients = tuple(
        ClientSpec(
            owned,
            (Architecture("DNN", WIDTHS),) * len(owned),
            np.bincount(labels[train], minlength=info.classes),
            len(test),
        )
        for owned, train, test in zip(drawn.modalities, drawn.train, drawn.test, strict=True)
    )
    return Problem(config, info, clients)


def make_uploads(problem: Problem, rounds: int) -> list[dict[int, dict[str, Tensor]]]:
    """Return uploads E_k = U A_k^m + noise / t and I_k = g_t U U^T + noise / t; U (C, 16) is the classes' geometry.

    The spectrum of U decays like that of real prototypes; with a flat one all classes are about equally far apart.
    """
    draw = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw)

    C, d, rank = problem.C, problem.d, 16
    U = normal(C, rank) / torch.arange(1, rank + 1)
    U /= U.square().sum(1).mean().sqrt()
    common = normal(problem.M, rank, d)
    own = [common[list(c.modalities)] + 0.5 * normal(len(c.modalities), rank, d) for c in problem.clients]
    return [
        {
            k: {
                "E": U @ own[k] + 0.3 / t * normal(len(own[k]), C, d),
                "I": (1 + 0.1 * t) * (2 * U @ U.T + 0.3 / t * normal(C, C)),
            }
            for k in range(problem.K)
        }
        for t in range(1, rounds + 1)
    ]


def client_loop(problem: Problem, modalities: tuple[int, ...], reply: dict[str, Tensor]) -> Callable[[], None]:
    """Return a function that trains a client with these modalities for `BATCHES` batches in plain torch."""
    draw = torch.Generator().manual_seed(1)
    config, C, d = problem.config, problem.C, problem.d
    n, size = BATCHES * config.batch_size, config.batch_size
    inputs = [torch.randn(n, problem.info.modalities[m].width, generator=draw) for m in modalities]
    labels = torch.randint(C, (n,), generator=draw)
    networks = nn.ModuleList(dnn(x.shape[1], d) for x in inputs)
    classifier = nn.Linear(d, C)
    optimiser = torch.optim.SGD([*networks.parameters(), *classifier.parameters()], config.lr, foreach=True)
    P_G, I_G = reply["P_G"][list(modalities)], reply["I_G"].log_softmax(-1)

    def train() -> None:
        order = torch.randperm(n, generator=draw)
        for start in range(0, n, size):
            index = order[start : start + size]
            y = labels[index]
            features = torch.stack([network(x[index]) for network, x in zip(networks, inputs, strict=True)])
            logits = classifier(features.sum(0))
            present, members = y.unique(return_inverse=True)
            mean = F.one_hot(members).float()
            mean = (mean / mean.sum(0)).T
            L_fea = (mean @ features - P_G[:, present]).square().sum(-1).mean()
            L_logit = F.kl_div((mean @ logits).log_softmax(-1), I_G[present], reduction="batchmean", log_target=True)
            loss = F.cross_entropy(logits, y) + 0.01 * L_fea + L_logit
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()

    return train


def dnn(width: int, d: int) -> nn.Sequential:
    """Return the extractor: Linear and ReLU for each width, then a Linear layer."""
    sizes = (width, *WIDTHS)
    hidden = [layer for a, b in zip(sizes, WIDTHS, strict=False) for layer in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(WIDTHS[-1], d))


def pot_call(server: MFedPBAServer, reply: dict[str, Tensor]) -> tuple[float, float]:
    """Return the seconds of one call for the first modality, and the factor of epsilon with which it returns a plan."""
    rows = reply["P_present"][0]
    n = int(rows.sum())
    costs = [torch.cdist(X[rows].double(), X[rows].double()).square() for X in (reply["I_G"], reply["P_G"][0])]
    C1, C2 = (D / D.mean() for D in costs)
    C2.requires_grad_()
    p = torch.full((n,), 1 / n, dtype=torch.float64)
    factor, plan = 0.5, torch.zeros(())
    with warnings.catch_warnings():  # about division by zero, and Sinkhorn iterations that did not converge
        warnings.simplefilter("ignore")
        while not plan.sum() > 0.5:
            factor *= 2
            epsilon = factor * server.alignment.e_0 / n
            start = time.perf_counter()
            _, log = ot.gromov.entropic_gromov_wasserstein2(
                C1, C2, p, p, "square_loss", epsilon=epsilon, max_iter=20, log=True
            )
            seconds, plan = time.perf_counter() - start, log["T"]
    return seconds, factor
