"""Base classes of a method: client, server, and the layouts of their messages.

A round has one or more phases. In each phase every participant computes an upload from the server's last messages, and
the server computes a reply from all uploads. The reply is broadcast, or each client gets an individual reply. Methods
are independent of ranks, files and clocks: they depend on the data, the device, the round number, and random streams
keyed by these.

Deviations of all baselines from their published code, which is HtFLlib's where the method is in it. Each module lists
its own, tagged [A] for an adaptation to this setting and [F] for a defect that is not copied:

* [C1] clients train by plain SGD with equal settings for all methods (originals: also momentum, weight decay, AdamW);
* [C2] rows are shuffled and the last batch is kept (HtFLlib: neither), except a tiny one with BatchNorm;
* [C3] clients are evaluated at the end of a round, before the next broadcast replaces a classifier (HtFLlib: at the
  start of the next round);
* [C4] modalities are summed, or with fusion ``separate`` every item is a sample and a modality, in losses, class means
  and predictions; extractors differ between clients and stay there;
* [C5] methods that average classifiers start all clients from one classifier.
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
from mfedpba_mpi.methods.training import Clipping, Epoch, GradientNorm, HeadLoss, Loss, ModalityRows
from mfedpba_mpi.models.architecture import Architecture
from mfedpba_mpi.models.client_model import ClientModel
from mfedpba_mpi.models.inputs import modality_rows
from mfedpba_mpi.models.manual_sgd import Leaf, Pass, training_pass
from mfedpba_mpi.rng import generator, seeded

MIN_BATCHNORM_BATCH = 4  # smallest last batch if the model has BatchNorm, see `Client.epoch`
EVALUATION_ROWS = 512  # batch size in evaluation mode; fixed, because results could depend on it bit for bit


@dataclass(frozen=True)
class ClientSpec:
    """Public description of a client: modalities, architectures, training samples per class, number of test samples."""

    modalities: tuple[int, ...]
    architectures: tuple[Architecture, ...]
    counts: np.ndarray  # (C,) int64
    n_test: int

    @property
    def n_train(self) -> int:
        return int(self.counts.sum())


@dataclass(frozen=True)
class Problem:
    """The federation: configuration, dataset and client specifications; the same on all ranks."""

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
    def clients_per_round(self) -> int:
        """Number of participants of a round."""
        return max(1, round(self.config.participation * self.K))

    def counts(self, device: torch.device) -> Tensor:
        """n_k,c (K, C): number of training samples of each client and class."""
        return torch.tensor(np.stack([client.counts for client in self.clients]), device=device)

    def uploaded_classes(self, device: torch.device) -> Tensor:
        """(K, C) bool: client k uploads its prototype of class c, i.e. has at least `min_class_samples` samples."""
        minimum = self.config.params.min_class_samples
        uploaded = self.counts(device) >= minimum
        if not uploaded.any():
            raise UserError(f"min-class-samples: no client has {minimum} training samples of any class; use less")
        return uploaded


class Client(Stateful, ABC):
    """A client's data, network and local training; subclasses add the loss and the messages of a method.

    A subclass adds further trainable modules to `model`, and lists other attributes that later rounds depend on in
    `persistent`, see `state`. `terms` are the names of its loss terms in the order of `Loss.means`; they are logged as
    /rounds/loss_<term>.
    """

    terms: ClassVar[tuple[str, ...]] = ("ce",)
    tracked: ClassVar[tuple[str, ...]] = ("gradient_norm2",)  # attributes that --track-gradients logs, numbers
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
        self.predicted: Tensor | None = None  # (predictors, items, test rows), from the last evaluation
        self.losses: dict[str, float] = {}
        self.gradient_norm2 = math.nan

    def begin(self, inbox: Message) -> None:
        """Process the server's first message, before round 1."""

    @abstractmethod
    def update(self, t: int, phase: int, inbox: Message) -> Message:
        """Do the client's part of a phase of round `t`, usually training, and return the upload.

        `inbox` holds the tensors last received from the server, by name, from all phases; it is empty before the first
        message.
        """

    def predict(self, t: int, Z: Tensor, inbox: Message) -> Sequence[Tensor]:
        """Predict classes (items, b) from features Z (|M_k|, b, d), for each of the method's `predictors`."""
        return [self.model.logits(Z).argmax(-1)]

    def evaluate(self, t: int, inbox: Message) -> list[int]:
        """Evaluate on the test rows: [number of items, number correct for each of the method's `predictors`].

        The predictions are stored in `predicted`.
        """
        predicted = self.predict_rows(t, self.test_rows, inbox)
        self.predicted = predicted.to(torch.uint8 if self.problem.C <= 256 else torch.int32)
        return [predicted[0].numel(), *(predicted == self.test_labels).flatten(1).sum(1).tolist()]

    def predict_rows(self, t: int, xs: Sequence[ModalityRows], inbox: Message) -> Tensor:
        """Predict classes (predictors, items, n) of n rows."""
        parts = [torch.stack(tuple(self.predict(t, Z, inbox))) for _, Z in self.clean_pass(xs, len(xs[0]))]
        return torch.cat(parts, -1)

    def rates(self) -> tuple[float, Sequence[tuple[Sequence[nn.Parameter], float]]]:
        """Return the extractors' learning rate, and groups (parameters, learning rate) of the other trainable ones."""
        named = self.model.named_parameters()
        others = [p for name, p in named if p.requires_grad and not name.startswith("extractors.")]
        return self.config.lr, [(others, self.config.lr)]

    def epoch(self, t: int, number: int) -> Epoch:
        """Shuffle and split the training rows for the `number`-th epoch of round `t`; the last batch may be short.

        If the model has BatchNorm, a last batch of fewer than four samples is dropped: the variance of two or three
        values is sometimes almost 0, and each layer multiplies the gradient by its inverse square root.
        """
        n, size = len(self.train_labels), self.config.batch_size
        order = generator(self.config.seed, "shuffle", self.k, t, number).permutation(n)
        cuts = [(start, min(start + size, n)) for start in range(0, n, size)]
        if self.model.has_batchnorm and n - cuts[-1][0] < min(MIN_BATCHNORM_BATCH, size) and len(cuts) > 1:
            cuts.pop()
        index = torch.from_numpy(order).to(self.device)
        return Epoch([x.take(order) for x in self.train_rows], self.train_labels[index], cuts, index)

    @torch.no_grad()
    def train(self, t: int, make_loss: Callable[[Epoch], Loss]) -> None:
        """Train for E epochs of plain SGD; `make_loss` creates the loss of each epoch.

        Stores the loss terms averaged over batches in `self.losses`, and the mean of ||g||^2 in `self.gradient_norm2`
        if gradients are tracked.
        """
        lr, autograd = self.rates()[0], self.config.autograd
        passes = [training_pass(extractor, autograd) for extractor in self.model.extractors]
        means = torch.zeros(len(self.terms), device=self.device)
        gradients = GradientNorm(self) if self.config.track_gradients else None
        self.model.train()
        for number in range(self.config.epochs):
            epoch = self.epoch(t, number)
            loss = make_loss(epoch)
            if autograd and isinstance(loss, HeadLoss):
                loss = loss.by_autograd(self)
            of_extractors = [(leaf, lr) for extractor in passes for leaf in extractor.leaves()]
            leaves = [(leaf, rate) for leaf, rate in [*loss.leaves(), *of_extractors] if rate]
            clipping = self._clipping(passes, epoch, [leaf for leaf, _ in leaves]) if self.config.clip else None
            uses_autograd = loss.uses_autograd or any(extractor.uses_autograd for extractor in passes)
            # inference mode is a tenth faster
            with torch.no_grad() if uses_autograd else torch.inference_mode():
                for batch, rows, xs in gradients.watch(epoch.batches()) if gradients else epoch.batches():
                    Z = torch.stack([extractor.forward(x) for extractor, x in zip(passes, xs, strict=True)])
                    for extractor, g in zip(passes, loss.gradient(batch, rows, Z), strict=True):
                        if extractor.trainable:
                            extractor.gradient(g, needs_input_grad=False)
                    factor = clipping.factor(batch) if clipping else 1.0
                    for leaf, rate in leaves:
                        leaf.step(factor * rate)
                means += loss.means() / self.config.epochs
        self.losses = dict(zip(self.terms, means.tolist(), strict=True))
        self.gradient_norm2 = gradients.mean() if gradients else math.nan
        for term, value in self.losses.items():
            check_finite(f"client {self.k}, round {t}: loss term {term}", value, "lower --lr")

    def _clipping(self, passes: Sequence[Pass], epoch: Epoch, leaves: Sequence[Leaf]) -> Clipping:
        """Return the clipping of an epoch, with the products of input rows where they are kept."""
        inputs = zip([extractor.input_leaf() for extractor in passes], self.train_rows, strict=True)
        given = {leaf: x.batch_products(epoch.order, epoch.cuts) for leaf, x in inputs if leaf and x.keeps_gram}
        return Clipping(leaves, self.config.clip, given)

    def uploaded_classes(self) -> Tensor:
        """(C,) bool: this client uploads its prototype of class c, see `Problem.uploaded_classes`."""
        return torch.tensor(self.spec.counts >= self.params.min_class_samples, device=self.device)

    @torch.no_grad()
    def clean_pass(self, xs: Sequence[ModalityRows], n: int) -> Iterator[tuple[slice, Tensor]]:
        """Yield (rows, Z (|M_k|, b, d)) of the first n rows in evaluation mode, in batches."""
        self.model.eval()
        for start in range(0, n, EVALUATION_ROWS):
            stop = min(start + EVALUATION_ROWS, n)
            yield slice(start, stop), self.model.features([x.batch(start, stop) for x in xs])

    @torch.no_grad()
    def prototypes(self) -> dict[str, Tensor]:
        """Compute E_k (|M_k|, C, d) and I_k (C, C), class means over the training rows; 0 for absent classes."""
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
    """Server of a method; a subclass lists attributes that later rounds depend on in `persistent`, see `state`."""

    transient: ClassVar[tuple[str, ...]] = ("problem", "device", "params", "record", "warnings")

    def __init__(self, problem: Problem, device: torch.device):
        self.problem, self.device = problem, device
        self.params: Any = problem.config.params
        self.record: dict[str, Any] = {}  # log of the last step: name in /rounds -> number or vector
        self.warnings: list[str] = []  # shown after the step, then cleared

    def first_message(self) -> Message:
        """Return the broadcast before round 1, in the layout `Method.first`."""
        return {}

    @abstractmethod
    def step(self, t: int, phase: int, uploads: Mapping[int, Message]) -> Message | Mapping[int, Message]:
        """Compute the reply to the uploads of a phase: one broadcast, or one reply per client.

        `uploads` is ordered by ascending client number.
        """

    def final(self) -> Mapping[str, Tensor]:
        """Return the tensors to store in the log's /final, by name."""
        return {}


