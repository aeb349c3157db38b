"""Figures, tables and HTML pages of runs and studies.

Every figure is a function that takes runs (see `mfedpba_mpi.load_run`) or a table, and returns a matplotlib figure::

    from mfedpba_mpi import load_run
    from mfedpba_mpi.report import convergence, save

    save(convergence({"MFedPBA": [load_run("runs/mfeat-m2-mfedpba-s0")]}), "convergence")
"""

from importlib import import_module
from typing import Any

_EXPORTS = {
    "run_figures": ("partition", "accuracy", "losses", "communication", "times", "gradients", "arrival"),
    "prototype_figures": ("prototypes", "feature_spaces", "structures"),
    "study_figures": ("convergence", "panels", "client_table", "figures_of"),
    "table_figures": ("bars", "heat_map", "curve", "scaling"),
    "style": ("save", "svg", "styled"),
}  # fmt: skip
__all__ = sorted(name for names in _EXPORTS.values() for name in names)


def __getattr__(name: str) -> Any:
    """Import a name of `__all__` on first use, because matplotlib is slow to import."""
    for module, names in _EXPORTS.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__} has no attribute {name}")
