"""The presets of datasets, and the defaults as they are shown."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mfedpba_mpi.data.catalog import base_of

# The paper's table of hyper-parameters, its ranges resolved; lambda_1 and lambda_2 are the method's own.
PRESETS: dict[str, dict[str, Any]] = {
    "caltech101": {"rounds": 400, "feature_dim": 64, "lr": 0.01, "lambda_1": 0.01, "lambda_2": 5.0},
    "reuters": {"rounds": 200, "feature_dim": 24, "lr": 0.005, "lambda_1": 0.01, "lambda_2": 1.0},
    "nus-wide": {"rounds": 400, "feature_dim": 32, "lr": 0.01, "lambda_1": 0.01, "lambda_2": 1.0},
    "youtube": {"rounds": 400, "feature_dim": 48, "lr": 0.01, "lambda_1": 0.01, "lambda_2": 1.0},
    "mfeat": {"rounds": 100, "feature_dim": 48, "lr": 0.02, "lambda_1": 0.01, "lambda_2": 1.0},
    "synthetic": {"samples": 2000, "classes": 10, "dims": (64, 128)},
}


def preset_of(dataset: str) -> Mapping[str, Any]:
    """The preset of a dataset, or of the one it is a variant of (``reuters_1200`` follows ``reuters``)."""
    base = base_of(Path(dataset).stem)
    return PRESETS.get(base.name if base else dataset, {})


def default_of(name: str, default: Any) -> str:
    """The default of a setting, or of a method's, as it is shown; nothing where there is none to show."""
    return "by dataset" if name in preset_of("youtube") else "" if default in (None, (), "") else str(default)
