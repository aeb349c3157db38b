"""One rank's part of the federation: its clients, the server on rank 0, a round of them, and their state.

A round is finished on all ranks, or void on all ranks. A rank that receives a signal in the middle, or fails, declares
the round void: it stops computing but keeps exchanging messages. So all ranks reach the end of the round together and
still have a snapshot of the last finished round.
"""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import IntFlag
from functools import reduce
from operator import or_
from typing import Any, TypeVar

import numpy as np
import torch

from mfedpba_mpi.comm.base import Comm
from mfedpba_mpi.comm.layout import Layout, Message
from mfedpba_mpi.config.run_config import RunConfig
from mfedpba_mpi.engine.clock import Clock
from mfedpba_mpi.engine.digests import client_sha256, sha256
from mfedpba_mpi.engine.observers import End, Round
from mfedpba_mpi.engine.signals import Interrupted, Stop
from mfedpba_mpi.errors import RunError, UserError, check_finite
from mfedpba_mpi.methods.base import Client, Method, Server
from mfedpba_mpi.methods.state import UndeclaredState
from mfedpba_mpi.records.checkpoint import Saved, Snapshot
from mfedpba_mpi.records.run_log import IN_FINAL
from mfedpba_mpi.rng import generator, seed_generators

T = TypeVar("T")
WATCHED_ROUNDS = 3  # checked for undeclared state; later rounds are checked at powers of two and at the end


class RoundStatus(IntFlag):
    """The status of a round: each rank's flags, combined by rank 0 and sent back to all ranks."""

    STOP = 1  # a rank has received a signal
    VOID = 2  # a rank has given up the round
    FAILED = 4  # a rank has given up the round because of an error
    SAVE = 8  # write a checkpoint
    ENOUGH = 16  # an observer ends the run here


@contextmanager
def located(where: str) -> Iterator[None]:
    """Add a note to any exception that says where it was raised."""
    try:
        yield
    except Exception as error:
        error.add_note(where)
        raise


@contextmanager
def _read_only(inbox: Message) -> Iterator[None]:
    """Raise a UserError if a client changes its inbox in place: all clients of a process share these tensors."""
    before = {name: value._version for name, value in inbox.items()}
    yield
    changed = [name for name, value in inbox.items() if value._version != before.get(name)]
    if changed:
        raise UserError(
            f"the client changes inbox[{changed[0]!r}] in place, which other clients share; change a copy (.clone())"
        )


