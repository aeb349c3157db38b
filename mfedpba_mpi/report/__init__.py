"""Figures, tables and the page that people look at.

Every figure is a function that takes runs (`mfedpba_mpi.load_run`), or a table, and returns a matplotlib figure::

    from mfedpba_mpi import load_run
    from mfedpba_mpi.report import convergence, save

    save(convergence({"MFedPBA": [load_run("runs/mfeat-m2-mfedpba-s0")]}), "convergence")
"""

from importlib import import_module
from typing import Any

_HOMES = {
    "run_figures": ("partition", "accuracy", "losses", "communication", "times", "gradients"),
    "prototype_figures": ("prototypes", "structures"),
    "study_figures": ("convergence", "panels", "client_table", "figures_of"),
    "table_figures": ("bars", "heat_map", "curve", "scaling"),
    "style": ("save", "svg", "styled"),
}  # fmt: skip
__all__ = sorted(name for names in _HOMES.values() for name in names)


def __getattr__(name: str) -> Any:
    """What is in `__all__`, with matplotlib, when it is asked for."""
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__} has no attribute {name}")
