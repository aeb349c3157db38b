"""Plugins work with every command, their errors name the line, and their results can be read without them."""

import hashlib
import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from mfedpba_mpi import load_run, plugins
from mfedpba_mpi.cli.main import cli
from mfedpba_mpi.comm.serial import SerialComm
from mfedpba_mpi.config.run_config import RunConfig
from mfedpba_mpi.engine.loop import run_rounds
from mfedpba_mpi.engine.resume import stored_run
from mfedpba_mpi.engine.signals import Stop
from mfedpba_mpi.errors import Ended, UserError
from mfedpba_mpi.methods import params as catalog
from mfedpba_mpi.records.checkpoint import Checkpoints
from mfedpba_mpi.studies.runner import program
from mfedpba_mpi.studies.slurm import Submission

pytestmark = pytest.mark.usefixtures("unload_plugins")
EXAMPLE = Path(__file__).parents[1] / "examples" / "own_method.py"
METHOD = """from __future__ import annotations
from dataclasses import dataclass
from mfedpba_mpi.methods.params import Parameters, register
from mfedpba_mpi.config.fields import option

@dataclass(frozen=True)
class Mine(Parameters):
    "A method for this test."
    label = "My own"
    strength: float = option(1.0, "how much", low=0)

register(Mine, None)
"""
DATASET = """import numpy as np
from mfedpba_mpi.data.catalog import Dataset, Modality, register_dataset

def load():
    rng = np.random.default_rng(0)
    return np.arange(64) % 2, [rng.random((64, 5)), rng.random((64, 3))]

register_dataset(Dataset("mine", 64, 2, (Modality("a", "I", 5), Modality("b", "L", 3))), load)
"""
STUDY = """title = "Mine and others"
[settings]
dataset = "synthetic"
samples = 120
classes = 3
dims = [6, 10]
rounds = 2
feature_dim = 8
headavg.weighted = true
[cross]
method = ["local", "headavg"]
"""


