"""Errors on several ranks: one message, and all ranks end soon."""

import subprocess
import sys
import time

from mfedpba_mpi import load_run
from tests.ranks import TINY


def test_an_error_in_the_settings_is_printed_once(command):
    result = command("--dataset", "youtub", ranks=3)
    assert result.returncode == 2
    assert result.stderr.count("unknown dataset 'youtub'") == 1


def test_an_error_after_the_start_of_mpi_ends_all_ranks(command, tmp_path):
    (tmp_path / "data").write_text("a file where the stores should be")
    began = time.monotonic()
    result = command(*TINY, ranks=3)
    assert result.returncode == 2
    assert "rank 0, data-dir: data is not a directory" in result.stderr
    assert time.monotonic() - began < 90


FAILING_CLIENT = """
import sys
from mfedpba_mpi.methods.mfedpba.client import MFedPBAClient
original = MFedPBAClient.update
def update(self, t, phase, inbox):
    if (self.k, t) == (2, 2): raise ZeroDivisionError("made to fail")
    return original(self, t, phase, inbox)
MFedPBAClient.update = update
from mfedpba_mpi.cli.main import main
main()
"""


def test_an_exception_on_one_rank_ends_all_ranks_and_names_rank_round_and_client(tmp_path):
    line = ["mpirun", "-n", "5", sys.executable, "-c", FAILING_CLIENT, *map(str, TINY), "--out", "out"]
    began = time.monotonic()
    result = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert time.monotonic() - began < 90
    assert result.returncode != 0
    assert "rank 3, round 2, client 2: ZeroDivisionError: made to fail" in result.stderr
    assert load_run(tmp_path / "out").status == "failed"


def test_on_failure_continue_needs_several_ranks_and_fault_tolerant_mpi(command):
    result = command(*TINY, "--on-failure", "continue", ranks=2)
    assert result.returncode == 2
    assert "started without user-level failure mitigation" in result.stderr
    assert "continue needs several ranks" in command(*TINY, "--on-failure", "continue").stderr
