"""A study's table as text, Markdown, LaTeX and CSV."""

import csv
import io

from mfedpba_mpi.studies.formats import as_csv, as_latex, as_markdown, as_rich, as_text
from mfedpba_mpi.studies.measures import MEASURES
from mfedpba_mpi.studies.study_file import find_study
from mfedpba_mpi.studies.tables import lay_out
from tests.studies.examples import ACCURACY, VALUES, run_values


def test_every_format_marks_the_same_cells_and_synthetic_data(study):
    results = lay_out(study, run_values(study, VALUES), ACCURACY)
    text, markdown, latex = as_text(results), as_markdown(results), as_latex(results)
    for form in (text, markdown, latex, as_csv(results)):
        assert "synthetic data" in form
    assert "50.00 ± 2.83 *" in text
    assert "41.00 ± 1.41 +" in text
    assert "| m2 | <u>41.00 ± 1.41</u> | **50.00 ± 0.00** | **50.00 ± 2.83** |" in markdown
    assert (
        r"m2 & \underline{41.00$_{\pm 1.41}$} & \textbf{50.00$_{\pm 0.00}$} & \textbf{50.00$_{\pm 2.83}$} \\" in latex
    )
    assert r"in \%" in latex
    rows = list(csv.DictReader(io.StringIO(as_csv(results))))
    assert [(row["partition"], row["column"], float(row["mean"]), row["runs"], row["place"]) for row in rows] == [
        ("m2", "Local", 41.0, "2", "2"), ("m2", "FedProto", 50.0, "2", "1"), ("m2", "MFedPBA", 50.0, "2", "1"),
        ("m1", "Local", 30.0, "2", "1"), ("m1", "FedProto", 20.0, "1", "2"),
    ]  # fmt: skip


def test_special_characters_in_names_are_escaped(tmp_path):
    name = r"a|b & 50% of $x_1$ {\\} [red]"
    (tmp_path / "t.toml").write_text(
        f"title = '{name}'\n[settings]\ndataset = 'youtube'\n[cross]\ncell = [{{ name = '{name}', seed = 1 }}]\n"
    )
    study = find_study(str(tmp_path / "t.toml"))
    results = lay_out(study, run_values(study, [1.0]), ACCURACY)
    assert r"a\|b & 50% of" in as_markdown(results)
    assert r"a\textbar{}b \& 50\% of \$x\_1\$ \{\textbackslash{}\textbackslash{}\} [red] & " in as_latex(results)
    assert f" {name} " in as_text(results)


def test_every_format_has_all_measures(study):
    parts = [lay_out(study, run_values(study, VALUES), MEASURES[name][0]) for name in ("last_five", "best")]
    lines = as_markdown(*parts).splitlines()
    assert lines[2] == "| partition | measure | Local | FedProto | MFedPBA |"
    cells = "<u>41.00 ± 1.41</u> | **50.00 ± 0.00** | **50.00 ± 2.83** |"
    assert lines[4:6] == [f"| m2 | last five rounds | {cells}", f"|  | best round | {cells}"]
    assert "            best round" in as_text(*parts)
    assert r"m2 & best round & \underline{41.00$_{\pm 1.41}$} & " in as_latex(*parts)
    rows = list(csv.DictReader(io.StringIO(as_csv(*parts))))
    assert [row["title"].partition(": ")[2] for row in rows] == [part.measure.label for part in parts for _ in range(5)]
    seconds = lay_out(study, run_values(study, VALUES), MEASURES["seconds"][0])
    assert as_text(parts[0], seconds).count("seconds per round") == 2


def test_a_table_that_is_wider_than_the_terminal_comes_in_pieces(study):
    (results,) = [lay_out(study, run_values(study, VALUES), ACCURACY)]
    whole = as_rich(results, 64)  # " partition   Local            FedProto         MFedPBA        "
    assert [[column.header for column in piece.columns] for piece in whole] == [
        ["partition", "Local", "FedProto", "MFedPBA"]
    ]
    for width, pieces in ((62, [["Local", "FedProto"], ["MFedPBA"]]), (20, [["Local"], ["FedProto"], ["MFedPBA"]])):
        found = [[str(column.header) for column in piece.columns] for piece in as_rich(results, width)]
        assert found == [["partition", *names] for names in pieces]
