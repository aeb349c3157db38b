"""Drawing samples evenly from the classes."""

import numpy as np

from mfedpba_mpi.data.readers.source import describe_draw, draw_evenly
from mfedpba_mpi.rng import generator


def test_draw_evenly_takes_all_of_small_classes_and_spreads_the_rest() -> None:
    labels = np.repeat([5, 6, 7], [2, 30, 30])
    rows = draw_evenly(labels, 21, generator(0, "draw"))
    assert np.bincount(labels[rows])[5:].tolist() == [2, 10, 9]
    assert rows.tolist() == sorted(set(rows.tolist()))


def test_draw_evenly_takes_all_samples_if_there_are_not_more() -> None:
    labels = np.array(["b", "a", "b", "c"])
    assert draw_evenly(labels, 4, generator(0, "draw")).tolist() == [0, 1, 2, 3]
    assert draw_evenly(labels, 9, generator(0, "draw")).tolist() == [0, 1, 2, 3]


def test_the_provenance_describes_the_draw() -> None:
    assert describe_draw(available=50, count=20) == "20 drawn evenly"
    assert describe_draw(available=20, count=20) == "all, as there are no more than 20"
