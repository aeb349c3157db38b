"""Options that select and change a study, and the study that is stored in its directory."""

import pytest


def test_a_table_includes_the_runs_of_earlier_calls(study_file, command, tmp_path):
    for seed in (0, 2):
        done = command("study", "run", study_file, "--set", f"seed={seed}", "--set", "method=fedproto")
        assert done.returncode == 0, done.stderr
    assert command("study", "run", study_file, "--set", "seed=1").returncode == 0
    stored = (tmp_path / "runs/small/study.toml").read_text()
    assert 'method = ["local", "fedproto"]' in stored
    assert "seed = [0, 2, 1]" in stored
    assert "4 of 6 runs are complete" in command("study", "table", "runs/small").stdout


@pytest.mark.parametrize("words", [("--set", "rounds"), ("--set", "=3"), ("--set", "sede=1")])
def test_a_malformed_or_unknown_setting_is_refused(study_file, command, words):
    result = command("study", "run", study_file, *words, "--dry-run")
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
