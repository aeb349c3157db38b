"""Figures of prototypes show those of the log, and all runs or a list of the omitted ones."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex
from scipy.spatial.distance import cdist
from torch import nn

from mfedpba_mpi import Run
from mfedpba_mpi.errors import UserError
from mfedpba_mpi.report.prototype_figures import CLASS_COLOURS, feature_spaces, prototypes, structures

Make = Callable[..., Run]


def points(axes: Any) -> np.ndarray:
    """The positions of the prototypes, in any order."""
    return np.concatenate([cloud.get_offsets() for cloud in axes.collections])


def with_seed(run: Run, seed: int, changed: Make, method: str = "MFedPBA", **groups: Any) -> Run:
    """A copy of a run with another seed and method, and changed arrays."""
    config = {**run.attributes["config"], "seed": seed, "method": method}
    return changed(run, Path(f"{method}/s{seed}/run.h5"), {"config": config, "label": method}, **groups)


def titles(figure: Any) -> list[str]:
    """The titles of the panels."""
    return [axes.get_title() for axes in figure.axes if axes.get_title()]


def test_classes_absent_at_a_client_are_not_drawn(run: Run, changed: Make) -> None:
    counts = run.partition["counts"].copy()
    counts[0, 1] = counts[1, 0] = counts[1, 2] = 0
    few = changed(run, partition={"counts": counts})
    owned = run.partition["modalities"].sum(axis=1)
    (axes,) = prototypes(few).axes
    assert len(points(axes)) == owned @ (counts > 0).sum(axis=1)
    shades = [to_hex(colour) for cloud in axes.collections for colour in cloud.get_facecolors()]
    for c in range(3):
        assert shades.count(CLASS_COLOURS[c].lower()) == owned @ (counts[:, c] > 0)


def test_clients_can_be_restricted_to_those_with_some_number_of_modalities(run: Run, changed: Make) -> None:
    modalities = run.partition["modalities"].copy()
    modalities[1] = [True, False, False]
    first = run.final["E_client"] != 1
    first[np.argmin(first)] = True  # one modality of client 1 stays
    final = {name: run.final[name][first] for name in ("E", "E_client", "E_modality")}
    mixed = changed(run, final=final, partition={"modalities": modalities})
    for number in (0, 1, 2):
        figure = prototypes(mixed, modalities=number)
        drawn = points(figure.axes[0])
        chosen = (modalities.sum(axis=1) == number) | (number == 0)
        assert len(drawn) == (chosen * modalities.sum(axis=1)) @ (run.partition["counts"] > 0).sum(axis=1)
        note = figure.legends[-1].get_title().get_text()
        assert note == {0: "", 1: "Clients with 1 modality.", 2: "Clients with 2 modalities."}[number]
    assert [text.get_text() for text in prototypes(mixed, modalities=1).legends[-1].get_texts()] == [
        run.attributes["modalities"][run.final["E_modality"][np.argmin(run.final["E_client"] != 1)]]
    ]
    with pytest.raises(UserError, match="no client has 3 modalities"):
        prototypes(mixed, modalities=3)


def test_equal_prototypes_give_equal_panels(run: Run, changed: Make) -> None:
    left, right = prototypes(run, changed(run, Path("copy/run.h5"))).axes
    np.testing.assert_array_equal(points(left), points(right))


@pytest.mark.parametrize("number", [3, 4, 9])
def test_every_run_has_its_prototypes_shown(number: int, run: Run, changed: Make) -> None:
    figure = prototypes(*(with_seed(run, i, changed) for i in range(number)))
    assert titles(figure) == [f"MFedPBA, seed {i}" for i in range(number)]
    assert not figure.legends[-1].get_title().get_text()


def test_runs_that_are_not_shown_are_listed(run: Run, changed: Make) -> None:
    runs = [with_seed(run, seed, changed, method) for method in ("A", "B", "C") for seed in range(4)]
    runs[8] = with_seed(run, 0, changed, "C", final=None)
    figure = prototypes(*runs)
    assert titles(figure) == ["A, seed 0", "B, seed 0", "C, seed 1"]
    left = [f"{method}, seed {seed}" for method, seed in ("A1", "A2", "A3", "B1", "B2", "B3", "C2", "C3")]
    note = f"3 of 12 runs. Omitted: {'; '.join(left)}. Without prototypes: C, seed 0."
    assert figure.legends[-1].get_title().get_text().replace("\n", " ") == note


def test_a_synthetic_run_beside_a_real_one_is_partly_synthetic(run: Run, changed: Make) -> None:
    real = changed(run, Path("real/run.h5"), {"data_origin": "real"})
    assert prototypes(run, real).get_supxlabel() == "partly synthetic data"


def test_prototypes_of_a_class_lie_together_if_classes_are_far_apart(run: Run, changed: Make) -> None:
    rng = np.random.default_rng(0)
    E = 100 * np.eye(3, 8) + rng.standard_normal((len(run.final["E"]), 3, 8))
    counts = np.ones_like(run.partition["counts"])
    (axes,) = prototypes(changed(run, final={"E": E}, partition={"counts": counts})).axes
    shades = np.array([to_hex(colour) for cloud in axes.collections for colour in cloud.get_facecolors()])
    distances = cdist(points(axes), points(axes)) + np.diag(np.full(len(shades), np.inf))
    assert (shades[distances.argmin(axis=1)] == shades).all()


def test_many_classes_have_a_colour_bar_and_few_a_legend(run: Run, changed: Make) -> None:
    E = np.random.default_rng(0).standard_normal((len(run.final["E"]), 102, 4))
    counts = np.zeros((len(run.partition["counts"]), 102))
    counts[:, ::20] = 1
    many = changed(run, attributes={"classes": 102}, final={"E": E}, partition={"counts": counts})
    figure = prototypes(many)
    figure.draw_without_rendering()
    assert len(figure.axes) == 2
    assert [len(legend.get_texts()) for legend in figure.legends] == [3]
    assert [len(legend.get_texts()) for legend in prototypes(run).legends] == [3, 3]


@pytest.mark.parametrize("number", [1, 2, 3, 5])
def test_few_prototypes_can_be_drawn(number: int, run: Run, changed: Make) -> None:
    counts = np.zeros((len(run.partition["counts"]), 5), int)
    counts[0, :number] = 1
    rows = np.zeros(1, int)
    E = np.ones((1, 5, 1)) * np.arange(5)[:, None]
    final = {"E": E, "E_client": rows, "E_modality": rows}
    figure = prototypes(changed(run, attributes={"classes": 5}, final=final, partition={"counts": counts}))
    figure.draw_without_rendering()
    assert len(points(figure.axes[0])) == number


def test_distances_are_squared_euclidean_over_their_mean(run: Run, changed: Make) -> None:
    present = np.array([[1, 1, 1], [1, 0, 1], [0, 0, 0]])
    figure = structures(changed(run, final={"P_present": present, "plan": None}))
    figure.draw_without_rendering()
    shown = [axes.images[0].get_array() for axes in figure.axes if axes.images]
    assert len(shown) == 4
    for X, there, panel in zip(
        [*run.final["P_G"], run.final["I_G"]], [*(present > 0), run.final["I_present"] > 0], shown, strict=True
    ):
        D = cdist(X[there], X[there]) ** 2
        block = np.ma.filled(panel.astype(float), np.nan)
        assert np.isfinite(block).sum() == there.sum() ** 2
        if there.any():
            np.testing.assert_allclose(block[np.ix_(there, there)], D / D.mean(), rtol=1e-5, atol=1e-6)


def test_transport_plans_are_shown_as_shares_of_rows(run: Run, changed: Make) -> None:
    plan = np.stack([np.eye(3) / 3] * 3)
    plan[1, 2] = plan[1, :, 2] = np.nan
    plan[1] *= 3 / 2
    present = np.array([[1, 1, 1], [1, 1, 0], [1, 1, 1]])
    figure = structures(changed(run, final={"plan": plan, "P_present": present}))
    figure.draw_without_rendering()
    panels = [axes.images[0].get_array() for axes in figure.axes if axes.images]
    assert len(panels) == 7
    for panel in panels[4:]:
        np.testing.assert_allclose(np.ma.compressed(panel).sum(), np.isfinite(np.diag(panel.filled(np.nan))).sum())


def quartiles(axes: Any) -> list[tuple[float, float]]:
    """The quartiles of the boxes of a panel."""
    return [(box.get_x(), box.get_x() + box.get_width()) for box in axes.patches]


def drawn(figure: Any) -> tuple[Any, Any, Any]:
    figure.draw_without_rendering()
    return tuple(figure.axes)


def present_prototypes(run: Run) -> list[tuple[int, int, int, np.ndarray]]:
    """(client, modality, class, E) of every prototype, in the order of the log."""
    final, counts = run.final, run.partition["counts"]
    rows = zip(final["E_client"], final["E_modality"], final["E"], strict=True)
    return [(k, m, c, e[c]) for k, m, e in rows for c in range(counts.shape[1]) if counts[k, c]]


def projected(run: Run, m: int, e: np.ndarray) -> np.ndarray:
    """The autoencoder's output by torch's modules."""
    weights = {
        name: torch.tensor(run.final[name])
        for name in ("encoder_weight", "encoder_bias", "decoder_weight", "decoder_bias")
    }
    d, h = weights["encoder_weight"].shape[1:]
    network = nn.Sequential(nn.Linear(d, h), nn.ReLU(), nn.Linear(h, d))
    with torch.no_grad():
        for layer, W, b in (
            (network[0], weights["encoder_weight"][m], weights["encoder_bias"][m, 0]),
            (network[2], weights["decoder_weight"], weights["decoder_bias"]),
        ):
            layer.weight.copy_(W.T)
            layer.bias.copy_(b)
        return network(torch.tensor(e, dtype=torch.float32)).numpy()


def test_feature_spaces_show_pairs_of_different_clients(run: Run) -> None:
    similarity, distance, _ = drawn(feature_spaces(run))
    expected: list[list[np.ndarray]] = [[], []]
    for after in (False, True):
        points = [(k, m, c, projected(run, m, e) if after else e) for k, m, c, e in present_prototypes(run)]
        found: dict[tuple[bool, bool], list[tuple[float, float]]] = {}
        for i, (k, m, c, a) in enumerate(points):
            for other, n, j, b in points[:i]:
                if k != other:
                    cosine = a @ b / np.linalg.norm(a) / np.linalg.norm(b)
                    found.setdefault((m == n, c == j), []).append((cosine, np.linalg.norm(a - b)))
        median = np.median([x for (_, same), pairs in found.items() if not same for _, x in pairs])
        for kind in ((True, True), (True, False), (False, True), (False, False)):
            cosines, distances = np.transpose(found[kind])
            expected[0].append(np.quantile(cosines, (0.25, 0.75)))
            expected[1].append(np.quantile(distances / median, (0.25, 0.75)))
    np.testing.assert_allclose(quartiles(similarity), expected[0], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(quartiles(distance), expected[1], rtol=1e-4)


def test_margins_of_averages_and_global_prototypes(run: Run) -> None:
    _, _, axes = drawn(feature_spaces(run))
    points, P_G = present_prototypes(run), run.final["P_G"]
    margins: dict[str, list[float]] = {"all": [], "modality": [], "P_G": []}
    for k, m, c, e in points:
        same = [(other, n, x) for other, n, j, x in points if j == c]
        others = [x for other, n, j, x in points if (other, n) == (k, m) and j != c]
        candidates = {"all": same, "modality": [own for own in same if own[1] == m]}
        globals_ = {
            name: np.mean([x for *_, x in own], axis=0)
            for name, own in candidates.items()
            if len({other for other, *_ in own}) > 1
        }
        for name, x in {**globals_, "P_G": P_G[m, c]}.items():
            nearest = min(np.linalg.norm(x - other) for other in others)
            margins[name].append(1 - np.linalg.norm(x - e) / nearest)
    expected = [np.quantile(values, (0.25, 0.75)) for values in margins.values()]
    np.testing.assert_allclose(quartiles(axes), expected, rtol=1e-4, atol=1e-5)
    notes = [text.get_text() for text in axes.texts]
    assert notes == [f"{np.mean(np.array(values) < 0):.0%} below 0" for values in margins.values()]


def test_a_shared_space_has_margins_of_one_and_similarities_of_one(run: Run, changed: Make) -> None:
    E = np.broadcast_to(np.eye(3, run.final["E"].shape[2]), run.final["E"].shape)
    shared = changed(run, final={"E": E, "P_G": None}, partition={"counts": np.ones_like(run.partition["counts"])})
    similarity, distance, margin = drawn(feature_spaces(shared))
    for axes, values in ((similarity, [1, 0, 1, 0]), (distance, [0, 1, 0, 1]), (margin, [1, 1])):
        np.testing.assert_allclose(quartiles(axes), np.repeat(values, 2).reshape(-1, 2), atol=1e-12)


def test_methods_without_an_autoencoder_show_their_prototypes(made: Make) -> None:
    for settings in ({"method": "local"}, {"method": "fedproto"}, {"mfedpba": {"global_prototypes": "mean"}}):
        similarity, _, margin = drawn(feature_spaces(made(**settings)))
        assert len(quartiles(similarity)) == 4
        assert len(quartiles(margin)) == 2 + ("mfedpba" in settings)


def test_kinds_without_pairs_are_named(run: Run, changed: Make) -> None:
    unimodal = changed(run, final={"E_modality": run.final["E_client"] % 3, "P_G": None})
    similarity, *_ = drawn(feature_spaces(unimodal))
    pairs = {(k, k % 3) for k in run.final["E_client"]}
    assert len(pairs) == len({m for _, m in pairs})  # no modality has two clients
    assert [text.get_text() for text in similarity.texts] == ["none", "none"]
    assert len(quartiles(similarity)) == 2


def test_a_log_of_an_older_version_has_no_feature_spaces(run: Run, changed: Make, made: Make) -> None:
    with pytest.raises(UserError, match="no autoencoder; the log was written by an older version"):
        feature_spaces(changed(run, final={"encoder_weight": None}))
    with pytest.raises(UserError, match="only the logs of complete runs"):
        feature_spaces(changed(run, final=None))
    with pytest.raises(UserError, match="fewer than two clients"):
        feature_spaces(made(classes=2, dims=(5,), partition="m1", clients=1))
