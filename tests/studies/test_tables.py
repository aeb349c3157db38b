"""Tables, with expected values by hand: means, deviations, marks, missing runs and synthetic data."""

import csv
import io
import math
from dataclasses import replace

import numpy as np
import pytest

from mfedpba_mpi.errors import UserError
from mfedpba_mpi.studies.formats import as_markdown, of_predictors, runs_csv
from mfedpba_mpi.studies.measures import MEASURES
from mfedpba_mpi.studies.study_file import find_study
from mfedpba_mpi.studies.tables import RunValue, combine, difference_table, lay_out, tabulate
from tests.studies.examples import ACCURACY, SECONDS, STUDY, VALUES, run_values


def test_cells_are_mean_and_sample_deviation_and_ties_share_a_mark(study):
    results = lay_out(study, run_values(study, VALUES), ACCURACY)
    assert results.columns == ["Local", "FedProto", "MFedPBA"]
    label, first, second = results.rows[0].name, *(row.cells for row in results.rows)
    assert label == "m2"
    assert [cell.text() for cell in first] == ["41.00 ± 1.41", "50.00 ± 0.00", "50.00 ± 2.83"]
    assert [cell.place for cell in first] == [2, 1, 1]
    assert [cell and (cell.text(), cell.n, cell.place) for cell in second] == [
        ("30.00 ± 0.00", 2, 1), ("20.00", 1, 2), None
    ]  # fmt: skip
    assert results.notes()[:2] == ["mean ± deviation over 2 seeds", "9 of 12 runs are complete"]


def test_failed_runs_have_no_value(study):
    results = lay_out(study, run_values(study, [40, math.nan, math.nan, math.nan, None, None, *[1.0] * 6]), ACCURACY)
    cells = results.rows[0].cells
    assert [cell and (cell.full_text(), cell.n, cell.place) for cell in cells] == [
        ("40.00 (1 failed)", 1, 0), ("failed", 0, 0), None
    ]  # fmt: skip
    assert "7 of 12 runs are complete, 3 failed" in results.notes()
    assert "| m2 | 40.00 (1 failed) | failed | - |" in as_markdown(results)


def test_a_cell_with_failed_runs_is_not_marked(study):
    results = lay_out(study, run_values(study, [40, 42, 99, math.nan, 30, 32, *[1.0] * 6]), ACCURACY)
    assert [(cell.full_text(), cell.place) for cell in results.rows[0].cells] == [
        ("41.00 ± 1.41", 1), ("99.00 (1 failed)", 0), ("31.00 ± 1.41", 2)
    ]  # fmt: skip


def test_smaller_times_are_better(study):
    results = lay_out(study, run_values(study, [3, 3, 2, 2, 1, 1, 1, 1, 1, 1, 5, 5]), SECONDS)
    assert [[cell.place for cell in row.cells] for row in results.rows] == [[0, 2, 1], [1, 1, 2]]


@pytest.mark.parametrize(
    ("best", "places"),
    [("row", [[2, 1], [1, 2]]), ("column", [[2, 1], [1, 2]]), ("table", [[0, 2], [1, 0]])],
)
def test_the_best_cells_are_marked_per_row_column_or_table(tmp_path, best, places):
    cross = '[cross]\npartition = ["m2", "m1"]\nmethod = ["local", "mfedpba"]\n'
    (tmp_path / "t.toml").write_text(f'[settings]\ndataset = "youtube"\n{cross}[table]\nbest = "{best}"\n')
    study = find_study(str(tmp_path / "t.toml"))
    results = lay_out(study, run_values(study, [1, 3, 4, 2]), ACCURACY)
    assert [[cell.place for cell in row.cells] for row in results.rows] == places


def test_rows_are_compared_with_the_first(tmp_path):
    text = '[settings]\ndataset = "youtube"\n[cross]\nclients = [6, 8]\n[table]\nagainst_first = true\n'
    (tmp_path / "t.toml").write_text(text)
    study = find_study(str(tmp_path / "t.toml"))
    first, second = (row.cells for row in lay_out(study, run_values(study, [40.0, 38.5]), ACCURACY).rows)
    assert (first[0].against, second[0].against) == ("", "-1.50")
    assert lay_out(study, run_values(study, [4.0, 1.6]), SECONDS).rows[1].cells[0].against == "2.50x"
    (base,), (other,) = (row.cells for row in difference_table(study, run_values(study, [4.0, 1.6]), SECONDS, "6").rows)
    assert (base.text(), other.text(), other.against) == ("0.000", "-2.400", "")