class Federation:
    """The clients of this rank, the server on rank 0, and the messages they have received.

    Attributes
    ----------
    last_broadcast : the newest value of everything that the server has broadcast, by name.
    inbox : by client, the newest messages that it has received, by name.
    finished : number of the last finished round.
    snapshot : copy of the state after that round, taken by `take_snapshot`.
    warnings : warnings of the last round, on rank 0.
    failure : the error that made this rank give up the round.
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
        self.saving = 0.0  # seconds spent on checkpoints since the last round
        self.warnings: list[str] = []
        self._reported: set[str] = set()
        self._begin()
        if saved:
            self._restore(saved)
        self.snapshot: Snapshot | None = None
        self._undeclared = UndeclaredState([*clients.values(), *([server] if server else [])])
        self._watched_until = self.finished + WATCHED_ROUNDS

    @property
    def stop_signal(self) -> str:
        """Name of a signal received by this rank (on rank 0: also by a spare rank); "" if none."""
        return self.stop.signal or self.comm.stop_signal

    def _begin(self) -> None:
        """Send the server's first message, if the method has one; also before a checkpoint is restored."""
        if self.method.first().size:
            self._seed("first message")
            first = self.server.first_message() if self.server else None
            self.last_broadcast = self.comm.broadcast(first, self.method.first())
            self._deliver(self.clients)
        for k, client in self.clients.items():
            self._seed("begin", k)
            client.begin(self.inbox[k])

    def _seed(self, purpose: str, *key: int) -> None:
        """Seed the global random generators for the next call of a client or server."""
        seed_generators(self.config.seed, purpose, *key)

    def _restore(self, saved: Saved) -> None:
        """Restore the state from a checkpoint."""
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
        """Copy the state of the last finished round."""
        self.snapshot = self.snapshot or Snapshot()
        clients = {k: client.state_dict() for k, client in self.clients.items()}
        server = self.server.state_dict() if self.server else {}
        self.snapshot.take(self.finished, clients, self.inbox, self.last_broadcast, server)

    def _deliver(self, clients: Iterable[int]) -> None:
        """Put the last broadcast into the inboxes of those of these clients that are on this rank."""
        for k in clients:
            if k in self.inbox:
                self.inbox[k] = {**self.inbox[k], **self.last_broadcast}

    def participants(self, t: int) -> list[int]:
        """The clients that take part in round `t`, ascending."""
        K, drawn = self.method.problem.K, self.method.problem.clients_per_round
        if drawn == K:
            return list(range(K))
        return sorted(generator(self.config.seed, "participants", t).choice(K, drawn, replace=False).tolist())

    def round(self, t: int) -> tuple[Round, RoundStatus]:
        """Run a round: all phases, evaluation and metrics. Result and status are complete on rank 0 only."""
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
            self.comm.activity = f"round {t}, training"
            uploads = self._compute(lambda: self._update(t, phase, active, clock))  # noqa: B023
            if uploads is None:
                uploads = {k: up[k].blank() for k in active if k in self.clients}
            received = self.comm.gather(uploads, up) if _any(up) else {}
            if evaluating and phase == self.method.phases - 1 and not self.method.predicts_from_reply:
                scores = self._evaluate(t, clock)  # while rank 0 runs the server's step
            self.comm.activity = f"round {t}, the server's step"
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
        self.warnings = []
        if self.server:
            self.warnings, self.server.warnings = self.server.warnings, []
        if t <= self._watched_until or t & (t - 1) == 0 or t == self.config.rounds:
            self.warnings += self._undeclared_changes()
        return Round(t, values), round_status

    def _undeclared_changes(self) -> list[str]:
        """On rank 0: one warning for each attribute that changed in this round but is in no checkpoint."""
        new = set(filter(None, "\n".join(self.comm.collect("\n".join(self._undeclared.changes()))).split("\n")))
        new, self._reported = new - self._reported, self._reported | new
        return [
            f"{name} changes from round to round but is not in the checkpoint, so a resumed run would give other "
            "results: make it an attribute listed in `persistent`, or in `transient` if no later round depends on it"
            for name in sorted(new)
        ]

    def _compute(self, work: Callable[[], T]) -> T | None:
        """The result of `work`; None if the round is void, or becomes void here by a signal or an error."""
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
            self.comm.raise_if_stuck(error)
        self.comm.void = True
        return None

    def _update(self, t: int, phase: int, active: Sequence[int], clock: Clock) -> dict[int, Message]:
        with clock("train"), located(f"round {t}"):
            uploads = {}
            for k in active:
                if k in self.clients:
                    with clock.client(k), located(f"client {k}"):
                        self._seed("update", k, t, phase)
                        with _read_only(self.inbox[k]):
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
                        with _read_only(self.inbox[k]):
                            scores[k] = client.evaluate(t, self.inbox[k])
            return scores

        self.comm.activity = f"round {t}, evaluation"
        return self._compute(work) or {}

    def _reply(
        self, t: int, phase: int, received: Mapping[int, Message], down: Mapping[int, Layout], clock: Clock
    ) -> None:
        """Run the server's step and send its reply: a broadcast, or one message for each participant."""
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
        """Numbers that a client reports in a round: training metrics, items tested, correct items of each predictor."""
        return len(self._training_metrics) + 1 + len(self.method.predictors)

    @property
    def _training_metrics(self) -> list[str]:
        """Names in /rounds of what a client reports of its training: its losses and what is `tracked`."""
        client = self.method.client_class
        return [f"loss_{term}" for term in client.terms] + list(client.tracked) * self.config.track_gradients

    def _gather_metrics(
        self, active: Sequence[int], scores: Mapping[int, list[int]], clock: Clock
    ) -> tuple[dict[str, Any], RoundStatus]:
        """Gather losses, scores and times of all clients, and times and statuses of all ranks, on rank 0."""
        metrics, predictors, participants = self._training_metrics, self.method.predictors, set(active)
        round_status = self._round_status()
        rows = np.full((len(self.clients) + 1, self._width + 1), np.nan)
        for row, (k, client) in zip(rows, self.clients.items(), strict=False):
            if k in participants and not round_status & RoundStatus.VOID:
                losses = [client.losses[term] for term in self.method.client_class.terms]
                row[: len(losses)] = losses
                row[len(losses) : len(metrics)] = [getattr(client, name, np.nan) for name in metrics[len(losses) :]]
            row[len(metrics) : -1] = scores.get(k, -1)
            row[-1] = clock.clients[k]
        rows[-1, :3] = clock.seconds["train"], clock.seconds["eval"], round_status
        gathered = self.comm.gather_rows(rows)
        if not gathered:
            return {}, round_status
        for part in gathered:
            round_status |= RoundStatus(int(part[-1, 2]))
        order = np.argsort([k for clients in self.comm.ranks for k in clients])
        table = np.concatenate([part[:-1] for part in gathered])[order]
        tested, *correct = table[:, len(metrics) : -1].T.astype(np.int64)
        accuracy = [np.where(tested > 0, hits / np.maximum(tested, 1), np.nan) for hits in correct]
        values = {name: table[:, i] for i, name in enumerate(metrics)}
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
        """The status of the round on this rank."""
        flags = {RoundStatus.STOP: self.stop_signal, RoundStatus.VOID: self.comm.void, RoundStatus.FAILED: self.failure}
        return reduce(or_, (flag for flag, is_set in flags.items() if is_set), RoundStatus(0))

    def _times(self, clock: Clock, ranks: np.ndarray) -> dict[str, float]:
        """How the time since the last round was spent.

        Training and evaluation are the slowest rank's. Communication is the rest: total minus training, evaluation,
        server and checkpoint. It starts when the last rank arrives, and includes packing, logging and the snapshot.
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
        """Gather the final digests, prototypes and predictions, like any upload."""
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
        """Items to classify per test row of each client, on every rank: 1, or |M_k| with fusion "separate"."""
        own = {k: client.predicted.shape[1] for k, client in self.clients.items() if client.predicted is not None}
        parts = map(json.loads, self.comm.collect(json.dumps(own)))
        everyone = self.comm.share(json.dumps({k: n for part in parts for k, n in part.items()}))
        return {int(k): n for k, n in json.loads(everyone).items()}


def _step(server: Server, t: int, phase: int, received: Mapping[int, Message]) -> Any:
    with located(f"round {t}"), located("server"):
        return server.step(t, phase, received)


def _check_names(method: Method) -> None:
    """Raise a TypeError if the method broadcasts a name that the log's /final uses for something else."""
    replies = (method.reply(1, phase, 0) for phase in range(method.phases) if not method.replies_differ(1, phase))
    taken = {name for layout in (method.first(), *replies) for name in layout.shapes} & set(IN_FINAL)
    if taken:
        raise TypeError(
            f"{type(method).__name__} broadcasts {', '.join(taken)}, a reserved name in the log's /final; rename it"
        )


def _any(layouts: Mapping[int, Layout]) -> bool:
    return any(layout.size for layout in layouts.values())
