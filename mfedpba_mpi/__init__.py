"""MPI simulator of multimodal federated learning with prototype-guided bilateral alignment (MFedPBA) and its baselines.

`__all__` lists the public API. Its names are imported on first use, so that the command line starts quickly.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mfedpba_mpi.cli.main import main
    from mfedpba_mpi.comm.layout import Layout, Message
    from mfedpba_mpi.config.fields import option
    from mfedpba_mpi.config.run_config import RunConfig
    from mfedpba_mpi.data.catalog import Dataset, Modality, register_dataset
    from mfedpba_mpi.data.partition import Partition
    from mfedpba_mpi.data.store import write_store
    from mfedpba_mpi.engine.api import simulate
    from mfedpba_mpi.engine.monitors import EarlyStopping, JsonLines, PrintProgress
    from mfedpba_mpi.engine.observers import Observer
    from mfedpba_mpi.engine.trained_clients import load_clients
    from mfedpba_mpi.methods.base import Client, Method, Server
    from mfedpba_mpi.methods.heads import HeadClient, HeadMethod, HeadServer, average_heads
    from mfedpba_mpi.methods.params import Parameters
    from mfedpba_mpi.methods.params import register as register_method
    from mfedpba_mpi.methods.training import AutogradLoss, HeadLoss
    from mfedpba_mpi.models.architecture import Architecture
    from mfedpba_mpi.models.extractors import register as register_extractor
    from mfedpba_mpi.models.inputs import SparseRows, standardise
    from mfedpba_mpi.records.run import Run, load_run

__version__ = "0.1.0"

_HOMES = {
    # run simulations and read their logs
    "RunConfig": "config.run_config", "simulate": "engine.api", "load_run": "records.run", "Run": "records.run",
    "load_clients": "engine.trained_clients", "Partition": "data.partition",
    # follow a run
    "Observer": "engine.observers", "EarlyStopping": "engine.monitors", "JsonLines": "engine.monitors",
    "PrintProgress": "engine.monitors",
    # add methods, networks and datasets
    "Method": "methods.base", "Client": "methods.base", "Server": "methods.base", "Layout": "comm.layout",
    "Message": "comm.layout", "main": "cli.main", "Architecture": "models.architecture",
    "SparseRows": "models.inputs", "standardise": "models.inputs",
    "HeadMethod": "methods.heads", "HeadClient": "methods.heads", "HeadServer": "methods.heads",
    "average_heads": "methods.heads", "HeadLoss": "methods.training", "AutogradLoss": "methods.training",
    "Parameters": "methods.params", "option": "config.fields", "register_method": "methods.params:register",
    "register_extractor": "models.extractors:register", "Dataset": "data.catalog", "Modality": "data.catalog",
    "register_dataset": "data.catalog", "write_store": "data.store",
}  # fmt: skip
__all__ = [
    "Architecture", "AutogradLoss", "Client", "Dataset", "EarlyStopping", "HeadClient", "HeadLoss", "HeadMethod",
    "HeadServer", "JsonLines", "Layout", "Message", "Method", "Modality", "Observer", "Parameters", "Partition",
    "PrintProgress", "Run", "RunConfig", "Server", "SparseRows", "__version__", "average_heads", "load_clients",
    "load_run", "main", "option", "register_dataset", "register_extractor", "register_method", "simulate",
    "standardise", "write_store",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = _HOMES[name].partition(":")
    return getattr(import_module(f"{__name__}.{module}"), attribute or name)
