"""The round loop. Read this file to understand the program.

Every rank runs `simulate`: rank 0 is the server (and everything else, when it is alone), the others train their
clients. What the method does is in `methods/`, how messages travel in `comm/`, every side effect in the observers.
"""

from __future__ import annotations

import hashlib
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from mfedpba_mpi.comm.devices import set_up
from mfedpba_mpi.comm.serial import Comm
from mfedpba_mpi.comm.wire import Layout, Message
from mfedpba_mpi.config import MIN_SAMPLES, RunConfig
from mfedpba_mpi.data.catalog import Dataset
from mfedpba_mpi.data.partition import Partition, make_partition
from mfedpba_mpi.data.shards import has_shards, read_clients, read_partition, write_shards
from mfedpba_mpi.data.sources import open_dataset
from mfedpba_mpi.data.store import FeatureStore
from mfedpba_mpi.methods.base import Client, ClientSpec, Method, Problem, Server
from mfedpba_mpi.methods.catalog import load_method
from mfedpba_mpi.models.architecture import convolutions, macs, sample_architecture
from mfedpba_mpi.rng import generator


@dataclass(frozen=True)
class Start:
    """What observers are told before round 1."""

    problem: Problem
    partition: Partition
    store: FeatureStore
    ranks: Sequence[Sequence[int]]
    environment: Mapping[str, object]
    seconds: float  # since `simulate` began, until the slowest rank was ready


@dataclass
class Round:
    """What observers are told after a round: `values` by their name in the log's /rounds."""

    t: int
    values: dict[str, Any] = field(default_factory=dict)
    warnings: Sequence[str] = ()


@dataclass(frozen=True)
class End:
    """What observers are told at the end."""

    sha256: Sequence[str]  # of each client's final state
    server_sha256: str
    prototypes: Mapping[int, Mapping[str, Tensor]]  # each client's final E (|M_k|, C, d) and I (C, C)
    news: Message  # the newest of everything the server has sent to all


class Observer(Protocol):
    """Someone on rank 0 who watches: the log, the screen."""

    def start(self, start: Start) -> None: ...
    def round(self, result: Round) -> None: ...
    def end(self, end: End) -> None: ...


@contextmanager
def located(where: str) -> Iterator[None]:
    """Note on any exception that passes where it happened."""
    try:
        yield
    except Exception as error:
        error.add_note(where)
        raise


def simulate(config: RunConfig, data_dir: Path, comm: Comm, observers: Sequence[Observer] = ()) -> None:
    """Run `config` to its end; on every rank of `comm`, with observers on rank 0."""
    began = time.perf_counter()
    comm.device = set_up(config.device, comm.local_rank, config.threads)
    problem, partition, store, shards = prepare(config, data_dir, comm)
    method = load_method(config.method)(problem)
    comm.place([cost(problem, k) for k in range(problem.K)])
    clients = {
        k: method.client(k, data, comm.device)
        for k, data in zip(comm.mine, read_clients(shards, comm.mine), strict=True)
    }
    server = method.server(comm.device) if comm.is_server else None
    environment = comm.environment()
    start = Start(problem, partition, store, comm.ranks, environment, time.perf_counter() - began)
    watching = observers if comm.is_server else ()
    for observer in watching:
        observer.start(start)

    comm.barrier()
    federation = Federation(config, comm, method, clients, server)
    for t in range(1, config.rounds + 1):
        with located(f"round {t}"):
            result = federation.round(t)
        for observer in watching:
            observer.round(result)
    end = federation.end()
    for observer in watching:
        observer.end(end)
    comm.finish()


def prepare(config: RunConfig, data_dir: Path, comm: Comm) -> tuple[Problem, Partition, FeatureStore, Path]:
    """Rank 0 finds or makes the store and deals it out; then every rank reads who owns what."""
    path = ""
    if comm.is_server:
        store = open_dataset(config, data_dir)
        key = shards_key(config, store)
        shards = (
            data_dir / "shards" / f"{store.info.name}-{config.partition}-k{config.clients}-s{config.seed}-{key[:12]}.h5"
        )
        if not has_shards(shards, key):
            write_shards(shards, store, draw_partition(config, store.info, store.labels()), key)
        path = f"{store.path}\n{shards}"
    store_path, shards_path = comm.share(path).split("\n")
    store, shards = FeatureStore(store_path), Path(shards_path)
    partition = read_partition(shards)
    return draw_problem(config, store.info, store.labels(), partition), partition, store, shards


def draw_partition(config: RunConfig, info: Dataset, labels: np.ndarray) -> Partition:
    """Who owns what of the samples with these labels."""
    return make_partition(
        labels, len(info.modalities), config.clients, config.partition, config.alpha, config.seed, MIN_SAMPLES,
        config.validation,
    )  # fmt: skip


def draw_problem(config: RunConfig, info: Dataset, labels: np.ndarray, partition: Partition) -> Problem:
    """The clients of a partition of the samples with these labels, their networks drawn."""
    specs = []
    for k, owned in enumerate(partition.modalities):
        rng = generator(config.seed, "architecture", k)
        drawn = tuple(sample_architecture(rng, info.modalities[m], config.families) for m in owned)
        counts = np.bincount(labels[partition.train[k]], minlength=info.classes)
        specs.append(ClientSpec(owned, drawn, counts, len(partition.test[k])))
    return Problem(config, info, tuple(specs))


