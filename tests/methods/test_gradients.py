"""Gradient tracking: logged norms equal those of autograd, and tracking does not change a run."""

import copy
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mfedpba_mpi import load_run
from mfedpba_mpi.comm.serial import SerialComm
from mfedpba_mpi.data.shards import read_clients
from mfedpba_mpi.engine.loop import run_rounds
from mfedpba_mpi.engine.setup import prepare
from mfedpba_mpi.methods.mfedpba.arrival import TERMS
from mfedpba_mpi.methods.params import METHODS, load_method
from mfedpba_mpi.methods.training import GradientNorm
from mfedpba_mpi.records.checkpoint import Checkpoints
from mfedpba_mpi.records.run_log import RunLog
from tests.methods.hand import CPU, Data


def class_means(values, y):
    """Map each class of a batch (b, .) to the mean of its rows."""
    return {c: values[y == c].mean(0) for c in y.unique().tolist()}


def mean(values):
    return sum(values) / len(values) if values else 0.0


def mfedpba(client, Z, logits, y, inbox):
    """lambda_1 L_fea + lambda_2 L_logit, class by class; lambda_1 = 0.01, lambda_2 = 1."""
    fea = [
        mean(
            [(inbox["P_G"][m, c] - e).square().sum() for c, e in class_means(z, y).items() if inbox["P_present"][m, c]]
        )
        for m, z in zip(client.spec.modalities, Z, strict=True)
    ]
    logit = [
        F.kl_div(F.log_softmax(i, -1), F.softmax(inbox["I_G"][c], -1), reduction="sum")
        for c, i in class_means(logits, y).items()
        if inbox["I_present"][c]
    ]
    return 0.01 * mean(fea) + mean(logit)


def fedproto(client, Z, logits, y, inbox):
    """MSE(z_i, Pbar_{y_i}); a sample of a class without prototype adds 0."""
    difference = (Z.sum(0) - inbox["P_G"][y]) * inbox["P_present"][y, None]
    return difference.square().mean()


EXTRA_LOSSES = {"local": lambda *_: 0.0, "fedproto": fedproto, "mfedpba": mfedpba}


def batch_losses(client, model, extra_loss, t, inbox):
    """Yield the loss of every batch of round `t` under `model`; the caller makes a step after each."""
    for number in range(client.config.epochs):
        epoch = client.epoch(t, number)
        for start, stop in epoch.cuts:
            y = epoch.y[start:stop]
            Z = model.features([x.batch(start, stop) for x in epoch.xs])
            logits = model.classifier(Z.sum(0))
            yield F.cross_entropy(logits, y) + (extra_loss(client, Z, logits, y, inbox) if inbox else 0.0)


def reference(client, extra_loss, t, inbox):
    """Mean of ||grad L||^2 over the batches of round `t`, by autograd while training a copy of the model."""
    model, found = copy.deepcopy(client.model).train(), []
    theta = list(model.parameters())
    for loss in batch_losses(client, model, extra_loss, t, inbox):
        gradients = torch.autograd.grad(loss, theta)
        found.append(sum(g.double().square().sum().item() for g in gradients))
        with torch.no_grad():
            for p, g in zip(theta, gradients, strict=True):
                p -= client.config.lr * g
    return sum(found) / len(found)


def federation(config, directory):
    """Create the method's server and clients for a run of `config`."""
    problem, _, _, shards = prepare(config, directory, SerialComm())
    method = load_method(config.method)(problem)
    clients = [method.client(k, data, CPU) for k, data in enumerate(read_clients(shards, range(problem.K)))]
    return method.server(CPU), clients


@pytest.mark.parametrize("families", ["DNN", "DNN,Resmodel", "CNN2D,TextCNN,CNN1D"])
@pytest.mark.parametrize("method", EXTRA_LOSSES)
def test_the_logged_norm_equals_that_of_autograd(tiny, tmp_path, method, families):
    settings = {"clients": 6, "alpha": 0.3, "samples": 200, "lr": 0.002}  # FedProto's Resmodel diverges here at 0.01
    config = tiny(method=method, families=families, track_gradients=True, **{"clip": 0.0, **settings})
    server, clients = federation(config, tmp_path)
    assert any(client.model.has_batchnorm for client in clients) == ("Resmodel" in families)
    inbox = {}
    for t in (1, 2, 3):
        expected = [reference(client, EXTRA_LOSSES[method], t, inbox) for client in clients]
        uploads = {k: client.update(t, 0, inbox) for k, client in enumerate(clients)}
        assert [client.gradient_norm2 for client in clients] == pytest.approx(expected, rel=1e-4)
        inbox = server.step(t, 0, uploads) if server else {}


def test_a_step_calculated_by_hand(make_federation):
    """W = b = 0, one sample x = (1, 2) of class 0 of 2: g_b = (-1/2, 1/2), g_W = g_b x^T, so ||g||^2 = 1/2 (1 + 5)."""
    (client,) = make_federation(
        "local", [Data({0: [(1, 2)]}, [0])], modalities=1, classes=2, lr=0.5, track_gradients=True
    ).clients
    for p in client.model.classifier.parameters():
        nn.init.zeros_(p)
    client.update(1, 0, {})
    assert client.gradient_norm2 == pytest.approx(3, rel=1e-6)


