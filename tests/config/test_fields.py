"""Settings and their checks: a value of the declared type and range, or an error that names the setting."""

import math
import tomllib
import typing
from dataclasses import dataclass

import pytest
from hypothesis import given

from mfedpba_mpi.config.fields import check, fields_of, flag_of, flat, kind_of, option, toml, toml_key, unknown
from mfedpba_mpi.config.run_config import RunConfig, make_config
from mfedpba_mpi.errors import UserError
from mfedpba_mpi.methods.params import METHODS
from tests.config.strategies import PARAMETERS, SETTINGS, WILD, outcome
from tests.properties import examples


def fits(cls: type, name: str, value) -> bool:
    """Whether `value` has the type and range that `cls.name` declares."""
    spec, (kind, optional) = fields_of(cls)[name].metadata, kind_of(cls, name)
    if value is None:
        return optional
    items = value if typing.get_origin(kind) is tuple else (value,)
    kind = typing.get_args(kind)[0] if typing.get_origin(kind) is tuple else kind
    low = spec["low"] if spec["low"] is not None else -math.inf
    above = spec["above"] if spec["above"] is not None else -math.inf
    high = spec["high"] if spec["high"] is not None else math.inf
    return all(
        type(item) is kind
        and (item in spec["choices"] or not spec["choices"])
        and (kind not in (int, float) or (-math.inf < item < math.inf and above < item and low <= item <= high))
        and (kind is not int or item < 2**63)
        and (kind is not str or item.isprintable())
        for item in items
    )


@examples(150)
@given(WILD)
def test_a_setting_has_its_type_and_range_or_the_error_names_it(value):
    for name in SETTINGS:
        found = outcome(make_config, {"dataset": "synthetic", name: value})
        if isinstance(found, str):
            assert name.replace("_", "-") in found
        else:
            assert fits(RunConfig, name, getattr(found, name))
            assert not isinstance(value, dict)


@examples(150)
@given(WILD)
def test_a_parameter_has_its_type_and_range_or_the_error_names_it(value):
    for method, name in PARAMETERS:
        found = outcome(make_config, {"dataset": "youtube", "method": method, method: {name: value}})
        if isinstance(found, str):
            assert found.startswith(f"{method}.{name}: ")
        else:
            assert fits(METHODS[method], name, getattr(found.params, name))
            assert not isinstance(value, dict)


@dataclass
class Example:
    """Settings for these tests."""

    steps: int = option(1, "number of steps", low=1, high=9)
    rate: float = option(0.1, "learning rate", above=0)
    kind: str = option("one", "a catalog entry or a file", choices=("one", "two"), files=(".csv",))
    dims: tuple[int, ...] = option((), "widths")
    limit: float | None = option(None, "no limit if None", low=0)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("steps", "3", 3),
        ("steps", 3.0, 3),
        ("rate", 1, 1.0),
        ("kind", "mine.csv", "mine.csv"),
        ("dims", "64, 128", (64, 128)),
        ("dims", [64], (64,)),
        ("limit", None, None),
        ("limit", "2.5", 2.5),
    ],
)
def test_values_are_converted_to_the_declared_type(name, value, expected):
    found = check(Example, name, value)
    assert (found, type(found)) == (expected, type(expected))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("steps", 10, "steps: 10 is out of range; allowed: >= 1 and <= 9"),
        ("rate", 0, "rate: 0.0 is out of range; allowed: > 0"),
        ("limit", math.inf, "limit: inf is out of range; allowed: >= 0"),
        ("kind", "tow", "kind: 'tow' is not one of one, two, a FILE.csv (did you mean 'two'?)"),
        ("steps", None, "steps: expected a whole number, got None"),
    ],
)
def test_an_error_names_setting_value_and_allowed_values(name, value, message):
    with pytest.raises(UserError) as error:
        check(Example, name, value)
    assert str(error.value).startswith(message)


def test_an_unknown_name_is_shown_with_the_nearest_and_all_known_names():
    message = "unknown dataset 'Yuotube' (did you mean 'youtube'?); choose from: mfeat, youtube"
    assert str(unknown("dataset", "Yuotube", ["youtube", "mfeat"])) == message


def test_options_of_the_command_line():
    assert flag_of("batch_size") == "--batch-size"
    assert flag_of("allow_synthetic") == "--allow-synthetic/--no-synthetic"


def test_nested_tables_are_joined_with_dots():
    assert flat({"a": 1, "b": {"c": 2, "d": {"e": [3]}}}) == {"a": 1, "b.c": 2, "b.d.e": [3]}


@pytest.mark.parametrize("value", [True, 3, 0.5, 1e-9, 'a "b" \\ é', [1, 2], ["x", "y"], {"a": {"b c": [1.5]}}, []])
def test_values_are_written_as_toml(value):
    assert tomllib.loads(f"x = {toml(value)}") == {"x": value}


@pytest.mark.parametrize(("name", "table"), [("a.b_1", {"a": {"b_1": 0}}), ("möbius.x", {"möbius": {"x": 0}})])
def test_names_are_written_as_toml_keys(name, table):
    assert tomllib.loads(f"{toml_key(name)} = 0") == table
