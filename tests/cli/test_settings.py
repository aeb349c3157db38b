"""Options of the command line for the settings of a run."""

import json
import re

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mfedpba_mpi import load_run
from mfedpba_mpi.cli.settings import (
    RunCommand,
    fault_tolerance_settings,
    read_fault_tolerance,
    read_settings,
    run_settings,
)
from mfedpba_mpi.config.fault_tolerance import FaultTolerance
from mfedpba_mpi.data.catalog import CATALOG
from mfedpba_mpi.errors import UserError
from tests.config.strategies import outcome, valid_settings
from tests.properties import examples

RUN = ("--dataset", "synthetic", "--samples", 120, "--classes", 3, "--dims", "6,10", "--rounds", 2, "--feature-dim", 8)


@click.command(cls=RunCommand)
@run_settings
@fault_tolerance_settings
def from_command_line(**options):
    """The fault tolerance and the configuration that the options give."""
    return read_fault_tolerance(options), read_settings(**options)


def parsed(*words):
    return from_command_line.main([*map(str, words)], standalone_mode=False)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("files")


def toml_text(value) -> str:
    """A value in TOML."""
    if isinstance(value, list):
        return f"[{', '.join(map(toml_text, value))}]"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, bool | str) else repr(value)


def plain_text(value) -> str:
    """A value as the argument of an option."""
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def option_words(name: str, value, apart: bool) -> list[str]:
    """``--name=value``, or a flag; a list as one word, or with `apart` as one option per item."""
    if name == "allow_synthetic":
        return ["--allow-synthetic" if value else "--no-synthetic"]
    if isinstance(value, bool):
        return [f"--{name.replace('_', '-')}"] * value
    return [
        f"--{name.replace('_', '-')}={plain_text(item)}"
        for item in (value if apart and isinstance(value, list) else [value])
    ]


@examples(200)
@given(valid_settings(datasets=[*CATALOG, "synthetic"]), st.booleans(), st.booleans())
def test_the_command_line_and_a_file_give_the_same_configuration(directory, values, by_flag, apart):
    values = dict(values)
    method = values["method"]
    table = values.pop(method)
    lines = [f"{name} = {toml_text(value)}" for name, value in values.items()]
    lines += [f"[{method}]", *(f"{name} = {toml_text(value)}" for name, value in table.items())]
    path = directory / "run.toml"
    path.write_text("\n".join(lines), encoding="utf-8")

    words = [word for name, value in values.items() for word in option_words(name, value, apart and value != [])]
    for name, value in table.items():
        if by_flag and method == "mfedpba" and not isinstance(value, bool):
            words += option_words(name, value, apart and value != [])
        else:
            words.append(f"--set={method}.{name}={plain_text(value)}")
    here = ["--data-dir", str(directory)]
    by_words, by_file = (outcome(parsed, *here, *args) for args in (words, ["--config", str(path)]))
    assert by_words == by_file


def test_an_option_sets_the_parameter_of_the_run_s_method(command, tmp_path):
    assert command(*RUN, "--method", "fedtgp", "--server-epochs", 3, "--set", "fedtgp.margin=7").returncode == 0
    config = load_run(tmp_path / "runs" / "synthetic-m2-fedtgp-s0").attributes["config"]
    assert (config["fedtgp"]["server_epochs"], config["fedtgp"]["margin"]) == (3, 7)


def test_fault_tolerance_is_separate_from_the_configuration(directory):
    words = ("--dataset", "youtube", "--allow-synthetic", "--data-dir", directory)
    tolerance, config = parsed(*words, "--checkpoint-every", 7, "--on-failure", "continue")
    assert (tolerance.checkpoint_every, tolerance.on_failure) == (7, "continue")
    default, same = parsed(*words)
    assert (default, same) == (FaultTolerance(), config)
    with pytest.raises(UserError, match="checkpoint-every: 0 is out of range"):
        parsed(*words, "--checkpoint-every", 0)


def test_an_error_names_the_file_with_the_settings(directory):
    (directory / "method.toml").write_text('method = "local"\n')
    with pytest.raises(UserError, match=r"tau: belongs to method mfedpba.*\(with the settings in .*method\.toml\)"):
        parsed("--dataset", "youtube", "--config", directory / "method.toml", "--tau", 1)


def test_the_help_has_a_heading_for_each_group_of_settings():
    text = from_command_line.get_help(click.Context(from_command_line))
    headings = re.findall(r"^(\w[\w ]*):$", text, re.MULTILINE)
    assert len(set(headings)) == len(headings)
    assert {"Problem", "Clients", "Training", "Machine", "Any setting", "Fault tolerance", "Other"} <= set(headings)
    assert re.search(r"--lr X .*\[default: by\s+dataset\]", text, re.DOTALL)
