"""Groups of runs that differ in the seed only, and their names."""

import dataclasses
from pathlib import Path

from mfedpba_mpi.report.groups import differing, grouped


def at(run, path, **attributes):
    """A copy of a run in another directory, with changed attributes."""
    return dataclasses.replace(run, path=Path(path, "run.h5"), attributes={**run.attributes, **attributes})


def test_runs_that_differ_in_the_seed_only_form_a_group(made):
    runs = [made(method="local"), made(method="local", seed=1), made(), made(lr=0.02)]
    groups = {"Local": runs[:2], "MFedPBA (lr 0.01)": runs[2:3], "MFedPBA (lr 0.02)": runs[3:]}
    assert grouped(runs) == groups


def test_runs_with_the_same_seed_are_named_by_their_directories(made):
    run, other = made(), made(seed=1)
    paths = ["old/a/s0", "new/a/s0", "new/b/s0", "old/a/s1"]
    names = list(grouped([*(at(run, path) for path in paths[:3]), at(other, paths[3])]))
    assert names == [f"MFedPBA ({path})" for path in paths]
    assert list(grouped([at(run, "old/s0"), at(run, "new/s0")])) == ["MFedPBA (old)", "MFedPBA (new)"]
    assert list(grouped([at(run, "x"), at(run, "x/y")])) == ["MFedPBA (x)", "MFedPBA (x/y)"]
    assert len(grouped([run, run])) == 1


def test_runs_on_different_data_of_the_same_name_form_no_group(made):
    runs = [at(made(), "a"), at(made(seed=1), "b", data_fingerprint="0" * 64)]
    assert list(grouped(runs)) == ["MFedPBA (a)", "MFedPBA (b)"]
    assert differing(runs)["data_fingerprint"][1] == "0" * 12


def test_group_names_show_progress_and_dataset_where_they_differ(made):
    run = made()
    begun = at(run, "x/begun/run.h5", status="interrupted")
    assert list(grouped([begun])) == ["MFedPBA (3 of 3 rounds)"]
    other = at(run, "x/other/run.h5", dataset="another", data_fingerprint="0")
    assert list(grouped([run, other])) == ["MFedPBA on synthetic", "MFedPBA on another"]


def test_groups_that_differ_in_many_settings_are_named_by_directory(made):
    config = made().attributes["config"] | dict.fromkeys(("lr", "batch_size", "epochs", "rounds", "clients"), 7)
    assert list(grouped([at(made(), "a"), at(made(), "b", config=config)])) == ["MFedPBA (a)", "MFedPBA (b)"]
