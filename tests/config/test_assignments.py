"""Names and values of settings as users write them: any text is parsed or an error, and values survive."""

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from mfedpba_mpi.config.assignments import format_assignment, full_name, parse_assignment
from mfedpba_mpi.config.run_config import RunConfig, make_config
from mfedpba_mpi.methods.params import METHODS
from tests.config.strategies import PARAMETERS, SETTINGS, outcome
from tests.properties import examples


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("50", 50), ("0.5", 0.5), ("true", True), ("m1+", "m1+"), ("rec,con", ["rec", "con"]), ("0, 1", [0, 1]),
        ('["rec", "con"]', ["rec", "con"]), ('["rec"], []', [["rec"], []]), ('"a, b"', "a, b"), ("", ""),
        ("m2,1", ["m2", 1]),
        ("{ a = 1 }", "{ a = 1 }"), ("1\nrounds = 2", "1\nrounds = 2"), ("9" * 5000, "9" * 5000),
    ],
)  # fmt: skip
def test_values_of_set_are_as_in_toml_or_plain_words(text, value):
    assert parse_assignment(f"name={text}") == ("name", value)


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
