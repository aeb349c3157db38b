"""Any settings give a configuration that survives JSON, or an error of one line."""

import json

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from mfedpba_mpi.config.fields import fields_of, shown
from mfedpba_mpi.config.run_config import ADDED, RunConfig, fit_to_data, make_config, read_toml
from mfedpba_mpi.data.catalog import Dataset, Modality
from mfedpba_mpi.methods.params import METHODS, MFedPBAParameters, owners
from tests.config.strategies import NAMES, SETTINGS, WILD, outcome, valid_settings
from tests.properties import examples

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
    paths = [(whole, name, name) for name in whole if name not in ADDED]
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
