"""``--autograd``: the same training by another path, which also checks the manual gradients of every loss."""

import numpy as np
import pytest
from scipy.sparse import random_array

from mfedpba_mpi import load_run
from mfedpba_mpi.comm.serial import SerialComm
from mfedpba_mpi.data.catalog import Dataset, Modality
from mfedpba_mpi.data.store import write_store
from mfedpba_mpi.engine.loop import run_rounds
from mfedpba_mpi.methods.params import METHODS
from mfedpba_mpi.methods.training import HeadLoss
from mfedpba_mpi.models.manual_sgd import SequentialPass
from mfedpba_mpi.records.checkpoint import Checkpoints
from mfedpba_mpi.records.run_log import RunLog
from tests.methods.test_gradients import federation

N, C = 240, 4
BY_HAND = {
    "local": {},
    "fedproto": {"min_class_samples": 4},
    "fedproto, by modality": {"proto_scope": "modality", "proto_source": "train"},
    "fedproto, train": {"proto_source": "train", "lam": 0.3},
    "fedtgp": {"min_class_samples": 4},
    "mfedpba": {"min_class_samples": 4, "lambda_1": 0.5, "without": ["align"]},
    "mfedpba, without fea": {"without": ["align", "fea"]},
    "mfedpba, without logit": {"without": ["align", "logit"], "lambda_1": 0.5},
}  # cases with a loss that is differentiated by hand; the server's transport plans would amplify the rounding
CONCAT = ("local", "mfedpba")  # the methods that allow fusion concat
OTHERS = {name: {} for name in METHODS if name not in {case.partition(",")[0] for case in BY_HAND}}
CASES = [
    (case, fusion)
    for case in [*BY_HAND, *OTHERS]
    for fusion in ("sum", "separate", "concat")
    if fusion != "concat" or case.startswith(CONCAT)
]


@pytest.fixture
def settings(tmp_path):
    """Settings of clients with label skew on a dense and two sparse modalities; most clients lack a class."""
    rng = np.random.default_rng(0)
    labels = np.arange(N) % C
    words = [random_array((N, 300), density=0.05, format="csr", rng=rng, dtype=np.float32) for _ in range(2)]
    dense = rng.standard_normal((N, 12)) + rng.standard_normal((C, 12))[labels]
    modalities = Modality("pixels", "I", 12), Modality("words", "L", 300, True), Modality("tags", "T", 300, True)
    path = tmp_path / "three.h5"
    write_store(path, Dataset("three", N, C, modalities), labels, [dense.astype(np.float32), *words], "real", {})
    given = {"dataset": str(path), "samples": None, "classes": None, "dims": None}
    return {**given, "clients": 5, "alpha": 0.3, "participation": 0.8, "lr": 0.003, "rounds": 3}


def assert_equal_up_to_rounding(run, other):
    names = [name for name in run.rounds if name.startswith("loss_") or name == "gradient_norm2"]
    assert len(names) > 1
    for name in names:
        np.testing.assert_allclose(other.rounds[name], run.rounds[name], rtol=2e-3, atol=1e-5, err_msg=name)
    for name in ("E", "I"):
        np.testing.assert_allclose(other.final[name], run.final[name], rtol=2e-3, atol=1e-4, err_msg=name)


@pytest.mark.parametrize(("case", "fusion"), CASES)
def test_a_run_equals_that_by_hand(finished, settings, case, fusion):
    method, own = case.partition(",")[0], (BY_HAND | OTHERS)[case]
    settings |= {"method": method, method: own, "fusion": fusion, "track_gradients": True}
    assert_equal_up_to_rounding(finished(**settings), finished(autograd=True, **settings))


@pytest.mark.parametrize("method", METHODS)
def test_a_clipped_run_equals_that_by_hand(finished, settings, method):
    settings |= {"method": method, "clip": 0.5, "track_gradients": True}
    run, other = finished(**settings), finished(autograd=True, **settings)
    assert_equal_up_to_rounding(run, other)
    free = finished(**{**settings, "clip": 0.0})
    assert not np.allclose(free.rounds["loss_ce"], run.rounds["loss_ce"], rtol=2e-3, equal_nan=True)


@pytest.mark.parametrize("method", METHODS)
def test_nothing_is_differentiated_by_hand(tiny, tmp_path, monkeypatch, method):
    _, clients = federation(tiny(method=method, autograd=True), tmp_path)
    server, _ = federation(tiny(method=method), tmp_path)
    first = dict(server.first_message()) if server else {}
    for manual in (HeadLoss, SequentialPass):
        monkeypatch.setattr(manual, "gradient", None)
    for client in clients:
        client.begin(first)
        client.update(1, 0, first)


def test_a_loss_without_the_terms_of_a_batch_is_refused(tiny, tmp_path):
    _, (client, *_) = federation(tiny(method="local", autograd=True), tmp_path)

    class ByHandOnly(HeadLoss):
        def on_logits(self, number, rows, logits, g):
            return 2 * g

    with pytest.raises(TypeError, match="ByHandOnly has no `batch_terms`, which training by autograd needs"):
        client.train(1, lambda epoch: ByHandOnly(client, epoch))


@pytest.mark.parametrize("method", ["fedproto", "mfedpba"])
def test_a_resumed_run_has_the_same_bits(tiny, finished, tmp_path, method):
    settings = {"method": method, "autograd": True, "clients": 5, "alpha": 0.3, "participation": 0.6}
    directory = tmp_path / "broken"
    directory.mkdir()
    for rounds in (2, 4):
        config = tiny(rounds=rounds, **settings)
        run_rounds(config, tmp_path, SerialComm(), [RunLog(directory)], Checkpoints(directory))
    whole, resumed = finished(rounds=4, **settings), load_run(directory)
    assert resumed.final["client_sha256"] == whole.final["client_sha256"]
    assert resumed.final["server_sha256"] == whole.final["server_sha256"]
    np.testing.assert_array_equal(resumed.rounds["loss_ce"], whole.rounds["loss_ce"])


@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize("method", ["fedproto", "mfedpba"])
def test_three_ranks_and_one_process_are_bit_identical(tiny, tmp_path, method):
    from mfedpba_mpi.comm.mpi import MPIComm

    config = tiny(method=method, autograd=True, clients=7, participation=0.6, rounds=3)
    comm = MPIComm(config.clients)
    parallel, serial = tmp_path / "parallel", tmp_path / "serial"
    for directory in (parallel, serial):
        directory.mkdir()
    run_rounds(config, tmp_path, comm, [RunLog(parallel)])
    if comm.is_server:
        run_rounds(config, tmp_path, SerialComm(), [RunLog(serial)])
        a, b = load_run(parallel), load_run(serial)
        assert a.final["client_sha256"] == b.final["client_sha256"]
        np.testing.assert_array_equal(a.rounds["loss_ce"], b.rounds["loss_ce"])
    comm.barrier()
