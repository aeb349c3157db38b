"""The contents of the pages of a run, of several runs and of a study, and their files."""

import dataclasses
import shutil

import numpy as np
import pytest

from mfedpba_mpi import report
from mfedpba_mpi.comm.serial import SerialComm
from mfedpba_mpi.engine.loop import run_rounds
from mfedpba_mpi.records.run_log import RunLog
from mfedpba_mpi.report.pages import make_page, run_page


def test_every_exported_name_is_a_function():
    names = set(report.__all__)
    assert {"partition", "prototypes", "convergence", "heat_map", "save"} <= names
    assert all(callable(getattr(report, name)) for name in names)


def test_the_page_of_a_run_has_all_its_figures_and_tables(finished):
    page = run_page(finished())
    assert {"partition", "accuracy", "losses", "prototypes", "structures", "communication", "times"} <= set(
        page.figures
    )
    assert list(page.tables) == ["clients"]
    assert page.remark == "synthetic data"
    html = page.html()
    for words in ("MFedPBA on synthetic", "complete after 3 of 3 rounds", "lambda_1", "average accuracy, last round"):
        assert words in html


def test_warnings_are_on_the_page_with_their_rounds(tiny, tmp_path):
    observer = RunLog(tmp_path)
    observer.warn(0, "<one> thread only")
    observer.warn(2, "rank 3 is slow")
    run_rounds(tiny(), tmp_path, SerialComm(), [observer])
    page = make_page([tmp_path])
    table = page.tables["warnings"]
    assert list(table.headers) == ["round", "warning"]
    assert [tuple(row) for row in table.rows] == [("start", "<one> thread only"), (2, "rank 3 is slow")]
    assert "&lt;one&gt; thread only" in page.html()


def test_a_run_without_finished_rounds_has_a_page(finished):
    run = finished()
    rounds = {name: values[:0] for name, values in run.rounds.items()}
    begun = dataclasses.replace(run, rounds=rounds, final={}, attributes={**run.attributes, "status": "running"})
    assert "running after 0 of 3 rounds" in run_page(begun).html()


def test_runs_in_directories_of_the_same_name_get_unique_names(made, tmp_path):
    for name, run in {"a": made(), "b": made(), "c": made(lr=0.02)}.items():
        shutil.copytree(run.path.parent, tmp_path / name / "s0")
    page = make_page([tmp_path / name / "s0" for name in "abca"])
    names = [f"MFedPBA ({name})" for name in "abc"]
    assert [row[0] for row in page.tables["accuracy"].rows] == names
    assert [row[0] for row in page.tables["runs"].rows] == names
    assert [axes.get_title() for axes in page.figures["prototypes"].axes] == names


def test_the_page_of_several_runs_compares_them(finished):
    runs = [finished(method="local"), finished()]
    page = make_page([run.path.parent for run in runs])
    assert set(page.figures) == {"convergence", "prototypes"}
    rows = page.tables["accuracy"].rows
    assert [row[0] for row in rows] == ["Local", "MFedPBA"]
    assert rows[1][2] == f"{100 * runs[1].summary()['last_five']:.2f}"
    assert set(page.tables) == {"accuracy", "clients", "runs"}


def test_pages_show_every_predictor_and_do_not_average_clients_of_different_problems(made, tmp_path):
    runs = [made(method="fedproto", seed=seed, families=("DNN",), rounds=2) for seed in (0, 1)]
    (tmp_path / "s").mkdir()
    (tmp_path / "s/study.toml").write_text('[cross]\nmethod = ["fedproto"]\nseed = [0, 1]\n')
    for run, name in zip(runs, ("s0", "s1"), strict=True):
        shutil.copytree(run.path.parent, tmp_path / "s/fedproto" / name)
    means = {
        name: np.mean([100 * run.by_predictor()[name].summary()["best"] for run in runs]) for name in runs[0].predictors
    }
    several, study = make_page([run.path.parent for run in runs]), make_page([tmp_path / "s"])
    rows = several.tables["accuracy"].rows
    assert {row[0]: row[4].value for row in rows} == pytest.approx({f"FedProto, {n}": x for n, x in means.items()})
    for page, clients in ((several, "clients"), (study, "clients-1")):
        assert [row[0] for row in page.tables[clients].rows] == [
            f"FedProto, {name}, problem seed {seed}" for seed in (0, 1) for name in ("prototype", "classifier")
        ]
        assert "Predictors: FedProto, prototype." in page.html()
    assert list(study.tables["table"].headers) == ["study", "measure", "FedProto, prototype", "FedProto, classifier"]
    html = make_page([runs[0].path.parent]).html()
    assert "average accuracy, prototype, best round" in html
    assert "average accuracy, classifier, best round" in html


def test_the_page_of_several_runs_names_differing_settings(finished):
    short, long = finished(method="local", rounds=2), finished(method="local")
    page = make_page([short.path.parent, long.path.parent])
    assert "These runs differ in rounds; see the table of runs below" in page.html()
    assert [row[-1] for row in page.tables["runs"].rows] == [2, 3]
    assert page.title.endswith("on synthetic")
    assert page.subtitle == "partition m2, 3 clients, fusion sum, seed 0"


def test_the_page_of_a_study_has_table_figures_and_clients(incomplete_study):
    page = make_page([incomplete_study])
    table = page.tables["table"]
    assert table.headers == ["study", "measure", "Local", "MFedPBA"]
    assert [row[1] for row in table.rows] == ["last five rounds", "best round"]
    assert {(r, c) for r, c in table.marks} == {(r, c) for r in (0, 1) for c in (2, 3)}
    assert "convergence" in page.figures
    assert "clients-1" in page.tables
    html = page.html()
    assert "Two &lt;methods&gt;" in html
    assert "3 complete, 1 waiting" in html
    assert "3 of 4 runs are complete" in html
