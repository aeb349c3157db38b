"""``mfedpba-mpi report``: its files and their directory, and paths that are refused or given twice."""

from click.testing import CliRunner

from mfedpba_mpi.cli.main import cli
from mfedpba_mpi.cli.report import report as report_command
from mfedpba_mpi.report import pages as making
from mfedpba_mpi.report.page import Page


def test_a_run_given_twice_is_reported_once(made, tmp_path, monkeypatch):
    pages = []
    monkeypatch.setattr(making, "make_page", lambda sources: pages.append(sources) or Page("", "", ""))
    place = made().path.parent
    for paths in ([place, place / "run.h5"], [place, tmp_path]):
        cli.main(["report", *map(str, paths), "--out", str(tmp_path / "page")], standalone_mode=False)
    assert pages == [[place], [place, tmp_path]]


def test_a_run_given_twice_counts_once_with_a_message(made, tmp_path, monkeypatch):
    run, asked = made().path, []
    monkeypatch.setattr("mfedpba_mpi.report.pages.make_page", lambda sources: asked.extend(sources) or Page("a page"))
    done = CliRunner().invoke(report_command, [*map(str, (run.parent, run)), "--out", str(tmp_path)])
    assert f"{run} is given more than once; it is included once" in done.output
    assert asked == [run.parent]


def test_the_command_writes_a_page_figures_and_tables(incomplete_study, command, tmp_path):
    done = command("report", incomplete_study, "--out", "page")
    assert done.returncode == 0, done.stderr
    assert "page: page/index.html" in done.stdout
    names = sorted(path.relative_to(tmp_path / "page").as_posix() for path in (tmp_path / "page").rglob("*.*"))
    assert {"index.html", "figures/convergence.pdf", "figures/convergence.png", "tables/table.csv"} <= set(names)
    assert "tables/table.tex" in names
    assert not [name for name in names if name.endswith(".part")]
    assert "synthetic data" in (tmp_path / "page/tables/table.tex").read_text()


def test_the_default_directory_is_named_after_the_sources(incomplete_study, command, tmp_path):
    assert command("report", "study").returncode == 0
    assert command("report", "./study/local/s0", "study/mfedpba/s0").returncode == 0
    names = sorted(path.name for path in (tmp_path / "report").iterdir())
    assert names == ["study", "study-local-s0+study-mfedpba-s0"]


def test_paths_that_are_not_runs_are_rejected(incomplete_study, command, tmp_path):
    result = command("report", tmp_path)
    assert result.returncode == 2
    assert "contains neither run.h5 nor study.toml" in result.stderr
    assert "give it alone" in command("report", incomplete_study, incomplete_study / "local/s0").stderr
    assert command("report").returncode == 2
