"""`mfedpba-mpi export`: runs and studies to export, options, and errors."""

import json
import os
import subprocess
import sys

import pandas as pd
import pytest
from numpy.testing import assert_array_equal

from mfedpba_mpi.cli.export import export
from mfedpba_mpi.errors import UserError
from tests.records.test_export import FRAMES, events, files_in, moved, settings_in


def call(*args):
    export.main([str(arg) for arg in args], standalone_mode=False)


def test_several_runs_share_tables_and_have_different_names(made, tmp_path):
    one = moved(made(), tmp_path / "a" / "x")
    two = moved(made(method="harmony", seed=1, clients=4), tmp_path / "b" / "x")
    call(one.path, two.path, one.path.parent, "--csv", tmp_path / "out", "--tensorboard", tmp_path / "tb")
    table = pd.read_csv(tmp_path / "out/clients_rounds.csv")
    assert table.groupby("run").size().to_dict() == {"a/x": 9, "b/x": 12}
    assert table.groupby("run")[["method", "seed"]].first().to_numpy().tolist() == [["mfedpba", 0], ["harmony", 1]]
    assert_array_equal(table.query("run == 'b/x'")["accuracy"], two.rounds["accuracy"].ravel())
    assert table.query("run == 'a/x'")["cluster"].isna().all()
    assert list(json.loads((tmp_path / "out/config.json").read_text())) == ["a/x", "b/x"]
    assert len(files_in(tmp_path / "tb")) == 2


def test_a_study_is_exported_as_its_started_runs(made, tmp_path):
    (tmp_path / "study").mkdir()
    (tmp_path / "study/study.toml").write_text("[settings]\ndataset = 'synthetic'\n[cross]\nseed = [0, 1, 2]\n")
    with pytest.raises(UserError, match=r"no run of the study in .* has started"):
        call(tmp_path / "study", "--csv", tmp_path / "out")
    for seed in (0, 2):
        moved(made(), tmp_path / f"study/s{seed}")
    call(tmp_path / "study", "--csv", tmp_path / "out")
    assert pd.read_csv(tmp_path / "out/clients.csv")["run"].unique().tolist() == ["s0", "s2"]


def test_synthetic_data_are_marked_in_all_files(made, tmp_path, capsys):
    run = made()
    real = moved(run, tmp_path / "measured", data_origin="real")
    call(run.path, real.path, "--csv", tmp_path / "t", "--parquet", tmp_path / "t", "--tensorboard", tmp_path / "tb")
    assert "2 runs, 1 of them on SYNTHETIC data" in capsys.readouterr().out
    name = run.path.parent.name
    for table in FRAMES:
        for data in (pd.read_csv(tmp_path / f"t/{table}.csv"), pd.read_parquet(tmp_path / f"t/{table}.parquet")):
            assert data.groupby("run")["synthetic"].unique().map(list).to_dict() == {name: [True], "measured": [False]}
    assert sorted(os.listdir(tmp_path / "tb")) == ["measured", f"{name} (synthetic data)"]
    for directory, words, origin in (
        (f"{name} (synthetic data)", "**synthetic data**", "synthetic"),
        ("measured", "**real data**", "real"),
    ):
        found = events(tmp_path / "tb" / directory)
        assert found.Tensors("run")[0].tensor_proto.string_val[0].decode().startswith(words)
        assert settings_in(found)["data_origin"].string_value == origin


def test_existing_files_are_replaced_only_with_overwrite(made, tmp_path):
    run, out = made(), tmp_path / "out"
    call(run.path, "--csv", out, "--tensorboard", out)
    (out / "rounds.csv").unlink()
    (out / "clients.csv").write_text("mine")
    before = files_in(out)
    with pytest.raises(UserError, match=r"clients_rounds\.csv exists already; replace it with --overwrite"):
        call(run.path, "--csv", out, "--tensorboard", out)
    assert files_in(out) == before
    assert (out / "clients.csv").read_text() == "mine"
    call(run.path, "--csv", out, "--tensorboard", out, "--overwrite")
    assert files_in(out) == sorted([*before, "rounds.csv"])
    assert len(pd.read_csv(out / "clients.csv")) == 3


@pytest.mark.parametrize(("option", "package"), [("--parquet", "pyarrow"), ("--tensorboard", "tensorboard")])
def test_a_missing_package_is_an_error_with_the_fix(option, package, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=rf"{package} is not installed; pip install 'mfedpba-mpi\[export\]'"):
        call(tmp_path, option, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_format_and_a_run_are_required(tmp_path):
    with pytest.raises(UserError, match="choose --csv DIR, --parquet DIR or --tensorboard DIR"):
        call(tmp_path)
    with pytest.raises(UserError, match=r"contains neither run\.h5 nor study\.toml"):
        call(tmp_path, "--csv", tmp_path / "out")


def test_the_command_is_defined_without_heavy_imports():
    code = "import sys, mfedpba_mpi.cli.export\n"
    code += "print([name for name in ('pandas', 'numpy', 'h5py', 'torch', 'tensorboard') if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"
