"""`mfedpba-mpi check`: output for a working installation, and for broken ones."""

import subprocess
import sys

import pytest

from mfedpba_mpi.errors import UserError
from mfedpba_mpi.planning.check import check_ranks, core_warnings, rank_rows


def rank_info(host="n1", cores=(0, 1), device="cpu", torch="2.13.0", sees_directory=True):
    return {"host": host, "cores": list(cores), "device": device, "torch": torch, "sees_directory": sees_directory}


@pytest.mark.parametrize(("ranks", "runs"), [(0, "two runs in one process"), (3, "3 ranks and one process")])
def test_a_working_installation_passes_and_no_file_is_left(command, tmp_path, ranks, runs):
    result = command("check", ranks=ranks)
    assert result.returncode == 0, result.stderr
    assert f"8 methods with 4 clients: identical for {runs}" in result.stdout
    assert ("messages: 120 kB" in result.stdout) == (ranks > 1)
    assert result.stdout.count("check passed") == 1
    assert list(tmp_path.iterdir()) == []


def test_an_unwritable_directory_is_named(command):
    result = command("check", "--dir", "/proc")
    assert result.returncode == 2
    assert "dir: cannot write in /proc: " in result.stderr


RANKS_DIFFER = """
from mfedpba_mpi.comm.launcher import launcher_rank_and_size
from mfedpba_mpi import rng
from mfedpba_mpi.cli.main import main
if launcher_rank_and_size()[0]:
    original = rng._entropy
    rng._entropy = lambda seed, purpose, key: original(seed + (purpose == "shuffle"), purpose, key)
main()
"""


def test_results_that_depend_on_the_ranks_are_found(tmp_path):
    line = ["mpirun", "-n", "2", sys.executable, "-c", RANKS_DIFFER, "check"]
    result = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert result.returncode == 1
    assert "bits: results differ between 2 ranks and one process: local, fedproto, " in result.stderr
    assert "check passed" not in result.stdout


def test_equal_consecutive_ranks_are_one_row():
    found = rank_rows(
        [rank_info(), rank_info(), rank_info("n2", device="cuda:0"), rank_info("n2", device="cuda:1"), rank_info()]
    )
    assert list(found) == [
        ("0-1", "n1", "0-1", "cpu"),
        ("2", "n2", "0-1", "cuda:0"),
        ("3", "n2", "0-1", "cuda:1"),
        ("4", "n1", "0-1", "cpu"),
    ]


def test_ranks_without_the_shared_directory_are_named(tmp_path):
    with pytest.raises(UserError, match=r"rank 1 \(n2\) cannot see files that rank 0 \(n1\) writes in .*; .* --dir"):
        check_ranks([rank_info(), rank_info("n2", sees_directory=False)], tmp_path)


def test_different_versions_of_torch_are_an_error(tmp_path):
    with pytest.raises(UserError, match=r"2\.12\.0 on rank 1.*one environment"):
        check_ranks([rank_info(), rank_info(torch="2.12.0"), rank_info(torch="2.12.0")], tmp_path)


def test_ranks_on_different_hosts_may_work_together(tmp_path):
    check_ranks([rank_info(), rank_info("n2")], tmp_path)


def test_fewer_cores_than_ranks_give_a_warning_with_a_fix_if_ranks_are_bound():
    assert list(core_warnings([rank_info(), rank_info(), rank_info("n2")])) == []
    assert list(core_warnings([rank_info()] * 3)) == ["n1: 3 ranks share 2 cores"]
    (bound,) = core_warnings([rank_info(cores=[0]), rank_info(cores=[0])])
    assert bound.startswith("n1: 2 ranks share 1 core; if the host has more, use `mpirun --bind-to none`")
