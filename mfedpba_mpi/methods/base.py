"""The protocol of a method: a client, a server, and the layout of what they exchange.

A round of a method has one or more phases. In each, every participating client makes an upload from what it was last
sent, the server makes a reply from all uploads, and the reply goes to everyone (or one of its own to each client). A
method knows nothing of ranks, files or clocks: it is handed its data, its device and the round's number, and draws its
random numbers from streams keyed by those.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mfedpba_mpi.comm.layout import NOTHING, Layout, Message
from mfedpba_mpi.config.run_config import RunConfig
from mfedpba_mpi.data.catalog import Dataset
from mfedpba_mpi.data.shards import ClientData
from mfedpba_mpi.errors import UserError, check_finite
from mfedpba_mpi.methods.state import Stateful
from mfedpba_mpi.methods.training import Epoch, GradientNorm, Loss, ModalityRows
from mfedpba_mpi.models.architecture import Architecture
from mfedpba_mpi.models.client_model import ClientModel
from mfedpba_mpi.models.inputs import modality_rows
from mfedpba_mpi.models.manual_sgd import training_pass
from mfedpba_mpi.rng import generator, seeded

LEAST_FOR_BATCHNORM = 4  # see `Client.epoch`
EVALUATION_ROWS = 512  # rows a clean pass takes at a time; fixed, since bits could depend on it


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

    @property
    def drawn(self) -> int:
        """How many clients take part in a round."""
        return max(1, round(self.config.participation * self.K))

    def counts(self, device: torch.device) -> Tensor:
        """n_k,c (K, C), training samples of each client by class."""
        return torch.tensor(np.stack([client.counts for client in self.clients]), device=device)

    def shared(self, device: torch.device) -> Tensor:
        """(K, C) bool: whose prototypes of a class are sent, by the method's `min_class_samples`; for the server."""
        least = self.config.params.min_class_samples
        shared = self.counts(device) >= least
        if not shared.any():
            raise UserError(f"min-class-samples: no client has {least} training samples of a class; use less")
        return shared


class Client(Stateful, ABC):
    """A client's data, network and local training; a method adds its loss and its messages.

    What a method trains besides extractors and classifier it adds to `model`. Anything else that later rounds depend on
    is an attribute that it lists in `persistent`, see `state`.
    `terms` name what its loss is made of, in the order of `Loss.means`; they are logged as /rounds/loss_<term>.
    """

    terms: ClassVar[tuple[str, ...]] = ("ce",)
    persistent: ClassVar[tuple[str, ...]] = ("model", "predicted")
    transient: ClassVar[tuple[str, ...]] = (
        "k", "problem", "device", "spec", "config", "params", "train_rows", "train_labels", "test_rows", "test_labels",
        "losses", "gradient_norm2",
    )  # fmt: skip

    def __init__(self, k: int, problem: Problem, data: ClientData, device: torch.device):
        self.k, self.problem, self.device = k, problem, device
        self.spec = problem.clients[k]
        self.config = config = problem.config
        self.params: Any = config.params
        modalities = [problem.info.modalities[m] for m in self.spec.modalities]
        with seeded(config.seed, "weights", k):
            self.model = ClientModel(
                modalities, self.spec.architectures, problem.d, problem.C, config.fusion, config.init
            ).to(device)  # fmt: skip
        rows = [modality_rows(data.values[m], data.n_train, config.normalise, device) for m in self.spec.modalities]
        labels = torch.tensor(data.labels, device=device)
        train, test = np.arange(data.n_train), np.arange(data.n_train, len(labels))
        self.train_rows, self.train_labels = [x.take(train) for x in rows], labels[: data.n_train]
        self.test_rows, self.test_labels = [x.take(test) for x in rows], labels[data.n_train :]
        self.predicted: Tensor | None = None  # (predictors, items, test rows), classes in the last evaluated round
        self.losses: dict[str, float] = {}
        self.gradient_norm2 = math.nan

    def begin(self, inbox: Message) -> None:
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
        """[items tested, correct ones by each of the method's `predictors`] of the test rows; keeps `predicted`."""
        predicted = self.predict_rows(t, self.test_rows, inbox)
        self.predicted = predicted.to(torch.uint8 if self.problem.C <= 256 else torch.int32)
        return [predicted[0].numel(), *(predicted == self.test_labels).flatten(1).sum(1).tolist()]

    def predict_rows(self, t: int, xs: Sequence[ModalityRows], inbox: Message) -> Tensor:
        """Classes (predictors, items, n) of n rows."""
        parts = [torch.stack(tuple(self.predict(t, Z, inbox))) for _, Z in self.clean_pass(xs, len(xs[0]))]
        return torch.cat(parts, -1)

    def rates(self) -> tuple[float, Sequence[tuple[Sequence[nn.Parameter], float]]]:
        """The learning rate of the extractors, and groups of the other parameters that are trained, with theirs."""
        named = self.model.named_parameters()
        others = [p for name, p in named if p.requires_grad and not name.startswith("extractors.")]
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
    def train(self, t: int, make_loss: Callable[[Epoch], Loss]) -> None:
        """E epochs of plain SGD on the loss that `make_loss` prepares for each.

        The means of its `terms` over the batches end up in `self.losses`, and that of ||g||^2 in `self.gradient_norm2`
        where gradients are tracked.
        """
        lr, passes = self.rates()[0], [training_pass(extractor) for extractor in self.model.extractors]
        means = torch.zeros(len(self.terms), device=self.device)
        gradients = GradientNorm(self) if self.config.track_gradients else None
        self.model.train()
        for number in range(self.config.epochs):
            epoch = self.epoch(t, number)
            loss = make_loss(epoch)
            by_hand = loss.by_hand and all(one.by_hand for one in passes)
            with torch.inference_mode() if by_hand else torch.no_grad():  # the first is a tenth faster
                for batch, rows, xs in gradients.watch(epoch.batches()) if gradients else epoch.batches():
                    Z = torch.stack([one.forward(x) for one, x in zip(passes, xs, strict=True)])
                    gZ = loss.step(batch, rows, Z)
                    for one, g in zip(passes, gZ, strict=True):
                        if one.learns:
                            one.backward(g, lr, False)
                means += loss.means() / self.config.epochs
        self.losses = dict(zip(self.terms, means.tolist(), strict=True))
        self.gradient_norm2 = gradients.mean() if gradients else math.nan
        for term, value in self.losses.items():
            check_finite(f"client {self.k}, round {t}: loss term {term}", value, "lower --lr")

    def shares(self) -> Tensor:
        """(C,) bool: of which classes this client sends prototypes, see `Problem.shared`."""
        return torch.tensor(self.spec.counts >= self.params.min_class_samples, device=self.device)

    @torch.no_grad()
    def clean_pass(self, xs: Sequence[ModalityRows], n: int) -> Iterator[tuple[slice, Tensor]]:
        """(rows, Z (|M_k|, b, d)) in evaluation mode, piece by piece."""
        self.model.eval()
        for start in range(0, n, EVALUATION_ROWS):
            stop = min(start + EVALUATION_ROWS, n)
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


