"""From a dataset's name to its store: the real file where there is one, else the synthetic stand-in."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mfedpba_mpi.data.catalog import CATALOG, Dataset
from mfedpba_mpi.data.store import FeatureStore, locate
from mfedpba_mpi.errors import UserError
from mfedpba_mpi.options import unknown

if TYPE_CHECKING:
    from mfedpba_mpi.config import RunConfig


def describe(config: RunConfig, data_dir: Path) -> Dataset:
    """The shape of a run's dataset, without making anything; a UserError where there is no such dataset."""
    if config.dataset == "synthetic":
        from mfedpba_mpi.data.synthetic import free_form

        return free_form(config.samples or 0, config.classes or 0, config.dims or ())
    path = locate(config.dataset, data_dir)
    if path and not _is_stand_in(config, path):
        return FeatureStore(path).info
    if config.dataset.endswith(".h5"):
        raise UserError(f"{config.dataset} does not exist; give the path of a store made by `mfedpba-mpi data import`")
    if config.dataset not in CATALOG:
        raise unknown("dataset", config.dataset, [*CATALOG, "synthetic", *(p.stem for p in data_dir.glob("*.h5"))])
    return CATALOG[config.dataset]


def open_dataset(config: RunConfig, data_dir: Path) -> FeatureStore:
    """The store of a run's dataset; a stand-in is made, once, where the real one is not there."""
    path = locate(config.dataset, data_dir) if config.dataset != "synthetic" else None
    if path is None or _is_stand_in(config, path):
        from mfedpba_mpi.data.synthetic import ensure_synthetic

        path = ensure_synthetic(describe(config, data_dir), data_dir)
    return FeatureStore(path)


def _is_stand_in(config: RunConfig, path: Path) -> bool:
    """Whether `path` is a stand-in for a catalog entry, to be made again if today's program would make another."""
    return config.dataset in CATALOG and path.parent.name == "synthetic"
