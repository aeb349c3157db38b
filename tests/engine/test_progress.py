"""The printed output of a run."""

from mfedpba_mpi import RunConfig, load_run, simulate
from mfedpba_mpi.comm.serial import SerialComm
from mfedpba_mpi.engine.loop import run_rounds
from mfedpba_mpi.engine.progress import Screen, settings_line
from mfedpba_mpi.records.run_log import RunLog
from mfedpba_mpi.report import run_figures
from mfedpba_mpi.report.pages import run_page
from tests.ranks import TINY

SETTINGS = {"dataset": "synthetic", "samples": 120, "classes": 3, "dims": (6, 10), "feature_dim": 8, "rounds": 2}


def test_rank_0_prints_once_that_ranks_are_idle(command):
    out = command(*TINY, "--partition", "m1", ranks=7).stdout
    assert out.count("2 ranks idle: 5 ranks are enough") == 1
    assert out.count("average accuracy") == 1


def test_the_place_of_shards_is_printed_if_it_is_not_the_data_directory(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "300")
    simulate(RunConfig.of(**SETTINGS), tmp_path / "one", tmp_path / "data")
    assert "shards are in" not in capsys.readouterr().out
    monkeypatch.setenv("MFEDPBA_SCRATCH", str(tmp_path / "scratch"))
    simulate(RunConfig.of(**SETTINGS, seed=1), tmp_path / "two", tmp_path / "data")
    printed = capsys.readouterr().out.replace("\n", "")
    assert f"shards are in {tmp_path}/scratch" in printed


def test_one_client_is_not_in_the_plural(tiny, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(run_figures, "draw_all", lambda run: [])
    alone = {"clients": 1, "dims": (6,), "partition": "m1", "rounds": 1}
    run_rounds(tiny(**alone), tmp_path, SerialComm(), [RunLog(tmp_path), Screen(tmp_path)])
    printed = " ".join(capsys.readouterr().out.split())
    assert "3 classes, 1 modality), partition m1, 1 client, fusion sum" in printed
    run = load_run(tmp_path)
    assert repr(run).endswith("complete after 1 of 1 round>")
    assert run_page(run).subtitle == "partition m1, 1 client, fusion sum, seed 0; complete after 1 of 1 round"


def test_the_header_of_a_run_has_the_values_of_settings_that_depend_on_the_dataset():
    words = settings_line(RunConfig.of(dataset="mfeat", tau=0.9, participation=0.5, families="DNN", server_epochs=3))
    assert words == (
        "100 rounds, lr 0.1, clip 5, 2 local epochs, batch size 12, feature dim 48, lambda_1 0.01, lambda_2 1, "
        "server_lr 0.01, server_epochs 3, tau 0.9, gw_epsilon 0.25, server_clip 0, "
        'families ["DNN"], participation 0.5'
    )
    assert settings_line(RunConfig.of(dataset="mfeat", method="local", rounds=1, epochs=1)) == (
        "1 round, lr 0.1, clip 5, 1 local epoch, batch size 12, feature dim 48"
    )
