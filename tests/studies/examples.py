"""A study of two partitions, three methods and two seeds, and values of its runs."""

from mfedpba_mpi.studies.measures import MEASURES
from mfedpba_mpi.studies.tables import RunValue

ACCURACY, SECONDS = MEASURES["last_five"][0], MEASURES["seconds"][0]
STUDY = """
title = "T"
[settings]
dataset = "youtube"
[cross]
partition = ["m2", "m1"]
method = ["local", "fedproto", "mfedpba"]
seed = [0, 1]
"""
# Means 41, 50, 50 and 30, 20, none; deviations of a sample: sqrt(2), 0, sqrt(8) and 0, none (one value), none.
VALUES = [40, 42, 50, 50, 48, 52, 30, 30, None, 20, None, None]


def run_values(study, values, remark="synthetic data"):
    """The study's runs with these values, in order; None for a run that is not complete."""
    return [
        RunValue(key, value, remark) for key, value in zip(study.run_keys(), values, strict=True) if value is not None
    ]
