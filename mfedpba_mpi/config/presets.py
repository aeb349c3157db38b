"""Presets of datasets, and the text of defaults in help."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mfedpba_mpi.data.catalog import base_of

# The paper's table of hyper-parameters, with one value for each range; lambda_1 and lambda_2 are MFedPBA's.
# The learning rates of mfeat, caltech101 and reuters were chosen on validation rows with clipped steps, see
# docs/choices.md. The paper's are 0.005 to 0.01 (caltech101) and 0.001 to 0.005 (reuters).
PRESETS: dict[str, dict[str, Any]] = {
    "caltech101": {"rounds": 400, "feature_dim": 64, "lr": 0.1, "lambda_1": 0.01, "lambda_2": 5.0},
    "reuters": {"rounds": 200, "feature_dim": 24, "lr": 0.1, "lambda_1": 0.01, "lambda_2": 1.0},
    "nus-wide": {"rounds": 400, "feature_dim": 32, "lr": 0.01, "lambda_1": 0.01, "lambda_2": 1.0},
    "youtube": {"rounds": 400, "feature_dim": 48, "lr": 0.01, "lambda_1": 0.01, "lambda_2": 1.0},
    "mfeat": {"rounds": 100, "feature_dim": 48, "lr": 0.1, "lambda_1": 0.01, "lambda_2": 1.0},
    "synthetic": {"samples": 2000, "classes": 10, "dims": (64, 128)},
}


def preset_of(dataset: str) -> Mapping[str, Any]:
    """The preset of a dataset; a variant such as ``reuters_1200`` has the preset of its base, ``reuters``."""
    base = base_of(Path(dataset).stem)
    return PRESETS.get(base.name if base else dataset, {})


def default_of(name: str, default: Any) -> str:
    """The text of the default of a setting or parameter; "" if there is nothing to show."""
    if name in preset_of("youtube"):
        return "by dataset"
    return "" if default in (None, (), "") else f"{default:g}" if isinstance(default, float) else str(default)
