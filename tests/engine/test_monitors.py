"""The observers that come with the program: when they end a run, what they write, and that a resumed run goes on."""

import json

import pytest

from mfedpba_mpi import EarlyStopping, JsonLines, PrintProgress, RunConfig, simulate
from mfedpba_mpi.engine.monitors import scalars_of
from mfedpba_mpi.errors import UserError

SETTINGS = {"dataset": "synthetic", "samples": 120, "classes": 3, "dims": (6, 10), "feature_dim": 8, "method": "local"}


@pytest.fixture
def run(tmp_path):
    """A function that runs so many rounds with these observers."""

    def make(out, rounds, *observers, **settings):
        config = RunConfig.of(**SETTINGS, rounds=rounds, **settings)
        return simulate(config, tmp_path / out, tmp_path / "data", quiet=True, resume=True, observers=observers)

    return make


def rounds_until(accuracies, patience, min_delta=0.0):
    """When early stopping has to end a run, counted by hand; the number of rounds where it does not."""
    best, waited = -1.0, 0
    for t, accuracy in enumerate(accuracies, 1):
        best, waited = (accuracy, 0) if accuracy > best + min_delta else (best, waited + 1)
        if waited == patience:
            return t
    return len(accuracies)


@pytest.mark.parametrize("patience", [1, 2, 3])
def test_early_stopping_ends_where_the_accuracy_has_not_improved(run, patience):
    whole = run("whole", 12)
    last = rounds_until(whole.average(), patience)
    ended = run("ended", 12, EarlyStopping(patience=patience))
    assert len(ended.rounds["tested"]) == last
    assert ended.status == ("complete" if last == 12 else "interrupted")
    assert ended.average().tolist() == whole.average()[:last].tolist()


def test_a_resumed_run_goes_on_counting(run):
    accuracies = run("whole", 12).average()
    patience = 2
    last = rounds_until(accuracies, patience)
    assert 1 < last < 12
    run("parts", last - 1, EarlyStopping(patience=patience))
    assert len(run("parts", 12, EarlyStopping(patience=patience)).rounds["tested"]) == last


def test_a_loss_is_better_when_it_is_smaller(run):
    falling = [scalars_of(run("whole", 5).rounds, row)["loss_ce"] for row in range(5)]
    assert falling == sorted(falling, reverse=True)
    assert run("out", 5, EarlyStopping("loss_ce", patience=1, larger_is_better=False)).status == "complete"
    ended = run("other", 5, EarlyStopping("loss_ce", patience=1))
    assert ended.attributes["reason"].startswith("ended after round 2 by EarlyStopping: loss_ce has not improved on ")


def test_a_metric_that_is_none_is_named(run):
    with pytest.raises(UserError, match="metric: a round of this run has no 'los_ce'; choose from: accuracy, "):
        run("out", 2, EarlyStopping("los_ce"))
    with pytest.raises(UserError, match="patience: 0 is out of range"):
        EarlyStopping(patience=0)


def test_every_round_is_a_line_of_json_also_after_a_resume(run, tmp_path):
    path = tmp_path / "deep" / "rounds.jsonl"
    run("out", 2, JsonLines(path))
    found = run("out", 4, JsonLines(path))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["round"] for line in lines] == [1, 2, 3, 4]
    assert [line["accuracy"] for line in lines] == found.average().tolist()
    for row, line in enumerate(lines):
        assert line["loss_ce"] == scalars_of(found.rounds, row)["loss_ce"]
        assert line["warnings"] == []


def test_progress_is_printed_as_often_as_asked(run, capsys):
    found = run("out", 5, PrintProgress(every=2))
    said = capsys.readouterr().out.splitlines()
    assert said == [f"round {t}/5: accuracy {found.average()[t - 1]:.2%}" for t in (2, 4, 5)]