def shards_key(config: RunConfig, store: FeatureStore) -> str:
    """What the shards of a run depend on, as a hash."""
    parts = (store.fingerprint, config.partition, config.clients, config.alpha, config.seed, config.validation)
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def cost(problem: Problem, k: int) -> float:
    """What an epoch of client k costs, about in microseconds of a core; only ratios matter.

    With small batches operations cost more than arithmetic, and convolutions more than their multiply-accumulates say.
    The numbers are rounded from a fit to 460 clients of six datasets. On those same clients the deviation of log(cost /
    seconds) is 0.26, that of multiply-accumulates alone 0.68.
    """
    client = problem.clients[k]
    steps = -(-client.n_train // problem.config.batch_size)
    total = 250.0 * steps
    for m, architecture in zip(client.modalities, client.architectures, strict=True):
        modality = problem.info.modalities[m]
        layers = convolutions(architecture, modality.width)
        places = sum(layer.outputs * prod(layer.size) for layer in layers)
        total += steps * (70 * (len(architecture.widths) + 1) + 380 * len(layers))
        total += client.n_train * (8.5e-5 * macs(architecture, modality, problem.d) + 8.5e-3 * places)
    return total


def sha256(tensors: Mapping[str, Tensor]) -> bytes:
    """The digest of named tensors: names, shapes and bytes."""
    digest = hashlib.sha256()
    for name, tensor in tensors.items():
        array = tensor.detach().cpu().contiguous().numpy()
        digest.update(f"{name}{array.dtype}{array.shape}".encode())
        digest.update(array.tobytes())
    return digest.digest()


class Federation:
    """The clients of this rank, the server if it is here, and what they were last told.

    `news` is the newest of everything the server has sent to all, by name; `inbox` what each client has received of it.
    """

    def __init__(
        self, config: RunConfig, comm: Comm, method: Method, clients: Mapping[int, Client], server: Server | None
    ):
        self.config, self.comm, self.method, self.clients, self.server = config, comm, method, clients, server
        self.inbox: dict[int, Message] = {k: {} for k in clients}
        self.news: Message = {}
        self.began = time.perf_counter()
        if method.reply(0, 0, 0).size:
            self.news = comm.broadcast(server.first_message() if server else None, method.reply(0, 0, 0))
            self._deliver(clients)
        for k, client in clients.items():
            client.begin(self.inbox[k])

    def _deliver(self, clients: Iterable[int]) -> None:
        """Let these clients have the news, those of them that are of this rank."""
        for k in clients:
            if k in self.inbox:
                self.inbox[k] = {**self.inbox[k], **self.news}

    def participants(self, t: int) -> list[int]:
        """The clients drawn for round `t`, ascending."""
        K = self.method.problem.K
        drawn = max(1, round(self.config.participation * K))
        if drawn == K:
            return list(range(K))
        return sorted(generator(self.config.seed, "participants", t).choice(K, drawn, replace=False).tolist())

    def round(self, t: int) -> Round:
        """One round, all phases, evaluation and metrics; the result is complete on rank 0."""
        clock = Clock()
        active = self.participants(t)
        evaluating = t % self.config.eval_every == 0 or t == self.config.rounds
        scores: dict[int, list[int]] = {}
        self._deliver(active)
        K = self.method.problem.K
        sent = {name: np.zeros(K, np.int64) for name in ("bytes_up", "bytes_down", "wire_up", "wire_down")}
        for phase in range(self.method.phases):
            up = {k: self.method.upload(t, phase, k) for k in active}
            down = {k: self.method.reply(t, phase, k) for k in active}
            uploads = self._update(t, phase, active, clock)
            received = self.comm.gather(uploads, up) if _any(up) else {}
            if evaluating and phase == self.method.phases - 1 and not self.method.predicts_from_reply:
                scores = self._evaluate(t, clock)  # while the server, if it is elsewhere, works
            self._reply(t, phase, received, down, clock)
            for k in active:
                sent["bytes_up"][k] += up[k].payload_bytes
                sent["bytes_down"][k] += down[k].payload_bytes
                sent["wire_up"][k] += up[k].wire_bytes
                sent["wire_down"][k] += down[k].wire_bytes
        if evaluating and self.method.predicts_from_reply:
            scores = self._evaluate(t, clock)
        values = self._gather_metrics(active, scores, clock)
        if self.comm.is_server:
            values |= sent | self._times(clock, values.pop("ranks"))
            values["participants"] = np.isin(np.arange(K), active)
            values["wire_up"] += 8 * self._width  # the metrics
            values |= self.server.record if self.server else {}
        warnings = tuple(self.server.warnings) if self.server else ()
        if self.server:
            self.server.warnings.clear()
        return Round(t, values, warnings)

    def _update(self, t: int, phase: int, active: Sequence[int], clock: Clock) -> dict[int, Message]:
        with clock("train"):
            uploads = {}
            for k in active:
                if k in self.clients:
                    with clock.client(k), located(f"client {k}"):
                        uploads[k] = self.clients[k].update(t, phase, self.inbox[k])
            return uploads

    def _evaluate(self, t: int, clock: Clock) -> dict[int, list[int]]:
        with clock("eval"):
            scores = {}
            for k, client in self.clients.items():
                with clock.client(k):
                    scores[k] = client.evaluate(t, self.inbox[k])
            return scores

    def _reply(
        self, t: int, phase: int, received: Mapping[int, Message], down: Mapping[int, Layout], clock: Clock
    ) -> None:
        """The server's step, and its reply to everyone or to each participant."""
        reply: Any = None
        if self.server:
            with clock("server"), located("server"):
                reply = self.server.step(t, phase, received)
        if not _any(down):
            return
        if self.method.replies_differ(t, phase):
            for k, own in self.comm.scatter(reply or {}, down).items():
                self.inbox[k] = {**self.inbox[k], **own}
        else:
            self.news = {**self.news, **self.comm.broadcast(reply, next(iter(down.values())))}
            self._deliver(down)

    @property
    def _width(self) -> int:
        """Numbers a client reports each round: its losses, items tested, correct ones by each predictor."""
        return len(self.method.client_terms) + 1 + len(self.method.predictors)

    def _gather_metrics(self, active: Sequence[int], scores: Mapping[int, list[int]], clock: Clock) -> dict[str, Any]:
        """Losses, scores and times of all clients, and the ranks' times, on rank 0: one small gather."""
        terms, predictors, took_part = self.method.client_terms, self.method.predictors, set(active)
        rows = np.full((len(self.clients) + 1, self._width + 1), np.nan)
        for row, (k, client) in zip(rows, self.clients.items(), strict=False):
            if k in took_part:
                row[: len(terms)] = [client.losses[term] for term in terms]
            row[len(terms) : -1] = scores.get(k, -1)
            row[-1] = clock.clients[k]
        rows[-1, :2] = clock.seconds["train"], clock.seconds["eval"]
        gathered = self.comm.gather_rows(rows)
        if not gathered:
            return {}
        order = np.argsort([k for clients in self.comm.ranks for k in clients])
        table = np.concatenate([part[:-1] for part in gathered])[order]
        tested, *correct = table[:, len(terms) : -1].T.astype(np.int64)
        accuracy = [np.where(tested > 0, hits / np.maximum(tested, 1), np.nan) for hits in correct]
        values = {f"loss_{term}": table[:, i] for i, term in enumerate(terms)}
        if len(predictors) > 1:
            values |= {f"accuracy_{name}": part for name, part in zip(predictors, accuracy, strict=True)}
        return values | {
            "accuracy": accuracy[0],
            "correct": correct[0],
            "tested": tested,
            "seconds_client": table[:, -1],
            "ranks": np.stack([part[-1, :2] for part in gathered]),
        }

    def _times(self, clock: Clock, ranks: np.ndarray) -> dict[str, float]:
        """Where the time since the last round went.

        Training and evaluation are those of the slowest rank; communication is what remains beside them and the server,
        so it counts from the arrival of the last rank and includes packing and logging.
        """
        now = time.perf_counter()
        total, self.began = now - self.began, now
        train, evaluation = ranks.max(axis=0)
        server = clock.seconds["server"]
        overlaps = self.comm.size > 1 and not self.method.predicts_from_reply
        exposed = max(0.0, evaluation - server) if overlaps else evaluation
        return {
            "seconds_train": train,
            "seconds_server": server,
            "seconds_eval": evaluation,
            "seconds_comm": max(0.0, total - train - server - exposed),
            "seconds_total": total,
        }

    def end(self) -> End:
        """Final digests and prototypes, gathered like any upload."""
        problem = self.method.problem
        layouts = {
            k: Layout({"E": (len(spec.modalities), problem.C, problem.d), "I": (problem.C, problem.C), "sha256": (32,)})
            for k, spec in enumerate(problem.clients)
        }
        messages = {
            k: client.prototypes() | {"sha256": torch.tensor(list(sha256(client.model.state_dict())))}
            for k, client in self.clients.items()
        }
        found = self.comm.gather(messages, layouts)
        digests = [bytes(message.pop("sha256").to(torch.uint8).tolist()).hex() for message in found.values()]
        server = sha256(self.server.state()).hex() if self.server else ""
        return End(digests, server, found, self.news)


class Clock:
    """Adds up seconds by name, and by client those of the CPU, which others on the same core do not lengthen."""

    def __init__(self) -> None:
        self.seconds = {"train": 0.0, "eval": 0.0, "server": 0.0}
        self.clients: dict[int, float] = defaultdict(float)

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.seconds[name] += time.perf_counter() - began

    @contextmanager
    def client(self, k: int) -> Iterator[None]:
        """Adds what follows to client k's."""
        began = time.process_time()
        yield
        self.clients[k] += time.process_time() - began


def _any(layouts: Mapping[int, Layout]) -> bool:
    return any(layout.size for layout in layouts.values())
