"""The protocol of a method: a client, a server, and the layout of what they exchange.

A round of a method has one or more phases. In each, every participating client makes an upload from what it was last
sent, the server makes a reply from all uploads, and the reply goes to everyone (or one of its own to each client). A
method knows nothing of ranks, files or clocks: it is handed its data, its device and the round's number, and draws its
random numbers from streams keyed by those.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mfedpba_mpi.comm.wire import NOTHING, Layout, Message
from mfedpba_mpi.config import RunConfig
from mfedpba_mpi.data.catalog import Dataset
from mfedpba_mpi.data.shards import ClientData
from mfedpba_mpi.errors import RunError
from mfedpba_mpi.models.architecture import Architecture
from mfedpba_mpi.models.client_model import ClientModel, Rows
from mfedpba_mpi.models.descent import descend, step_linear
from mfedpba_mpi.models.inputs import DenseRows, SparseRows, modality_rows
from mfedpba_mpi.rng import generator, torch_seed

ModalityRows = DenseRows | SparseRows

LEAST_FOR_BATCHNORM = 4  # see `Client.epoch`
_EVALUATION_ROWS = 512  # rows a clean pass takes at a time; fixed, since bits could depend on it


@dataclass(frozen=True)
class ClientSpec:
    """What everybody may know of a client: its modalities, its networks' shapes, its training samples per class."""

    modalities: tuple[int, ...]
    architectures: tuple[Architecture, ...]
    counts: np.ndarray  # (C,) int64
    n_test: int

    @property
    def n_train(self) -> int:
        return int(self.counts.sum())


@dataclass(frozen=True)
class Problem:
    """The federation as every rank knows it."""

    config: RunConfig
    info: Dataset
    clients: tuple[ClientSpec, ...]

    @property
    def K(self) -> int:
        return len(self.clients)

    @property
    def M(self) -> int:
        return len(self.info.modalities)

    @property
    def C(self) -> int:
        return self.info.classes

    @property
    def d(self) -> int:
        return self.config.feature_dim


@dataclass(frozen=True)
class Epoch:
    """One shuffled pass over the training rows, cut into batches.

    `xs` are the rows in the epoch's order, `y` (n,) their classes, `cuts` the batches' (start, stop).
    """

    xs: Sequence[ModalityRows]
    y: Tensor
    cuts: Sequence[tuple[int, int]]

    def batches(self) -> Iterator[tuple[int, slice, list[Rows]]]:
        """(number, rows, inputs) of each batch."""
        for number, (start, stop) in enumerate(self.cuts):
            yield number, slice(start, stop), [x.batch(start, stop) for x in self.xs]


class Loss(ABC):
    """A client's loss in one epoch."""

    by_hand: ClassVar[bool] = True  # without autograd

    @abstractmethod
    def step(self, number: int, rows: slice, Z: Tensor) -> Tensor:
        """Of a batch with features Z (|M_k|, b, d): a step for all that is trained but the extractors, and dL/dZ.

        `number` is the batch's, `rows` are its rows of the epoch.
        """

    @abstractmethod
    def means(self) -> Tensor:
        """The loss terms, each a mean over the epoch's batches."""


BatchLoss = Callable[[int, slice, Tensor], tuple[Tensor, Sequence[Tensor]]]
"""``loss(number, rows, Z) -> (loss, terms)`` of a batch, see `Loss.step`."""


class AutogradLoss(Loss):
    """A loss given as a function of the features, which autograd differentiates."""

    by_hand = False

    def __init__(self, client: Client, function: BatchLoss):
        self.function, self.groups = function, client.rates()[1]
        self.parameters = [p for group, _ in self.groups for p in group]
        self.terms: list[Tensor] = []

    def step(self, number: int, rows: slice, Z: Tensor) -> Tensor:
        with torch.enable_grad():
            loss, terms = self.function(number, rows, Z.requires_grad_())
            gZ, *gradients = torch.autograd.grad(loss, [Z, *self.parameters])
        for group, lr in self.groups:
            sgd_step(group, gradients[: len(group)], lr)
            del gradients[: len(group)]
        self.terms.append(torch.stack(tuple(terms)).detach())
        return gZ

    def means(self) -> Tensor:
        return torch.stack(self.terms).mean(0)


