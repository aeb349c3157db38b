"""mfedpba-mpi: multimodal federated learning with prototype-guided bilateral alignment, simulated with MPI."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mfedpba_mpi.config import RunConfig
    from mfedpba_mpi.data.partition import Partition
    from mfedpba_mpi.launch import simulate
    from mfedpba_mpi.records.run import Run, load_run
    from mfedpba_mpi.trained import load_clients

__version__ = "0.1.0"
__all__ = ["Partition", "Run", "RunConfig", "__version__", "load_clients", "load_run", "simulate"]

_HOMES = {
    "Partition": "data.partition", "Run": "records.run", "load_run": "records.run", "load_clients": "trained",
    "RunConfig": "config",
    "simulate": "launch",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import on first use, so that ``mfedpba-mpi --help`` stays quick."""
    if name not in _HOMES:
        raise AttributeError(f"module 'mfedpba_mpi' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(f"mfedpba_mpi.{_HOMES[name]}"), name)
