"""What may be a modality and a dataset."""

import pytest

from mfedpba_mpi.data.catalog import Dataset, Modality
from mfedpba_mpi.errors import UserError

GOOD = Modality("a", "I", 5)


@pytest.mark.parametrize(
    ("name", "type", "width", "words"),
    [
        (
            "a",
            "X",
            5,
            r"modality a: type 'X' is not known; choose from: I \(image\), L \(language\), A \(audio\), T \(",
        ),
        ("a", "", 5, "modality a: type '' is not known"),
        ("a", "I", 0, "modality a: width 0 is out of range; allowed: >= 1"),
        ("a", "I", -3, "modality a: width -3 is out of range"),
        ("", "I", 5, "modality: its name is empty"),
    ],
)
def test_what_is_no_modality_is_refused(name, type, width, words):
    with pytest.raises(UserError, match=words):
        Modality(name, type, width)


@pytest.mark.parametrize(
    ("classes", "modalities", "words"),
    [
        (3, (), "dataset toy has no modalities; give it at least one"),
        (3, (GOOD, Modality("b", "L", 4), GOOD), "dataset toy: two modalities have the same name: a, b, a; rename one"),
        (1, (GOOD,), "dataset toy: classes 1 is out of range; allowed: >= 2"),
        (0, (GOOD,), "dataset toy: classes 0 is out of range"),
    ],
)
def test_what_is_no_dataset_is_refused(classes, modalities, words):
    with pytest.raises(UserError, match=words):
        Dataset("toy", 10, classes, modalities)
