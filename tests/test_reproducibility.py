"""What could make two runs of one configuration differ, or make a run use other data than its log says: each is tested.

Torch's, NumPy's and Python's own generators; settings of torch in the calling process; hash seeds and BLAS threads;
calls of `simulate` in two threads; other data at a resume, with and without a checkpoint.
"""

import json
import os
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import pytest
import torch

from mfedpba_mpi import RunConfig, load_clients, load_run, simulate
from mfedpba_mpi.config.run_config import make_config
from mfedpba_mpi.data.catalog import CATALOG
from mfedpba_mpi.data.store import write_store
from mfedpba_mpi.data.synthetic import synthesize
from mfedpba_mpi.engine import api
from mfedpba_mpi.errors import SyntheticDataWarning, UserError
from mfedpba_mpi.rng import generators_restored
from tests.test_rng import draws

SETTINGS = {"dataset": "synthetic", "samples": 120, "classes": 3, "dims": (6, 10), "feature_dim": 8, "rounds": 2}

SCRIPT = '''
"""An extractor with dropout and a method whose clients draw from every global generator."""
import random
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from mfedpba_mpi.cli.main import main
from mfedpba_mpi.methods.base import Method
from mfedpba_mpi.methods.params import Parameters
from mfedpba_mpi.methods import params as catalog
from mfedpba_mpi.methods.local import LocalClient
from mfedpba_mpi.models import extractors

extractors.register(
    "Drop", "ILAT", lambda a, m, d: nn.Sequential(nn.Linear(m.width, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, d))
)

@dataclass(frozen=True)
class Dice(Parameters):
    """Clients throw dice."""

    label = "Dice"

class DiceClient(LocalClient):
    def __init__(self, *args):
        super().__init__(*args)
        self.start = torch.rand(1).item()

    def update(self, t, phase, inbox):
        shift = self.start + np.random.rand() + random.random() + torch.rand(1).item()
        with torch.no_grad():
            self.model.classifier.bias[0] += 0.01 * shift
        return super().update(t, phase, inbox)

class DiceMethod(Method):
    client_class = DiceClient

catalog.register(Dice, DiceMethod)
if __name__ == "__main__":
    main()
'''
OPTIONS = ("--samples", 120, "--classes", 3, "--dims", "6,10", "--feature-dim", 8, "--families", "Drop")


@pytest.fixture
def dice(tmp_path):
    """A function that runs the script above with these options; the digests of the run in `out`."""
    (tmp_path / "dice.py").write_text(SCRIPT)

    def run(out, *options, ranks=0, **environment):
        line = [sys.executable, "dice.py", *map(str, options), "--out", out]
        line = [*(["mpirun", "-n", str(ranks)] if ranks else []), *line]
        env = {**os.environ, **environment}
        done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=120, env=env)
        assert done.returncode == 0, done.stderr
        assert "persistent" not in done.stdout
        run = load_run(tmp_path / out)
        return run.final["client_sha256"], run.rounds["correct"].tolist()

    return run


def test_what_draws_from_global_generators_is_the_same_on_any_ranks_and_after_a_resume(dice, tmp_path):
    run = ("run", "--dataset", "synthetic", *OPTIONS, "--method", "dice", "--rounds")
    whole = dice("whole", *run, 4, PYTHONHASHSEED="1")
    assert dice("ranks", *run, 4, ranks=3, PYTHONHASHSEED="2") == whole
    dice("extended", *run, 2)
    line = [sys.executable, "dice.py", "resume", "extended", "--rounds", "4"]
    subprocess.run(line, cwd=tmp_path, check=True, capture_output=True, timeout=120)
    extended = load_run(tmp_path / "extended")
    assert (extended.final["client_sha256"], extended.rounds["correct"].tolist()) == whole


def test_settings_of_the_calling_process_change_nothing_and_stay(tmp_path):
    config = RunConfig.of(**SETTINGS, method="harmony")  # which uses autograd
    plain = simulate(config, tmp_path / "plain", tmp_path / "data", quiet=True)
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    torch.backends.mkldnn.enabled = False
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.set_flush_denormal(True)
    try:
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
            with generators_restored():
                expected = draws()
            other = simulate(config, tmp_path / "other", tmp_path / "data", quiet=True)
            predicted = [client.predict(client.test_rows).tolist() for client in load_clients(other)]
            assert draws() == expected
        assert torch.get_default_dtype() == torch.float64
        assert torch.get_default_device() == torch.device("meta")
        assert not torch.backends.mkldnn.enabled
        assert torch.is_deterministic_algorithms_warn_only_enabled()
        torch.set_default_device(None)
        assert torch.tensor(1e-40, dtype=torch.float32) / 2 == 0
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
        torch.backends.mkldnn.enabled = True
        torch.use_deterministic_algorithms(False)
        torch.set_flush_denormal(False)
    assert other.final["client_sha256"] == plain.final["client_sha256"]
    frame = plain.predictions()
    assert predicted == [rows.tolist() for _, rows in frame.groupby("client")["predicted"]]


