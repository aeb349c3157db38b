"""Studies: their runs, the settings and the ranks of these, their titles, and the check of every run."""

import pytest

from mfedpba_mpi.errors import UserError
from mfedpba_mpi.studies.study_file import find_study

FILE = """
title = "Two partitions"
[settings]
dataset = "youtube"
rounds = 7
ranks = 4
mfedpba.tau = 0.25
[cross]
cell = [{ name = "M2", partition = "m2" }, { name = "K 20!", clients = 20 }]
method = ["local", "mfedpba"]
seed = [0, 3]
[quick]
cell = ["M2"]
rounds = 1
"""


def test_runs_are_in_the_order_of_the_axes_in_the_file(written, tmp_path):
    study = written(FILE)
    runs = study.plan(tmp_path)
    assert [str(run.path) for run in runs] == [
        "m2/local/s0", "m2/local/s3", "m2/mfedpba/s0", "m2/mfedpba/s3",
        "k-20/local/s0", "k-20/local/s3", "k-20/mfedpba/s0", "k-20/mfedpba/s3",
    ]  # fmt: skip
    assert [run.path for run in runs] == [key.path for key in study.run_keys()]
    last = runs[-1]
    assert last.labels == {"cell": "K 20!", "method": "MFedPBA", "seed": "3"}
    assert (last.config.clients, last.config.partition, last.config.rounds, last.config.seed) == (20, "m1+", 7, 3)
    assert last.config.params.tau == 0.25


def test_values_of_an_axis_may_be_partition_files_labelled_by_their_stems(written, tmp_path):
    for name, client in (("one", 0), ("two", 1)):
        (tmp_path / f"{name}.csv").write_text(f"client,sample,modalities\n0,3,T\n{client},4,T\n")
    cross = f'[cross]\npartition = ["{tmp_path}/one.csv", "{tmp_path}/two.csv", "m1+"]\nseed = [0, 1]'
    study = written(f'[settings]\ndataset = "youtube"\n{cross}')
    runs = study.plan(tmp_path)
    assert [str(run.path) for run in runs[::2]] == ["one/s0", "two/s0", "m1+/s0"]
    assert [run.labels["partition"] for run in runs[::2]] == ["one", "two", "m1+"]
    assert [run.config.clients for run in runs[::2]] == [1, 2, 6]
    assert runs[0].arguments[-4:] == ["--partition", f"{tmp_path}/one.csv", "--seed", "0"]
    assert written(study.to_toml()).run_keys() == study.run_keys()
    (tmp_path / "two.csv").unlink()
    with pytest.raises(UserError, match=r"run two/s0: .*two\.csv: No such file"):
        study.plan(tmp_path)


def test_parameters_of_a_method_are_passed_to_its_runs_only(written, tmp_path):
    local, mfedpba = (written(FILE).plan(tmp_path)[i] for i in (0, 2))
    assert "--set" not in local.arguments
    assert " ".join(mfedpba.arguments) == (
        "--dataset youtube --rounds 7 --set mfedpba.tau=0.25 --partition m2 --method mfedpba --seed 0"
    )


def test_a_parameter_may_be_given_by_its_bare_name(written, tmp_path):
    study = written(
        '[settings]\ndataset = "youtube"\nbatch-size = 6\n[cross]\nmethod = ["local", "mfedpba"]\n'
        'part = [{ name = "a", "server-lr" = 0.1 }]\n[table]\nrows = ["part"]\n[quick]\nlambda-1 = 3\n'
    )
    assert study.settings == {"dataset": "youtube", "batch_size": 6}
    assert study.axes["part"][0].settings == {"mfedpba.server_lr": 0.1}
    assert study.quick == {"mfedpba.lambda_1": 3}
    assert study.with_changes({"method": "fedtgp", "margin": 5}).settings["fedtgp.margin"] == 5
    crossed = written('[settings]\ndataset = "youtube"\n[cross]\nlambda_1 = [0.1, 5]\nfeature-dim = [8]\n')
    assert list(crossed.axes) == ["mfedpba.lambda_1", "feature_dim"]
    assert [str(run.path) for run in crossed.with_changes({"lambda-1": 7}).plan(tmp_path)] == [
        "lambda_1-7/feature_dim-8"
    ]
    assert crossed.layout.rows == ("mfedpba.lambda_1",)