class HeadLoss(Loss):
    """L_ce of the classifier, with its gradient by hand; a method may add gradients of its own on the way back."""

    def __init__(self, client: Client, epoch: Epoch):
        self.model, self.epoch, self.lr = client.model, epoch, client.config.lr
        head = self.model.classifier
        self.W, self.b = head.weight.detach(), head.bias.detach()
        self.W_t = self.W.t()
        self.Y = F.one_hot(epoch.y, client.problem.C).to(self.W.dtype)
        self.Z: list[Tensor] = []  # of all batches so far
        self.logits: list[Tensor] = []

    def step(self, number: int, rows: slice, Z: Tensor) -> Tensor:
        z = self.model.fuse(Z)
        flat = z.flatten(0, 1)
        logits = torch.addmm(self.b, flat, self.W_t).view(z.shape[0], z.shape[1], -1)
        self.Z.append(Z)
        self.logits.append(logits)
        g = logits.softmax(-1).sub_(self.Y[rows]).div_(flat.shape[0])
        g = self.on_logits(number, logits, g).flatten(0, 1)
        gz = self.on_fused(rows, z, g.mm(self.W).view_as(z))
        step_linear(self.W, self.b, flat, g, self.lr)
        return self.on_features(number, rows, Z, self.model.unfuse(gz, Z.shape[0]))

    def on_logits(self, number: int, logits: Tensor, g: Tensor) -> Tensor:
        """The gradient g (items, b, C) of the logits and what the method adds."""
        return g

    def on_fused(self, rows: slice, z: Tensor, g: Tensor) -> Tensor:
        """The gradient g (items, b, d) of what is classified and what the method adds."""
        return g

    def on_features(self, number: int, rows: slice, Z: Tensor, g: Tensor) -> Tensor:
        """The gradient g (|M_k|, b, d) of the features and what the method adds."""
        return g

    def each(self) -> list[Tensor]:
        """The terms of every sample, (n,) each."""
        logits = torch.cat(self.logits, 1)
        items, n, _ = logits.shape
        y = self.epoch.y[:n]
        ce = F.cross_entropy(logits.flatten(0, 1), y if items == 1 else y.repeat(items), reduction="none")
        return [ce if items == 1 else ce.view(items, n).mean(0)]

    def means(self) -> Tensor:
        values, batches, start = torch.stack(self.each()), len(self.epoch.cuts), self.epoch.cuts[-1][0]
        last = values[:, start:].mean(1)
        return last if batches == 1 else torch.lerp(values[:, :start].mean(1), last, 1 / batches)


