"""The examples do what they say, in processes of their own: they add to the catalogs of the program."""

import subprocess
import sys
from pathlib import Path

import pytest

from mfedpba_mpi import load_run

EXAMPLES = Path(__file__).parents[1] / "examples"
TINY = ("--dataset", "synthetic", "--samples", 120, "--classes", 3, "--dims", "6,10", "--feature-dim", 8, "--rounds", 2)


@pytest.fixture
def example(tmp_path):
    """A function that runs an example with these arguments in an empty directory."""

    def run(name, *arguments, ranks=0):
        line = [
            *(["mpirun", "-n", str(ranks)] if ranks else []),
            sys.executable,
            str(EXAMPLES / name),
            *map(str, arguments),
        ]
        done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_a_method_of_ones_own_runs_on_ranks_with_the_same_bits(example, tmp_path):
    arguments = [*TINY, "--method", "headavg", "--set", "headavg.weighted=true", "--out"]
    assert "HeadAvg: average accuracy (synthetic data)" in example("own_method.py", *arguments, "one")
    example("own_method.py", *arguments, "three", ranks=3)
    one, three = (load_run(tmp_path / name) for name in ("one", "three"))
    assert one.final["client_sha256"] == three.final["client_sha256"]
    example("own_method.py", *arguments, "resumed", "--rounds", 1)
    assert "persistent" not in example("own_method.py", "resume", "resumed", "--rounds", 2)
    resumed = load_run(tmp_path / "resumed")
    assert resumed.final["client_sha256"] == one.final["client_sha256"]
    assert resumed.final["server_sha256"] == one.final["server_sha256"]
    assert (one.rounds["bytes_up"] == 4 * (3 * 8 + 3)).all()
    assert "headavg.weighted" in example("own_method.py", "methods")


def test_a_study_knows_the_method_of_ones_own(example, tmp_path):
    (tmp_path / "s.toml").write_text(
        "[settings]\ndataset = 'synthetic'\nsamples = 120\nclasses = 3\ndims = [6, 10]\nrounds = 2\n"
        "[cross]\nmethod = ['local', 'headavg']\n"
    )
    assert "HeadAvg" in example("own_method.py", "study", "run", "s.toml")
    assert load_run(tmp_path / "runs/s/headavg").status == "complete"


def test_extractors_of_ones_own(example, tmp_path):
    assert "Gated" in example("own_extractor.py", *TINY, "--families", "Gated", "--out", "out")
    assert all("Gated" in text for text in load_run(tmp_path / "out").partition["architectures"])


def test_a_pretrained_extractor_beats_a_new_one(example, tmp_path):
    accuracy = dict(line.split(": ") for line in example("pretrained_extractor.py").splitlines())
    assert float(accuracy["Pretrained"].rstrip("%")) > float(accuracy["DNN"].rstrip("%")) + 10
    assert all("Pretrained" in text for text in load_run(tmp_path / "runs/Pretrained").partition["architectures"])


def test_a_dataset_of_ones_own_is_real_data(example, tmp_path):
    said = example("own_dataset.py").splitlines()
    assert [line.split(":")[0] for line in said] == ["Local", "MFedPBA"]
    assert all(float(line.split(": ")[1].rstrip("%")) > 50 for line in said)
    assert not load_run(tmp_path / "runs/digits-m2-local-s0").synthetic
