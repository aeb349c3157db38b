"""Calibration: two real rounds with a sample of the clients and stand-ins for the others."""

import numpy as np
import pytest

from mfedpba_mpi.engine.round import Federation
from mfedpba_mpi.errors import RunError
from mfedpba_mpi.methods.params import METHODS
from mfedpba_mpi.planning.calibration import SAMPLE_SIZE, SampledFederation, calibrate, choose_sample, shorten
from mfedpba_mpi.planning.plan import expected_problem


@pytest.mark.parametrize("method", METHODS)
def test_rates_of_clients_outside_the_sample_are_the_mean(tiny, tmp_path, method):
    config = tiny(method=method, clients=20, samples=800, partition="m1+", participation=0.7)
    problem = expected_problem(config, tmp_path)
    rates, others = calibrate(problem), np.setdiff1d(np.arange(20), choose_sample(problem))
    assert rates.sampled == SAMPLE_SIZE
    for found in (rates.train, rates.evaluate):
        assert (found > 0).all()
        assert len(set(found[others])) == 1
        assert found.min() <= found[others[0]] <= found.max()
    assert rates.server >= 0
    assert rates.comm > 0


@pytest.mark.parametrize(("participation", "participants"), [(1.0, 20), (0.6, 12), (0.1, SAMPLE_SIZE)])
def test_the_server_receives_an_upload_from_every_participant(tiny, tmp_path, participation, participants):
    problem = expected_problem(tiny(clients=20, samples=800, participation=participation), tmp_path)
    sample = choose_sample(problem)
    federation = SampledFederation(*shorten(problem, sample))
    step, received = federation.server.step, []
    federation.server.step = lambda t, phase, uploads: received.append(list(uploads)) or step(t, phase, uploads)
    values = federation.round(1)[0].values
    assert received == [np.flatnonzero(values["participants"]).tolist()]
    assert len(received[0]) == participants
    assert set(sample) <= set(received[0])


def test_evaluation_is_measured_with_any_eval_every(tiny, tmp_path):
    assert (calibrate(expected_problem(tiny(eval_every=3), tmp_path)).evaluate > 0).all()


def test_without_stand_ins_a_round_equals_a_round_of_the_engine(tiny, tmp_path):
    """With K <= SAMPLE_SIZE every client is sampled."""
    problem, data = shorten(expected_problem(tiny(), tmp_path), [0, 1, 2])
    measured = SampledFederation(problem, data)
    method = measured.method
    clients = {k: method.client(k, rows, measured.comm.device) for k, rows in data.items()}
    plain = Federation(problem.config, measured.comm, method, clients, method.server(measured.comm.device))
    for t in (1, 2):
        found, expected = measured.round(t)[0].values, plain.round(t)[0].values
        for name in ("loss_ce", "correct", "tested", "bytes_up", "wire_down"):
            np.testing.assert_array_equal(found[name], expected[name])


def test_an_error_in_a_client_is_raised(tiny, tmp_path):
    with pytest.raises(RunError, match="lower --lr"):
        calibrate(expected_problem(tiny(lr=1e30), tmp_path))
