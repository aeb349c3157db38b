"""``mfedpba-mpi study``: a study is run, shown, tabulated and divided into parts."""

import numpy as np

from mfedpba_mpi import load_run


def correct(path):
    """The numbers of correct predictions in the log of a run."""
    return load_run(path).rounds["correct"]


def test_a_study_prints_its_table_and_complete_runs_are_not_repeated(study_file, command, tmp_path):
    done = command("study", "run", study_file, "--jobs", 2)
    assert done.returncode == 0, done.stderr
    assert "4 of 4 runs complete, 0 failed" in done.stdout
    assert "Small (synthetic data): average accuracy" in done.stdout
    directory = tmp_path / "runs/small"
    assert sorted(path.name for path in directory.iterdir()) == [
        "fedproto", "local", "runs.csv", "study.toml", "table.csv", "table.md", "table.tex", "table.txt"
    ]  # fmt: skip
    before = (directory / "local/s1/run.h5").stat().st_mtime_ns
    again = command("study", "run", "runs/small")
    assert "4 already complete, 0 to do" in again.stdout
    assert (directory / "local/s1/run.h5").stat().st_mtime_ns == before
    assert command("study", "status", "runs/small").stdout.endswith("4 complete\n")
    assert command("study", "table", "runs/small", "--format", "latex").stdout.startswith("% needs")

    by_hand = (
        "--dataset", "synthetic", "--samples", 120, "--classes", 3, "--dims", "6,10,8", "--feature-dim", 8,
        "--rounds", 2, "--method", "fedproto", "--seed", 1, "--out", "hand",
    )  # fmt: skip
    assert command(*by_hand).returncode == 0
    np.testing.assert_array_equal(correct(tmp_path / "hand"), correct(directory / "fedproto/s1"))

    other = command("study", "run", study_file, "--set", "rounds=3")
    assert other.returncode == 2
    assert "contains a study with other settings: rounds is 2 there, 3 here; choose another --out" in other.stderr
    assert command("study", "run", study_file, "--set", "rounds=3", "--dry-run").stderr == other.stderr
    grown = command("study", "run", study_file, "--set", "seed=0,1,2", "--set", "method=local", "--dry-run")
    assert "3 runs in runs/small: 2 complete, 1 waiting" in grown.stdout


def test_a_shown_study_can_be_run_and_has_the_name_of_its_file(command, tmp_path):
    (tmp_path / "mine.toml").write_text(command("study", "show", "fusion").stdout)
    done = command("study", "run", "mine.toml", "--quick", "--commands")
    assert done.returncode == 0, done.stderr
    assert "--out runs/mine-quick/youtube/local/sum/s0" in done.stdout


def test_parts_are_every_n_th_run(study_file, command):
    lines = [
        command("study", "run", study_file, "--commands", "--part", f"{i}/3").stdout.splitlines() for i in range(3)
    ]
    assert [len(part) for part in lines] == [2, 1, 1]
    assert "--method local --seed 0 " in lines[0][0]
    assert "--method fedproto --seed 1 " in lines[0][1]
    assert "I/N" in command("study", "run", study_file, "--part", "3/3").stderr


def test_a_study_under_mpirun_is_refused(study_file, monkeypatch, command):
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "3")
    result = command("study", "run", study_file)
    assert result.returncode == 2
    assert "start it without mpirun" in result.stderr


def test_the_ablation_is_a_study_with_its_settings_in_the_title(command, tmp_path):
    settings = ("dataset=synthetic", "samples=120", "classes=3", "dims=6,10", "rounds=2", "feature_dim=8", "seed=0")
    words = [word for setting in (*settings, "fusion=sum", "allow_synthetic=true") for word in ("--set", setting)]
    result = command("study", "run", "ablation", *words, "--jobs", 2, "--out", "a")
    assert result.returncode == 0, result.stderr
    rows = (tmp_path / "a" / "table.csv").read_text().splitlines()
    assert [row.split(",")[0] for row in rows[1:]] == 2 * [  # the last five rounds, then the best round
        "full", "w/o rec", "w/o con", "w/o align", "w/o fea", "w/o logit", "EA", "entropy weights", "P_G random",
        "P_G = mean of E", "P_G = 0",
    ]  # fmt: skip
    assert all("Ablation of MFedPBA, synthetic m2, fusion sum (synthetic data): " in row for row in rows[1:])
    configs = [load_run(tmp_path / "a" / name / "s0").attributes["config"] for name in ("full", "w-o-rec", "ea")]
    assert [c["mfedpba"]["without"] for c in configs] == [[], ["rec"], []]
    assert [c["mfedpba"]["logit_weights"] for c in configs] == ["bounded", "bounded", "equal"]
