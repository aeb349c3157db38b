"""Validation of modalities and datasets."""

import pytest

from mfedpba_mpi.data.catalog import Dataset, Modality
from mfedpba_mpi.errors import UserError

GOOD = Modality("a", "I", 5)


@pytest.mark.parametrize(
    ("name", "type", "width", "message"),
    [
        (
            "a",
            "X",
            5,
            r"modality a: unknown type 'X'; choose from: I \(image\), L \(language\), A \(audio\), T \(",
        ),
        ("a", "", 5, "modality a: unknown type ''"),
        ("a", "I", 0, "modality a: width 0 is out of range; allowed: >= 1"),
        ("a", "I", -3, "modality a: width -3 is out of range"),
        ("", "I", 5, "modality: the name is empty"),
    ],
)
def test_invalid_modalities_are_refused(name, type, width, message):
    with pytest.raises(UserError, match=message):
        Modality(name, type, width)


@pytest.mark.parametrize(
    ("classes", "modalities", "message"),
    [
        (3, (), "dataset toy has no modalities; give it at least one"),
        (3, (GOOD, Modality("b", "L", 4), GOOD), "dataset toy: two modalities have the same name: a, b, a; rename one"),
        (1, (GOOD,), "dataset toy: classes 1 is out of range; allowed: >= 2"),
        (0, (GOOD,), "dataset toy: classes 0 is out of range"),
    ],
)
def test_invalid_datasets_are_refused(classes, modalities, message):
    with pytest.raises(UserError, match=message):
        Dataset("toy", 10, classes, modalities)
