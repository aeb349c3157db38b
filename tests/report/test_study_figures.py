"""Figures that compare runs: their data, their texts, and which figures a study gets."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
from matplotlib.collections import PolyCollection

from mfedpba_mpi.data.seal import seal
from mfedpba_mpi.errors import UserError
from mfedpba_mpi.records.run import LOG_NAME, Run
from mfedpba_mpi.report.study_figures import (
    client_table,
    convergence,
    figures_of,
    panels,
    predictor_note,
    runs_by_method,
)
from mfedpba_mpi.report.table_figures import curve
from mfedpba_mpi.studies.measures import MEASURES
from mfedpba_mpi.studies.study_file import find_study, read_study
from tests.report.test_table_figures import ACCURACY, HOSTILE, a_table, legend_of, lines_of, words_of


def a_run(accuracies, every=1, origin="real", status="complete", tested=100):
    """A run with these accuracies, (rounds, clients) or (rounds,), and `tested` test rows per client."""
    accuracies = np.array(accuracies, float)
    accuracies = accuracies.reshape(len(accuracies), -1)
    rounds, K = accuracies.shape
    skipped = np.arange(1, rounds + 1) % every != 0
    counts = np.where(skipped[:, None], -1, np.broadcast_to(tested, (rounds, K)))
    correct = np.where(skipped[:, None], -1, np.round(accuracies * counts).astype(int))
    rows = {
        "tested": counts,
        "correct": correct,
        "accuracy": np.where(skipped[:, None], np.nan, accuracies),
        "seconds_total": np.linspace(1, 2, rounds),
        "seconds_client": np.full((rounds, K), 0.5),
    }
    attributes = {"data_origin": origin, "config": {"rounds": rounds}, "status": status}
    return Run(Path("run.h5"), attributes, rows, {}, {})


def put(directory, run):
    """Write a run as a log."""
    directory.mkdir(parents=True)
    with h5py.File.in_memory() as file:
        attributes = {"hosts": [], "modalities": [], "resumed": []} | run.attributes
        file.attrs.update({n: v if isinstance(v, str) else json.dumps(v) for n, v in attributes.items()})
        for name, values in run.rounds.items():
            file[f"rounds/{name}"] = values
        file["partition/rank"] = np.zeros(run.rounds["tested"].shape[1], int)
        file.flush()
        image = file.id.get_file_image()
    (directory / LOG_NAME).write_bytes(seal(image))


def fill(study, directory, make):
    """Write the run that `make` returns for each place, unless it is None."""
    for i, place in enumerate(study.run_keys()):
        if run := make(i, place):
            put(directory / place.path, run)


# ---- runs


def test_lines_show_means_and_bands_sample_deviations():
    values = np.array([[0.1, 0.3, 0.5], [0.2, 0.3, 0.6], [0.6, 0.3, 0.7]])
    (axes,) = convergence({"A": [a_run(own) for own in values]}).axes
    (line,) = axes.get_lines()
    assert line.get_xdata().tolist() == [1, 2, 3]
    np.testing.assert_allclose(line.get_ydata(), 100 * values.mean(axis=0))
    (band,) = [item for item in axes.collections if isinstance(item, PolyCollection)]
    edges = {(round(x), round(y, 6)) for x, y in band.get_paths()[0].vertices}
    spread = 100 * np.std(values, axis=0, ddof=1)
    for t in range(3):
        for edge in (100 * values[:, t].mean() - spread[t], 100 * values[:, t].mean() + spread[t]):
            assert (t + 1, round(edge, 6)) in edges


def test_the_average_weights_clients_by_their_test_rows():
    (axes,) = convergence({"A": [a_run([[0.5, 1.0]], tested=[300, 100])]}).axes
    assert axes.get_lines()[0].get_ydata().tolist() == [62.5]


def test_only_rounds_evaluated_in_all_runs_that_reached_them_are_shown():
    short, long = a_run([0.1, 0.2, 0.3, 0.4]), a_run([0.9, 0.4, 0.9, 0.6, 0.9, 0.8], every=2)
    (axes,) = convergence({"A": [short, long]}).axes
    line = axes.get_lines()[0]
    assert line.get_xdata().tolist() == [2, 4, 6]
    np.testing.assert_allclose(line.get_ydata(), [30, 50, 80])


def test_the_legend_has_the_given_order_or_is_sorted_by_the_last_accuracy():
    groups = {"A": [a_run([0.9, 0.1])], "B": [a_run([0.1, 0.9])], "none": [], "C": [a_run([0.5, 0.5])]}
    assert legend_of(convergence(groups)) == ["A", "B", "none", "C"]
    assert legend_of(convergence(groups, ranked=True)) == ["B", "C", "A", "none"]


def test_lines_differ_in_more_than_colour():
    (axes,) = convergence({f"group {i}": [a_run([0.1, 0.2])] for i in range(8)}).axes
    assert len({line.get_marker() for line in axes.get_lines()}) == 8
    assert len({str(line._unscaled_dash_pattern) for line in axes.get_lines()}) == 8


def test_a_method_looks_the_same_in_all_figures():
    def look(figure, i):
        line = figure.axes[0].get_lines()[i]
        return line.get_color(), line.get_marker(), line.get_linestyle()

    two, other = ({name: [a_run([0.1, 0.2])] for name in names} for names in (("Local", "MFedPBA"), ("mfedpba",)))
    assert look(convergence(two), 1) == look(convergence(other), 0)
    table = a_table({"1": [(1, 0.1), (2, 0.1)], "2": [(1, 0.1), (2, 0.1)]}, ["FedTGP", "MFedPBA"], corner="S")
    assert look(curve(table, [1, 2]), 3)[0] == look(convergence(other), 0)[0]


def test_groups_without_evaluated_rounds_are_labelled():
    begun = replace(a_run([0.1]), rounds={})
    figure = convergence({"old": [a_run([0.1, 0.2])], "new": [begun]})
    assert "no data: new" in words_of(figure)


def test_empty_input_gives_empty_figures():
    for figure in (convergence({}), convergence({"A": []}), panels({})):
        figure.draw_without_rendering()


def test_sixteen_panels_share_a_legend_and_mark_synthetic_data():
    methods = [choice.label for choice in find_study("main-table").axes["method"]]
    cells = {
        f"cell {i}": {name: [a_run([0.1, 0.2, 0.4], origin="real" if i else "synthetic")] for name in methods}
        for i in range(16)
    }
    figure = panels(cells)
    assert len(figure.legends) == 1
    assert legend_of(figure) == methods
    titles = [axes.get_title() for axes in figure.axes]
    assert titles == ["cell 0\n(synthetic data)", *(f"cell {i}" for i in range(1, 16))]
    assert figure.get_supxlabel() == "partly synthetic data"


def test_hostile_names_are_shown_literally():
    run = a_run([0.1, 0.2])
    for figure in (convergence({HOSTILE: [run], "$": [run]}), panels({HOSTILE: {"$": [run]}, "$": {HOSTILE: [run]}})):
        assert HOSTILE.replace(" ", "") in "".join(words_of(figure)).replace(" ", "")


# ---- clients


def test_the_client_table_has_means_of_the_last_five_rounds_over_seeds():
    first = np.array([[0.9, 0.9], [0.1, 0.2], [0.2, 0.2], [0.3, 0.2], [0.4, 0.2], [0.5, 0.2]])
    headers, rows = client_table({"A": [a_run(first, tested=[100, 300]), a_run(first + 0.1, tested=[100, 300])]})
    assert headers == ["method", "k0", "k1", "Avg"]
    # means 30 and 40; 20 and 30; (30 + 3 * 20) / 4 = 22.5 and 32.5; a deviation of sqrt(50) each
    assert rows == [["A", "35.00 ± 7.07", "25.00 ± 7.07", "27.50 ± 7.07"]]


def test_the_client_table_does_not_average_clients_of_different_problems():
    def of(accuracy, **config):
        run = a_run([accuracy])
        run.attributes["config"] |= config
        return run

    fixed = [of(0.2, seed=0, problem_seed=0), of(0.4, seed=1, problem_seed=0)]
    assert [row[:2] for row in client_table({"A": fixed})[1]] == [["A", "30.00 ± 14.14"]]
    drawn = {name: [of(0.2, seed=0), of(0.4, seed=1, problem_seed=None)] for name in "AB"}
    assert [row[:2] for row in client_table(drawn)[1]] == [
        ["A, problem seed 0", "20.00"], ["B, problem seed 0", "20.00"],
        ["A, problem seed 1", "40.00"], ["B, problem seed 1", "40.00"],
    ]  # fmt: skip


def test_every_predictor_has_a_row_in_the_client_table():
    run = a_run([[0.5, 0.7]])
    run.rounds.update(accuracy_near=run.rounds["accuracy"], accuracy_other=np.array([[0.2, 0.4]]))
    assert client_table({"A": [run], "B": [a_run([[0.1, 0.3]])]})[1] == [
        ["A, near", "50.00", "70.00", "60.00"], ["A, other", "20.00", "40.00", "30.00"],
        ["B", "10.00", "30.00", "20.00"],
    ]  # fmt: skip
    assert predictor_note({"A": [run], "B": []}) == " Predictors: A, near."


def test_the_client_table_of_many_clients_has_their_quantiles():
    headers, rows = client_table({"A": [a_run([np.arange(101) / 100])], "B": []})
    assert headers == ["method", "worst client", "25 %", "median", "75 %", "best client", "Avg"]
    assert rows == [["A", "0.00", "25.00", "50.00", "75.00", "100.00", "50.00"], ["B", *["-"] * 6]]


def test_the_client_table_marks_synthetic_data():
    real, made = a_run([0.5]), a_run([0.5], origin="synthetic")
    assert client_table({"A": [made], "B": [made]})[0][0] == "method (synthetic data)"
    headers, rows = client_table({"A": [real], "B": [made], "C": [real, made]})
    assert headers[0] == "method"
    assert [row[0] for row in rows] == ["A", "B (synthetic data)", "C (partly synthetic data)"]


# ---- studies


def kinds_of(study, directory):
    return [figure.name for figure in figures_of(study, directory)]


def by_number(i, _):
    return a_run([[0.1, 0.1 + 0.01 * i]] * 3, origin="synthetic")


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("ablation", ["bars"]),
        ("client-time", ["bars"]),
        ("feature-dim", ["curve", "convergence"]),
        ("fusion", ["bars", "convergence"]),
        ("lambda-grid", ["heat-map"]),
        ("scaling-strong", ["scaling"]),
        ("scaling-weak", ["scaling"]),
        ("server-epochs", ["curve"]),
    ],
)
def test_the_axes_of_a_study_determine_its_figures(tmp_path, name, kinds):
    study = replace(find_study(name).quick_form(), name="x", title_format="A study")
    fill(study, tmp_path, by_number)
    figures = list(figures_of(study, tmp_path))
    assert [name for name, *_ in figures] == kinds
    label = MEASURES[study.layout.measure[0]][0].label
    titles = {"convergence": "Average accuracy over rounds"}
    captions = {"convergence": "of each group of runs", "scaling": "ideal scaling", "heat-map": "by row and column"}
    captions |= {"curve": "one line per column", "bars": "means and sample standard deviations"}
    for name, title, figure, caption in figures:
        assert title == titles.get(name, label[:1].upper() + label[1:])
        assert captions[name] in caption.lower()
        assert "Parameters" not in caption
        assert "synthetic data" in words_of(figure)


def test_a_study_shows_the_prototypes_of_its_runs_if_its_file_says_so(tmp_path, made):
    study = find_study("tsne").quick_form()
    assert kinds_of(study, tmp_path) == []
    for place in study.run_keys():
        run = made(method=place.labels["method"].lower())
        shutil.copytree(run.path.parent, tmp_path / place.path)
    owned = run.partition["modalities"].sum(axis=1)
    for modalities, names in ((0, ["prototypes"]), (int(owned[0]), ["prototypes"]), (3, [])):
        chosen = replace(study, layout=replace(study.layout, prototypes=modalities))
        figures = {name: figure for name, _, figure, _ in figures_of(chosen, tmp_path)}
        assert [name for name in figures if name == "prototypes"] == names
        for figure in figures.values():
            assert {"Local", "MFedPBA"} <= set(words_of(figure))
    assert "prototypes" not in kinds_of(replace(study, layout=replace(study.layout, prototypes=None)), tmp_path)


def test_a_study_without_runs_or_with_one_has_no_figures(tmp_path):
    study = find_study("lambda-grid").quick_form()
    assert kinds_of(study, tmp_path) == []
    fill(study, tmp_path / "one", lambda i, _: None if i else a_run([0.1, 0.2]))
    assert kinds_of(study, tmp_path / "one") == []
    fill(study, tmp_path / "bad", lambda i, _: a_run([0.1, 0.2], status="failed"))
    assert kinds_of(study, tmp_path / "bad") == []


def test_running_and_damaged_runs_are_ignored(tmp_path):
    study = find_study("main-table").quick_form()
    fill(study, tmp_path, lambda i, _: a_run([0.1, 0.2], status="complete" if i < 8 else "running"))
    (tmp_path / study.run_keys()[0].path / LOG_NAME).write_bytes(b"no log")
    ((title, groups),) = runs_by_method(study, tmp_path)
    assert title == study.axes["cell"][0].label
    assert [len(runs) for runs in groups.values()] == [0, *[1] * 7]
    assert kinds_of(study, tmp_path) == ["bars", "convergence"]


def test_runs_evaluated_once_have_no_convergence(tmp_path):
    study = find_study("main-table").quick_form()
    fill(study, tmp_path, lambda i, _: a_run([0.1, 0.2], every=2))
    assert kinds_of(study, tmp_path) == ["bars"]


def study_of(tmp_path, cross, table=""):
    (tmp_path / "t.toml").write_text(f'title = "T"\n[cross]\n{cross}\n[table]\n{table}')
    return read_study(tmp_path / "t.toml")


def test_many_panels_are_split_over_several_figures(tmp_path):
    cells = ", ".join(f'{{ name = "c{i}" }}' for i in range(18))
    study = study_of(tmp_path, f'cell = [{cells}]\nmethod = ["local", "mfedpba"]')
    fill(study, tmp_path / "runs", by_number)
    figures = {name: figure for name, _, figure, _ in figures_of(study, tmp_path / "runs")}
    assert list(figures) == ["convergence", "convergence-2"]  # 36 bars would be too many
    assert [sum(bool(axes.get_title()) for axes in figure.axes) for figure in figures.values()] == [16, 2]


def test_every_choice_of_a_third_axis_gets_a_heat_map(tmp_path):
    study = study_of(tmp_path, 'method = ["local", "mfedpba"]\nlr = [0.1, 0.2]\nfeature_dim = [8, 16]')
    fill(study, tmp_path / "runs", by_number)
    figures = [(name, title) for name, title, *_ in figures_of(study, tmp_path / "runs")]
    assert figures[:2] == [
        ("heat-map", f"Local: {ACCURACY.label}"),
        ("heat-map-2", f"MFedPBA: {ACCURACY.label}"),
    ]


def test_the_numeric_axis_is_the_x_axis_of_a_curve_even_if_it_is_the_columns(tmp_path):
    study = study_of(tmp_path, 'fusion = ["sum", "concat"]\nlr = [0.1, 0.2]', 'columns = "lr"')
    fill(study, tmp_path / "runs", by_number)
    ((name, _, figure, _),) = figures_of(study, tmp_path / "runs")
    assert (name, legend_of(figure), figure.axes[0].get_xlabel()) == ("curve", ["sum", "concat"], "lr")


def test_named_ranks_with_the_same_work_are_strong_scaling(tmp_path):
    nodes = '[{ name = "one node", ranks = 4 }, { name = "two nodes", ranks = 8 }]'
    study = study_of(tmp_path, f"nodes = {nodes}", 'measure = "seconds"')
    fill(study, tmp_path / "runs", by_number)
    ((name, _, figure, _),) = figures_of(study, tmp_path / "runs")
    (ideal,) = lines_of(figure.axes[0], "ideal")
    assert (name, ideal.get_xdata().tolist(), ideal.get_ydata().tolist()) == ("scaling", [4, 8], [1.5, 0.75])


def test_accuracy_over_ranks_is_a_curve(tmp_path):
    study = study_of(tmp_path, "ranks = [1, 2, 3]")
    fill(study, tmp_path / "runs", by_number)
    assert kinds_of(study, tmp_path / "runs") == ["curve"]


def test_an_unknown_measure_is_an_error_that_names_it(tmp_path):
    with pytest.raises(UserError, match="tau"):
        next(figures_of(study_of(tmp_path, "lr = [0.1, 0.2]", 'measure = "tau"'), tmp_path))
