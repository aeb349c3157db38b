"""Figures of one run show the numbers of its log."""

import io
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest

from mfedpba_mpi import Run
from mfedpba_mpi.data.synthetic import free_form
from mfedpba_mpi.errors import UserError
from mfedpba_mpi.models.architecture import Architecture
from mfedpba_mpi.models.client_model import ClientModel
from mfedpba_mpi.report import run_figures
from mfedpba_mpi.report.run_figures import FIGURES, draw_all

Make = Callable[..., Run]

ALWAYS = {"partition", "accuracy", "losses", "communication", "times"}
OF_FINAL_STATE = {"prototypes", "feature_spaces", "structures"}
KINDS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "mfedpba": ({"track_gradients": True}, {*OF_FINAL_STATE, "gradients", "arrival"}),
    "local": ({"method": "local"}, {"prototypes", "feature_spaces"}),
    "harmony": ({"method": "harmony"}, {"prototypes", "feature_spaces"}),
    "one round": ({"rounds": 1}, OF_FINAL_STATE),
    "30 clients": ({"samples": 360, "clients": 30, "participation": 0.5}, OF_FINAL_STATE),
    "two classes": ({"classes": 2, "dims": (5,), "partition": "m1", "clients": 1}, {"prototypes", "structures"}),
    "every second": ({"eval_every": 2}, OF_FINAL_STATE),
}


def line(figure: Any, words: str) -> Any:
    """The curve of a figure with this label."""
    (found,) = [x for axes in figure.axes for x in axes.lines if x.get_label() == words]
    return found


def texts(figure: Any) -> str:
    """All text in the SVG of a figure."""
    with matplotlib.rc_context({"svg.fonttype": "none"}), io.StringIO() as file:
        figure.savefig(file, format="svg")
        return "\n".join(ElementTree.fromstring(file.getvalue()).itertext())


# ---- every kind of run


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_run_has_its_figures(kind: str, made: Make) -> None:
    changes, more = KINDS[kind]
    figures = dict(draw_all(made(**changes)))
    assert ALWAYS | more <= set(figures)
    for figure in figures.values():
        figure.draw_without_rendering()


def test_an_interrupted_run_has_all_figures_but_those_of_the_final_state(run: Run, changed: Make) -> None:
    assert {name for name, _ in draw_all(changed(run, final=None))} == set(FIGURES) - OF_FINAL_STATE


def test_a_run_without_finished_rounds_has_a_figure_of_its_partition(run: Run, changed: Make) -> None:
    begun = changed(run, rounds=dict.fromkeys(run.rounds), final=None)
    assert [name for name, _ in draw_all(begun)] == ["partition"]


def test_a_run_without_evaluation_has_no_accuracy(run: Run, changed: Make) -> None:
    tested = np.full_like(run.rounds["tested"], -1)
    with pytest.raises(UserError, match="no round has been evaluated"):
        run_figures.accuracy(changed(run, rounds={"tested": tested}))


@pytest.mark.parametrize("name", FIGURES)
def test_synthetic_data_are_marked_and_real_data_are_not(name: str, run: Run, changed: Make) -> None:
    draw = FIGURES[name].draw
    assert draw(run).get_supxlabel() == "synthetic data"
    assert draw(changed(run, attributes={"data_origin": "real"})).get_supxlabel() == ""


@pytest.mark.parametrize("name", ["partition", "prototypes"])
def test_hostile_names_are_shown_literally(name: str, run: Run, changed: Make) -> None:
    names = ["<b>$x_1$</b> & 5%", "_under", r"\$\alpha$ {'q\"}"]
    shown = texts(FIGURES[name].draw(changed(run, attributes={"modalities": names, "label": "$M$<i>"})))
    assert all(words in shown for words in names)
    assert name == "partition" or "$M$<i>" in shown


def test_drawing_needs_no_torch() -> None:
    code = "import sys, mfedpba_mpi.report.run_figures; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


# ---- partition


def test_areas_of_circles_are_proportional_to_training_samples(made: Make) -> None:
    run = made(**KINDS["30 clients"][0])
    (circles,) = run_figures.partition(run).axes[0].collections
    k, m = circles.get_offsets().astype(int).T
    assert set(zip(k, m, strict=True)) == set(zip(*np.nonzero(run.partition["modalities"]), strict=True))
    samples = run.partition["counts"].sum(axis=1)[k]  # the sizes of a scatter plot are proportional to areas
    np.testing.assert_allclose(circles.get_sizes() / circles.get_sizes().max(), samples / samples.max())


