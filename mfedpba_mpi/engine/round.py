"""One rank's part of the federation: its clients, the server if it is here, a round of them, and their state.

A round is given up as a whole or not at all. A rank that is told to stop in the middle, or that fails, declares the
round void and goes on with its messages, but without computing; at its end all ranks are where they were before, in
step, with the state of the last finished round at hand.
"""

from __future__ import annotations

import hashlib
import json
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import IntFlag
from functools import reduce
from operator import or_
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from mfedpba_mpi.comm.layout import Layout, Message
from mfedpba_mpi.comm.serial import Comm
from mfedpba_mpi.config.run_config import RunConfig
from mfedpba_mpi.engine.observers import End, Round
from mfedpba_mpi.engine.signals import Interrupted, Stop
from mfedpba_mpi.errors import RunError, UserError, check_finite
from mfedpba_mpi.methods.base import Client, Method, Server
from mfedpba_mpi.methods.state import STRUCTURE_SUFFIXES, UndeclaredState
from mfedpba_mpi.records.checkpoint import Saved, Snapshot
from mfedpba_mpi.records.run_log import IN_FINAL
from mfedpba_mpi.rng import generator, seed_generators

T = TypeVar("T")
WATCHED_ROUNDS = 3  # after which attributes that change should have shown; then it is looked at more and more rarely


class RoundStatus(IntFlag):
    """What the ranks say of a round, and what rank 0 makes of it for all of them."""

    STOP = 1  # somebody was asked to stop
    VOID = 2  # somebody has given the round up
    FAILED = 4  # that was because of an error
    SAVE = 8  # a checkpoint is due
    ENOUGH = 16  # an observer ends the run here


@contextmanager
def located(where: str) -> Iterator[None]:
    """Note on any exception that passes where it happened."""
    try:
        yield
    except Exception as error:
        error.add_note(where)
        raise


@contextmanager
def _left_alone(inbox: Message) -> Iterator[None]:
    """Refuse a client that changes what it has received, which all clients of a process share."""
    before = {name: value._version for name, value in inbox.items()}
    yield
    changed = [name for name, value in inbox.items() if value._version != before.get(name)]
    if changed:
        raise UserError(
            f"the client changes inbox[{changed[0]!r}], which others share; let it work on a copy (.clone())"
        )


def sha256(tensors: Mapping[str, Tensor]) -> bytes:
    """The digest of a state: names without that of the attribute, shapes and bytes."""
    digest = hashlib.sha256()
    for path, tensor in tensors.items():
        if path.endswith(STRUCTURE_SUFFIXES):
            continue
        name = path.partition(".")[2] or path
        array = tensor.detach().cpu().contiguous().numpy()
        digest.update(f"{name}{array.dtype}{array.shape}".encode())
        digest.update(array.tobytes())
    return digest.digest()


def client_sha256(client: Client) -> bytes:
    """The digest of what a client has learned."""
    return sha256({name: x for name, x in client.state_dict().items() if name != "predicted"})