class Method:
    """A method for one problem: its client class, its server class and the layouts of their messages."""

    client_class: ClassVar[type[Client]]
    server_class: ClassVar[type[Server] | None] = None  # None: the method has no server
    phases: ClassVar[int] = 1
    predicts_from_reply: ClassVar[bool] = False  # whether evaluation in round t needs the reply of round t

    def __init__(self, problem: Problem):
        self.problem = problem
        self.params: Any = problem.config.params

    @property
    def predictors(self) -> tuple[str, ...]:
        """Names of the predictors, the default one first; several are logged as /rounds/accuracy_<predictor>."""
        return ("classifier",)

    def client(self, k: int, data: ClientData, device: torch.device) -> Client:
        """Create client k."""
        return self.client_class(k, self.problem, data, device)

    def server(self, device: torch.device) -> Server | None:
        """Create the server, if the method has one."""
        return self.server_class(self.problem, device) if self.server_class else None

    def first(self) -> Layout:
        """Layout of the broadcast before round 1."""
        return NOTHING

    def upload(self, t: int, phase: int, k: int) -> Layout:
        """Layout of client k's upload."""
        return NOTHING

    def reply(self, t: int, phase: int, k: int) -> Layout:
        """Layout of the reply to client k."""
        return NOTHING

    def replies_differ(self, t: int, phase: int) -> bool:
        """Whether each client gets an individual reply (scatter) instead of the same one (broadcast).

        Scattered tensors need names that no broadcast uses, because an inbox holds both.
        """
        return False
