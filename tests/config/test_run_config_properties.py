"""Any settings give a configuration that survives JSON, or an error of one line."""

import datetime
import json
import typing

import click
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from mfedpba_mpi.cli.settings import RunCommand, read_settings, run_settings
from mfedpba_mpi.config.assignments import format_assignment, full_name, parse_assignment
from mfedpba_mpi.config.fields import fields_of, kind_of, shown
from mfedpba_mpi.config.run_config import RunConfig, fit_to_data, make_config, read_toml
from mfedpba_mpi.data.catalog import CATALOG, Dataset, Modality
from mfedpba_mpi.errors import UserError
from mfedpba_mpi.methods.params import METHODS, MFedPBAParameters, owners
from tests.properties import examples

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


ANY_SETTINGS = st.dictionaries(NAMES, WILD, max_size=3)


@examples(300)
@given(
    valid_settings() | st.just({}),
    ANY_SETTINGS,
    ANY_SETTINGS,
    st.dictionaries(st.sampled_from(list(fields_of(MFedPBAParameters))), WILD, max_size=2),
)
def test_any_settings_give_a_configuration_or_an_error_of_one_line(start, more, file, flags):
    assert isinstance(outcome(make_config, {**start, **more}, file, list(flags.items())), RunConfig | str)


@examples(100)
@given(st.text(), WILD, st.sampled_from(list(METHODS)), st.sampled_from(list(METHODS)))
def test_an_unknown_name_is_refused_and_shown(name, value, method, other):
    assume(name.replace("-", "_") not in SETTINGS and name not in METHODS and len(name) < 80 and not owners(name))
    assert shown(name) in outcome(make_config, {"dataset": "youtube", name: value})
    assume(name not in fields_of(METHODS[other]))
    assert shown(name) in outcome(make_config, {"dataset": "youtube", "method": method, other: {name: value}})


@examples(200)
@given(valid_settings())
def test_valid_settings_are_accepted(values):
    config = make_config(values)
    method = values.pop(config.method) if isinstance(values.get(config.method), dict) else {}
    for target, given_values in ((config, values), (config.params, method)):
        for name, value in given_values.items():
            assert getattr(target, name) == (tuple(value) if isinstance(value, list) else value)


@examples(200)
@given(valid_settings(), st.integers(1, 4), st.integers(1, 10**6))
def test_json_keeps_a_configuration_fitted_to_its_data_or_not(values, M, samples):
    config = make_config(values)
    info = Dataset("toy", samples, 3, tuple(Modality(f"I{m}", "I", 4) for m in range(M)))
    for made in (config, outcome(fit_to_data, config, info)):
        if isinstance(made, RunConfig):
            again = RunConfig.from_json(made.to_json())
            assert again == made
            assert again.to_json() == made.to_json()
            assert again.as_dict() == made.as_dict()


@examples(200)
@given(valid_settings(), st.data())
def test_a_missing_setting_in_json_is_named(values, data):
    whole = make_config(values).as_dict()
    table = whole[whole["method"]]
    paths = [(whole, name, name) for name in whole if name != "allow_synthetic"]  # missing in old logs
    paths += [(table, name, f"{whole['method']}.{name}") for name in table]
    where, name, label = data.draw(st.sampled_from(paths))
    del where[name]
    assert outcome(RunConfig.from_json, json.dumps(whole)) == f"the configuration is incomplete; missing: {label}"


@examples(200)
@given(
    valid_settings(),
    NAMES,
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from([{}, [[]]]),
    st.booleans(),
)
def test_json_with_another_key_or_value_is_a_configuration_or_an_error_of_one_line(values, name, value, inside):
    whole = make_config(values).as_dict()
    (whole[whole["method"]] if inside else whole)[name] = value
    found = outcome(RunConfig.from_json, json.dumps(whole))
    if isinstance(found, RunConfig):
        assert found.as_dict().keys() == whole.keys()


@examples(200)
@given(st.text() | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps))
@example("")
@example("[" * 100_000)
@example("9" * 5000)
@example("NaN")
def test_any_other_text_is_an_error(text):
    assert isinstance(outcome(RunConfig.from_json, text), str)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("files")


