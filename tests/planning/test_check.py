"""`mfedpba-mpi check`: what it says of an installation that works, and of those that do not."""

import subprocess
import sys

import pytest

from mfedpba_mpi.cli.console import ranges
from mfedpba_mpi.errors import UserError
from mfedpba_mpi.planning.check import refuse, remarks, rows


def a_rank(host="n1", cores=(0, 1), device="cpu", torch="2.13.0", sees=True):
    return {"host": host, "cores": list(cores), "device": device, "torch": torch, "sees": sees}


@pytest.mark.parametrize(("ranks", "bits"), [(0, "twice in one process"), (3, "on 3 ranks and in one process")])
def test_an_installation_that_works_is_well_and_stays_clean(command, tmp_path, ranks, bits):
    result = command("check", ranks=ranks)
    assert result.returncode == 0, result.stderr
    assert f"8 methods with 4 clients {bits}: the same" in result.stdout
    assert ("messages: 120 kB" in result.stdout) == (ranks > 1)
    assert result.stdout.count("all is well") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be_written_is_named(command):
    result = command("check", "--dir", "/proc")
    assert result.returncode == 2
    assert "dir: cannot write in /proc: " in result.stderr


RANKS_DIFFER = """
from mfedpba_mpi.comm.launcher import launcher_rank_and_size
from mfedpba_mpi import rng
from mfedpba_mpi.cli.main import main
if launcher_rank_and_size()[0]:
    right = rng._entropy
    rng._entropy = lambda seed, purpose, key: right(seed + (purpose == "shuffle"), purpose, key)
main()
"""


def test_bits_that_depend_on_the_ranks_are_found(tmp_path):
    line = ["mpirun", "-n", "2", sys.executable, "-c", RANKS_DIFFER, "check"]
    result = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert result.returncode == 1
    assert "bits: not the same on 2 ranks and in one process: local, fedproto, " in result.stderr
    assert "all is well" not in result.stdout


def test_ranks_with_everything_in_common_are_one_row():
    found = rows([a_rank(), a_rank(), a_rank("n2", device="cuda:0"), a_rank("n2", device="cuda:1"), a_rank()])
    assert list(found) == [
        ("0-1", "n1", "0-1", "cpu"),
        ("2", "n2", "0-1", "cuda:0"),
        ("3", "n2", "0-1", "cuda:1"),
        ("4", "n1", "0-1", "cpu"),
    ]


@pytest.mark.parametrize(
    ("numbers", "text"), [([], ""), ([5], "5"), ([0, 1], "0-1"), ([0, 1, 2, 3, 8, 10, 11], "0-3,8,10-11")]
)
def test_numbers_are_written_as_ranges(numbers, text):
    assert ranges(numbers) == text


def test_ranks_that_do_not_see_the_directory_are_named(tmp_path):
    with pytest.raises(UserError, match=r"rank 1 \(n2\) does not see what rank 0 \(n1\) writes in .*; .* --dir"):
        refuse([a_rank(), a_rank("n2", sees=False)], tmp_path)


def test_different_builds_of_torch_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"2\.12\.0 on rank 1.*one environment"):
        refuse([a_rank(), a_rank(torch="2.12.0"), a_rank(torch="2.12.0")], tmp_path)


def test_ranks_that_agree_are_not_refused(tmp_path):
    refuse([a_rank(), a_rank("n2")], tmp_path)


def test_ranks_on_fewer_cores_are_pointed_out_with_the_fix_where_they_are_bound():
    assert list(remarks([a_rank(), a_rank(), a_rank("n2")])) == []
    assert list(remarks([a_rank()] * 3)) == ["n1: 3 ranks share 2 cores"]
    (bound,) = remarks([a_rank(cores=[0]), a_rank(cores=[0])])
    assert bound.startswith("n1: 2 ranks share 1 core; if it has more, use `mpirun --bind-to none`")