class Federation:
    """The clients of this rank, the server if it is here, and what they were last told.

    `last_broadcast` is the newest of everything the server has sent to all, by name; `inbox` what each client has
    received of it. `finished` is the last finished round.
    """

    def __init__(
        self, config: RunConfig, comm: Comm, method: Method, clients: Mapping[int, Client], server: Server | None,
        stop: Stop | None = None, saved: Saved | None = None,
    ):  # fmt: skip
        self.config, self.comm, self.method, self.clients, self.server = config, comm, method, clients, server
        _check_names(method)
        self.stop = stop or Stop()
        self.inbox: dict[int, Message] = {k: {} for k in clients}
        self.last_broadcast: Message = {}
        self.finished = 0
        self.failure: Exception | None = None
        self.began = time.perf_counter()
        self.saving = 0.0  # seconds that checkpoints have taken since the last round
        self._told: set[str] = set()
        self._begin()
        if saved:
            self._restore(saved)
        self.snapshot: Snapshot | None = None
        self._undeclared = UndeclaredState([*clients.values(), *([server] if server else [])])
        self._watched_until = self.finished + WATCHED_ROUNDS

    @property
    def asked(self) -> str:
        """The signal that asks to stop, as far as this rank knows."""
        return self.stop.asked or self.comm.asked

    def _begin(self) -> None:
        """The server's first message, if there is one, before round 1; also before a checkpoint is taken up."""
        if self.method.first().size:
            self._seed("first message")
            first = self.server.first_message() if self.server else None
            self.last_broadcast = self.comm.broadcast(first, self.method.first())
            self._deliver(self.clients)
        for k, client in self.clients.items():
            self._seed("begin", k)
            client.begin(self.inbox[k])

    def _seed(self, purpose: str, *key: int) -> None:
        """Seed what the coming call may draw from the global generators."""
        seed_generators(self.config.seed, purpose, *key)

    def _restore(self, saved: Saved) -> None:
        """Go on from a checkpoint."""
        device = self.comm.device
        state, self.last_broadcast = ({n: x.to(device) for n, x in part.items()} for part in saved.server())
        if self.server:
            self.server.load_state_dict(state)
        for k, client in self.clients.items():
            own, inbox, heard = saved.client(k)
            client.load_state_dict({name: value.to(device) for name, value in own.items()})
            known = {name: self.last_broadcast[name] for name in heard}
            self.inbox[k] = known | {name: value.to(device) for name, value in inbox.items()}
        self.finished = saved.round

    def take_snapshot(self) -> None:
        """Copy the state aside, as that of the last finished round."""
        self.snapshot = self.snapshot or Snapshot()
        clients = {k: client.state_dict() for k, client in self.clients.items()}
        server = self.server.state_dict() if self.server else {}
        self.snapshot.take(self.finished, clients, self.inbox, self.last_broadcast, server)

    def _deliver(self, clients: Iterable[int]) -> None:
        """Let these clients have the news, those of them that are of this rank."""
        for k in clients:
            if k in self.inbox:
                self.inbox[k] = {**self.inbox[k], **self.last_broadcast}

    def participants(self, t: int) -> list[int]:
        """The clients drawn for round `t`, ascending."""
        K, drawn = self.method.problem.K, self.method.problem.clients_per_round
        if drawn == K:
            return list(range(K))
        return sorted(generator(self.config.seed, "participants", t).choice(K, drawn, replace=False).tolist())

    def round(self, t: int) -> tuple[Round, RoundStatus]:
        """One round, all phases, evaluation and metrics; result and status are complete on rank 0."""
        clock = Clock()
        active = self.participants(t)
        evaluating = t % self.config.eval_every == 0 or t == self.config.rounds
        scores: dict[int, list[int]] = {}
        self.comm.void = False
        self._deliver(active)
        K = self.method.problem.K
        sent = {name: np.zeros(K, np.int64) for name in ("bytes_up", "bytes_down", "wire_up", "wire_down")}
        for phase in range(self.method.phases):
            up = {k: self.method.upload(t, phase, k) for k in active}
            down = {k: self.method.reply(t, phase, k) for k in active}
            self.comm.where = f"round {t}, training"
            uploads = self._compute(lambda: self._update(t, phase, active, clock))  # noqa: B023
            if uploads is None:
                uploads = {k: up[k].blank() for k in active if k in self.clients}
            received = self.comm.gather(uploads, up) if _any(up) else {}
            if evaluating and phase == self.method.phases - 1 and not self.method.predicts_from_reply:
                scores = self._evaluate(t, clock)  # while the server, if it is elsewhere, works
            self.comm.where = f"round {t}, the server's step"
            self._reply(t, phase, received, down, clock)
            for k in active:
                sent["bytes_up"][k] += up[k].payload_bytes
                sent["bytes_down"][k] += down[k].payload_bytes
                sent["wire_up"][k] += up[k].wire_bytes
                sent["wire_down"][k] += down[k].wire_bytes
        if evaluating and self.method.predicts_from_reply:
            scores = self._evaluate(t, clock)
        values, round_status = self._gather_metrics(active, scores, clock)
        if self.comm.is_server:
            values |= sent | self._times(clock, values.pop("ranks"))
            values["participants"] = np.isin(np.arange(K), active)
            values["wire_up"] += 8 * self._width  # the metrics
            values |= self.server.record if self.server else {}
        warnings = list(self.server.warnings) if self.server else []
        if self.server:
            self.server.warnings.clear()
        if t <= self._watched_until or t & (t - 1) == 0 or t == self.config.rounds:
            warnings += self._undeclared_changes()
        return Round(t, values, warnings), round_status

    def _undeclared_changes(self) -> list[str]:
        """Warnings of attributes that changed in this round but are in no checkpoint, on rank 0; each is given once."""
        new = set(filter(None, "\n".join(self.comm.collect("\n".join(self._undeclared.changes()))).split("\n")))
        new, self._told = new - self._told, self._told | new
        return [
            f"{name} changes from round to round, but is in no checkpoint, so a resumed run would give other numbers: "
            "let it be an attribute that is listed in `persistent`, or in `transient` if no later round depends on it"
            for name in sorted(new)
        ]

    def _compute(self, work: Callable[[], T]) -> T | None:
        """The result of `work`, or None, and the round is void: it was already, or stops here, or has failed."""
        if self.comm.void:
            return None
        try:
            with self.stop.interruptible():
                return work()
        except Interrupted:
            pass
        except Exception as error:
            if not isinstance(error, RunError | UserError):
                traceback.print_exc()
            self.failure = error
            self.comm.fail_soon(error)
        self.comm.void = True
        return None

    def _update(self, t: int, phase: int, active: Sequence[int], clock: Clock) -> dict[int, Message]:
        with clock("train"), located(f"round {t}"):
            uploads = {}
            for k in active:
                if k in self.clients:
                    with clock.client(k), located(f"client {k}"):
                        self._seed("update", k, t, phase)
                        with _left_alone(self.inbox[k]):
                            uploads[k] = self.clients[k].update(t, phase, self.inbox[k])
                        for name, value in uploads[k].items():
                            check_finite(f"client {k}, round {t}: its {name}", value, "lower --lr")
            return uploads

    def _evaluate(self, t: int, clock: Clock) -> dict[int, list[int]]:
        def work() -> dict[int, list[int]]:
            scores = {}
            with clock("eval"), located(f"round {t}"):
                for k, client in self.clients.items():
                    with clock.client(k), located(f"client {k}"):
                        self._seed("evaluate", k, t)
                        with _left_alone(self.inbox[k]):
                            scores[k] = client.evaluate(t, self.inbox[k])
            return scores

        self.comm.where = f"round {t}, evaluation"
        return self._compute(work) or {}

    def _reply(
        self, t: int, phase: int, received: Mapping[int, Message], down: Mapping[int, Layout], clock: Clock
    ) -> None:
        """The server's step, and its reply to everyone or to each participant."""
        differ, reply = self.method.replies_differ(t, phase), None
        if self.server:
            server = self.server
            self._seed("server step", t, phase)
            with clock("server"):
                reply = self._compute(lambda: _step(server, t, phase, received))
        if not _any(down):
            return
        if self.comm.is_server and reply is None:
            reply = {k: layout.blank() for k, layout in down.items()} if differ else next(iter(down.values())).blank()
        if differ:
            for k, own in self.comm.scatter(reply or {}, down).items():
                self.inbox[k] = {**self.inbox[k], **own}
        else:
            self.last_broadcast = {**self.last_broadcast, **self.comm.broadcast(reply, next(iter(down.values())))}
            self._deliver(down)

    @property
    def _width(self) -> int:
        """Numbers a client reports each round: of its training, items tested, correct ones by each predictor."""
        return len(self._trained) + 1 + len(self.method.predictors)

    @property
    def _trained(self) -> list[str]:
        """What a client reports of its training, by name in /rounds: its losses, and its gradient if it is tracked."""
        losses = [f"loss_{term}" for term in self.method.client_class.terms]
        return losses + ["gradient_norm2"] * self.config.track_gradients

    def _gather_metrics(
        self, active: Sequence[int], scores: Mapping[int, list[int]], clock: Clock
    ) -> tuple[dict[str, Any], RoundStatus]:
        """Losses, scores and times of all clients, and times and statuses of the ranks, on rank 0: one small gather."""
        trained, predictors, took_part = self._trained, self.method.predictors, set(active)
        round_status = self._round_status()
        rows = np.full((len(self.clients) + 1, self._width + 1), np.nan)
        for row, (k, client) in zip(rows, self.clients.items(), strict=False):
            if k in took_part and not round_status & RoundStatus.VOID:
                losses = [client.losses[term] for term in self.method.client_class.terms]
                row[: len(trained)] = losses + [client.gradient_norm2] * self.config.track_gradients
            row[len(trained) : -1] = scores.get(k, -1)
            row[-1] = clock.clients[k]
        rows[-1, :3] = clock.seconds["train"], clock.seconds["eval"], round_status
        gathered = self.comm.gather_rows(rows)
        if not gathered:
            return {}, round_status
        for part in gathered:
            round_status |= RoundStatus(int(part[-1, 2]))
        order = np.argsort([k for clients in self.comm.ranks for k in clients])
        table = np.concatenate([part[:-1] for part in gathered])[order]
        tested, *correct = table[:, len(trained) : -1].T.astype(np.int64)
        accuracy = [np.where(tested > 0, hits / np.maximum(tested, 1), np.nan) for hits in correct]
        values = {name: table[:, i] for i, name in enumerate(trained)}
        if len(predictors) > 1:
            values |= {f"accuracy_{name}": part for name, part in zip(predictors, accuracy, strict=True)}
        return values | {
            "accuracy": accuracy[0],
            "correct": correct[0],
            "tested": tested,
            "seconds_client": table[:, -1],
            "ranks": np.stack([part[-1, :2] for part in gathered]),
        }, round_status

    def _round_status(self) -> RoundStatus:
        """What this rank has to say of the round."""
        said = {RoundStatus.STOP: self.asked, RoundStatus.VOID: self.comm.void, RoundStatus.FAILED: self.failure}
        return reduce(or_, (word for word, true in said.items() if true), RoundStatus(0))

    def _times(self, clock: Clock, ranks: np.ndarray) -> dict[str, float]:
        """Where the time since the last round went.

        Training and evaluation are those of the slowest rank; communication is what remains beside them, the server and
        a checkpoint after the last round, so it counts from the arrival of the last rank and includes packing, logging
        and copying the state.
        """
        now = time.perf_counter()
        total, self.began = now - self.began, now
        saving, self.saving = self.saving, 0.0
        train, evaluation = ranks.max(axis=0)
        server = clock.seconds["server"]
        overlaps = self.comm.size > 1 and not self.method.predicts_from_reply
        exposed = max(0.0, evaluation - server) if overlaps else evaluation
        return {
            "seconds_train": train,
            "seconds_server": server,
            "seconds_eval": evaluation,
            "seconds_comm": max(0.0, total - train - server - exposed - saving),
            "seconds_checkpoint": saving,
            "seconds_total": total,
        }

    def end(self) -> End:
        """Final digests, prototypes and predictions, gathered like any upload."""
        problem = self.method.problem
        messages = {}
        for k, client in self.clients.items():
            self._seed("prototypes", k)
            messages[k] = client.prototypes()
            assert client.predicted is not None  # the last round is always evaluated
            messages[k] |= {"sha256": torch.tensor(list(client_sha256(client))), "predicted": client.predicted}
        items = self._items()
        layouts = {
            k: Layout({
                "E": (len(spec.modalities), problem.C, problem.d), "I": (problem.C, problem.C), "sha256": (32,),
                "predicted": (len(self.method.predictors), items[k], spec.n_test),
            })
            for k, spec in enumerate(problem.clients)
        }  # fmt: skip
        found = self.comm.gather(messages, layouts)
        digests = [bytes(message.pop("sha256").to(torch.uint8).tolist()).hex() for message in found.values()]
        predicted = [message.pop("predicted").to(torch.int32) for message in found.values()]
        server = sha256(self.server.state_dict()).hex() if self.server else ""
        final = self.server.final() if self.server else {}
        return End(digests, server, found, self.method.predictors, predicted, self.last_broadcast, final)

    def _items(self) -> dict[int, int]:
        """How many items to classify a test row of each client is, on every rank."""
        own = {k: client.predicted.shape[1] for k, client in self.clients.items() if client.predicted is not None}
        parts = map(json.loads, self.comm.collect(json.dumps(own)))
        everyone = self.comm.share(json.dumps({k: n for part in parts for k, n in part.items()}))
        return {int(k): n for k, n in json.loads(everyone).items()}


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


def _step(server: Server, t: int, phase: int, received: Mapping[int, Message]) -> Any:
    with located(f"round {t}"), located("server"):
        return server.step(t, phase, received)


def _check_names(method: Method) -> None:
    """Refuse a name for something broadcast that is something else in the log's /final."""
    replies = (method.reply(1, phase, 0) for phase in range(method.phases) if not method.replies_differ(1, phase))
    taken = {name for layout in (method.first(), *replies) for name in layout.shapes} & set(IN_FINAL)
    if taken:
        raise TypeError(f"{type(method).__name__} broadcasts {', '.join(taken)}, which the log's /final has; rename it")


def _any(layouts: Mapping[int, Layout]) -> bool:
    return any(layout.size for layout in layouts.values())
