"""The page of a run, of several runs and of a study: what is on it, and the files beside it."""

import dataclasses
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from mfedpba_mpi import report
from mfedpba_mpi.cli.report import report as report_command
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
    """The directory of a study of which all but the last run are complete."""
    directory = tmp_path / "study"
    directory.mkdir()
    (directory / "study.toml").write_text(STUDY)
    for place in find_study(str(directory)).run_keys()[:-1]:
        run = finished(method=place.labels["method"].lower(), seed=int(place.labels["seed"]), families=("DNN",))
        (directory / place.path).parent.mkdir(exist_ok=True)
        run.path.parent.rename(directory / place.path)
    return directory


def test_every_figure_is_a_function_of_the_package():
    names = set(report.__all__)
    assert {"partition", "prototypes", "convergence", "heat_map", "save"} <= names
    assert all(callable(getattr(report, name)) for name in names)


def test_a_run_gets_everything_that_it_has(finished):
    page = run_page(finished())
    assert {"partition", "accuracy", "losses", "prototypes", "structures", "communication", "times"} <= set(
        page.figures
    )
    assert list(page.tables) == ["clients"]
    assert page.remark == "synthetic data"
    html = page.html()
    for words in ("MFedPBA on synthetic", "complete after 3 of 3 rounds", "lambda_1", "average accuracy, last round"):
        assert words in html


def test_a_run_that_has_just_begun_has_a_page_too(finished):
    run = finished()
    rounds = {name: values[:0] for name, values in run.rounds.items()}
    begun = dataclasses.replace(run, rounds=rounds, final={}, attributes={**run.attributes, "status": "running"})
    assert "running after 0 of 3 rounds" in run_page(begun).html()


def test_runs_that_differ_in_the_seed_only_are_one_group(made):
    runs = [made(method="local"), made(method="local", seed=1), made(), made(lr=0.02)]
    groups = {"Local": runs[:2], "MFedPBA (lr 0.01)": runs[2:3], "MFedPBA (lr 0.02)": runs[3:]}
    assert grouped(runs) == groups


def at(run, path, **attributes):
    return dataclasses.replace(run, path=Path(path, "run.h5"), attributes={**run.attributes, **attributes})


def test_runs_that_repeat_a_seed_are_told_apart_by_their_directories(made):
    run, other = made(), made(seed=1)
    paths = ["old/a/s0", "new/a/s0", "new/b/s0", "old/a/s1"]
    names = list(grouped([*(at(run, path) for path in paths[:3]), at(other, paths[3])]))
    assert names == [f"MFedPBA ({path})" for path in paths]
    assert list(grouped([at(run, "old/s0"), at(run, "new/s0")])) == ["MFedPBA (old)", "MFedPBA (new)"]
    assert list(grouped([at(run, "x"), at(run, "x/y")])) == ["MFedPBA (x)", "MFedPBA (x/y)"]
    assert len(grouped([run, run])) == 1


def test_runs_on_other_data_of_the_same_name_are_no_group(made):
    runs = [at(made(), "a"), at(made(seed=1), "b", data_fingerprint="0" * 64)]
    assert list(grouped(runs)) == ["MFedPBA (a)", "MFedPBA (b)"]
    assert differing(runs)["data_fingerprint"][1] == "0" * 12


def test_runs_say_how_far_they_are_and_on_what_data_where_that_differs(made):
    run = made()
    begun = at(run, "x/begun/run.h5", status="interrupted")
    assert list(grouped([begun])) == ["MFedPBA (3 of 3 rounds)"]
    other = at(run, "x/other/run.h5", dataset="another", data_fingerprint="0")
    assert list(grouped([run, other])) == ["MFedPBA on synthetic", "MFedPBA on another"]


def test_many_settings_that_differ_are_left_to_the_directories(made):
    config = made().attributes["config"] | dict.fromkeys(("lr", "batch_size", "epochs", "rounds", "clients"), 7)
    assert list(grouped([at(made(), "a"), at(made(), "b", config=config)])) == ["MFedPBA (a)", "MFedPBA (b)"]


def test_three_runs_of_one_directory_name_have_a_page(made, tmp_path):
    for name, run in {"a": made(), "b": made(), "c": made(lr=0.02)}.items():
        shutil.copytree(run.path.parent, tmp_path / name / "s0")
    page = make_page([tmp_path / name / "s0" for name in "abca"])
    names = [f"MFedPBA ({name})" for name in "abc"]
    assert [row[0] for row in page.tables["accuracy"].rows] == names
    assert [row[0] for row in page.tables["runs"].rows] == names
    assert [axes.get_title() for axes in page.figures["prototypes"].axes] == names


def test_a_run_that_is_given_twice_is_said_to_count_once(made, tmp_path, monkeypatch):
    run, asked = made().path, []
    monkeypatch.setattr("mfedpba_mpi.report.pages.make_page", lambda sources: asked.extend(sources) or Page("a page"))
    done = CliRunner().invoke(report_command, [*map(str, (run.parent, run)), "--out", str(tmp_path)])
    assert f"{run} is given more than once; it is included once" in done.output
    assert asked == [run.parent]


def test_runs_are_laid_side_by_side(finished):
    runs = [finished(method="local"), finished()]
    page = make_page([run.path.parent for run in runs])
    assert set(page.figures) == {"convergence", "prototypes"}
    rows = page.tables["accuracy"].rows
    assert [row[0] for row in rows] == ["Local", "MFedPBA"]
    assert rows[1][2] == f"{100 * runs[1].summary()['last_five']:.2f}"
    assert set(page.tables) == {"accuracy", "clients", "runs"}


def test_what_sets_runs_apart_is_said_on_their_page(finished):
    short, long = finished(method="local", rounds=2), finished(method="local")
    page = make_page([short.path.parent, long.path.parent])
    assert "These runs differ in rounds: look at the table of runs below" in page.html()
    assert [row[-1] for row in page.tables["runs"].rows] == [2, 3]
    assert page.title.endswith("on synthetic")
    assert page.subtitle == "m2, 3 clients, fusion sum, seed 0"


def test_a_study_has_its_table_figures_and_every_client(study):
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


def test_a_page_is_called_as_what_is_on_it(study, command, tmp_path):
    assert command("report", "study").returncode == 0
    assert command("report", "./study/local/s0", "study/mfedpba/s0").returncode == 0
    names = sorted(path.name for path in (tmp_path / "report").iterdir())
    assert names == ["study", "study-local-s0+study-mfedpba-s0"]


def test_what_is_no_run_is_named(study, command, tmp_path):
    result = command("report", tmp_path)
    assert result.returncode == 2
    assert "holds neither run.h5 nor study.toml" in result.stderr
    assert "give it alone" in command("report", study, study / "local/s0").stderr
    assert command("report").returncode == 2