def test_synthetic_data_are_marked_in_the_title_or_in_some_rows(study):
    values = run_values(study, [1.0] * 12)
    assert lay_out(study, values, ACCURACY).title == f"T (synthetic data): {ACCURACY.label}"
    mixed = [value if value.key.labels["partition"] == "m1" else value._replace(remark="") for value in values]
    results = lay_out(study, mixed, ACCURACY)
    assert results.title == f"T: {ACCURACY.label}"
    assert [row.name for row in results.rows] == ["m2", "m1 (synthetic data)"]


def test_tables_have_the_values_of_the_logs(finished, tmp_path):
    """A study with one complete run and others missing."""
    run = finished(method="local", partition="m2")
    (tmp_path / "t.toml").write_text(STUDY)
    study = find_study(str(tmp_path / "t.toml"))
    directory = tmp_path / "study" / study.run_keys()[0].path
    directory.parent.mkdir(parents=True)
    run.path.parent.rename(directory)
    for name, expected in (
        ("last", 100 * (run.rounds["correct"][-1].sum() / run.rounds["tested"][-1].sum())),
        ("best", 100 * max(run.rounds["correct"].sum(axis=1) / run.rounds["tested"].sum(axis=1))),
        ("client_mean", 100 * run.rounds["accuracy"].mean()),
        ("kilobytes", 0.0),
    ):
        (results,) = tabulate(study, tmp_path / "study", [name])
        assert results.rows[0].cells[0].mean == pytest.approx(expected)
        assert results.rows[0].cells[1] is None
    assert tabulate(study, tmp_path / "study", ["seconds"])[0].rows[0].cells[0].mean > 0
    with pytest.raises(UserError, match="did you mean 'last_five'"):
        tabulate(study, tmp_path / "study", ["lastfive"])


def test_runs_without_a_measure_are_not_failed(finished, tmp_path):
    (tmp_path / "t.toml").write_text(STUDY)
    study = find_study(str(tmp_path / "t.toml"))
    for key, method in zip(study.run_keys()[::2], ("local", "fedproto", "mfedpba"), strict=False):
        directory = tmp_path / "study" / key.path
        directory.parent.mkdir(parents=True, exist_ok=True)
        finished(method=method, partition="m2").path.parent.rename(directory)
    cells = tabulate(study, tmp_path / "study", ["plan_trace"])[0].rows[0].cells
    assert cells[:2] == [None, None]
    assert 0 < cells[2].mean <= 1
    first, _, third = csv.DictReader(io.StringIO(runs_csv(study, tmp_path / "study")))
    assert [first[name] for name in ("partition", "method", "seed", "status", "remark", "plan_trace")] == [
        "m2", "Local", "0", "complete", "synthetic data", ""
    ]  # fmt: skip
    assert float(third["plan_trace"]) == pytest.approx(cells[2].mean, rel=1e-5)
    accuracies = [float(text) for text in first["clients"].split()]
    assert np.mean(accuracies) == pytest.approx(float(first["client_mean"]), abs=0.01)


def test_a_column_is_subtracted_seed_by_seed(study):
    """Local has 40 and 42, FedProto 50 and failed, MFedPBA 41 and 43: differences 10, and 1 twice."""
    found = run_values(study, [40, 42, 50, math.nan, 41, 43, None, 30, 35, 36, None, None])
    results = difference_table(study, found, ACCURACY, "Local")
    assert results.title.endswith(", minus Local's")
    first, second = (row.cells for row in results.rows)
    assert [(cell.mean, cell.n) for cell in first] == [(0, 2), (10, 1), (1, 2)]
    assert first[2].deviation == 0
    assert [cell and (cell.mean, cell.n) for cell in second] == [(0, 1), (6, 1), None]  # seed 0 has no Local
    failed = difference_table(study, run_values(study, [math.nan, 42, 50, 51, *[None] * 8]), ACCURACY, "Local")
    assert [(cell.mean, cell.n, cell.failed) for cell in failed.rows[0].cells[:2]] == [(0, 1, 1), (9, 1, 0)]
    with pytest.raises(UserError, match="did you mean 'Local'"):
        difference_table(study, found, ACCURACY, "local")


def judged_values(study):
    """Local has 40 and 42, FedProto 50 by prototype and 60 by classifier, and failed; MFedPBA 55 and 57, all on m2."""
    keys = study.run_keys()
    return [
        *(RunValue(key, value) for key, value in zip(keys[:2], (40, 42), strict=True)),
        RunValue(keys[2], 50, predictor="prototype"), RunValue(keys[2], 60, predictor="classifier"),
        RunValue(keys[3], math.nan), RunValue(keys[4], 55), RunValue(keys[5], 57),
    ]  # fmt: skip


