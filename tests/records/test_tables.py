"""Tables of text and numbers as CSV and LaTeX."""

import csv
import io

import pytest

from mfedpba_mpi.records.tables import NumberText, Table, as_csv, as_latex

HOSTILE = (
    """</td></script><script>window.broken = 1</script>"' onload='x' &amp; <img src=http://example.com/x onerror=a>"""
)
MEAN = NumberText("49.04 ± 0.21", 49.0414, 0.2081)


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


def test_csv_has_plain_numbers_and_separate_columns_for_deviations() -> None:
    rows = [["A", MEAN, 1 / 3], [HOSTILE, NumberText("7.50", 7.504), None], ["line\nbreak", "failed", float("nan")]]
    text = as_csv(Table("a", "A", ["method", "accuracy", "loss"], rows), "synthetic data")
    assert list(csv.reader(text.splitlines(keepends=True))) == [
        ["method", "accuracy", "accuracy ±", "loss", "remark"],
        ["A", "49.0414", "0.2081", repr(1 / 3), "synthetic data"],
        [HOSTILE, "7.504", "", "", "synthetic data"],
        ["line\nbreak", "failed", "", "", "synthetic data"],
    ]


def test_latex_is_escaped_and_marked() -> None:
    rows = [["50 % of $x_1$ {a}", MEAN, -1.5], ["[b] \\ <|>\n\n~^", "7.5", None]]
    table = Table("a", "Title_1", ["m & n", "accuracy", "loss"], rows, {(0, 1): 1, (1, 1): 2}, "Caption.")
    assert as_latex(table, "synthetic data").splitlines() == [
        r"% needs \usepackage{booktabs} and \usepackage{graphicx}",
        r"\begin{table}",
        r"\centering",
        r"\caption{Title\_1 (synthetic data). Caption.}",
        r"\label{tab:a}",
        r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
        r"\begin{tabular}{lrr}",
        r"\toprule",
        r"m \& n & accuracy & loss \\",
        r"\midrule",
        r"50 \% of \$x\_1\$ \{a\} & \textbf{49.04$_{\pm 0.21}$} & $-$1.5 \\",
        r"{}[b] \textbackslash{} \textless{}\textbar{}\textgreater{} \textasciitilde{}\textasciicircum{}"
        r" & \underline{7.5} & -- \\",
        r"\bottomrule",
        r"\end{tabular}}",
        r"\end{table}",
    ]


def test_rows_of_wrong_length_are_rejected() -> None:
    with pytest.raises(ValueError, match="as many cells"):
        Table("a", "", ["x", "y"], [["only one"]])
