"""mfedpba-mpi: multimodal federated learning with prototype-guided bilateral alignment, simulated with MPI."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mfedpba_mpi.config import RunConfig
    from mfedpba_mpi.launch import simulate
    from mfedpba_mpi.records.run import Run, load_run

__version__ = "0.1.0"
__all__ = ["Run", "RunConfig", "__version__", "load_run", "simulate"]

_HOMES = {"Run": "records.run", "load_run": "records.run", "RunConfig": "config", "simulate": "launch"}


def __getattr__(name: str) -> Any:
    """Import on first use, so that ``mfedpba-mpi --help`` stays quick."""
    if name not in _HOMES:
        raise AttributeError(f"module 'mfedpba_mpi' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(f"mfedpba_mpi.{_HOMES[name]}"), name)
