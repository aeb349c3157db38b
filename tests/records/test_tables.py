"""Tables of text and numbers as CSV and LaTeX; tests/report/test_page.py has whole examples."""

import csv
import io

import pytest

from mfedpba_mpi.records.tables import NumberText, Table, as_csv, as_latex


def test_columns_with_more_numbers_than_text_are_numeric():
    rows = [
        ["a", NumberText("49.04 ± 0.21", 49.04, 0.21), 1, NumberText("1,024 x", 1024), None],
        ["b", "–", "none", NumberText("-3 %", -0.03), float("nan")],
        ["c", 7.5, 2, "", ""],
    ]
    table = Table("t", "T", ["name", "accuracy", "n", "size", "empty"], rows)
    assert table.numeric() == [False, True, True, True, False]


def test_csv_keeps_every_digit_and_splits_deviations_into_a_column():
    accuracy = NumberText("49.04 ± 0.21", 49.0404, 0.2106)
    text = as_csv(Table("t", "T", ["m", "accuracy", "loss"], [["a", accuracy, 1 / 3], ["b", "–", float("nan")]]))
    assert list(csv.reader(io.StringIO(text))) == [
        ["m", "accuracy", "accuracy ±", "loss"],
        ["a", "49.0404", "0.2106", repr(1 / 3)],
        ["b", "", "", ""],
    ]


def test_text_cannot_break_out_of_a_latex_table():
    text = as_latex(Table("t", "100 % of $x_1$", ["a & b"], [["\\input{x}"], ["[b]\n\n#"]]))
    assert r"\caption{100 \% of \$x\_1\$}" in text
    assert r"a \& b \\" in text
    assert r"\textbackslash{}input\{x\} \\" in text
    assert r"{}[b] \# \\" in text  # else [b] would be an option of the \\ before it


@pytest.mark.parametrize("name", ["", "a/b", "../a", "a b", "-a"])
def test_a_table_s_name_must_be_a_file_name(name):
    with pytest.raises(ValueError, match="use letters, digits, - and _"):
        Table(name, "T", ["a"], [])
