"""Planning: the arithmetic, the payload compared with a run's log, and invalid input; no predicted time is measured."""

from itertools import pairwise

import numpy as np
import pytest

from mfedpba_mpi.comm.placement import place
from mfedpba_mpi.data.catalog import Modality
from mfedpba_mpi.errors import UserError
from mfedpba_mpi.methods.params import METHODS
from mfedpba_mpi.models.architecture import sample_architecture, weights
from mfedpba_mpi.models.extractors import build_extractor
from mfedpba_mpi.planning.plan import (
    Machine,
    activation_bytes,
    client_bytes,
    expected_problem,
    make_plan,
    rank_bytes,
    round_seconds,
)


def seconds(ranks, nodes=1, cores=2, server=0.5):
    """Seconds of a round of six clients that train for 1 to 6 seconds and evaluate in 0."""
    train = np.arange(1.0, 7.0)
    return round_seconds(train, np.zeros(6), server, 0.25, place(train.tolist(), ranks), Machine(ranks, nodes, cores))


def test_one_process_does_everything_in_sequence():
    assert seconds(1) == 21 + 0.5 + 0.25


def test_ranks_of_a_node_share_its_cores():
    """Two workers have 6 + 3 + 2 and 5 + 4 + 1 seconds; six workers share two cores evenly."""
    assert seconds(3) == 11 + 0.5 + 0.25
    assert seconds(7) == 10.5 + 0.5 + 0.25


def test_with_one_core_per_rank_the_slowest_client_decides():
    assert seconds(7, cores=8) == 6 + 0.5 + 0.25


def test_nodes_do_not_share_cores():
    """Ranks 0 to 3 (clients of 1, 2, 3 s) and ranks 4 to 6 (4, 5, 6 s), with one core per node."""
    assert seconds(7, nodes=2, cores=1) == 15 + 0.5 + 0.25


def test_evaluation_overlaps_with_the_server_on_several_ranks_only():
    train, test = np.ones(2), np.full(2, 0.25)
    assert round_seconds(train, test, 1.0, 0.0, [[0, 1]], Machine(1)) == 3.5
    assert round_seconds(train, test, 1.0, 0.0, [[], [0], [1]], Machine(3, cores=4)) == 2.0


def test_more_ranks_never_take_longer():
    rng = np.random.default_rng(0)
    train = rng.lognormal(size=40)
    for cores in (1, 2, 16):
        found = [
            round_seconds(train, train / 10, 0.1, 0.0, place(train.tolist(), ranks), Machine(ranks, 1, cores))
            for ranks in (1, 2, 3, 5, 9, 17, 41)
        ]
        assert all(b <= a + 1e-9 for a, b in pairwise(found)), found


@pytest.mark.parametrize("family", ["DNN", "CNN1D", "CNN2D", "TextCNN", "Resmodel"])
@pytest.mark.parametrize("sparse", [False, True])
def test_weights_are_counted_without_building_the_network(family, sparse):
    """Biases and BatchNorm, a few per cent at most, are not counted."""
    kind = {"CNN2D": "I", "TextCNN": "L"}.get(family, "A")
    modality = Modality("x", kind, 300, sparse)
    architecture = sample_architecture(np.random.default_rng(1), modality, [family])
    built = sum(p.numel() for p in build_extractor(architecture, modality, 16).parameters() if p.dim() > 1)
    assert weights(architecture, modality, 16) == built


def test_memory_of_clients_does_not_depend_on_their_rank(tiny, tmp_path):
    """Only process and activations are counted once per rank."""
    problem = expected_problem(tiny(), tmp_path)
    difference = rank_bytes(problem, 0, 1, [0, 1, 2], 0) - max(rank_bytes(problem, 0, 1, [k], 0) for k in range(3))
    assert 0 < difference < sum(rank_bytes(problem, 0, 1, [k], 0) for k in range(3))
    assert rank_bytes(problem, 7.0, 1, [], 0) == 7.0
    assert rank_bytes(problem, 7.0, 0, [], 10) == 7.0 + 30 + 300 * 3 * 3


