"""Declared state survives a round trip through a checkpoint, and undeclared changes are detected."""

import itertools
import random
from collections import deque
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from mfedpba_mpi import Observer, load_run
from mfedpba_mpi.comm.layout import Layout
from mfedpba_mpi.comm.serial import SerialComm
from mfedpba_mpi.engine.loop import run_rounds
from mfedpba_mpi.engine.signals import Stop
from mfedpba_mpi.errors import Ended, UserError
from mfedpba_mpi.methods import params as catalog
from mfedpba_mpi.methods.base import Method, Server
from mfedpba_mpi.methods.local import LocalClient
from mfedpba_mpi.methods.params import METHODS, Parameters, register
from mfedpba_mpi.methods.state import Stateful, UndeclaredState
from mfedpba_mpi.records.checkpoint import Checkpoints
from mfedpba_mpi.records.run_log import RunLog


class Base(Stateful):
    persistent = ("v",)


class Everything(Base):
    persistent = ("count", "rate", "done", "array", "net", "optimizer", "by_client", "pair", "later")
    transient = ("scratch",)

    def __init__(self, value: float):
        self.v = torch.full((3,), value)
        self.count, self.rate, self.done = int(value), value / 3, value > 1
        self.array = np.arange(4) * value
        self.net = nn.Linear(2, 2)
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=value)
        self.by_client = {0: torch.ones(2) * value}
        self.pair = (torch.ones(1) * value, value)
        self.later = None
        self.scratch = value


def test_all_types_of_values_survive_a_round_trip():
    one, two = Everything(2.0), Everything(0.5)
    one.net(torch.ones(1, 2)).sum().backward()
    one.optimizer.step()
    one.by_client[7], one.later = torch.tensor([3, 4]), {"x": torch.ones(2)}
    memory = two.v.data_ptr()
    two.load_state_dict({name: x.clone() for name, x in one.state_dict().items()})
    assert two.v.data_ptr() == memory  # views of it see the change
    assert two.v.tolist() == [2, 2, 2]
    assert (two.count, two.rate, two.done) == (2, 2 / 3, True)
    assert [type(x) for x in (two.count, two.rate, two.done)] == [int, float, bool]
    assert two.array.tolist() == [0, 2, 4, 6]
    assert torch.equal(two.net.weight, one.net.weight)
    assert two.optimizer.param_groups[0]["lr"] == 2.0
    assert torch.equal(
        two.optimizer.state_dict()["state"][0]["exp_avg"], one.optimizer.state_dict()["state"][0]["exp_avg"]
    )
    assert {k: x.tolist() for k, x in two.by_client.items()} == {0: [2, 2], 7: [3, 4]}
    assert two.pair[1] == 2.0
    assert two.later["x"].tolist() == [1, 1]


def test_an_error_names_a_nested_value_that_cannot_be_stored():
    one = Everything(1.0)
    one.later = {"seen": {1, 2}}
    with pytest.raises(UserError, match=r"later\.seen is a set, which a checkpoint cannot store"):
        one.state_dict()


def test_the_state_of_another_class_raises():
    one = Everything(1.0)
    state = {name: x for name, x in one.state_dict().items() if name != "v"}
    with pytest.raises(ValueError, match=r"Everything: expected state .*, got .*'w'"):
        Everything(2.0).load_state_dict(state | {"w": torch.ones(1)})


class One(Stateful):
    persistent = ("st",)
    st: object = None