class Client(ABC):
    """A client's data, network and local training; a method adds its loss and its messages.

    What a method trains besides extractors and classifier it adds to `model`, so that it belongs to the client's state.
    """

    def __init__(self, k: int, problem: Problem, data: ClientData, device: torch.device):
        self.k, self.problem, self.device = k, problem, device
        self.spec = problem.clients[k]
        self.config = config = problem.config
        modalities = [problem.info.modalities[m] for m in self.spec.modalities]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(torch_seed(config.seed, "weights", k))
            self.model = ClientModel(
                modalities, self.spec.architectures, problem.d, problem.C, config.fusion, config.init
            ).to(device)  # fmt: skip
        rows = [modality_rows(data.values[m], data.n_train, config.normalise, device) for m in self.spec.modalities]
        labels = torch.tensor(data.labels, device=device)
        train, test = np.arange(data.n_train), np.arange(data.n_train, len(labels))
        self.train_rows, self.train_labels = [x.take(train) for x in rows], labels[: data.n_train]
        self.test_rows, self.test_labels = [x.take(test) for x in rows], labels[data.n_train :]
        self.losses: dict[str, float] = {}

    def begin(self, inbox: Message) -> None:  # noqa: B027
        """Take up the server's first message, before round 1."""

    @abstractmethod
    def update(self, t: int, phase: int, inbox: Message) -> Message:
        """Train (or prepare) in round `t`; return what is uploaded.

        `inbox` has what the server last sent, by name, from all phases; it is empty before the first message.
        """

    def predict(self, t: int, Z: Tensor, inbox: Message) -> Sequence[Tensor]:
        """Classes (items, b) of the features Z (|M_k|, b, d), by each of the method's `predictors`."""
        return [self.model.logits(Z).argmax(-1)]

    def evaluate(self, t: int, inbox: Message) -> list[int]:
        """[items tested, correct ones by each of the method's `predictors`] of the test rows."""
        counts: list[int] = []
        for rows, Z in self.clean_pass(self.test_rows, len(self.test_labels)):
            hits = [guess == self.test_labels[rows] for guess in self.predict(t, Z, inbox)]
            found = [hits[0].numel(), *(int(hit.sum()) for hit in hits)]
            counts = [a + b for a, b in zip(counts, found, strict=True)] if counts else found
        return counts

    def rates(self) -> tuple[float, Sequence[tuple[Sequence[nn.Parameter], float]]]:
        """The learning rate of the extractors, and groups of the other parameters that are trained, with theirs."""
        others = [p for name, p in self.model.named_parameters() if not name.startswith("extractors.")]
        return self.config.lr, [(others, self.config.lr)]

    def epoch(self, t: int, number: int) -> Epoch:
        """The `number`-th epoch of round `t`: freshly shuffled, the last batch may be short.

        A last batch of fewer than four samples is left out where there is BatchNorm: the variance of two or three
        values is now and then almost 0, and each layer multiplies the gradient by its inverse root.
        """
        n, size = len(self.train_labels), self.config.batch_size
        order = generator(self.config.seed, "shuffle", self.k, t, number).permutation(n)
        cuts = [(start, min(start + size, n)) for start in range(0, n, size)]
        if self.model.has_batchnorm and n - cuts[-1][0] < min(LEAST_FOR_BATCHNORM, size) and len(cuts) > 1:
            cuts.pop()
        index = torch.from_numpy(order).to(self.device)
        return Epoch([x.take(order) for x in self.train_rows], self.train_labels[index], cuts)

    @torch.no_grad()
    def train(self, t: int, terms: Sequence[str], make_loss: Callable[[Epoch], Loss]) -> None:
        """E epochs of plain SGD.

        Parameters
        ----------
        terms : names of the loss terms, for the log; their means over the batches end up in `self.losses`.
        make_loss : prepares an epoch.
        """
        lr, ways = self.rates()[0], [descend(extractor) for extractor in self.model.extractors]
        means = torch.zeros(len(terms), device=self.device)
        self.model.train()
        for number in range(self.config.epochs):
            epoch = self.epoch(t, number)
            loss = make_loss(epoch)
            by_hand = loss.by_hand and all(way.by_hand for way in ways)
            with torch.inference_mode() if by_hand else torch.no_grad():  # the first is a tenth faster
                for batch, rows, xs in epoch.batches():
                    Z = torch.stack([way.forward(x) for way, x in zip(ways, xs, strict=True)])
                    gZ = loss.step(batch, rows, Z)
                    for way, g in zip(ways, gZ, strict=True):
                        if way.learns:
                            way.backward(g, lr, False)
                means += loss.means() / self.config.epochs
        self.losses = dict(zip(terms, means.tolist(), strict=True))
        for term, value in self.losses.items():
            if not np.isfinite(value):
                raise RunError(f"client {self.k}, round {t}: loss term {term} is not finite ({value}); lower --lr")

    @torch.no_grad()
    def clean_pass(self, xs: Sequence[ModalityRows], n: int) -> Iterator[tuple[slice, Tensor]]:
        """(rows, Z (|M_k|, b, d)) in evaluation mode, piece by piece."""
        self.model.eval()
        for start in range(0, n, _EVALUATION_ROWS):
            stop = min(start + _EVALUATION_ROWS, n)
            yield slice(start, stop), self.model.features([x.batch(start, stop) for x in xs])

    @torch.no_grad()
    def prototypes(self) -> dict[str, Tensor]:
        """E_k (|M_k|, C, d) and I_k (C, C), means over the training rows; rows of absent classes mean nothing."""
        C = self.problem.C
        E = torch.zeros(len(self.spec.modalities), C, self.problem.d, device=self.device)
        logit_sum = torch.zeros(C, C, device=self.device)
        for rows, Z in self.clean_pass(self.train_rows, len(self.train_labels)):
            members = F.one_hot(self.train_labels[rows], C).to(Z.dtype).T
            E += members @ Z
            logit_sum += members @ self.model.logits(Z).mean(0)
        n = torch.tensor(self.spec.counts, device=self.device).clamp(min=1)[:, None]
        return {"E": E / n, "I": logit_sum / n}


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """L_ce: mean cross-entropy over the items, logits (items, B, C) and y (B,)."""
    items = logits.shape[0]
    return F.cross_entropy(logits.flatten(0, 1), y if items == 1 else y.repeat(items))