def test_clipping_keeps_the_products_of_the_rows_of_linear_layers(tiny, tmp_path):
    free, clipped = (
        expected_problem(tiny(clip=clip, families="DNN", dims=(8, 400), clients=2), tmp_path) for clip in (0.0, 1.0)
    )
    n, own = free.clients[0].n_train, free.clients[0].modalities
    kept = [m for m in own if n <= 2 * free.info.modalities[m].width]
    assert 0 < len(kept) < len(own)
    assert client_bytes(clipped, 0) - client_bytes(free, 0) == 4 * n**2 * len(kept)


def test_autograd_builds_the_gradients_of_the_weights_and_keeps_no_products_of_rows(tiny, tmp_path):
    by_hand, clipped, autograd = (
        expected_problem(tiny(families="DNN", dims=(8, 400), clients=2, **settings), tmp_path)
        for settings in ({"clip": 0.0}, {"clip": 1.0}, {"clip": 1.0, "autograd": True})
    )
    spec, modalities = autograd.clients[0], autograd.info.modalities
    built = sum(weights(a, modalities[m], 8) for m, a in zip(spec.modalities, spec.architectures, strict=True))
    assert client_bytes(clipped, 0) > client_bytes(autograd, 0) == client_bytes(by_hand, 0)
    assert activation_bytes(autograd, 0) - activation_bytes(clipped, 0) == 4 * built


@pytest.mark.parametrize("method", METHODS)
def test_payload_equals_that_in_the_log(tiny, finished, tmp_path, method):
    config = tiny(method=method, partition="m1+", clients=4)
    rounds = finished(method=method, partition="m1+", clients=4).rounds
    plan = make_plan(config, tmp_path, ranks=3)
    assert (plan.up, plan.down) == (rounds["bytes_up"][1].sum(), rounds["bytes_down"][1].sum())
    assert (plan.last_up, plan.last_down) == (rounds["bytes_up"][-1].sum(), rounds["bytes_down"][-1].sum())
    assert plan.seconds > 0
    assert len(plan.memory) == 3


def test_the_expected_clients_are_those_of_the_run(tiny, finished, tmp_path):
    """Modalities and networks follow from the seed, and sample counts without skew from K: no data are needed."""
    found = finished().partition
    problem = expected_problem(tiny(), tmp_path)
    assert [spec.n_train for spec in problem.clients] == np.diff(found["train_offsets"]).tolist()
    assert [list(spec.modalities) for spec in problem.clients] == [
        np.flatnonzero(m).tolist() for m in found["modalities"]
    ]


def test_min_class_samples_above_the_calibration_s_rows_is_no_error(tiny, tmp_path):
    """Each client has about 90 rows; the calibration uses 20 of them."""
    config = tiny(samples=400, batch_size=2, mfedpba={"min_class_samples": 20})
    assert make_plan(config, tmp_path).seconds > 0


def test_planning_writes_nothing(tiny, tmp_path):
    make_plan(tiny(), tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--ranks", "-1"), "ranks: -1 is out of range"),
        (("--ranks", "0"), "ranks: 0 is out of range"),
        (("--cores", "0"), "cores: 0 is out of range"),
        (("--ranks", 2, "--nodes", 3), "3 nodes for 2 ranks"),
        (("--gpus", "-2"), "gpus: -2 is out of range"),
        (("--device", "cuda"), "--gpus"),
        (("--ranks", "few"), "--ranks"),
    ],
)
def test_invalid_options_give_a_one_line_error(command, args, words):
    result = command("plan", "--dataset", "youtube", *args)
    assert result.returncode == 2
    assert words in result.stderr
    assert result.stderr.count("\n") == 1


def test_invalid_machines_are_errors():
    with pytest.raises(UserError, match="cores: 0"):
        Machine(2, 1, 0)
