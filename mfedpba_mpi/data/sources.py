"""Find the store of a dataset by name: the real file if there is one, else the synthetic stand-in."""

from __future__ import annotations

import hashlib
import sys
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
    """Return the shape of a run's dataset without creating files; UserError if it is unknown or not allowed."""
    if config.dataset == "synthetic":
        from mfedpba_mpi.data.synthetic import free_form

        _check_origin(config, "synthetic", data_dir)
        return free_form(config.samples or 0, config.classes or 0, config.dims or ())
    path = locate(config.dataset, data_dir)
    if path and not _is_stand_in(config, path):
        store = FeatureStore(path)
        _check_registered(config, store)
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
    """Raise a UserError if the data are synthetic and the run does not allow that."""
    if origin == "synthetic" and not config.allow_synthetic:
        directory = data_dir.resolve()
        missing = config.dataset in CATALOG and not (directory / f"{config.dataset}.h5").exists()
        what = f"there is no {config.dataset}.h5 in {directory}" if missing else f"{config.dataset} is synthetic"
        fix = "import the real data (`mfedpba-mpi data import`), or give its --data-dir; " if missing else ""
        raise UserError(
            f"dataset: {what}, and synthetic data are not allowed here; {fix}--allow-synthetic (in a study --set "
            "allow_synthetic=true) runs on synthetic data instead"
        )


def is_synthetic(config: RunConfig, data_dir: Path) -> bool:
    """Whether a run would use synthetic data."""
    path = locate(config.dataset, data_dir) if config.dataset != "synthetic" else None
    if path is None and config.dataset in LOADERS:
        return LOADERS[config.dataset][2] == "synthetic"
    return path is None or FeatureStore(path).origin == "synthetic"


def find_store(config: RunConfig, data_dir: Path) -> FeatureStore | None:
    """Return the existing store of a run's dataset, real or synthetic, or None."""
    if config.dataset == "synthetic":
        from mfedpba_mpi.data.synthetic import cache_name

        cached = data_dir / "synthetic" / f"{cache_name(describe(config, data_dir))}.h5"
        return FeatureStore(cached) if cached.is_file() else None
    path = locate(config.dataset, data_dir)
    return FeatureStore(path) if path else None


def open_dataset(config: RunConfig, data_dir: Path, scratch: Scratch | None = None) -> FeatureStore:
    """Open the store of a run's dataset; without a real one, create a registered dataset or a synthetic stand-in."""
    path = locate(config.dataset, data_dir) if config.dataset != "synthetic" else None
    if path is None and config.dataset in LOADERS:
        path = make_registered(config.dataset, data_dir)
    if path is None or _is_stand_in(config, path):
        from mfedpba_mpi.data.synthetic import ensure_synthetic

        path = ensure_synthetic(describe(config, data_dir), scratch or Scratch(data_dir))
    return FeatureStore(path)


def stale_store(config: RunConfig, store: FeatureStore) -> str:
    """A warning if the file that registers a dataset has changed since its store was made; "" if not."""
    if config.dataset not in LOADERS:
        return ""
    now, then = _source_sha256(LOADERS[config.dataset][1]), store.provenance.get("source_sha256")
    if not (now and then) or now == then:
        return ""
    return (
        f"{store.path} was created by an earlier version of the file that registers {config.dataset}; if the values "
        "have changed, delete it, the next run recreates it"
    )


def make_registered(name: str, data_dir: Path) -> Path:
    """Call the loader of a dataset registered by `register_dataset` and write its store."""
    info, loader, origin = LOADERS[name]
    path = data_dir / f"{name}.h5"
    labels, values = loader()
    source = {"loader": f"{loader.__module__}.{loader.__qualname__}", "source_sha256": _source_sha256(loader)}
    write_store(path, info, labels, values, origin, source)
    return path


def _source_sha256(loader: Loader) -> str:
    """Return the SHA-256 of the loader's source file; empty if there is none, as in a notebook."""
    file = getattr(sys.modules.get(loader.__module__), "__file__", None)
    return hashlib.sha256(Path(file).read_bytes()).hexdigest() if file else ""


def _check_registered(config: RunConfig, store: FeatureStore) -> None:
    """Raise a UserError if a dataset of this name is registered with another shape."""
    registered, *_ = LOADERS.get(config.dataset, (store.info,))
    if replace(registered, note=store.info.note) != store.info:
        raise UserError(
            f"{store.path} differs in shape from the registered dataset {config.dataset}; delete it, the next run "
            "recreates it"
        )


def _is_stand_in(config: RunConfig, path: Path) -> bool:
    """Whether `path` is the stand-in of a catalog entry, to be recreated if the generator has changed."""
    return config.dataset in CATALOG and path.parent.name == "synthetic"