def test_a_second_call_in_another_thread_is_refused(tmp_path):
    outcomes = []

    def other():
        try:
            simulate(RunConfig.of(**SETTINGS), tmp_path / "two", tmp_path / "data", quiet=True)
        except RuntimeError as error:
            outcomes.append(str(error))

    with api._SIMULATING:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert len(outcomes) == 1
    assert "another call is running in this process" in outcomes[0]
    assert simulate(RunConfig.of(**SETTINGS), tmp_path / "two", tmp_path / "data", quiet=True).status == "complete"


@pytest.fixture
def real(tmp_path) -> Path:
    """A directory with a small mfeat.h5 that says it is real."""
    info, labels, values = synthesize(CATALOG["mfeat"], seed=3)
    write_store(tmp_path / "real/mfeat.h5", info, labels, values, "real", {"source": "a test"})
    return tmp_path / "real"


MFEAT = {"dataset": "mfeat", "method": "local", "rounds": 1, "partition": "m1", "families": ("DNN",)}


def test_from_python_the_data_are_those_of_the_command(real, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MFEDPBA_DATA_DIR", str(real))
    run = simulate(RunConfig.of(**MFEAT), quiet=True)
    assert not run.synthetic
    assert run.attributes["data_dir"] == str(real)


def test_a_resume_without_checkpoint_finds_its_data_again_and_never_takes_others(real, command, killed, tmp_path):
    options = [word for name, value in MFEAT.items() for word in (f"--{name}", "DNN" if name == "families" else value)]
    out = tmp_path / "out"
    assert command(*options, "--data-dir", real, "--out", "out").returncode == 0
    killed(out)
    before = (out / "run.h5").read_bytes()

    (tmp_path / "empty").mkdir()
    for words in (("resume", "out"), ("run", *options, "--out", "out", "--resume")):
        other = command(*words, "--data-dir", "empty")
        assert other.returncode == 2
        assert "was started with real data, but " in other.stderr
        assert f"use --data-dir {real}" in other.stderr
        assert (out / "run.h5").read_bytes() == before

    done = command("resume", "out")
    assert done.returncode == 0, done.stderr
    assert "no checkpoint yet: starting again at round 1" in done.stderr
    assert not load_run(out).synthetic


def test_a_complete_run_of_other_data_is_not_taken_for_this_one(real, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntheticDataWarning)
        simulate(RunConfig.of(**MFEAT), tmp_path / "out", tmp_path, quiet=True)
    with pytest.raises(UserError, match=r"is not the data that the run in .* was started with"):
        simulate(RunConfig.of(**MFEAT), tmp_path / "out", real, resume=True, quiet=True)


def test_settings_that_the_first_logs_lack_have_their_old_meaning():
    old = make_config(SETTINGS).as_dict()
    del old["allow_synthetic"]
    assert RunConfig.from_json(json.dumps(old)) == make_config(SETTINGS)


def test_a_run_does_not_go_on_with_a_stand_in_for_data_that_are_gone(real, tmp_path):
    simulate(RunConfig.of(**MFEAT), tmp_path / "out", real, quiet=True)
    (real / "mfeat.h5").rename(real / "gone.h5")
    longer = RunConfig.of(**MFEAT | {"rounds": 2})
    with (
        pytest.warns(SyntheticDataWarning),
        pytest.raises(UserError, match=r"real data, but .* has no real mfeat; restore the data"),
    ):
        simulate(longer, tmp_path / "out", real, resume=True, quiet=True)
    assert not (real / "synthetic").exists()


def test_variables_that_choose_other_kernels_are_in_the_log(tmp_path, monkeypatch):
    monkeypatch.delenv("OPENBLAS_CORETYPE", raising=False)
    plain = simulate(RunConfig.of(**SETTINGS), tmp_path / "plain", tmp_path / "data", quiet=True)
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    other = simulate(RunConfig.of(**SETTINGS), tmp_path / "other", tmp_path / "data", quiet=True)
    assert other.attributes["cpu"] == f"{plain.attributes['cpu']} MKL_CBWR=COMPATIBLE"
