"""Printing a plan."""

from mfedpba_mpi.planning.display import report
from mfedpba_mpi.planning.plan import make_plan


def test_the_report_separates_measured_from_extrapolated(tiny, tmp_path):
    lines = [str(line) for line in report(make_plan(tiny(clients=12), tmp_path, ranks=5, nodes=2, cores=4))]
    for words in (
        "disk: log ",
        "s a round",
        "(exact)",
        "measured on this machine",
        "8 of 12 clients",
        "extrapolated",
        "Gbit/s",
    ):
        assert any(words in line for line in lines), words
    lines = [str(line) for line in report(make_plan(tiny(), tmp_path, ranks=6, gpus=2))]
    assert any("local rank 1 uses cuda:1, local rank 2 uses cuda:0" in line for line in lines)
    assert any("2 ranks are idle: 4 ranks are enough" in line for line in lines)
    assert not any(line.startswith("time:") for line in lines)