@pytest.mark.parametrize(
    "value",
    [
        {"a.b": 1.0, "a": {"b": 2.0}}, {"3": 1.0, 3: 2.0, -1: 3.0}, {"c": 1, "a": 2, "b": 3}, {"%2E:#": "ü\ud800"},
        [1.0, [], (), {}, None, (1, [2.0])], list(range(12)), np.float32(1.5), np.int64(7), np.zeros((0, 2)), None, {},
        "", {"": 1.0},
    ],
    ids=repr,
)  # fmt: skip
def test_containers_are_restored_exactly_over_any_current_value(value):
    one = One()
    one.st = value
    state = {name: one.state_dict()[name] for name in sorted(one.state_dict())}  # the order in a file
    for before in (None, 1.0, {"a": 1.0, "gone": 2.0}, [1], torch.ones(2), "text"):
        two = One()
        two.st = before
        two.load_state_dict(state)
        assert repr(two.st) == repr(value)
        assert type(two.st) is type(value)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            {(0, 1): 1.0},
            r"One.st has the key \(0, 1\); dict keys in a checkpoint must be strings or integers",
        ),
        (2**70, "One.st is 1180591620717411303424, which a checkpoint cannot store; integers must fit in 64 bits"),
        (torch.eye(2).to_sparse(), "One.st is a sparse tensor"),
        (np.array(["a"]), "One.st has dtype <U1"),
    ],
)
def test_an_error_names_an_attribute_that_cannot_be_stored(value, message):
    one = One()
    one.st = value
    with pytest.raises(UserError, match=message):
        one.state_dict()


def test_a_persistent_attribute_must_be_set_in_init():
    class Late(Stateful):
        persistent = ("v",)

    with pytest.raises(UserError, match="Late lists v in `persistent`, but has no such attribute; set it in __init__"):
        Late().state_dict()


class Slots:
    __slots__ = ("n",)

    def __init__(self):
        self.n = 0


COMMON = [0]


class Undeclaring(Stateful):
    persistent = ("model", "v")
    shared: ClassVar[list[int]] = []
    transient = ("scratch",)

    def __init__(self):
        self.model = nn.Sequential(nn.Linear(2, 2))
        self.v = torch.zeros(2)
        self.view, self.alias = self.v[:1], self.model[0]  # declared state under other names
        self.scratch = self.still = 0
        self.number, self.inner = 1, {"list": [torch.zeros(1)]}
        self.numpy, self.torch = np.random.default_rng(0), torch.Generator()
        self.optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
        self.model[0].seen = self.model[0]._hidden = 0
        self.queue, self.slots, self.sparse = deque([1]), Slots(), torch.eye(2).to_sparse()
        self.random, self.legacy, self.counter = random.Random(0), np.random.RandomState(0), itertools.count()


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("number", lambda s: setattr(s, "number", 2)),
        ("inner", lambda s: s.inner["list"][0].add_(1)),
        ("numpy", lambda s: s.numpy.random()),
        ("torch", lambda s: torch.rand(1, generator=s.torch)),
        ("optimizer", lambda s: s.optimizer.param_groups[0].update(lr=0.5)),
        ("new", lambda s: setattr(s, "new", torch.ones(1))),
        ("model.0.seen", lambda s: setattr(s.model[0], "seen", 5)),
        ("model.0._hidden", lambda s: setattr(s.model[0], "_hidden", 5)),
        ("queue", lambda s: s.queue.append(2)),
        ("slots", lambda s: setattr(s.slots, "n", 5)),
        ("random", lambda s: s.random.random()),
        ("legacy", lambda s: s.legacy.rand()),
        ("counter", lambda s: next(s.counter)),
        ("sparse", lambda s: s.sparse.values().add_(1)),
        ("shared", lambda s: s.shared.append(1)),
        ("", lambda s: setattr(s, "scratch", 2)),
        ("", lambda s: s.v.add_(1)),
        ("", lambda s: s.model[0].weight.data.add_(1)),
        ("", lambda s: None),
    ],
)
def test_undeclared_changes_are_detected(name, change):
    watched = Undeclaring()
    detector = UndeclaredState([watched])
    assert detector.changes() == []
    change(watched)
    assert detector.changes() == ([f"Undeclaring.{name}"] if name else [])
    assert detector.changes() == []
    COMMON.append(0)
    assert detector.changes() == [f"{__name__}.COMMON"]