@pytest.fixture(scope="module")
def study_with_plugin(tmp_path_factory):
    """The directory of a study that was run with the example's method, and the plugin file."""
    directory = tmp_path_factory.mktemp("study")
    (directory / "s.toml").write_text(STUDY)
    own = Path(shutil.copy(EXAMPLE, directory))
    line = [sys.executable, "-m", "mfedpba_mpi", "--plugin", own.name, "study", "run", "s.toml"]
    done = subprocess.run(line, cwd=directory, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return directory / "runs/s", own


def invoke(*arguments):
    result = CliRunner().invoke(cli, [*map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_a_study_with_a_custom_method_is_read_without_its_plugin(study_with_plugin, tmp_path):
    study, _ = study_with_plugin
    assert "HeadAvg" in invoke("study", "table", study)
    assert "2 complete" in invoke("study", "status", study)
    assert "headavg" in invoke("watch", "--once", study)
    assert "HeadAvg on synthetic" in invoke("watch", "--once", study / "headavg")
    for source in (study, study / "headavg"):
        invoke("report", source, "--out", tmp_path / "report")
        assert "HeadAvg" in (tmp_path / "report/index.html").read_text()
    invoke("export", study, "--csv", tmp_path / "numbers")
    assert ",headavg," in (tmp_path / "numbers/rounds.csv").read_text()
    assert 'headavg = "HeadAvg"' in invoke("study", "show", study)
    assert "headavg" not in catalog.METHODS
    with pytest.raises(UserError, match="no method 'headavg'"):
        invoke("study", "run", study)


def test_the_log_records_the_plugins_and_a_resumed_run_loads_them(study_with_plugin, tmp_path):
    study, own = study_with_plugin
    digest = hashlib.sha256(EXAMPLE.read_bytes()).hexdigest()
    assert load_run(study / "headavg").attributes["plugins"] == [{"file": str(own), "sha256": digest}]
    stored = stored_run(study / "headavg")
    assert (stored.config.method, stored.config.params.weighted, stored.status) == ("headavg", True, "complete")


def test_a_checkpoint_records_the_plugins_too(study_with_plugin, tmp_path):
    shutil.copytree(study_with_plugin[0] / "headavg", tmp_path / "out")
    (tmp_path / "out/run.h5").write_bytes(b"damaged")
    assert stored_run(tmp_path / "out").config.method == "headavg"


def test_resuming_reports_a_changed_or_missing_plugin(study_with_plugin, tmp_path, unload_plugins):
    study, own = study_with_plugin
    moved = tmp_path / own.name
    try:
        own.write_bytes(EXAMPLE.read_bytes() + b"# changed\n")
        (warning,) = stored_run(study / "headavg").plugin_warnings()
        assert warning.startswith(f"{own} has changed since the run was started")
        unload_plugins()
        own.rename(moved)
        with pytest.raises(UserError, match=rf"started with {own}, which no longer exists; .*--plugin FILE.py"):
            stored_run(study / "headavg")
        moved.write_bytes(EXAMPLE.read_bytes())
        plugins.load(moved)
        assert stored_run(study / "headavg").config.method == "headavg"
        assert stored_run(study / "headavg").plugin_warnings() == []
    finally:
        own.write_bytes(EXAMPLE.read_bytes())


@pytest.mark.parametrize(
    "line",
    [
        ("--plugin", "FILE", "methods"),
        ("--plugin=FILE", "methods"),
        ("methods", "--plugin", "FILE"),
        ("--plugin", "FILE", "--plugin", "FILE", "methods"),
    ],
)
def test_the_plugin_option_may_precede_or_follow_the_command(plugin, line):
    own = str(plugin(METHOD))
    assert "mine.strength" in invoke(*(word.replace("FILE", own) for word in line))


def test_options_after_a_plugin_without_a_command_belong_to_run(plugin, tmp_path):
    with pytest.raises(UserError, match=r"method mine has no parameter 'strenght' \(did you mean 'strength'\?\)"):
        invoke("--plugin", plugin(METHOD), "--dataset", "youtube", "--method", "mine", "--set", "mine.strenght=2")
    assert "Problem:" in invoke("--plugin", plugin(METHOD))


def test_type_hints_of_a_plugin_are_resolved(plugin):
    plugins.load(plugin(METHOD))
    assert RunConfig.of(dataset="synthetic", method="mine", strength="2").params.strength == 2.0


def test_a_plugin_is_executed_once_and_can_import_modules_beside_it(plugin, tmp_path, capsys):
    plugin("print('here')", "plugin_neighbour.py")
    for _ in range(2):
        plugins.load(plugin("import plugin_neighbour\nprint('own')"))
    assert capsys.readouterr().out == "here\nown\n"


def test_the_digest_covers_modules_beside_the_plugin(plugin, unload_plugins):
    digests = []
    for number in (1, 2, 2):
        plugin(f"SCALE = {number}", "plugin_scale.py")
        plugins.load(own := plugin("from plugin_scale import SCALE"))
        digests.append(plugins.LOADED[str(own.resolve())])
        unload_plugins()
        del sys.modules["plugin_scale"]
        importlib.invalidate_caches()
    assert digests[0] != digests[1] == digests[2]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\ny = = 2\n", r"own.py, line 2: SyntaxError: invalid syntax$"),
        ("x = 1\n\nint('a\\nb')\n", r"own.py, line 3: ValueError: .*'a\\nb'$"),
        ("import nothing_of_this_name\n", r"own.py, line 1: ModuleNotFoundError: No module named 'nothing_of"),
        (METHOD.replace("Mine", "Local"), r"own.py, line 12: ValueError: method local is built in"),
    ],
)
def test_an_error_in_a_plugin_is_one_line_with_file_and_line_number(plugin, text, message):
    own = plugin(text)
    for _ in range(2):  # a failed plugin does not count as loaded
        with pytest.raises(UserError, match=message) as caught:
            plugins.load(own)
        assert "\n" not in str(caught.value)


def test_a_missing_plugin_is_reported(tmp_path):
    with pytest.raises(UserError, match=r"plugin: cannot read .*none.py: No such file or directory"):
        invoke("methods", "--plugin", tmp_path / "none.py")


def test_plugins_in_the_environment_are_loaded_by_commands_and_python(plugin, monkeypatch):
    files = [plugin(METHOD), plugin(DATASET, "data.py")]
    monkeypatch.setenv("MFEDPBA_PLUGINS", os.pathsep.join(map(str, files)))
    assert RunConfig.of(dataset="mine", method="mine", strength=3).params.strength == 3.0
    assert program()[-4:] == ["--plugin", str(files[0]), "--plugin", str(files[1])]


def test_the_plugin_of_an_installed_package_is_loaded(plugin, tmp_path, monkeypatch):
    plugin(METHOD, "installed_for_a_test.py")
    info = tmp_path / "installed_for_a_test-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: installed-for-a-test\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[mfedpba_mpi.plugins]\nown = installed_for_a_test\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert RunConfig.of(dataset="synthetic", method="mine").params.strength == 1.0
    digest = hashlib.sha256(METHOD.encode()).hexdigest()
    assert dict(plugins.LOADED) == {"installed_for_a_test": digest}
    assert plugins.arguments() == []
    assert plugins.restore([{"file": "installed_for_a_test", "sha256": digest}]) == []
    with pytest.raises(UserError, match="started with another_package, which no longer exists"):
        plugins.restore([{"file": "another_package", "sha256": digest}])


def test_commands_that_continue_a_run_or_a_study_pass_on_its_plugins(plugin, tiny, tmp_path):
    own = plugin("")
    plugins.load(own)
    stop = Stop()
    stop.signal = "SIGTERM"
    with pytest.raises(
        Ended, match=rf"resume with `mfedpba-mpi resume {tmp_path}/out --data-dir {tmp_path} --plugin {own}`"
    ):
        run_rounds(tiny(), tmp_path, SerialComm(), [], Checkpoints(tmp_path / "out"), stop)
    script = Submission("s", tmp_path, tmp_path, 2, [0, 1])
    assert f"--plugin {own} study run" in script.array()