def test_circles_of_a_thousand_clients_are_means_of_adjacent_clients(run: Run, changed: Make) -> None:
    rng = np.random.default_rng(0)
    n, owned = rng.integers(1, 50, 1000), rng.random((1000, 3)) < 0.5
    many = changed(run, partition={"train_offsets": np.cumsum([0, *n]), "modalities": owned})
    figure = run_figures.partition(many)
    sizes = np.zeros((200, 3))
    for axes in figure.axes:
        k, m = axes.collections[0].get_offsets().astype(int).T
        sizes[k // 5, m] = axes.collections[0].get_sizes()
    means = (n[:, None] * owned).reshape(200, 5, 3).mean(axis=1)
    np.testing.assert_allclose(sizes / sizes.max(), means / means.max())


# ---- accuracy and losses


@pytest.mark.parametrize("kind", ["mfedpba", "every second", "30 clients"])
def test_the_average_is_correct_over_tested(kind: str, made: Make) -> None:
    run = made(**KINDS[kind][0])
    rounds, values = line(run_figures.accuracy(run), "average").get_data()
    correct, tested = run.rounds["correct"], run.rounds["tested"]
    rows = tested[:, 0] >= 0
    assert list(rounds) == ([2, 3] if kind == "every second" else [1, 2, 3])
    np.testing.assert_allclose(values, 100 * correct[rows].sum(axis=1) / tested[rows].sum(axis=1))


def test_few_clients_have_curves_and_many_have_bands(made: Make) -> None:
    few, many = made(**KINDS["mfedpba"][0]), made(**KINDS["30 clients"][0])
    figure = run_figures.accuracy(few)
    for k, accuracy in enumerate(few.rounds["accuracy"].T):
        np.testing.assert_allclose(line(figure, f"client {k}").get_ydata(), 100 * accuracy)
    axes = run_figures.accuracy(many).axes[0]
    assert [x.get_label() for x in axes.lines] == ["median client", "average"]
    box = axes.collections[0].get_datalim(axes.transData)
    accuracy = 100 * many.rounds["accuracy"]
    assert (box.y0, box.y1) == pytest.approx((np.nanmin(accuracy), np.nanmax(accuracy)))


def test_only_logged_terms_are_drawn(made: Make) -> None:
    (axes,) = run_figures.losses(made(method="local")).axes
    assert [x.get_label() for x in axes.lines] == [r"$\mathcal{L}_{\mathrm{ce}}$"]
    clients, server = run_figures.losses(made(**KINDS["mfedpba"][0])).axes
    assert len(clients.lines) == len(server.lines) == 3


def test_a_loss_is_the_mean_over_participants(made: Make) -> None:
    run = made(**KINDS["30 clients"][0])
    ce, part = run.rounds["loss_ce"], run.rounds["participants"]
    means = [row[took].mean() for row, took in zip(ce, part, strict=True)]
    np.testing.assert_allclose(line(run_figures.losses(run), r"$\mathcal{L}_{\mathrm{ce}}$").get_ydata(), means)


@pytest.mark.parametrize(("values", "scale"), [((1, 2, 3), "linear"), ((0, 1e-3, 5), "log"), ((-1, 1, 90), "linear")])
def test_losses_that_span_decades_are_on_a_log_scale(values: Any, scale: str, made: Make, changed: Make) -> None:
    run = made(method="local")
    loss = np.repeat(np.array(values, float)[:, None], run.rounds["loss_ce"].shape[1], axis=1)
    figure = run_figures.losses(changed(run, rounds={"loss_ce": loss}))
    figure.draw_without_rendering()
    assert figure.axes[0].get_yscale() == scale


# ---- communication, times and gradients


def test_payload_agrees_with_the_log_and_the_formula(made: Make) -> None:
    run = made(**KINDS["30 clients"][0])
    figure = run_figures.communication(run)
    for direction in ("up", "down"):
        np.testing.assert_array_equal(
            line(figure, f"{direction}loads, measured").get_ydata(), run.rounds[f"bytes_{direction}"].sum(axis=1)
        )
    owned, C, d = run.partition["modalities"].sum(axis=1), 3, 8
    formula = [sum(4 * C * (owned[k] * d + C) for k in np.flatnonzero(row)) for row in run.rounds["participants"]]
    np.testing.assert_array_equal(line(figure, "paper's formula, one way").get_ydata(), formula)


@pytest.mark.parametrize("fusion", ["sum", "concat"])
def test_network_weights_agree_with_torch(fusion: str, made: Make) -> None:
    run = made(fusion=fusion, rounds=1, clients=12, partition="m1+")
    modalities = free_form(120, 3, (6, 10, 8)).modalities
    total = 0
    for own, networks in zip(run.partition["modalities"], run.partition["architectures"], strict=True):
        architectures = [Architecture.from_dict(fields) for fields in json.loads(networks)]
        model = ClientModel([modalities[m] for m in np.flatnonzero(own)], architectures, 8, 3, fusion)
        total += sum(weight.numel() for weight in model.parameters() if weight.ndim > 1)
    assert line(run_figures.communication(run), "full networks, one way").get_ydata() == [4 * total]


def test_networks_are_omitted_if_widths_are_unknown(run: Run, changed: Make) -> None:
    config = {**run.attributes["config"], "dims": None}
    unknown = changed(run, attributes={"dataset": "mine", "config": config})
    assert len(run_figures.communication(unknown).axes[0].lines) == 3


def test_networks_are_omitted_for_plugin_extractors(run: Run, changed: Make) -> None:
    own = [
        json.dumps([{**fields, "family": "Own"} for fields in json.loads(text)])
        for text in run.partition["architectures"]
    ]
    unknown = changed(run, partition={"architectures": own})
    assert len(run_figures.communication(unknown).axes[0].lines) == 3


def test_a_method_without_communication_is_labelled(made: Make) -> None:
    assert "Local sends nothing" in texts(run_figures.communication(made(method="local")))


def test_times_of_activities_sum_to_the_time_of_a_round(run: Run) -> None:
    axes = run_figures.times(run).axes[0]
    heights = np.array([[bar.get_height() for bar in bars] for bars in axes.containers])
    np.testing.assert_allclose(heights.sum(axis=0), run.rounds["seconds_total"], rtol=1e-6)


@pytest.mark.parametrize(("ranks", "bars"), [(1, 1), (4, 4), (150, 50)])
def test_busy_time_is_that_of_clients_and_server(ranks: int, bars: int, made: Make, changed: Make) -> None:
    run = made(**KINDS["30 clients"][0])
    rank = np.arange(30) % (ranks - 1) + 1 if ranks > 1 else np.zeros(30, int)
    run = changed(run, attributes={"ranks": ranks}, partition={"rank": rank})
    axes = run_figures.times(run).axes[1]
    clients, server = axes.containers
    assert len(clients) == bars
    group = ranks / bars
    seconds = run.rounds["seconds_client"].mean(axis=0)
    expected = [seconds[rank // group == i].sum() / group for i in range(bars)]
    np.testing.assert_allclose([bar.get_height() for bar in clients], expected)
    np.testing.assert_allclose(server[0].get_height(), run.rounds["seconds_server"].mean() / group)
    if group > 1:
        tops = [segment[1, 1] for segment in axes.collections[0].get_segments()]
        np.testing.assert_allclose(tops[1:], [max(seconds[rank // group == i], default=0) for i in range(1, bars)])


def test_gradients_are_running_means_with_the_rate(run: Run, changed: Make) -> None:
    values = np.array([[8.0, np.nan, np.nan], [4.0, 2.0, np.nan], [3.0, 1.0, np.nan]])
    figure = run_figures.gradients(changed(run, rounds={"gradient_norm2": values}))
    figure.draw_without_rendering()
    np.testing.assert_allclose(line(figure, "client 0").get_ydata(), [8, 6, 5])
    np.testing.assert_allclose(line(figure, "client 1").get_ydata(), [np.nan, 2, 1.5])
    np.testing.assert_allclose(line(figure, "mean over clients").get_ydata(), [8, 5.5, 13 / 3])
    np.testing.assert_allclose(line(figure, "$c\\,/\\,T$").get_ydata(), [13, 6.5, 13 / 3])


@pytest.mark.parametrize("draw", [run_figures.gradients, run_figures.arrival])
def test_the_error_without_gradients_names_the_option(draw: Any, made: Make) -> None:
    with pytest.raises(UserError, match="--track-gradients"):
        draw(made(method="local"))


def test_the_change_by_new_prototypes_is_drawn_in_the_round_in_which_they_arrive(run: Run, changed: Make) -> None:
    nan = [np.nan] * 3
    old, new = np.array([nan, nan, [3.0, 3, np.nan], [2, 2, 2]]), np.array([nan, nan, [5.0, 2, np.nan], [1, 3, 6]])
    bias = np.array([nan, [8, 4, np.nan], [6, 6, 9], [1, 1, 1]])
    names = ("arrival_drift", "arrival_server", "arrival_clients", "arrival_bias")
    rounds = {"arrival_old": old, "arrival_new": new, **{name: i * bias / 3 for i, name in enumerate(names)}}
    figure = run_figures.arrival(changed(run, rounds={**rounds, "participants": np.ones((4, 3), bool)}))
    figure.draw_without_rendering()
    np.testing.assert_array_equal(line(figure, "client 0").get_xydata(), [[3, 2], [4, -1]])
    np.testing.assert_allclose(line(figure, "mean").get_ydata(), [0.5, 4 / 3])
    np.testing.assert_allclose(line(figure, "size of the change").get_ydata(), [1.5, 2])
    np.testing.assert_allclose(line(figure, "bias of the server").get_xydata(), [[3, 6], [4, 7]])
    np.testing.assert_allclose(line(figure, "change by the server").get_ydata(), [2, 7 / 3])


def test_two_rounds_have_no_change_by_new_prototypes(made: Make) -> None:
    with pytest.raises(UserError, match="from round 3 on"):
        run_figures.arrival(made(track_gradients=True, rounds=2))