class Warnings(Observer):
    """An observer that collects warnings."""

    decides = False

    def __init__(self):
        self.messages = []

    def warn(self, t, text):
        self.messages.append(text)


@pytest.mark.parametrize("method", METHODS)
def test_shipped_methods_declare_their_state(method, tiny, tmp_path):
    warnings = Warnings()
    run_rounds(tiny(method=method, rounds=5, participation=0.7), tmp_path, SerialComm(), [warnings])
    assert not [message for message in warnings.messages if "persistent" in message]


@dataclass(frozen=True)
class Momentum(Parameters):
    """Clients upload one number, and the server replies with a moving average."""

    label = "Momentum"


class MomentumClient(LocalClient):
    persistent = ("bias",)

    def begin(self, inbox):
        self.bias = torch.zeros(1)

    def update(self, t, phase, inbox):
        with torch.no_grad():
            self.model.classifier.bias += 0.01 * inbox["v"] + self.bias
        super().update(t, phase, inbox)
        self.bias = self.bias + 0.001
        return {"x": self.model.classifier.bias.detach().sum()[None]}


class MomentumServer(Server):
    persistent = ("v", "steps")

    def first_message(self):
        self.v, self.steps = torch.zeros(1), 0  # state created before round 1
        return {"v": self.v.clone()}

    def step(self, t, phase, uploads):
        self.steps += 1
        self.v = 0.9 * self.v + sum(upload["x"] for upload in uploads.values()) / self.steps
        return {"v": self.v.clone()}


class MomentumMethod(Method):
    client_class, server_class = MomentumClient, MomentumServer

    def first(self):
        return Layout({"v": (1,)})

    def upload(self, t, phase, k):
        return Layout({"x": (1,)})

    def reply(self, t, phase, k):
        return Layout({"v": (1,)})


class UndeclaredMomentum(MomentumMethod):
    """`MomentumMethod` with an undeclared attribute of the server."""

    class server_class(MomentumServer):
        @classmethod
        def declared(cls, kind):
            return [name for name in super().declared(kind) if name != "v"]


@pytest.fixture
def registered(monkeypatch):
    """A function that registers a method as "momentum" for the duration of a test."""

    def make(method):
        monkeypatch.setattr(catalog, "METHODS", catalog.METHODS)
        register(Momentum, method)

    yield make
    METHODS.pop("momentum", None)
    catalog._REGISTERED.pop("momentum", None)


def test_declared_state_of_server_and_clients_survives_a_resume(registered, tiny, tmp_path):
    registered(MomentumMethod)
    config, (whole, broken) = tiny(method="momentum", rounds=4), (tmp_path / "whole", tmp_path / "broken")
    for directory in (whole, broken):
        directory.mkdir()
    warnings = Warnings()
    run_rounds(config, tmp_path, SerialComm(), [RunLog(whole), warnings])
    assert warnings.messages == []
    stop = Stop()

    class AfterTwo(Warnings):
        def round(self, result):
            stop.signal = "SIGUSR1" if result.t == 2 else ""

    with pytest.raises(Ended):
        run_rounds(config, tmp_path, SerialComm(), [RunLog(broken), AfterTwo()], Checkpoints(broken), stop)
    run_rounds(config, tmp_path, SerialComm(), [RunLog(broken)], Checkpoints(broken))
    one, two = load_run(whole), load_run(broken)
    assert two.attributes["resumed"]
    assert one.final["client_sha256"] == two.final["client_sha256"]
    assert one.final["server_sha256"] == two.final["server_sha256"]


def test_a_run_warns_once_about_undeclared_state(registered, tiny, tmp_path):
    registered(UndeclaredMomentum)
    warnings = Warnings()
    run_rounds(tiny(method="momentum", rounds=4), tmp_path, SerialComm(), [warnings])
    assert len(warnings.messages) == 1
    assert "server_class.v changes from round to round but is not in the checkpoint" in warnings.messages[0]
    assert "`persistent`" in warnings.messages[0]
