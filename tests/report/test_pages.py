"""The contents of the pages of a run, of several runs and of a study, and their files."""

import dataclasses
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from mfedpba_mpi import report
from mfedpba_mpi.cli.report import report as report_command
from mfedpba_mpi.comm.serial import SerialComm
from mfedpba_mpi.engine.loop import run_rounds
from mfedpba_mpi.records.run_log import RunLog
from mfedpba_mpi.report.groups import differing, grouped
from mfedpba_mpi.report.page import Page
from mfedpba_mpi.report.pages import make_page, run_page
from mfedpba_mpi.studies.study_file import find_study

STUDY = """
title = "Two <methods>"
[settings]
dataset = "synthetic"
[cross]
method = ["local", "mfedpba"]
seed = [0, 1]
"""


@pytest.fixture
def study(finished, tmp_path):
    """The directory of a study; all runs but the last are complete."""
    directory = tmp_path / "study"
    directory.mkdir()
    (directory / "study.toml").write_text(STUDY)
    for place in find_study(str(directory)).run_keys()[:-1]:
        run = finished(method=place.labels["method"].lower(), seed=int(place.labels["seed"]), families=("DNN",))
        (directory / place.path).parent.mkdir(exist_ok=True)
        run.path.parent.rename(directory / place.path)
    return directory


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


def test_runs_that_differ_in_the_seed_only_form_a_group(made):
    runs = [made(method="local"), made(method="local", seed=1), made(), made(lr=0.02)]
    groups = {"Local": runs[:2], "MFedPBA (lr 0.01)": runs[2:3], "MFedPBA (lr 0.02)": runs[3:]}
    assert grouped(runs) == groups


def at(run, path, **attributes):
    return dataclasses.replace(run, path=Path(path, "run.h5"), attributes={**run.attributes, **attributes})


def test_runs_with_the_same_seed_are_named_by_their_directories(made):
    run, other = made(), made(seed=1)
    paths = ["old/a/s0", "new/a/s0", "new/b/s0", "old/a/s1"]
    names = list(grouped([*(at(run, path) for path in paths[:3]), at(other, paths[3])]))
    assert names == [f"MFedPBA ({path})" for path in paths]
    assert list(grouped([at(run, "old/s0"), at(run, "new/s0")])) == ["MFedPBA (old)", "MFedPBA (new)"]
    assert list(grouped([at(run, "x"), at(run, "x/y")])) == ["MFedPBA (x)", "MFedPBA (x/y)"]
    assert len(grouped([run, run])) == 1


def test_runs_on_different_data_of_the_same_name_form_no_group(made):
    runs = [at(made(), "a"), at(made(seed=1), "b", data_fingerprint="0" * 64)]
    assert list(grouped(runs)) == ["MFedPBA (a)", "MFedPBA (b)"]
    assert differing(runs)["data_fingerprint"][1] == "0" * 12


def test_group_names_show_progress_and_dataset_where_they_differ(made):
    run = made()
    begun = at(run, "x/begun/run.h5", status="interrupted")
    assert list(grouped([begun])) == ["MFedPBA (3 of 3 rounds)"]
    other = at(run, "x/other/run.h5", dataset="another", data_fingerprint="0")
    assert list(grouped([run, other])) == ["MFedPBA on synthetic", "MFedPBA on another"]


def test_groups_that_differ_in_many_settings_are_named_by_directory(made):
    config = made().attributes["config"] | dict.fromkeys(("lr", "batch_size", "epochs", "rounds", "clients"), 7)
    assert list(grouped([at(made(), "a"), at(made(), "b", config=config)])) == ["MFedPBA (a)", "MFedPBA (b)"]


def test_runs_in_directories_of_the_same_name_get_unique_names(made, tmp_path):
    for name, run in {"a": made(), "b": made(), "c": made(lr=0.02)}.items():
        shutil.copytree(run.path.parent, tmp_path / name / "s0")
    page = make_page([tmp_path / name / "s0" for name in "abca"])
    names = [f"MFedPBA ({name})" for name in "abc"]
    assert [row[0] for row in page.tables["accuracy"].rows] == names
    assert [row[0] for row in page.tables["runs"].rows] == names
    assert [axes.get_title() for axes in page.figures["prototypes"].axes] == names


def test_a_run_given_twice_counts_once_with_a_message(made, tmp_path, monkeypatch):
    run, asked = made().path, []
    monkeypatch.setattr("mfedpba_mpi.report.pages.make_page", lambda sources: asked.extend(sources) or Page("a page"))
    done = CliRunner().invoke(report_command, [*map(str, (run.parent, run)), "--out", str(tmp_path)])
    assert f"{run} is given more than once; it is included once" in done.output
    assert asked == [run.parent]


def test_the_page_of_several_runs_compares_them(finished):
    runs = [finished(method="local"), finished()]
    page = make_page([run.path.parent for run in runs])
    assert set(page.figures) == {"convergence", "prototypes"}
    rows = page.tables["accuracy"].rows
    assert [row[0] for row in rows] == ["Local", "MFedPBA"]
    assert rows[1][2] == f"{100 * runs[1].summary()['last_five']:.2f}"
    assert set(page.tables) == {"accuracy", "clients", "runs"}


def test_the_page_of_several_runs_names_differing_settings(finished):
    short, long = finished(method="local", rounds=2), finished(method="local")
    page = make_page([short.path.parent, long.path.parent])
    assert "These runs differ in rounds; see the table of runs below" in page.html()
    assert [row[-1] for row in page.tables["runs"].rows] == [2, 3]
    assert page.title.endswith("on synthetic")
    assert page.subtitle == "partition m2, 3 clients, fusion sum, seed 0"


def test_the_page_of_a_study_has_table_figures_and_clients(study):
    page = make_page([study])
    table = page.tables["table"]
    assert table.headers == ["study", "Local", "MFedPBA"]
    assert sorted(table.marks.values()) == [1, 2]
    assert "convergence" in page.figures
    assert "clients-1" in page.tables
    html = page.html()
    assert "Two &lt;methods&gt;" in html
    assert "3 complete, 1 waiting" in html
    assert "3 of 4 runs are complete" in html


def test_the_command_writes_a_page_figures_and_tables(study, command, tmp_path):
    done = command("report", study, "--out", "page")
    assert done.returncode == 0, done.stderr
    assert "page: page/index.html" in done.stdout
    names = sorted(path.relative_to(tmp_path / "page").as_posix() for path in (tmp_path / "page").rglob("*.*"))
    assert {"index.html", "figures/convergence.pdf", "figures/convergence.png", "tables/table.csv"} <= set(names)
    assert "tables/table.tex" in names
    assert not [name for name in names if name.endswith(".part")]
    assert "synthetic data" in (tmp_path / "page/tables/table.tex").read_text()


def test_the_default_directory_is_named_after_the_sources(study, command, tmp_path):
    assert command("report", "study").returncode == 0
    assert command("report", "./study/local/s0", "study/mfedpba/s0").returncode == 0
    names = sorted(path.name for path in (tmp_path / "report").iterdir())
    assert names == ["study", "study-local-s0+study-mfedpba-s0"]


def test_paths_that_are_not_runs_are_rejected(study, command, tmp_path):
    result = command("report", tmp_path)
    assert result.returncode == 2
    assert "contains neither run.h5 nor study.toml" in result.stderr
    assert "give it alone" in command("report", study, study / "local/s0").stderr
    assert command("report").returncode == 2