class Server(Stateful, ABC):
    """The server's side of a method; attributes that later rounds depend on are listed in `persistent`, see `state`."""

    transient: ClassVar[tuple[str, ...]] = ("problem", "device", "params", "record", "warnings")

    def __init__(self, problem: Problem, device: torch.device):
        self.problem, self.device = problem, device
        self.params: Any = problem.config.params
        self.record: dict[str, Any] = {}  # of the last step: name in /rounds -> number or vector
        self.warnings: list[str] = []  # to be shown and forgotten

    def first_message(self) -> Message:
        """What every client is sent before round 1, laid out as `Method.first` says."""
        return {}

    @abstractmethod
    def step(self, t: int, phase: int, uploads: Mapping[int, Message]) -> Message | Mapping[int, Message]:
        """The reply to this phase's uploads (by client, ascending): one for all, or one for each client."""

    def final(self) -> Mapping[str, Tensor]:
        """What of the state is shown in the log's /final, by its name there."""
        return {}


class Method:
    """A method for one problem: names its client and its server, and says how their messages are laid out."""

    client_class: ClassVar[type[Client]]
    server_class: ClassVar[type[Server] | None] = None  # None: there is nothing to do for one
    phases: ClassVar[int] = 1
    predicts_from_reply: ClassVar[bool] = False  # whether evaluating round t needs the reply of round t

    def __init__(self, problem: Problem):
        self.problem = problem
        self.params: Any = problem.config.params

    @property
    def predictors(self) -> tuple[str, ...]:
        """Ways to predict, the method's own first; several are logged as /rounds/accuracy_<predictor>."""
        return ("classifier",)

    def client(self, k: int, data: ClientData, device: torch.device) -> Client:
        """Client k."""
        return self.client_class(k, self.problem, data, device)

    def server(self, device: torch.device) -> Server | None:
        """The server, if there is one."""
        return self.server_class(self.problem, device) if self.server_class else None

    def first(self) -> Layout:
        """Layout of what the server sends to all before round 1."""
        return NOTHING

    def upload(self, t: int, phase: int, k: int) -> Layout:
        """Layout of client k's upload."""
        return NOTHING

    def reply(self, t: int, phase: int, k: int) -> Layout:
        """Layout of the reply to client k."""
        return NOTHING

    def replies_differ(self, t: int, phase: int) -> bool:
        """Whether each client gets a reply of its own (a scatter) instead of the same (a broadcast).

        What is scattered needs names that nothing broadcast has: an inbox holds both.
        """
        return False