def test_parameter_groups_use_their_learning_rates_and_rate_zero_is_left_out():
    extractors = nn.ModuleList([nn.Linear(1, 1, bias=False), nn.BatchNorm1d(1)])
    a, constant = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(1))
    client = SimpleNamespace(
        model=SimpleNamespace(extractors=extractors), device=CPU, rates=lambda: (0.5, [([a], 0.25), ([constant], 0.0)])
    )
    norm = GradientNorm(client)
    with torch.no_grad():
        for number, *_ in norm.watch((number, slice(0), []) for number in range(2)):
            extractors[0].weight -= 0.5 * 3.0
            extractors[1].running_mean += 100  # a buffer
            a -= 0.25 * torch.tensor([4.0, 12.0]) * number
    assert norm.mean() == pytest.approx((9 + 9 + 16 + 144) / 2)


def test_extractors_with_learning_rate_zero_are_left_out(make_federation):
    """Harmony's stage 2 with encoder_lr_factor 0: the norm is that of the fusion classifier's gradient, and finite."""
    data = [Data({0: [(1, 2), (3, 1)]}, [0, 1]), Data({0: [(0, 1), (2, 2)]}, [1, 2])]
    settings = {"stage1_rounds": 1, "encoder_lr_factor": 0}
    built = make_federation("harmony", data, modalities=1, rounds=2, harmony=settings, track_gradients=True)
    client = built.clients[0]
    client.model.extractors = nn.ModuleList([nn.Linear(2, 2)])
    inbox = {"start": torch.zeros(3, 3), "mean": torch.zeros(1, 3, 3)}
    client.update(1, 0, inbox)
    before = copy.deepcopy(client.model.extractors[0].state_dict())
    client.update(2, 0, inbox)
    assert all(torch.equal(value, before[name]) for name, value in client.model.extractors[0].state_dict().items())
    with torch.no_grad():
        z = client.model.extractors[0](torch.tensor([[1.0, 2.0], [3.0, 1.0]]))
    # W = b = 0: g = (1/3 - y) / 2 for each sample
    g = (torch.full((2, 3), 1 / 3) - F.one_hot(torch.tensor([0, 1]), 3)) / 2
    expected = (g.T @ z).square().sum() + g.sum(0).square().sum()
    assert client.gradient_norm2 == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_tracking_does_not_change_a_run(finished, method):
    settings = {"method": method, "clients": 5, "participation": 0.6, "alpha": 1.0}
    off, on = finished(**settings), finished(track_gradients=True, **settings)
    assert on.final["client_sha256"] == off.final["client_sha256"]
    assert on.final["server_sha256"] == off.final["server_sha256"]
    servers = {"gradient_rec", "gradient_con", "gradient_align", *TERMS} if method == "mfedpba" else set()
    clients = set(load_method(method).client_class.tracked)
    assert on.rounds.keys() - off.rounds.keys() == clients | servers
    for name, values in off.rounds.items():
        if not name.startswith(("seconds_", "wire_up")):
            np.testing.assert_array_equal(on.rounds[name], values, err_msg=name)
    np.testing.assert_array_equal(on.rounds["wire_up"], off.rounds["wire_up"] + 8 * len(clients))


def test_without_tracking_the_norm_is_nan(make_federation):
    (client,) = make_federation("local", [Data({0: [(1, 2)]}, [0])], modalities=1).clients
    client.update(1, 0, {})
    assert math.isnan(client.gradient_norm2)


SETTINGS = {"clients": 7, "participation": 0.6, "rounds": 4, "alpha": 0.3, "track_gradients": True}


def assert_same(run, other):
    for name in ("gradient_norm2", "arrival_old", "arrival_new", *TERMS):
        assert np.isfinite(run.rounds[name]).any()
        np.testing.assert_array_equal(run.rounds[name], other.rounds[name])
    np.testing.assert_array_equal(run.final["plan"], other.final["plan"])


def test_a_resumed_run_has_the_same_gradients_and_plans(tiny, finished, tmp_path):
    directory = tmp_path / "broken"
    directory.mkdir()
    for rounds in (2, 4):
        config = tiny(**{**SETTINGS, "rounds": rounds})
        run_rounds(config, tmp_path, SerialComm(), [RunLog(directory)], Checkpoints(directory))
    assert_same(finished(method="mfedpba", **SETTINGS), load_run(directory))


def test_the_checkpoint_of_a_complete_run_contains_the_plans(tiny, tmp_path):
    directory = tmp_path / "whole"
    directory.mkdir()
    runs = []
    for _ in range(2):  # the second call only restores the complete run
        run_rounds(tiny(**SETTINGS), tmp_path, SerialComm(), [RunLog(directory)], Checkpoints(directory))
        runs.append(load_run(directory))
    assert_same(*runs)


@pytest.mark.mpi(min_size=3)
def test_gradients_and_plans_are_the_same_on_three_ranks(tiny, tmp_path):
    from mfedpba_mpi.comm.mpi import MPIComm

    config = tiny(**SETTINGS)
    comm = MPIComm(config.clients)
    parallel, serial = tmp_path / "parallel", tmp_path / "serial"
    for directory in (parallel, serial):
        directory.mkdir()
    run_rounds(config, tmp_path, comm, [RunLog(parallel)])
    if comm.is_server:
        run_rounds(config, tmp_path, SerialComm(), [RunLog(serial)])
        assert_same(load_run(parallel), load_run(serial))
    comm.barrier()