def test_boolean_settings_are_flags(written, tmp_path):
    text = '[settings]\ndataset = "youtube"\n[cross]\ntrack_gradients = [true, false]\n'
    on, off = (run.arguments for run in written(text).plan(tmp_path))
    assert on == ["--dataset", "youtube", "--track-gradients"]
    assert off == ["--dataset", "youtube"]


def test_a_run_has_at_most_one_rank_per_client_and_one_for_the_server(written, tmp_path):
    study = written(FILE)
    assert {run.ranks for run in study.plan(tmp_path)} == {4}
    assert [run.ranks for run in study.with_changes({"ranks": 9}).plan(tmp_path)] == [7] * 4 + [9] * 4


def test_the_quick_form_changes_axes_and_settings(written, tmp_path):
    runs = written(FILE).quick_form().plan(tmp_path)
    assert len(runs) == 4
    assert {run.config.rounds for run in runs} == {1}


def test_a_title_has_the_current_values_of_settings(written):
    study = find_study("ablation")
    assert study.title == "Ablation of MFedPBA, caltech101 m2, fusion separate"
    study = study.with_changes({"dataset": "mfeat", "fusion": "sum"})
    assert study.title == "Ablation of MFedPBA, mfeat m2, fusion sum"
    assert study.quick_form().title == "Ablation of MFedPBA, mfeat m2, fusion sum (quick form)"
    assert written(study.to_toml()).title == study.title
    odd = written('title = "{seed} {tau} {x} {}"\n[settings]\nmfedpba.tau = 2\n[cross]\nseed = [0, 1]\n')
    assert odd.title == "0, 1 2 {x} {}"


def test_an_axis_may_be_a_parameter_of_a_method(written, tmp_path):
    study = written(
        '[settings]\ndataset = "youtube"\n[cross]\nmfedpba.lambda_1 = [0.1, 5]\nmfedpba.without = [["fea"], []]\n'
    )
    runs = study.plan(tmp_path)
    assert [str(run.path) for run in runs] == [
        "lambda_1-0.1/fea", "lambda_1-0.1/none", "lambda_1-5/fea", "lambda_1-5/none"
    ]  # fmt: skip
    assert [(run.config.params.lambda_1, run.config.params.without) for run in runs] == [
        (0.1, ("fea",)), (0.1, ()), (5.0, ("fea",)), (5.0, ()),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[cross]\nsede = [1]", "study mine: unknown setting 'sede' (did you mean 'seed'?)"),
        ("[cross]\nmargin = [1]", "margin: belongs to method fedtgp, but this run's method is mfedpba"),
        (
            "[cross]\nmethod = ['fedtgp', 'mfedpba']\nserver_lr = [1]",
            "give it as fedtgp.server_lr or mfedpba.server_lr",
        ),
        ("[cross]\nmfedpba.lambda_3 = [1]", "method mfedpba has no parameter 'lambda_3' (did you mean 'lambda_2'?)"),
        (
            "[settings]\nmfedpa.tau = 1\n[cross]\nseed = [1]",
            "unknown setting 'mfedpa.tau': no method 'mfedpa' (did you mean 'mfedpba'?)",
        ),
        ('base = "main-table"\n[quick]\nsede = [1]\n', "unknown setting 'sede'"),
        ('base = "main-table"\n[settings]\nronds = 1\n', "unknown setting 'ronds'"),
        ('[settings]\ndataset = "youtube"\n[cross]\nseed = [0, -1]', "study mine, run s1: seed: -1 is out of range"),
        ('[settings]\ndataset = "youtub"\n[cross]\nseed = [0]', "did you mean 'youtube'"),
        ('[settings]\ndataset = "youtube"\n[cross]\nseed = [0, 0]', "two runs have the same directory, s0"),
        ('[settings]\ndataset = "youtube"\nranks = 0\n[cross]\nseed = [0]', "ranks: 0 is out of range"),
        (
            '[settings]\ndataset = "youtube"\n[cross]\nmethod = ["local"]\nmfedpba.tau = [1.0]',
            "belongs to method mfedpba",
        ),
    ],
)
def test_plan_checks_every_run(written, tmp_path, text, words):
    with pytest.raises(UserError) as caught:
        written(text).plan(tmp_path)
    assert words in str(caught.value)
