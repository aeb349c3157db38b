"""Every method with a sentence and its own hyper-parameters; light, so that `--help` and validation need no torch.

The method itself is the module of the same name in this package; `load_method` brings it in when a run starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from mfedpba_mpi.errors import UserError
from mfedpba_mpi.options import check, fields_of, nearest, option, unknown

if TYPE_CHECKING:
    from mfedpba_mpi.methods.base import Method


@dataclass(frozen=True)
class Local:
    """Every client trains alone with cross-entropy; nothing is sent."""


@dataclass(frozen=True)
class MFedPBA:
    """Bilateral alignment: feature prototypes by autoencoder, contrast and GW; logit prototypes by entropy."""

    lambda_1: float = option(0.01, "weight of the feature alignment L_fea", low=0)
    lambda_2: float = option(1.0, "weight of the logit alignment L_logit", low=0)
    server_lr: float = option(0.01, "learning rate of the server's autoencoder", above=0)
    server_epochs: int = option(10, "server steps S a round", low=0)
    tau: float = option(0.5, "temperature of L_con", above=0)
    gw_epsilon: float = option(0.5, "e_0 of L_align's entropic GW; epsilon = e_0 / classes", above=0)
    server_clip: float = option(5.0, "largest joint gradient norm of a server step (0: no clipping)", low=0)
    without: tuple[str, ...] = option(
        (), "ablation: leave out these loss terms", choices=("rec", "con", "align", "fea", "logit")
    )
    equal_average: bool = option(False, "ablation EA: average logit prototypes equally, not by entropy")


METHODS: dict[str, type] = {"local": Local, "mfedpba": MFedPBA}


def make_params(method: str, tables: Mapping[str, Mapping[str, Any]], preset: Mapping[str, Any]) -> Any:
    """The hyper-parameters of `method`: its defaults, then the dataset's preset, then what the user gave.

    Parameters
    ----------
    tables : what the user gave, by method name; a table of another method is an error.
    """
    if method not in METHODS:
        raise unknown("method", method, METHODS)
    cls = METHODS[method]
    for other, table in tables.items():
        if other != method and table:
            names = ", ".join(table)
            raise UserError(f"{names}: belongs to method {other}, but this run's method is {method}")
    given = tables.get(method, {})
    known = fields_of(cls)
    for name in given:
        if name not in known:
            allowed = ", ".join(known) or "none"
            raise UserError(f"method {method} has no parameter '{name}'{nearest(name, known)}; it has: {allowed}")
    values = {name: value for name, value in preset.items() if name in known} | dict(given)
    return cls(**{name: check(cls, name, value, where=f"{method}.") for name, value in values.items()})


def load_method(name: str) -> type[Method]:
    """The class that implements a method of the catalog."""
    return import_module(f"mfedpba_mpi.methods.{name}").METHOD
