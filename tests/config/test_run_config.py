"""Settings: names, precedence, presets and errors."""

import dataclasses
import json

import pytest

from mfedpba_mpi.config.run_config import ADDED, RunConfig, fit_to_data, make_config, read_toml
from mfedpba_mpi.data.catalog import Dataset, Modality
from mfedpba_mpi.errors import UserError


def test_precedence_is_command_line_file_preset():
    file = {"rounds": 7, "lr": 0.3, "mfedpba": {"lambda_1": 0.5, "tau": 0.7}}
    config = make_config({"dataset": "youtube", "rounds": "9", "mfedpba": {"tau": "0.9"}}, file)
    assert (config.rounds, config.lr, config.feature_dim) == (9, 0.3, 48)
    assert (config.params.lambda_1, config.params.tau, config.params.lambda_2) == (0.5, 0.9, 1.0)


def test_parameters_of_the_method_may_have_bare_names():
    by_name = RunConfig.of(dataset="youtube", tau=0.9)
    assert by_name == RunConfig.of(dataset="youtube", mfedpba={"tau": 0.9})
    with pytest.raises(UserError, match="margin: belongs to method fedtgp, but this run's method is mfedpba"):
        RunConfig.of(dataset="youtube", margin=1.0)


@pytest.mark.parametrize(
    "given",
    [
        {"tau": 0.9, "batch_size": 6},
        {"tau": "0.9", "batch-size": "6"},
        {"mfedpba.tau": 0.9, "batch-size": 6},
        {"mfedpba": {"tau": 0.9}, "tau": "0.9", "batch_size": 6},
    ],
)
def test_full_and_bare_names_mean_the_same_on_the_command_line_in_a_file_and_in_python(given):
    expected = RunConfig.of(dataset="youtube", mfedpba={"tau": 0.9}, batch_size=6)
    assert RunConfig.of(dataset="youtube", **given) == expected
    assert make_config({"dataset": "youtube"}, given) == expected
    assert make_config({"dataset": "youtube"}, {"tau": 0.1, "batch_size": 1}, list(given.items())) == expected


def test_a_bare_name_is_a_parameter_of_the_run_s_method():
    config = make_config({"dataset": "youtube"}, {"server_epochs": 3}, [("method", "fedtgp")])
    assert (config.method, config.params.server_epochs) == ("fedtgp", 3)
    config = RunConfig.of(dataset="youtube", method="fedmvp", alpha=3.0)  # a setting of the run comes first
    assert (config.alpha, config.params.alpha) == (3.0, 0.01)


@pytest.mark.parametrize("given", [{"tau": 1, "mfedpba": {"tau": 2}}, {"tau": 1, "mfedpba.tau": 2}])
def test_a_setting_given_twice_with_different_values_is_refused(given):
    with pytest.raises(UserError, match=r"mfedpba\.tau: given as 1 and as 2; give it once"):
        RunConfig.of(dataset="youtube", **given)


def test_an_unknown_method_in_json_is_an_error_with_its_name():
    text = make_config({"dataset": "youtube"}).to_json().replace("mfedpba", "headavg")
    with pytest.raises(UserError, match=r"unknown method 'headavg'; .* with --plugin FILE\.py"):
        RunConfig.from_json(text)


def test_a_method_in_json_that_is_not_a_string_is_an_error():
    text = make_config({"dataset": "youtube"}).to_json().replace('"method": "mfedpba"', '"method": ["mfedpba"]')
    with pytest.raises(UserError, match="unknown method"):
        RunConfig.from_json(text)


def test_the_configuration_survives_json():
    config = make_config({"dataset": "youtube", "mfedpba": {"without": "rec,con"}})
    assert json.loads(config.to_json())["mfedpba"]["without"] == ["rec", "con"]
    assert RunConfig.from_json(config.to_json()) == config


