"""The command line."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import click
import h5py
import pytest
from click.testing import CliRunner

from mfedpba_mpi import load_run
from mfedpba_mpi.cli.main import cli, main
from mfedpba_mpi.cli.report import _name as name_of
from mfedpba_mpi.config.run_config import fit_to_data, make_config, read_toml
from mfedpba_mpi.data.catalog import CATALOG
from mfedpba_mpi.errors import UserError
from mfedpba_mpi.methods.params import METHODS

RUN = ("--dataset", "synthetic", "--samples", 120, "--classes", 3, "--dims", "6,10", "--rounds", 2, "--feature-dim", 8)


def test_help_does_not_load_torch_or_mpi():
    code = "import sys; sys.argv = ['mfedpba-mpi', '--help']\nfrom mfedpba_mpi.cli.main import main\n"
    code += "try: main()\nexcept SystemExit: pass\n"
    code += "heavy = ('torch', 'mpi4py', 'h5py', 'scipy', 'matplotlib', 'pandas', 'sklearn')\n"
    code += "print([name for name in heavy if name in sys.modules])"
    environment = {**os.environ, "MFEDPBA_PLUGINS": "examples/own_method.py"}  # must not be loaded either
    line = [sys.executable, "-c", code]
    out = subprocess.run(line, env=environment, capture_output=True, text=True, check=True).stdout
    assert out.strip().endswith("[]")
    for heading in ("Problem:", "Clients:", "Training:", "Machine:", "MFedPBA:", "Other:"):
        assert heading in out


def test_a_run_ends_with_a_table_and_a_log(command, tmp_path):
    result = command(*RUN)
    assert result.returncode == 0, result.stderr
    for words in ("SYNTHETIC", "average accuracy (synthetic data)", "payload per round", "paper's formula", "run.h5"):
        assert words in result.stdout
    run = load_run(tmp_path / "runs" / "synthetic-m2-mfedpba-s0")
    assert run.status == "complete"
    assert run.attributes["config"]["rounds"] == 2
    assert run.attributes["ranks"] == 1


def test_validation_rows_are_held_out_of_the_training_rows(command, tmp_path):
    """A quarter of 120 rows is for tests; a fifth of the other 90 is held out."""
    result = command(*RUN, "--validation", 0.2)
    assert result.returncode == 0, result.stderr
    for words in ("20% of the training rows, held out", "validation accuracy", "(synthetic data, validation rows)"):
        assert words in result.stdout
    part = load_run(tmp_path / "runs" / "synthetic-m2-mfedpba-s0").partition
    assert (len(part["train_rows"]), len(part["test_rows"])) == (72, 18)
    assert command(*RUN, "--validation", 0.9).returncode == 2


def test_run_is_the_default_command_and_reads_a_file(command, tmp_path):
    (tmp_path / "my.toml").write_text('dataset = "synthetic"\nsamples = 120\nrounds = 9\n[mfedpba]\ntau = 0.25\n')
    result = command("run", "--config", "my.toml", "--rounds", 1, "--out", "here")
    assert result.returncode == 0, result.stderr
    with h5py.File(tmp_path / "here" / "run.h5") as file:
        config = json.loads(file.attrs["config"])
    assert (config["rounds"], config["mfedpba"]["tau"]) == (1, 0.25)


def test_a_run_is_overwritten_only_with_the_option(command, tmp_path):
    assert command(*RUN, "--out", "a").returncode == 0
    before = (tmp_path / "a" / "run.h5").read_bytes()
    again = command(*RUN, "--out", "a")
    assert again.returncode == 2
    assert "--overwrite" in again.stderr
    assert (tmp_path / "a" / "run.h5").read_bytes() == before
    assert command(*RUN, "--out", "a", "--overwrite").returncode == 0


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("run",), "dataset: missing"),
        (("--dataset", "youtub"), "did you mean 'youtube'"),
        (("--dataset", "nowhere/x.h5"), "does not exist"),
        (("--dataset", "youtube", "--method", "mfedpb"), "did you mean 'mfedpba'"),
        (("--dataset", "youtube", "--method", "MFedPBA"), "did you mean 'mfedpba'"),
        (("--dataset", "youtube", "--partition", "m3"), "'m3' is not one of m2, m1+, m1"),
        (("study", "table"), "see mfedpba-mpi study table --help"),
        (("--dataset", "youtube", "--rounds", "0"), "rounds: 0 is out of range"),
        (("--dataset", "youtube", "--rounds", "many"), "whole number"),
        (("--dataset", "youtube", "--checkpoint-every", "0"), "checkpoint-every: 0 is out of range; allowed: >= 1"),
        (("--dataset", "youtube", "--clients", "251"), "at most 250"),
        (("--dataset", "synthetic", "--dims", "5", "--partition", "m2"), "two modalities"),
        (("--dataset", "youtube", "--config", "none.toml"), "none.toml"),
        (("--dataset", "youtube", "--data-dir", "none"), "not a directory"),
        (("--dataset", "youtube", "--roundz", "3"), "--roundz"),
        (("--dataset", "youtube", "--method", "local", "--tau", "1"), "belongs to method mfedpba"),
        (("--dataset", "youtube", "--set", "fedtgp.margin=5"), "belongs to method fedtgp"),
        (("--dataset", "youtube", "--method", "fedtgp", "--set", "fedtgp.margn=5"), "did you mean 'margin'"),
        (
            ("--dataset", "youtube", "--method", "fedtgp", "--set", "fedtgp.margin=-1"),
            "fedtgp.margin: -1.0 is out of range",
        ),
        (("--dataset", "youtube", "--method", "fedpall", "--set", "fedpall.upload=all"), "one of samples, prototypes"),
        (
            ("--dataset", "youtube", "--set", "margin=5"),
            "margin: belongs to method fedtgp, but this run's method is",
        ),
        (("--dataset", "youtube", "--set", "margin"), "'margin' is not of the form NAME=VALUE"),
        (("--dataset", "youtube", "--set", "roundz=5"), "did you mean 'rounds'"),
        (("--dataset", "youtube", "--rounds", "5", "--set", "rounds=6"), "rounds: given as '5' and as 6; give it once"),
        (("--dataset", "youtube", "--tau", "1", "--set", "mfedpba.tau=2"), "mfedpba.tau: given as '1' and as 2; give"),
        (("--dataset", "youtube", "--set", "fedtg.margin=5"), "did you mean 'fedtgp'"),
        (("--dataset", "youtube", "--method", "fedproto", "--fusion", "concat"), "use sum or separate"),
        (("ablate", "--dataset", "youtube"), "use `mfedpba-mpi study run ablation --set dataset=NAME`"),
        (("ablate", "--help"), "use `mfedpba-mpi study run ablation --set dataset=NAME`"),
        (("--dataset", "youtube", "--device", "cuda"), "cuda needs a GPU"),
        (("--dataset", "broken.h5"), "broken.h5"),
        (("--dataset", "foreign.h5"), "not in the format"),
    ],
)
def test_bad_input_is_an_error_of_one_line_with_exit_code_2(command, tmp_path, args, words):
    (tmp_path / "broken.h5").write_bytes(b"not HDF5 at all")
    with h5py.File(tmp_path / "foreign.h5", "w") as file:
        file["x"] = 1
    result = command(*args)
    assert result.returncode == 2, result.stderr
    assert words in result.stderr
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("run", "--dataset", "synthetic", "--out", ""), "the path is empty"),
        (("resume", ""), "the path is empty"),
        (("run", "--dataset", "synthetic", "--resume", "--overwrite"), "overwrite: --resume continues an existing run"),
        (("config", "--dataset", "synthetic", "--data-dir", ""), "the path is empty"),
        (("config", "--dataset", "synthetic", "--threads", "100000"), "threads: 100000 is out of range"),
        (("data", "list", "--data-dir", "nowhere"), "data-dir: nowhere is not a directory"),
        (("data", "inspect", "youtube", "--data-dir", "nowhere"), "data-dir: nowhere is not a directory"),
        (("study", "run", "scaling-weak", "--commands", "--data-dir", "nowhere"), "nowhere is not a directory"),
        (("study", "run", "scaling-weak", "--commands", "--launcher", ""), "'' is not a command"),
        (("study", "run", "scaling-weak", "--commands", "--part", ""), "part: '' is not of the form I/N"),
        (("study", "submit", "scaling-weak", "--dry-run", "--launcher", "'"), "is not a command"),
        (("study", "submit", "scaling-weak", "--dry-run", "--at-once", "0"), "0 is not in the range"),
        (("data", "synthesize", "synthetic", "--out", "."), "out: . is a directory; give a file"),
        (("data", "import", "mfeat", "--from", "x", "--out", ".", "--overwrite"), "out: . is a directory"),
    ],
    ids=" ".join,
)
def test_bad_arguments_are_refused_before_anything_is_written(tmp_path, monkeypatch, args, words):
    monkeypatch.chdir(tmp_path)
    with pytest.raises((UserError, click.ClickException)) as refused:
        cli.main(list(args), standalone_mode=False)
    assert words in getattr(refused.value, "message", str(refused.value))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (PermissionError(13, "Permission denied", "there/run.h5"), 2, "there/run.h5: Permission denied"),
        (MemoryError("Unable to allocate 745. GiB"), 1, "not enough memory .* Unable to allocate 745"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), 1, "not enough memory .* can't allocate memory"),
    ],
)
def test_errors_of_the_system_are_one_line(monkeypatch, capsys, error, code, words):
    def fail(**_):
        raise error

    monkeypatch.setattr(cli, "main", fail)
    with pytest.raises(SystemExit) as ended:
        main()
    errors = capsys.readouterr().err
    assert ended.value.code == code
    assert re.search(words, errors)
    assert errors.count("\n") == 1


@pytest.mark.parametrize("group", ["data", "study"])
def test_a_group_without_a_command_prints_its_help(command, group):
    alone, helped = command(group), command(group, "--help")
    assert (alone.returncode, alone.stderr) == (0, "")
    assert alone.stdout == helped.stdout


def test_an_unwritable_directory_is_an_error_with_its_path(command, tmp_path):
    (tmp_path / "file").write_text("")
    result = command(*RUN, "--out", "file/run")
    assert result.returncode == 2
    assert "file/run" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("more", [(), ("--clients", "20", "--families", "DNN,CNN1D", "--seed", "3")])
def test_config_prints_a_file_with_the_same_configuration(tmp_path, monkeypatch, method, more):
    monkeypatch.chdir(tmp_path)

    def printed(*args):
        return CliRunner().invoke(cli, ["config", *args], catch_exceptions=False).output

    text = printed("--dataset", "caltech101", "--method", method, *more)
    Path("mine.toml").write_text(text)
    assert printed("--config", "mine.toml") == text
    there = make_config({}, read_toml(Path("mine.toml")))
    assert there == fit_to_data(there, CATALOG["caltech101"])  # all values are set
    assert (there.rounds, there.feature_dim, there.seed) == (400, 64, 3 if more else 0)
    assert "rounds = 400  # the preset of caltech101\n" in text
    assert ("lambda_2 = 5.0  # the preset of caltech101\n" in text) == (method == "mfedpba")


@pytest.mark.parametrize("path", [".", "run.h5", "../mine/"])
def test_a_run_has_its_name_also_inside_its_directory(made, tmp_path, monkeypatch, path):
    here = tmp_path / "mine"
    shutil.copytree(made().path.parent, here)
    monkeypatch.chdir(here)
    assert load_run(path).path.parent.name == "mine"
    assert name_of(Path(path)) == "mine"
    for words in (("resume", path), ("watch", path, "--once")):
        output = CliRunner().invoke(cli, words, catch_exceptions=False).output
        assert re.search(r"/mine\b", output), output


def test_methods_are_listed_with_their_parameters(command):
    out = command("methods").stdout
    assert "fedmobile: FedMobile (our reading)." in out
    for words in ("mfedpba.lambda_1", "fedtgp.margin", "harmony.stage1_rounds"):
        assert words in out