@torch.no_grad()
def sgd_step(parameters: Sequence[Tensor], gradients: Sequence[Tensor], lr: float) -> None:
    """w <- w - lr g."""
    torch._foreach_add_(list(parameters), list(gradients), alpha=-lr)


@dataclass
class Server(ABC):
    """The server's side of a method; its state persists over rounds."""

    problem: Problem
    params: Any
    device: torch.device
    record: dict[str, Any] = field(default_factory=dict)  # of the last step: name in /rounds -> number or vector
    warnings: list[str] = field(default_factory=list)  # to be shown and forgotten

    def first_message(self) -> Message | None:
        """What every client is sent before round 1, laid out as a reply of round 0."""
        return None

    @abstractmethod
    def step(self, t: int, phase: int, uploads: Mapping[int, Message]) -> Message | Mapping[int, Message]:
        """The reply to this phase's uploads (by client, ascending): one for all, or one for each client."""

    def state(self) -> Mapping[str, Tensor]:
        """Everything that persists."""
        return {}


class Method(ABC):
    """A method for one problem: makes its clients and its server and says how their messages are laid out."""

    client_terms: ClassVar[tuple[str, ...]] = ("ce",)  # of the loss, logged as /rounds/loss_<term>
    phases: ClassVar[int] = 1
    predicts_from_reply: ClassVar[bool] = False  # whether evaluating round t needs the reply of round t

    def __init__(self, problem: Problem):
        self.problem = problem
        self.params: Any = problem.config.params

    @property
    def predictors(self) -> tuple[str, ...]:
        """Ways to predict, the method's own first; several are logged as /rounds/accuracy_<predictor>."""
        return ("classifier",)

    @abstractmethod
    def client(self, k: int, data: ClientData, device: torch.device) -> Client:
        """Client k."""

    def server(self, device: torch.device) -> Server | None:
        """The server, or None where there is nothing to do for one."""
        return None

    def upload(self, t: int, phase: int, k: int) -> Layout:
        """Layout of client k's upload."""
        return NOTHING

    def reply(self, t: int, phase: int, k: int) -> Layout:
        """Layout of the reply to client k; that of round 0 is `Server.first_message`'s."""
        return NOTHING

    def replies_differ(self, t: int, phase: int) -> bool:
        """Whether each client gets a reply of its own (a scatter) instead of the same (a broadcast).

        What is scattered needs names that nothing broadcast has: an inbox holds both.
        """
        return False
