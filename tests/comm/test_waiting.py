"""Waiting for other ranks: an idle rank uses no CPU time, and a timeout names the rank that is stuck."""

import os
import re
import signal
import subprocess
import sys

from tests.ranks import LONG, TINY, process_of


def test_a_stuck_rank_is_named_and_all_ranks_end(started, tmp_path):
    process = started(*LONG, "--timeout", 2, ranks=3)
    os.kill(process_of(2, tmp_path), signal.SIGSTOP)
    _, errors = process.communicate(timeout=30)
    assert process.returncode != 0
    assert "timed out waiting for a rank after 2 s (--timeout)" in errors
    assert re.search(r"rank 1 with 2 clients \[.*\]: round \d+, ", errors)
    assert re.search(r"rank 2 with 2 clients \[.*\]: no answer, stuck in round", errors)


MEASURE_SPARE_RANK = """
import resource, time
from mfedpba_mpi.cli.main import main
from mfedpba_mpi.comm import waiting
from mfedpba_mpi.comm.launcher import launcher_rank_and_size

def cpu():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime

def measured_wait(*args, wait=waiting.wait, **settings):
    start, began = cpu(), time.monotonic()
    wait(*args, **settings)
    with open("spare.txt", "a") as file:
        print(time.monotonic() - began, cpu() - start, file=file)

if launcher_rank_and_size()[0] == 6:
    waiting.wait = measured_wait
main()
"""


def test_a_spare_rank_uses_almost_no_cpu_time(tmp_path):
    settings = [*map(str, TINY[:-1]), "300", "--partition", "m1"]
    line = ["mpirun", "-n", "7", sys.executable, "-c", MEASURE_SPARE_RANK, *settings]
    subprocess.run(line, cwd=tmp_path, capture_output=True, check=True, timeout=300, env=os.environ)
    wall, cpu = max([*map(float, wait.split())] for wait in (tmp_path / "spare.txt").read_text().splitlines())
    assert cpu < 0.05 * wall, f"{cpu:.2f} s of CPU in {wall:.1f} s"