def test_a_method_with_several_predictors_has_a_column_for_each(study):
    results = lay_out(study, judged_values(study), ACCURACY)
    assert results.columns == ["Local", "FedProto, prototype", "FedProto, classifier", "MFedPBA"]
    assert [cell.full_text() for cell in results.rows[0].cells] == [
        "41.00 ± 1.41", "50.00 (1 failed)", "60.00 (1 failed)", "56.00 ± 1.41"
    ]  # fmt: skip
    assert [cell.place for cell in results.rows[0].cells] == [2, 0, 0, 1]
    assert "5 of 12 runs are complete, 1 failed" in results.notes()  # runs, not values
    differences = difference_table(study, judged_values(study), ACCURACY, "FedProto, classifier")
    assert differences.title.endswith(", minus FedProto, classifier's")
    cells = differences.rows[0].cells
    assert [(cell.mean, cell.n, cell.failed) for cell in cells] == [(-20, 1, 0), (-10, 1, 1), (0, 1, 1), (-5, 1, 0)]
    with pytest.raises(
        UserError, match=r"unknown column 'FedProto'.*choose from: FedProto, classifier; FedProto, proto"
    ):
        difference_table(study, judged_values(study), ACCURACY, "FedProto")


def test_a_value_of_an_older_file_is_about_the_default_predictor(study):
    keys = study.run_keys()
    values = [RunValue(keys[2], 50), RunValue(keys[3], 54, "", "prototype"), RunValue(keys[3], 70, "", "classifier")]
    results = lay_out(study, values, ACCURACY)
    assert [cell and (cell.mean, cell.n) for cell in results.rows[0].cells] == [None, (52, 2), (70, 1), None]
    assert lay_out(study, values[:1], ACCURACY).columns == ["Local", "FedProto", "MFedPBA"]


