"""All kinds of tables, compiled by pdflatex. Skipped if it is neither installed nor installable (root on Debian)."""

import re
import shutil
import subprocess

import numpy as np
import pytest

from mfedpba_mpi.records.tables import NumberText, Table
from mfedpba_mpi.report import pages as making
from mfedpba_mpi.report import style
from mfedpba_mpi.report.page import write_tables
from mfedpba_mpi.studies.formats import as_latex
from mfedpba_mpi.studies.study_file import FILE, find_study
from mfedpba_mpi.studies.tables import tabulate
from tests.debian import install
from tests.report.test_study_figures import a_run, fill
from tests.report.test_table_figures import HOSTILE

STUDY = r"""
title = "_<b>$x_1$ & 100 % \\alpha^2 {'q'} $"
[cross]
method = ["local", "fedproto", "fedtgp", "fedmobile", "fedmvp", "fedpall", "harmony", "mfedpba"]
seed = [0, 1]
"""
PACKAGES = ("booktabs", "graphicx")


@pytest.fixture(scope="module")
def pdflatex():
    """A function that compiles a text and returns LaTeX's log."""
    installed = shutil.which("pdflatex") and not subprocess.run(["kpsewhich", "booktabs.sty"], stdout=-3).returncode
    if reason := "" if installed else install("texlive-latex-recommended"):
        pytest.skip(reason)

    def compile_text(directory, lines):
        head = [r"\documentclass{article}", *(rf"\usepackage{{{name}}}" for name in PACKAGES), r"\begin{document}"]
        (directory / "all.tex").write_text("\n".join([*head, *lines, r"\end{document}"]))
        line = ["pdflatex", "-interaction=nonstopmode", "-no-shell-escape", "all.tex"]
        subprocess.run(line, cwd=directory, stdout=-3, timeout=60)
        return (directory / "all.log").read_text(errors="replace")

    return compile_text


@pytest.fixture
def tables(made, tmp_path, monkeypatch):
    """The files of all tables: of a run, of several runs, of a study and of its page."""
    monkeypatch.setattr(making.run_figures, "draw_all", lambda run: [])
    monkeypatch.setattr(making.prototype_figures, "prototypes", lambda *runs: style.new_figure()[0])
    monkeypatch.setattr(making.study_figures, "convergence", lambda groups: style.new_figure()[0])
    monkeypatch.setattr(making.study_figures, "figures_of", lambda *args: [])
    directory = tmp_path / "a-study"
    directory.mkdir()
    (directory / FILE).write_text(STUDY)
    study, rng = find_study(str(directory)), np.random.default_rng(0)
    fill(study, directory, lambda i, place: a_run(rng.random((3, 24)), origin="synthetic" if i % 2 else "real"))
    runs = [made(method="local"), made(), made(lr=0.02)]
    pages = {
        "run": making.run_page(runs[0]), "runs": making.runs_page(runs), "study": making.study_page(study, directory)
    }  # fmt: skip
    for name, page in pages.items():
        write_tables(tmp_path / name, page.tables.values(), page.remark)
    (directory / "table.tex").write_text(as_latex(*tabulate(study, directory)))  # as `study table --save` does
    rows = [[HOSTILE, NumberText("49.04 ± 0.21", 49.04, 0.21), -1.5], ["[b] \\ <|>\n\n~^ é … × “q”", "7.5", None]]
    write_tables(tmp_path / "other", [Table("hostile", HOSTILE, [HOSTILE, "a", "b"], rows, {(0, 1): 1, (1, 1): 2})])
    return sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*.tex"))


def test_all_tables_compile_and_fit_the_page(tables, pdflatex, tmp_path):
    names = {"accuracy.tex", "clients.tex", "clients-1.tex", "hostile.tex", "runs.tex", "table.tex"}
    assert {path.name for path in tables} == names
    for path in tables:
        comment = (tmp_path / path).read_text().partition("\n")[0]
        assert re.findall(r"\\usepackage{(\w+)}", comment) == list(PACKAGES)
    lines = [rf"\typeout{{FILE {path}}}\input{{{path}}}\clearpage" for path in tables]
    log = pdflatex(tmp_path, lines)
    assert log.count("FILE ") == len(tables)
    assert f"({len(tables)} page" in log
    assert re.findall("^!.*", log, flags=re.MULTILINE) == []
    assert [width for width in re.findall(r"Overfull \\hbox \(([\d.]+)pt", log) if float(width) > 3] == []


def test_a_table_that_fits_keeps_its_size(pdflatex, tmp_path):
    write_tables(tmp_path, [Table("narrow", "Narrow", ["a", "b"], [["x", 1.5]])])
    text = (tmp_path / "narrow.tex").read_text()
    box = text[text.index(r"\resizebox") : text.index(r"\end{table}")].rstrip()
    plain = box.partition("{%\n")[2][:-1]
    log = pdflatex(tmp_path, [rf"\sbox0{{{box}}}\sbox1{{{plain}}}\typeout{{WIDTHS \the\wd0 \the\wd1.}}"])
    scaled, natural = re.search(r"WIDTHS ([\d.]+)pt([\d.]+)pt", log).groups()
    assert float(scaled) == pytest.approx(float(natural), abs=0.01)
