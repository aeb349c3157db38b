"""The command as a user meets it."""

import json
import subprocess
import sys

import h5py
import pytest

from mfedpba_mpi import load_run

RUN = ("--dataset", "synthetic", "--samples", 120, "--classes", 3, "--dims", "6,10", "--rounds", 2, "--feature-dim", 8)


def test_help_answers_without_loading_torch_or_mpi():
    code = "import sys; sys.argv = ['mfedpba-mpi', '--help']\nfrom mfedpba_mpi.cli import main\n"
    code += "try: main()\nexcept SystemExit: pass\n"
    code += "heavy = ('torch', 'mpi4py', 'h5py', 'scipy', 'matplotlib', 'pandas', 'sklearn')\n"
    code += "print([name for name in heavy if name in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip().endswith("[]")
    for heading in ("Problem:", "Clients:", "Training:", "Machine:", "MFedPBA:", "Other:"):
        assert heading in out


def test_a_run_ends_with_a_table_and_a_log(command, tmp_path):
    result = command(*RUN)
    assert result.returncode == 0, result.stderr
    for words in ("SYNTHETIC", "average accuracy (synthetic data)", "payload a round", "the paper's formula", "run.h5"):
        assert words in result.stdout
    run = load_run(tmp_path / "runs" / "synthetic-m2-mfedpba-s0")
    assert run.status == "complete"
    assert run.attributes["config"]["rounds"] == 2
    assert run.attributes["ranks"] == 1


def test_settings_can_be_chosen_without_the_test_rows(command, tmp_path):
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


def test_a_run_is_not_overwritten_unasked(command, tmp_path):
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
        (("run",), "which dataset"),
        (("--dataset", "youtub"), "did you mean 'youtube'"),
        (("--dataset", "nowhere/x.h5"), "does not exist"),
        (("--dataset", "youtube", "--method", "mfedpb"), "did you mean 'mfedpba'"),
        (("--dataset", "youtube", "--method", "MFedPBA"), "did you mean 'mfedpba'"),
        (("--dataset", "youtube", "--partition", "m3"), "'m3' is not one of m2, m1+, m1"),
        (("study", "table"), "see mfedpba-mpi study table --help"),
        (("--dataset", "youtube", "--rounds", "0"), "rounds: 0 is out of range"),
        (("--dataset", "youtube", "--rounds", "many"), "whole number"),
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
        (("--dataset", "youtube", "--set", "margin=5"), "METHOD.NAME=VALUE"),
        (("--dataset", "youtube", "--set", "fedtg.margin=5"), "did you mean 'fedtgp'"),
        (("--dataset", "youtube", "--method", "fedproto", "--fusion", "concat"), "use sum or separate"),
        (("ablate", "--dataset", "youtube", "--method", "local"), "the method is local"),
        (("ablate", "--dataset", "youtube", "--without", "rec"), "drop --without"),
        (("--dataset", "youtube", "--device", "cuda"), "sees no GPU"),
        (("--dataset", "broken.h5"), "broken.h5"),
        (("--dataset", "foreign.h5"), "not of the format"),
    ],
)
def test_bad_input_is_one_clear_line_and_exit_code_2(command, tmp_path, args, words):
    (tmp_path / "broken.h5").write_bytes(b"not HDF5 at all")
    with h5py.File(tmp_path / "foreign.h5", "w") as file:
        file["x"] = 1
    result = command(*args)
    assert result.returncode == 2, result.stderr
    assert words in result.stderr
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("group", ["data", "study"])
def test_a_group_alone_says_what_there_is_in_it(command, group):
    alone, helped = command(group), command(group, "--help")
    assert (alone.returncode, alone.stderr) == (0, "")
    assert alone.stdout == helped.stdout


def test_an_unwritable_directory_is_named(command, tmp_path):
    (tmp_path / "file").write_text("")
    result = command(*RUN, "--out", "file/run")
    assert result.returncode == 2
    assert "file/run" in result.stderr
    assert "Traceback" not in result.stderr


def test_methods_are_listed_with_their_parameters(command):
    out = command("methods").stdout
    assert "fedmobile: FedMobile (our reading)." in out
    for words in ("mfedpba.lambda_1", "fedtgp.margin", "harmony.stage1_rounds"):
        assert words in out


def test_a_flag_goes_to_whichever_method_has_it(command, tmp_path):
    assert command(*RUN, "--method", "fedtgp", "--server-epochs", 3, "--set", "fedtgp.margin=7").returncode == 0
    config = load_run(tmp_path / "runs" / "synthetic-m2-fedtgp-s0").attributes["config"]
    assert (config["fedtgp"]["server_epochs"], config["fedtgp"]["margin"]) == (3, 7)


def test_the_ablation_makes_one_table_and_keeps_finished_runs(command, tmp_path):
    result = command("ablate", *RUN, "--out", "a")
    assert result.returncode == 0, result.stderr
    rows = (tmp_path / "a" / "table.csv").read_text().splitlines()
    assert [row.split(",")[0] for row in rows[1:]] == [
        "full", "w/o rec", "w/o con", "w/o align", "w/o fea", "w/o logit", "EA",
    ]  # fmt: skip
    assert all("(synthetic data)" in row for row in rows[1:])
    configs = [load_run(tmp_path / "a" / name).attributes["config"] for name in ("full", "w-o-rec", "ea")]
    assert [c["mfedpba"]["without"] for c in configs] == [[], ["rec"], []]
    assert [c["mfedpba"]["equal_average"] for c in configs] == [False, False, True]
    before = (tmp_path / "a" / "ea" / "run.h5").stat().st_mtime_ns
    assert "round" not in command("ablate", *RUN, "--out", "a").stdout.replace("rounds", "")
    assert (tmp_path / "a" / "ea" / "run.h5").stat().st_mtime_ns == before
    other = command("ablate", *RUN, "--seed", 1, "--out", "a")
    assert other.returncode == 2
    assert "other settings" in other.stderr
