"""Study files: read, changed by another file, written back, and shipped."""

import tomllib
from pathlib import Path

import pytest

from mfedpba_mpi.errors import UserError
from mfedpba_mpi.studies.study_file import find_study, read_study, shipped_studies


def test_a_study_may_change_another(written, tmp_path):
    text = 'base = "main-table"\ntitle = "x"\n[settings]\nrounds = 3\nallow_synthetic = true\n[cross]\nseed = [8]\n'
    text += 'cell = ["YouTube M1"]\n'
    runs = written(text).plan(tmp_path)
    assert [(run.config.rounds, run.config.partition, run.config.seed) for run in runs] == [(3, "m1", 8)] * 8
    with pytest.raises(UserError, match="main-table has no list 'sed' \\(did you mean 'seed'"):
        written('base = "main-table"\n[cross]\nsed = [8]\n')


def test_a_study_may_change_the_layout_and_the_quick_form_of_another(written, tmp_path):
    study = written('base = "main-table"\nalone = true\n[table]\nmeasure = "best"\n[quick]\nrounds = 2\nseed = [5]\n')
    assert (study.layout.measure, study.alone, study.quick) == (("best",), True, {"rounds": 2, "seed": [5]})
    as_it_was = written('base = "main-table"\n')
    main_table = find_study("main-table")
    assert (as_it_was.layout, as_it_was.alone, as_it_was.quick) == (main_table.layout, False, main_table.quick)
    with pytest.raises(UserError, match="table: unknown 'mesure'"):
        written('base = "main-table"\n[table]\nmesure = "best"\n')


@pytest.mark.parametrize("name", [study.name for study in shipped_studies()])
def test_a_study_survives_toml(name, tmp_path):
    study = find_study(name)
    (tmp_path / "study.toml").write_text(study.to_toml())
    again = read_study(tmp_path / "study.toml")
    assert again.to_toml() == study.to_toml()
    again, study = (each.with_changes({"allow_synthetic": True}) for each in (again, study))
    assert [run.config for run in again.plan(tmp_path)] == [run.config for run in study.plan(tmp_path)]
    assert again.layout == study.layout


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "cross: missing; a study needs [cross]"),
        ("[cross]\nseed = []", "seed needs a list of values"),
        ("[cross]\nseed = 3", "seed needs a list of values"),
        ("[cros]\nseed = [1]", "unknown part 'cros' (did you mean 'cross'?)"),
        ('[cross]\ncell = [{ partition = "m2" }]', "needs a name"),
        ('[cross]\ncell = [{ name = "..", partition = "m2" }]', "needs a name"),
        ('[cross]\nseed = [1]\n[table]\nrows = ["cell"]', "'cell' is not a list in [cross]"),
        ('[cross]\nseed = [1]\n[table]\nmeasures = "x"', "did you mean 'measure'"),
        ("cross = 3", "expected a table"),
        ("[cross]\nseed = [", "is not valid TOML"),
    ],
)
def test_errors_in_a_file_have_its_path(written, text, words):
    with pytest.raises(UserError) as caught:
        written(text)
    assert words in str(caught.value)
    assert "mine.toml" in str(caught.value)


def test_reading_a_study_accepts_unknown_methods(written, tmp_path):
    study = written(
        "[settings]\ndataset = 'mine'\nheadavg.weighted = true\n[cross]\nmethod = ['headavg', 'local', 'größe']\n"
        "seed = [0]\n[labels]\nheadavg = 'HeadAvg'\n'größe' = 'Größe'\n"
    )
    assert [key.labels["method"] for key in study.run_keys()] == ["HeadAvg", "Local", "Größe"]
    assert written(study.to_toml()) == study
    with pytest.raises(UserError, match=r"study mine: unknown setting 'headavg\.weighted': no method 'headavg'"):
        study.plan(tmp_path)


def test_an_unknown_study_is_an_error_with_the_list_of_studies():
    with pytest.raises(UserError, match=r"no study 'main-tabel' \(did you mean 'main-table'\?\); .*lambda-grid"):
        find_study("main-tabel")


def test_the_paper_s_experiments_are_shipped(tmp_path):
    """Expected sizes by hand: cells x methods x seeds, etc."""
    counts = {study.name: len(study.run_keys()) for study in shipped_studies()}
    assert counts == {
        "main-table": 16 * 8 * 5, "main-table-sum": 16 * 8 * 5, "feature-dim": 5 * 8 * 5, "lambda-grid": 9 * 9 * 3,
        "server-epochs": 10 * 5, "ablation": 11 * 5, "fusion": 2 * 2 * 3 * 5, "large-k": 6 * 8 * 5, "client-time": 8,
        "scaling-strong": 9 * 3, "scaling-weak": 7 * 2, "tsne": 2,
    }  # fmt: skip
    studies = {name: find_study(name).with_changes({"allow_synthetic": True}) for name in counts}
    fusions = {name: {run.config.fusion for run in study.plan(tmp_path)} for name, study in studies.items()}
    assert fusions["main-table"] == {"separate"}
    assert fusions["main-table-sum"] == {"sum"}


@pytest.mark.parametrize("name", [study.name for study in shipped_studies()])
def test_every_shipped_study_has_a_quick_form_of_few_short_runs(name, tmp_path):
    runs = find_study(name).quick_form().plan(tmp_path)
    assert 1 < len(runs) <= 16
    assert max(run.config.rounds for run in runs) <= 10


def test_the_paper_s_tables_need_real_data_and_their_quick_forms_do_not(tmp_path):
    study = find_study("main-table")
    with pytest.raises(UserError, match=r"there is no caltech101\.h5 in .* synthetic data are not allowed"):
        study.plan(tmp_path)
    assert all("--allow-synthetic" in run.arguments for run in study.quick_form().plan(tmp_path))


def test_shipped_files_are_in_the_package():
    names = {path.stem for path in (Path(__file__).parents[2] / "mfedpba_mpi/studies/shipped").glob("*.toml")}
    assert names == {study.name for study in shipped_studies()}
    setup = (Path(__file__).parents[2] / "setup.cfg").read_text()
    assert "mfedpba_mpi.studies = shipped/*.toml" in setup
    assert all(tomllib.loads(find_study(name).to_toml()) for name in names)
