"""Strategies for settings, valid and invalid, and the outcome of reading them."""

import datetime
import typing

from hypothesis import strategies as st

from mfedpba_mpi.config.fields import fields_of, kind_of
from mfedpba_mpi.config.run_config import RunConfig
from mfedpba_mpi.data.catalog import CATALOG
from mfedpba_mpi.errors import UserError
from mfedpba_mpi.methods.params import METHODS

SETTINGS = [name for name in fields_of(RunConfig) if name != "params"]
PARAMETERS = [(method, name) for method, cls in METHODS.items() for name in fields_of(cls)]
SHAPE = ("samples", "classes", "dims")
DATASETS = [*CATALOG, "synthetic", "reuters_1200", "some/where.h5", "some/synthetic.h5", "Größe.h5"]

ODD = [
    2**63, -(2**63) - 1, 10**400, -(10**400), [10**400], float("inf"), float("nan"), 0, 0.0, 1.0, 1.5,
    "9" * 5000, "1e999", "nan", "-inf", "0x10", "", ",", "a\nb", ["a\nb"], "true", {"rec": 1}, {"DNN": 1}, [[1]],
    datetime.date(2026, 1, 1), datetime.time(12), datetime.datetime(2026, 1, 1),  # noqa: DTZ001
]  # fmt: skip
WILD = st.sampled_from(ODD) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=4,
)
NAMES = st.sampled_from([*SETTINGS, *METHODS, "params"]) | st.text(max_size=8) | st.just("round\ns")


def valid(cls: type, name: str) -> st.SearchStrategy:
    """Valid TOML values of the setting `cls.name`."""
    kind, _ = kind_of(cls, name)
    if typing.get_origin(kind) is tuple:
        return st.lists(_valid_item(cls, name, typing.get_args(kind)[0]), max_size=3)
    return _valid_item(cls, name, kind)


def _valid_item(cls: type, name: str, kind: type) -> st.SearchStrategy:
    spec = fields_of(cls)[name].metadata
    if name == "dataset":
        return st.sampled_from(DATASETS)
    if kind is bool:
        return st.booleans()
    if kind is str:
        return st.sampled_from(list(spec["choices"]))
    if kind is int:
        return st.integers(spec["low"], spec["high"] if spec["high"] is not None else 2**63 - 1)
    low, open_below = (spec["low"], False) if spec["low"] is not None else (spec["above"], True)
    return st.floats(low, spec["high"], exclude_min=open_below, allow_nan=False, allow_infinity=False)


@st.composite
def valid_settings(draw, datasets=DATASETS) -> dict:
    """Valid settings, with some parameters of the method."""
    method, dataset = draw(st.sampled_from(list(METHODS))), draw(st.sampled_from(datasets))
    free = [
        name for name in SETTINGS if name not in ("dataset", "method") and (dataset == "synthetic" or name not in SHAPE)
    ]
    values = {
        name: draw(valid(RunConfig, name)) for name in draw(st.lists(st.sampled_from(free), unique=True, max_size=6))
    }
    if values.get("fusion", "sum") not in METHODS[method].fusions:
        del values["fusion"]
    if "feature_dim" in values:
        values["feature_dim"] -= values["feature_dim"] % 2
    parameters = list(fields_of(METHODS[method]))
    chosen = draw(st.lists(st.sampled_from(parameters), unique=True, max_size=4)) if parameters else []
    table = {name: draw(valid(METHODS[method], name)) for name in chosen}
    return {"dataset": dataset, "method": method, **values, method: table}


def outcome(make, *args):
    """The result of `make`, or the message of its UserError, which must be one line."""
    try:
        return make(*args)
    except UserError as error:
        text = str(error)
        assert text.isprintable()  # so it has no line breaks
        assert len(text) < 1000
        return text
