"""Reading the log of a run."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mfedpba_mpi import load_run
from mfedpba_mpi.errors import UserError
from mfedpba_mpi.records.run import bracketed, in_full, joint_remark, mean_of_clients, run_directory


def test_a_missing_or_foreign_file_is_refused(tmp_path):
    with pytest.raises(UserError, match="no run at"):
        load_run(tmp_path)
    (tmp_path / "run.h5").write_bytes(b"another format")
    with pytest.raises(UserError, match="not a readable run log"):
        load_run(tmp_path)


def test_a_log_of_another_format_version_names_both_versions(finished, edit_log):
    path = edit_log(finished().path, lambda file: file.attrs.update(format_version=7, version="9.9"))
    with pytest.raises(UserError, match=r"format version 7, this program reads version 1; .* mfedpba-mpi 9\.9,"):
        load_run(path)


def test_a_log_of_the_first_release_has_no_format_version_and_is_read(finished, edit_log):
    def as_in_the_first_release(file):
        for name in ("format", "format_version", "devices", "plugins"):
            del file.attrs[name]
        del file["warnings"]

    run = load_run(edit_log(finished().path, as_in_the_first_release))
    assert (run.status, run.warnings, run.attributes["devices"]) == ("complete", [], [])


def test_accuracies_of_evaluated_rounds_by_hand(made):
    rounds = {
        "tested": np.array([[4, 16], [-1, -1], [4, 16]]), "correct": np.array([[2, 4], [-1, -1], [4, 8]]),
        "accuracy": np.array([[0.5, 0.25], [np.nan, np.nan], [1.0, 0.5]]),
    }  # fmt: skip
    run = replace(made(), rounds=rounds)
    assert run.evaluated.tolist() == [1, 3]
    assert run.average().tolist() == [6 / 20, 12 / 20]
    assert run.client_mean().tolist() == [0.375, 0.75]
    assert run.summary() == pytest.approx(
        {"last": 0.6, "best": 0.6, "last_five": 0.45, "client_mean_last": 0.75, "client_mean_last_five": 0.5625}
    )
    nothing = {name: values[:0] for name, values in rounds.items()}
    assert replace(run, rounds=nothing).summary() == {}


def test_a_run_has_accuracies_of_each_predictor_by_hand(made):
    """One client of 4 and one of 16 test rows; by classifier the best round is the first, by prototype the last."""
    prototype = np.array([[0.5, 0.25], [np.nan, np.nan], [1.0, 0.5]])
    classifier = np.array([[0.75, 0.8125], [np.nan, np.nan], [0.25, 0.9375]])
    rounds = {
        "tested": np.array([[4, 16], [-1, -1], [4, 16]]), "correct": np.array([[2, 4], [-1, -1], [4, 8]]),
        "accuracy": prototype, "accuracy_prototype": prototype, "accuracy_classifier": classifier,
    }  # fmt: skip
    old = replace(made(), rounds=rounds, final={})
    run = replace(old, final={"predictors": ["prototype", "classifier"]})
    assert run.predictors == old.predictors == ("prototype", "classifier")
    by = {name: judged.summary() for name, judged in run.by_predictor().items()}
    assert by["prototype"] == run.summary()
    assert by["classifier"] == pytest.approx(
        {"last": 16 / 20, "best": 16 / 20, "last_five": 16 / 20, "client_mean_last": 0.59375,
         "client_mean_last_five": (0.78125 + 0.59375) / 2}
    )  # fmt: skip
    assert run.by_predictor()["classifier"].rounds["correct"].tolist() == [[3, 13], [-1, -1], [1, 15]]
    assert run.by_predictor()["prototype"] is run
    assert (made().predictors, list(made().by_predictor())) == ((), [""])


def test_evaluation_during_the_server_s_step_counts_only_as_far_as_it_takes_longer(made):
    seconds = {"train": 3.0, "server": 2.0, "eval": 2.5, "comm": 0.5, "checkpoint": 0.0, "total": 6.0}
    run = replace(made(), rounds={f"seconds_{name}": np.array([value]) for name, value in seconds.items()})
    assert {name: part.tolist() for name, part in run.time_parts().items()} == {
        "train": [3.0], "server": [2.0], "eval": [0.5], "comm": [0.5], "checkpoint": [0.0]
    }  # fmt: skip


def test_the_payload_formula_is_known_for_methods_of_the_paper_with_the_paper_s_prototypes(made):
    run = made()
    assert run.formula_floats().tolist() == [3 * (2 * 8 + 3)] * 3  # C (|M_k| d + C)
    assert replace(run, attributes=run.attributes | {"method": "local"}).formula_floats() is None
    per_modality, fused = (made(method="fedproto", fusion=fusion) for fusion in ("separate", "sum"))
    assert per_modality.formula_floats().tolist() == [3 * 2 * 8] * 3  # C |M_k| d
    assert fused.formula_floats() is None


def test_a_run_knows_its_partition_and_its_remark(made):
    run = made()
    assert run.as_partition().modalities == tuple(
        tuple(np.flatnonzero(owned).tolist()) for owned in run.partition["modalities"]
    )
    assert (run.synthetic, run.validation, run.remark) == (True, False, "synthetic data")
    assert replace(run, attributes=run.attributes | {"data_origin": "real"}).remark == ""


def test_remarks_of_several_runs_are_joined():
    assert joint_remark(["", ""]) == ""
    assert joint_remark(["synthetic data", "synthetic data"]) == "synthetic data"
    assert joint_remark(["", "synthetic data"]) == "partly synthetic data"
    assert (bracketed(""), bracketed("synthetic data")) == ("", " (synthetic data)")


def test_the_mean_over_clients_ignores_nan():
    values = np.array([[1.0, np.nan, 3.0], [np.nan] * 3])
    np.testing.assert_array_equal(mean_of_clients(values), [2.0, np.nan])


def test_a_run_s_directory_may_be_given_by_its_log_or_by_dots(tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/run.h5").touch()
    assert run_directory(tmp_path / "mine/run.h5") == run_directory(tmp_path / "mine") == tmp_path / "mine"
    monkeypatch.chdir(tmp_path / "mine")
    assert run_directory(Path()) == in_full(Path()) == tmp_path / "mine"
    assert in_full(Path("mine")) == Path("mine")