@pytest.mark.parametrize(
    ("cross", "table", "columns", "rows"),
    [
        ("lr = [0.1, 0.2]", "", ["prototype", "classifier"], ["0.1", "0.2"]),
        ("", "", ["prototype", "classifier"], ["t"]),
        ('lr = [0.1]\nfusion = ["sum"]', 'columns = "fusion"', ["sum, prototype", "sum, classifier"], ["0.1"]),
        (
            'variant = [{ name = "A", method = "fedproto" }, { name = "B", method = "local" }]', "",
            ["mean"], ["A, prototype", "A, classifier", "B"],
        ),
    ],
    ids=["rows", "one cell", "columns", "variants"],
)  # fmt: skip
def test_predictors_in_studies_without_an_axis_of_methods(written, cross, table, columns, rows):
    study = written(f'[settings]\nmethod = "fedproto"\n[cross]\n{cross}\nseed = [0]\n[table]\n{table}')
    values = []
    for key in study.run_keys():
        single = key.labels.get("variant") == "B"
        values += [
            RunValue(key, value, predictor=predictor)
            for value, predictor in ([(3.0, "")] if single else [(1.0, "prototype"), (2.0, "classifier")])
        ]
    results = lay_out(study, values, ACCURACY)
    assert (results.columns, [row.label.replace("mine", "t") for row in results.rows]) == (columns, rows)
    means = [cell.mean for row in results.rows for cell in row.cells]
    assert means == ([1, 2, 3] if "variant" in cross else [1, 2] * (len(means) // 2))
    assert results.notes()[:2] == ["one seed", f"best of a {results.best} bold, second best underlined"]
    assert results.best == ("row" if "columns" in table else "column")


def test_accuracies_by_predictor_are_those_of_the_log(finished, tmp_path):
    (tmp_path / "t.toml").write_text(STUDY)
    study = find_study(str(tmp_path / "t.toml"))
    run = finished(method="fedproto", partition="m2", eval_every=2)
    directory = tmp_path / "study" / study.run_keys()[2].path
    directory.parent.mkdir(parents=True)
    run.path.parent.rename(directory)
    tested = run.rounds["tested"][1:]  # evaluated after rounds 2 and 3
    correct = {name: (run.rounds[f"accuracy_{name}"][1:] * tested).sum(axis=1) for name in run.predictors}
    best = {name: 100 * (hits / tested.sum(axis=1)).max() for name, hits in correct.items()}
    (results,) = tabulate(study, tmp_path / "study", ["best"])
    assert results.columns == ["Local", "FedProto, prototype", "FedProto, classifier", "MFedPBA"]
    assert [cell and cell.mean for cell in results.rows[0].cells] == [
        None, *(pytest.approx(best[name]) for name in ("prototype", "classifier")), None
    ]  # fmt: skip
    assert tabulate(study, tmp_path / "study", ["seconds"])[0].columns == ["Local", "FedProto", "MFedPBA"]
    (line,) = csv.DictReader(io.StringIO(runs_csv(study, tmp_path / "study")))
    assert {name: float(cell) for name, cell in of_predictors(line, "best").items()} == pytest.approx(best, rel=1e-5)
    clients = {name: 100 * run.rounds[f"accuracy_{name}"][1:].mean(axis=0) for name in run.predictors}
    for name, cell in of_predictors(line, "clients").items():
        np.testing.assert_allclose([float(text) for text in cell.split()], clients[name], atol=0.006)
    old = {name: cell for name, cell in line.items() if "classifier" not in name and name != "predictors"}
    assert of_predictors(old, "best") == {"": line["best"]}


BEST = MEASURES["best"][0]


def test_several_measures_are_rows_below_each_other_with_places_within_a_measure(study):
    last_five = lay_out(study, run_values(study, VALUES), ACCURACY)
    best = lay_out(study, run_values(study, [61, 63, 60, 60, 59, 59, *[1.0] * 6]), BEST)
    (table,) = combine([last_five, best])
    assert table.title == "T (synthetic data): average accuracy in %"
    assert table.columns == ["Local", "FedProto", "MFedPBA"]
    assert [(row.name, row.measure) for row in table.rows] == [
        (label, measure) for label in ("m2", "m1") for measure in ("last five rounds", "best round")
    ]
    assert [[cell and cell.place for cell in row.cells] for row in table.rows] == [
        [2, 1, 1], [1, 2, 0], [1, 2, None], [1, 1, 1]
    ]  # fmt: skip
    assert table.notes()[-2:] == ["best of a row bold, second best underlined", "last five rounds: their mean"]
    assert combine([best]) == [best]


def test_several_measures_are_columns_where_there_is_only_one(written):
    study = written("[cross]\nlr = [0.1, 0.2]\n[table]\nagainst_first = true")
    parts = [lay_out(study, run_values(study, values), MEASURES[name][0]) for name, values in (
        ("last_five", [40, 42]), ("best", [45, 44]), ("seconds", [2, 1])
    )]  # fmt: skip
    (table,) = combine(parts[:2])
    assert table.columns == ["last five rounds", "best round"]
    texts = [[cell.full_text() for cell in row.cells] for row in table.rows]
    assert texts == [["40.00", "45.00"], ["42.00 (+2.00)", "44.00 (-1.00)"]]
    assert [[cell.place for cell in row.cells] for row in table.rows] == [[2, 1], [1, 2]]
    (table,) = combine(parts)
    assert table.columns == [part.measure.label for part in parts]
    assert table.title == table.subject + " (synthetic data)"
    assert [cell.full_text() for cell in table.rows[1].cells] == ["42.00 (+2.00)", "44.00 (-1.00)", "1.000 (2.00x)"]


def test_best_of_a_column_is_within_a_measure_and_says_so(study):
    study = replace(study, layout=replace(study.layout, best="column"))
    parts = [lay_out(study, run_values(study, VALUES), measure) for measure in (ACCURACY, BEST)]
    (table,) = combine(parts)
    assert "best of a column by each measure bold, second best underlined" in table.notes()


def test_measures_with_other_columns_have_a_table_of_their_own(study):
    accuracy, seconds = judged_values(study), run_values(study, [1.0] * 12)
    parts = [lay_out(study, accuracy, ACCURACY), lay_out(study, seconds, SECONDS), lay_out(study, accuracy, BEST)]
    both, alone = combine(parts)
    assert both.columns == ["Local", "FedProto, prototype", "FedProto, classifier", "MFedPBA"]
    assert [row.measure for row in both.rows] == ["last five rounds", "best round"] * 2
    assert alone == parts[1]


def test_the_table_of_a_study_shows_the_best_round_beside_the_last_five(study, written):
    assert study.layout.measure == ("last_five", "best")
    assert written('[cross]\nseed = [0]\n[table]\nmeasure = "best"').layout.measure == ("best",)
    assert written('[cross]\nseed = [0]\n[table]\nmeasure = ["last", "best"]').layout.measure == ("last", "best")