def test_settings_missing_in_an_older_log_have_the_values_of_that_version():
    config = make_config({"dataset": "youtube", "clip": 0})
    older = {name: value for name, value in config.as_dict().items() if name not in ADDED}
    assert {"autograd", "clip"}.isdisjoint(older)
    assert RunConfig.from_json(json.dumps(older)) == config


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "dataset: missing"),
        ({"dataset": "youtube", "roundz": 3}, "did you mean 'rounds'"),
        ({"dataset": "youtube", "rounds": 0}, "rounds: 0 is out of range; allowed: >= 1"),
        ({"dataset": "youtube", "clients": 0}, "clients: 0 is out of range; allowed: >= 1"),
        ({"dataset": "youtube", "partition": ""}, "partition: '' is not one of m2, m1+, m1"),
        ({"dataset": "youtube", "dims": ""}, "dims: only for --dataset synthetic, not for youtube"),
        (
            {"dataset": "synthetic", "dims": "a,b"},
            "dims: expected whole numbers separated by commas, e.g. 64,128, got 'a,b'",
        ),
        ({"dataset": "youtube", "families": 3}, "families: expected words separated by commas, got 3"),
        ({"dataset": "youtube", "rounds": "ten"}, "rounds: expected a whole number, got 'ten'"),
        ({"dataset": "youtube", "rounds": 1.5}, "expected a whole number"),
        ({"dataset": "youtube", "lr": "nan"}, "lr: nan is out of range"),
        ({"dataset": "youtube", "participation": 1.1}, "participation: 1.1 is out of range"),
        ({"dataset": "youtube", "track_gradients": "maybe"}, "track-gradients: expected true or false, got 'maybe'"),
        ({"dataset": "youtube", "method": "mfedbpa"}, "did you mean 'mfedpba'"),
        ({"dataset": "youtube", "fusion": "summ"}, "did you mean 'sum'"),
        ({"dataset": "youtube", "families": "DNN,RNN"}, "'RNN' is not one of"),
        ({"dataset": "youtube", "method": "local", "mfedpba": {"tau": 1}}, "tau: belongs to method mfedpba"),
        ({"dataset": "youtube", "mfedpba": {"lamda_1": 1}}, "did you mean 'lambda_1'"),
        ({"dataset": "youtube", "mfedpba": {"tau": 0}}, "mfedpba.tau: 0.0 is out of range"),
        ({"dataset": "youtube", "mfedpba": {"without": "rek"}}, "did you mean 'rec'"),
        ({"dataset": "youtube", "mfedpba": 3}, "unknown setting 'mfedpba'"),
        ({"dataset": "youtube", "samples": 100}, "samples: only for --dataset synthetic"),
        ({"dataset": "youtube", "feature_dim": 7}, "feature-dim: 7 is odd"),
    ],
)
def test_errors_name_the_setting_and_the_problem(given, words):
    with pytest.raises(UserError) as error:
        make_config(given)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_or_invalid_file_is_an_error_with_its_path(tmp_path):
    with pytest.raises(UserError, match="cannot read the configuration"):
        read_toml(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("rounds = = 3")
    with pytest.raises(UserError, match="not valid TOML"):
        read_toml(tmp_path / "bad.toml")


def _info(M: int, samples: int = 100) -> Dataset:
    return Dataset("toy", samples, 3, tuple(Modality(f"I{m}", "I", 4) for m in range(M)))


@pytest.mark.parametrize(
    ("M", "given", "expected"),
    [
        (3, {}, (3, "m2", None)),
        (3, {"clients": 7}, (7, "m1+", 0.5)),
        (3, {"clients": 7, "alpha": 2.0, "partition": "m1"}, (7, "m1", 2.0)),
        (3, {"alpha": 0.1}, (3, "m2", 0.1)),
        (1, {}, (1, "m1", None)),
    ],
)
def test_defaults_that_depend_on_the_data(M, given, expected):
    config = fit_to_data(make_config({"dataset": "synthetic", **given}), _info(M))
    assert (config.clients, config.partition, config.alpha) == expected


def test_a_partition_file_sets_the_number_of_clients(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("client,sample,modalities\n0,3,I0\n1,4,I1\n1,9,I1\n")
    given = {"dataset": "synthetic", "partition": str(path)}
    config = fit_to_data(make_config(given), _info(2))
    assert (config.clients, config.partition, config.alpha) == (2, str(path), None)
    assert config.run_name == "synthetic-mine-mfedpba-s0"
    assert dataclasses.replace(config, problem_seed=3).run_name == "synthetic-mine-mfedpba-s0-p3"
    assert RunConfig.from_json(config.to_json()) == config
    assert fit_to_data(config, _info(2)) == config
    with pytest.raises(UserError, match=r"clients: 3, but .*mine\.csv has 2; leave --clients out"):
        fit_to_data(make_config({**given, "clients": 3}), _info(2))
    with pytest.raises(UserError, match=r"alpha: has no effect on the partition in .*mine\.csv; leave --alpha out"):
        fit_to_data(make_config({**given, "alpha": 0.5}), _info(2))
    with pytest.raises(UserError, match=r"'mine\.txt' is not one of m2, m1\+, m1, a FILE\.csv, a FILE\.h5"):
        make_config({**given, "partition": "mine.txt"})


def test_impossible_partitions_are_refused():
    with pytest.raises(UserError, match="m2 needs two modalities"):
        fit_to_data(make_config({"dataset": "synthetic", "partition": "m2"}), _info(1))
    with pytest.raises(UserError, match="at most 12"):
        fit_to_data(make_config({"dataset": "synthetic", "clients": 13}), _info(3))
