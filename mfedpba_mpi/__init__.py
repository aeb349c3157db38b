"""mfedpba-mpi: multimodal federated learning with prototype-guided bilateral alignment, simulated with MPI."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mfedpba_mpi.config.run_config import RunConfig
    from mfedpba_mpi.data.partition import Partition
    from mfedpba_mpi.engine.api import simulate
    from mfedpba_mpi.engine.trained import load_clients
    from mfedpba_mpi.records.run import Run, load_run

__version__ = "0.1.0"
__all__ = ["Partition", "Run", "RunConfig", "__version__", "load_clients", "load_run", "simulate"]

_HOMES = {
    "Partition": "data.partition",
    "Run": "records.run",
    "RunConfig": "config.run_config",
    "load_clients": "engine.trained",
    "load_run": "records.run",
    "simulate": "engine.api",
}


def __getattr__(name: str) -> Any:
    """Import on first use, so that ``mfedpba-mpi --help`` stays quick."""
    if name not in _HOMES:
        raise AttributeError(f"module 'mfedpba_mpi' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(f"mfedpba_mpi.{_HOMES[name]}"), name)