PIECES = [*SETTINGS, *METHODS, *"=[]{}'\",.#\\\n\n\n 1", "[[", "0x", "nan", "true", "1e9", "2026-01-01"]
TOML_LIKE = st.lists(st.sampled_from(PIECES), max_size=30).map(lambda pieces: "".join(pieces).encode())


@examples(300)
@given(st.binary() | TOML_LIKE)
@example(b"\xff")
@example(b"\xef\xbb\xbfrounds = 3")
@example(b"rounds = " + b"9" * 5000)
@example(b"rounds = 0x" + b"f" * 5000)
@example(b"rounds = " + b"[" * 5000)
@example(b'"a\\nb" = 1')
def test_any_file_is_a_table_or_an_error_with_its_path(directory, content):
    path = directory / "any.toml"
    path.write_bytes(content)
    found = outcome(read_toml, path)
    if isinstance(found, str):
        assert str(path) in found
    else:
        assert isinstance(outcome(make_config, {"dataset": "youtube"}, found), RunConfig | str)


@click.command(cls=RunCommand)
@run_settings
def from_command_line(**options):
    return read_settings(**options)


def _toml(value) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, bool | str) else repr(value)


def _word(value) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _option(name: str, value, apart: bool) -> list[str]:
    """``--name=value``, or a flag; a list as one word, or with `apart` as one option per item."""
    if name == "allow_synthetic":
        return ["--allow-synthetic" if value else "--no-synthetic"]
    if isinstance(value, bool):
        return [f"--{name.replace('_', '-')}"] * value
    return [
        f"--{name.replace('_', '-')}={_word(item)}"
        for item in (value if apart and isinstance(value, list) else [value])
    ]


@examples(200)
@given(valid_settings(datasets=[*CATALOG, "synthetic"]), st.booleans(), st.booleans())
def test_the_command_line_and_a_file_give_the_same_configuration(directory, values, by_flag, apart):
    values = dict(values)
    method = values["method"]
    table = values.pop(method)
    lines = [f"{name} = {_toml(value)}" for name, value in values.items()]
    lines += [f"[{method}]", *(f"{name} = {_toml(value)}" for name, value in table.items())]
    path = directory / "run.toml"
    path.write_text("\n".join(lines), encoding="utf-8")

    words = [word for name, value in values.items() for word in _option(name, value, apart and value != [])]
    for name, value in table.items():
        if by_flag and method == "mfedpba" and not isinstance(value, bool):
            words += _option(name, value, apart and value != [])
        else:
            words.append(f"--set={method}.{name}={_word(value)}")
    here = ["--data-dir", str(directory)]
    by_words, by_file = (
        outcome(lambda args: from_command_line.main(args, standalone_mode=False), [*here, *args])
        for args in (words, ["--config", str(path)])
    )
    assert by_words == by_file


@examples(200)
@given(
    st.text()
    | st.sampled_from(PARAMETERS).map(".".join).flatmap(lambda name: st.text().map(lambda value: f"{name}={value}"))
)
def test_any_assignment_is_parsed_or_shown(text):
    found = outcome(parse_assignment, text)
    if isinstance(found, str):
        assert "is not of the form NAME=VALUE" in found
        return
    name, _ = found
    assert text.strip().startswith(name)
    method = name.partition(".")[0] if name.partition(".")[0] in METHODS else "mfedpba"
    assert isinstance(outcome(make_config, {"dataset": "youtube", "method": method}, {}, [found]), RunConfig | str)


@examples(300)
@given(
    st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | st.text(st.characters(codec="utf-8"))
    | st.lists(st.integers() | st.text("abc 1,.", max_size=4), max_size=3)
)  # fmt: skip
@example("true")
@example("12")
@example("a,b")
@example(["a,b"])
@example("")
@example([])
def test_a_value_survives_the_command_line(value):
    assume(not isinstance(value, str) or value.isprintable())
    name, again = parse_assignment(format_assignment("mine.word", value))
    assert name == "mine.word"
    if isinstance(value, list) and len(value) == 1 and again == value[0]:
        return  # a setting that is a tuple takes a single value as well
    assert again == value
    assert isinstance(again, bool) == isinstance(value, bool)


@examples(100)
@given(st.sampled_from([*SETTINGS, *(f"{method}.{name}" for method, name in PARAMETERS)]))
def test_dashes_and_underscores_are_the_same_in_names(name):
    assert full_name(name.replace("_", "-"), SETTINGS, []) == name
