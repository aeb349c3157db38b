"""From a dataset's name to its store: the real file where there is one, else the synthetic stand-in."""

from __future__ import annotations

import hashlib
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from mfedpba_mpi.config.fields import unknown
from mfedpba_mpi.data.catalog import CATALOG, LOADERS, Dataset, Loader
from mfedpba_mpi.data.scratch import Scratch
from mfedpba_mpi.data.store import FeatureStore, locate, write_store
from mfedpba_mpi.errors import UserError

if TYPE_CHECKING:
    from mfedpba_mpi.config.run_config import RunConfig


def describe(config: RunConfig, data_dir: Path) -> Dataset:
    """The shape of a run's dataset, without making anything; a UserError if there is none, or it is not allowed."""
    if config.dataset == "synthetic":
        from mfedpba_mpi.data.synthetic import free_form

        _check_origin(config, "synthetic", data_dir)
        return free_form(config.samples or 0, config.classes or 0, config.dims or ())
    path = locate(config.dataset, data_dir)
    if path and not _is_stand_in(config, path):
        store = _as_registered(config, FeatureStore(path))
        _check_origin(config, store.origin, data_dir)
        return store.info
    if config.dataset in LOADERS:
        info, _, origin = LOADERS[config.dataset]
        _check_origin(config, origin, data_dir)
        return info
    if config.dataset.endswith(".h5"):
        raise UserError(f"{config.dataset} does not exist; give the path of a store made by `mfedpba-mpi data import`")
    if config.dataset not in CATALOG:
        raise unknown(
            "dataset", config.dataset, [*CATALOG, *LOADERS, "synthetic", *(p.stem for p in data_dir.glob("*.h5"))]
        )
    _check_origin(config, "synthetic", data_dir)
    return CATALOG[config.dataset]


def resolve(config: RunConfig, data_dir: Path) -> RunConfig:
    """The configuration with everything filled in that depends on the dataset: clients, partition and label skew."""
    from mfedpba_mpi.config.run_config import fit_to_data

    return fit_to_data(config, describe(config, data_dir))


def _check_origin(config: RunConfig, origin: str, data_dir: Path) -> None:
    """Refuse synthetic data where the run must not have any."""
    if origin == "synthetic" and not config.allow_synthetic:
        place = data_dir.resolve()
        missing = config.dataset in CATALOG and not (place / f"{config.dataset}.h5").exists()
        what = f"there is no {config.dataset}.h5 in {place}" if missing else f"{config.dataset} is synthetic"
        fix = "import the real data (`mfedpba-mpi data import`), or name their --data-dir; " if missing else ""
        raise UserError(
            f"dataset: {what}, and synthetic data are not allowed here; {fix}--allow-synthetic (in a study --set "
            "allow_synthetic=true) runs on synthetic data instead"
        )


def is_synthetic(config: RunConfig, data_dir: Path) -> bool:
    """Whether a run would be on synthetic data."""
    path = locate(config.dataset, data_dir) if config.dataset != "synthetic" else None
    if path is None and config.dataset in LOADERS:
        return LOADERS[config.dataset][2] == "synthetic"
    return path is None or FeatureStore(path).origin == "synthetic"


def find_store(config: RunConfig, data_dir: Path) -> FeatureStore | None:
    """The store that is there for a run's dataset, real or synthetic; None if it would have to be made."""
    if config.dataset == "synthetic":
        from mfedpba_mpi.data.synthetic import cache_name

        made = data_dir / "synthetic" / f"{cache_name(describe(config, data_dir))}.h5"
        return FeatureStore(made) if made.is_file() else None
    path = locate(config.dataset, data_dir)
    return FeatureStore(path) if path else None


def open_dataset(config: RunConfig, data_dir: Path, scratch: Scratch | None = None) -> FeatureStore:
    """The store of a run's dataset; a stand-in is made, once, where the real one is not there."""
    path = locate(config.dataset, data_dir) if config.dataset != "synthetic" else None
    if path is None and config.dataset in LOADERS:
        path = make_registered(config.dataset, data_dir)
    if path is None or _is_stand_in(config, path):
        from mfedpba_mpi.data.synthetic import ensure_synthetic

        path = ensure_synthetic(describe(config, data_dir), scratch or Scratch(data_dir))
    store = FeatureStore(path)
    if config.dataset in LOADERS:
        now, then = _source_sha256(LOADERS[config.dataset][1]), store.provenance.get("source_sha256")
        if now and then and now != then:
            warnings.warn(
                f"{path} was stored by an earlier version of the file that registers {config.dataset}; if its values "
                "have changed, delete it to have it made again",
                stacklevel=2,
            )
    return store


def make_registered(name: str, data_dir: Path) -> Path:
    """Store a dataset of `register_dataset`."""
    info, loader, origin = LOADERS[name]
    path = data_dir / f"{name}.h5"
    labels, values = loader()
    source = {"loader": f"{loader.__module__}.{loader.__qualname__}", "source_sha256": _source_sha256(loader)}
    write_store(path, info, labels, values, origin, source)
    return path


def _source_sha256(loader: Loader) -> str:
    """SHA-256 of the file that a loader is in; empty where there is none, as in a notebook."""
    file = getattr(sys.modules.get(loader.__module__), "__file__", None)
    return hashlib.sha256(Path(file).read_bytes()).hexdigest() if file else ""


def _as_registered(config: RunConfig, store: FeatureStore) -> FeatureStore:
    """The store; a UserError where a dataset of its name is registered with another shape."""
    registered, *_ = LOADERS.get(config.dataset, (store.info,))
    if replace(registered, note=store.info.note) != store.info:
        raise UserError(
            f"{store.path} has another shape than the registered {config.dataset}; delete it to have it made again"
        )
    return store


def _is_stand_in(config: RunConfig, path: Path) -> bool:
    """Whether `path` is a stand-in for a catalog entry, to be made again if today's program would make another."""
    return config.dataset in CATALOG and path.parent.name == "synthetic"
