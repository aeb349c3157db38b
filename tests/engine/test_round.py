"""A round of the federation: participants, payload, evaluation, errors, and the same bits on any number of ranks."""

import numpy as np
import pytest
import torch

from mfedpba_mpi import load_run
from mfedpba_mpi.comm.layout import Layout
from mfedpba_mpi.comm.serial import SerialComm
from mfedpba_mpi.engine.loop import run_rounds
from mfedpba_mpi.errors import Ended, RunError
from mfedpba_mpi.methods.base import Client
from mfedpba_mpi.methods.mfedpba import MFedPBAClient, MFedPBAMethod, MFedPBAServer
from mfedpba_mpi.methods.params import METHODS
from tests.ranks import TINY

RANKS = (0, 1, 2, 3, 5, 6)  # 0: without mpirun; K + 1 = 5 are enough, so the sixth is spare


@pytest.mark.parametrize(
    "settings", [("--partition", "m2"), ("--clients", 9, "--participation", 0.5, "--fusion", "separate")]
)
def test_any_number_of_ranks_gives_the_same_bits(command, tmp_path, settings):
    runs = []
    for ranks in RANKS:
        result = command(*TINY, *settings, "--out", f"n{ranks}", ranks=ranks)
        assert result.returncode == 0, result.stderr
        runs.append(load_run(tmp_path / f"n{ranks}"))
    first = runs[0]
    for run in runs[1:]:
        assert run.final["client_sha256"] == first.final["client_sha256"]
        assert run.final["server_sha256"] == first.final["server_sha256"]
        for name, values in first.rounds.items():
            if not name.startswith("seconds_"):
                np.testing.assert_array_equal(run.rounds[name], values, err_msg=name)


def test_payload_equals_the_formula(finished):
    run = finished(partition="m1+")
    C, d, M = 3, 8, 3
    owned = run.partition["modalities"].sum(axis=1)
    assert (run.rounds["bytes_up"] == 4 * C * (owned * d + C)).all()
    assert (run.rounds["bytes_down"] == 4 * C * (M * d + C)).all()
    metrics, presence = 8 * 5, 4 * (M * C + C)
    assert (run.rounds["wire_up"] == run.rounds["bytes_up"] + metrics).all()
    assert (run.rounds["wire_down"] == run.rounds["bytes_down"] + presence).all()


def test_partial_participation(finished):
    run = finished(participation=0.5, clients=4, rounds=6, eval_every=2)
    took_part = run.rounds["participants"]
    assert (took_part.sum(axis=1) == 2).all()
    assert took_part.any(axis=0).sum() > 2
    assert (np.isnan(run.rounds["loss_ce"]) == ~took_part).all()
    assert ((run.rounds["bytes_up"] > 0) == took_part).all()
    assert run.evaluated.tolist() == [2, 4, 6]
    assert (run.rounds["tested"][0] == -1).all()
    assert np.isnan(run.rounds["accuracy"][0]).all()


def test_gradients_of_participants_are_logged(finished):
    run = finished(participation=0.5, clients=4, rounds=6, eval_every=2, track_gradients=True)
    assert (np.isnan(run.rounds["gradient_norm2"]) == ~run.rounds["participants"]).all()
    assert np.nanmin(run.rounds["gradient_norm2"]) > 0
    assert "gradient_norm2" not in finished().rounds


def test_the_last_round_is_evaluated_with_any_eval_every(finished):
    assert finished(eval_every=2).evaluated.tolist() == [2, 3]


@pytest.mark.parametrize("method", [name for name in METHODS if name != "local"])
def test_a_non_finite_upload_is_named(finished, monkeypatch, method):
    def diverge(self, *_):
        for parameter in self.model.parameters():
            parameter.data.fill_(torch.nan)

    monkeypatch.setattr(Client, "train", diverge)
    with pytest.raises(RunError, match=r"client 0, round 1: its \w+ is not finite; lower --lr"):
        finished(method=method)


def test_a_broadcast_with_a_reserved_name_of_the_log_is_refused(finished, monkeypatch):
    monkeypatch.setattr(MFedPBAMethod, "reply", lambda *_: Layout({"E": (3, 8)}))
    with pytest.raises(TypeError, match="MFedPBAMethod broadcasts E, a reserved name in the log's /final; rename it"):
        finished()


def test_a_first_message_that_differs_from_its_layout_is_refused(finished, monkeypatch):
    monkeypatch.setattr(MFedPBAMethod, "first", lambda _: Layout({"W": (3, 8)}))
    with pytest.raises(ValueError, match="message has \\[\\], its layout \\['W'\\]"):
        finished()


def test_an_error_names_the_round_and_the_server(finished, monkeypatch):
    def broken(self, t, phase, uploads):
        raise ZeroDivisionError

    monkeypatch.setattr(MFedPBAServer, "step", broken)
    with pytest.raises(RunError, match="round 1, server: ZeroDivisionError") as error:
        finished()
    assert isinstance(error.value.__cause__, ZeroDivisionError)


def test_a_client_that_changes_its_inbox_in_place_is_refused(tiny, tmp_path, monkeypatch):
    update = MFedPBAClient.update

    def careless(self, t, phase, inbox):
        if inbox:
            inbox["P_G"].mul_(0.5)
        return update(self, t, phase, inbox)

    monkeypatch.setattr(MFedPBAClient, "update", careless)
    with pytest.raises(Ended, match=r"client 0.*the client changes inbox\['P_G'\] in place, which other clients share"):
        run_rounds(tiny(), tmp_path, SerialComm())
