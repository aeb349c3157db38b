"""Several ranks: the same bits in every layout, quiet spares, one message for one fault, and a prompt end."""

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from mfedpba_mpi import load_run

TINY = (
    "--dataset",
    "synthetic",
    "--samples",
    160,
    "--classes",
    4,
    "--dims",
    "6,40,9,12",
    "--feature-dim",
    8,
    "--rounds",
    3,
)
LONG = (*TINY[:-1], 100000)
LAYOUTS = (0, 1, 2, 3, 5, 6)  # no mpirun, ..., K + 1 = 5, one spare


@pytest.mark.parametrize(
    "settings", [("--partition", "m2"), ("--clients", 9, "--participation", 0.5, "--fusion", "separate")]
)
def test_every_layout_gives_the_same_bits(command, tmp_path, settings):
    runs = []
    for ranks in LAYOUTS:
        result = command(*TINY, *settings, "--out", f"n{ranks}", ranks=ranks)
        assert result.returncode == 0, result.stderr
        runs.append(load_run(tmp_path / f"n{ranks}"))
    first = runs[0]
    for run in runs[1:]:
        assert run.final["client_sha256"] == first.final["client_sha256"]
        assert run.final["server_sha256"] == first.final["server_sha256"]
        for name, values in first.rounds.items():
            if not name.startswith("seconds_"):
                np.testing.assert_array_equal(run.rounds[name], values, err_msg=name)


def test_rank_0_says_once_that_ranks_are_spare(command):
    out = command(*TINY, "--partition", "m1", ranks=7).stdout
    assert out.count("2 ranks idle: 5 ranks are enough") == 1
    assert out.count("average accuracy") == 1


def test_bad_input_is_said_once_on_several_ranks(command):
    result = command("--dataset", "youtub", ranks=3)
    assert result.returncode == 2
    assert result.stderr.count("unknown dataset 'youtub'") == 1


def test_a_fault_found_after_the_start_ends_all_ranks(command, tmp_path):
    (tmp_path / "data").write_text("a file where the stores should be")
    began = time.monotonic()
    result = command(*TINY, ranks=3)
    assert result.returncode == 2
    assert "rank 0, data-dir: data is not a directory" in result.stderr
    assert time.monotonic() - began < 90


BREAK_CLIENT = """
import sys
from mfedpba_mpi.methods.mfedpba.client import MFedPBAClient
good = MFedPBAClient.update
def update(self, t, phase, inbox):
    if (self.k, t) == (2, 2): raise ZeroDivisionError("made to fail")
    return good(self, t, phase, inbox)
MFedPBAClient.update = update
from mfedpba_mpi.cli.main import main
main()
"""


def test_an_exception_on_one_rank_ends_all_and_names_rank_client_and_round(tmp_path):
    line = ["mpirun", "-n", "5", sys.executable, "-c", BREAK_CLIENT, *map(str, TINY), "--out", "out"]
    began = time.monotonic()
    result = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert time.monotonic() - began < 90
    assert result.returncode != 0
    assert "rank 3, round 2, client 2: ZeroDivisionError: made to fail" in result.stderr
    assert load_run(tmp_path / "out").status == "failed"


def process_of(rank, tmp_path):
    """The process of a rank of the run that was started in `tmp_path`."""
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (path / "environ").read_bytes().split(b"\0")
            here = os.readlink(path / "cwd") == str(tmp_path) and b"mfedpba_mpi" in (path / "cmdline").read_bytes()
            if here and {b"OMPI_COMM_WORLD_RANK=%d" % rank, b"PMI_RANK=%d" % rank} & set(words):
                return int(path.name)
    return pytest.fail(f"no process of rank {rank}")


def test_sigusr1_to_the_launcher_ends_all_ranks_in_order(started, tmp_path):
    process = started(*LONG, ranks=6)  # one of them spare
    began = time.monotonic()
    process.send_signal(signal.SIGUSR1)
    _, errors = process.communicate(timeout=30)
    assert time.monotonic() - began < 10
    assert process.returncode == 75
    assert errors.count("mfedpba-mpi: stopped by SIGUSR1 after round ") == 1
    assert load_run(tmp_path / "out").status == "interrupted"


ON_TERMINAL = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))"


def test_ctrl_c_on_mpirun_leaves_the_terminal_in_order_and_says_how_to_go_on(tmp_path):
    """Open MPI's mpirun passes on whole lines only, and none after Ctrl-C, when it kills its ranks and ends with 1."""
    command = f"stty rows 40 cols 100 && exec mpirun -n 3 {sys.executable} -m mfedpba_mpi"
    line = [sys.executable, "-c", ON_TERMINAL, "sh", "-c", f"{command} {' '.join(map(str, LONG))} --out out"]
    with subprocess.Popen(line, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        until = time.monotonic() + 60
        while not (tmp_path / "out/run.h5").exists() and time.monotonic() < until:
            time.sleep(0.1)
        time.sleep(1)
        seen, _ = process.communicate(b"\x03", timeout=30)
    assert process.returncode in (1, 75)  # Open MPI's, and MPICH's, which lets ranks end in order
    assert b"; resume with `mpirun -n 3 mfedpba-mpi resume out`\r\n" in seen
    assert b"\x1b[?25" not in seen, "the cursor was hidden"


@pytest.mark.parametrize("rank", [0, 2, 5], ids=["server", "client", "spare"])
def test_a_signal_to_one_rank_ends_all_after_the_round(started, tmp_path, rank):
    process = started(*LONG, ranks=6)
    began = time.monotonic()
    os.kill(process_of(rank, tmp_path), signal.SIGTERM)
    _, errors = process.communicate(timeout=30)
    assert time.monotonic() - began < 10
    assert process.returncode == 75
    assert "stopped by SIGTERM" in errors


def test_a_rank_that_is_stuck_is_named_and_the_job_ended(started, tmp_path):
    process = started(*LONG, "--timeout", 2, ranks=3)
    os.kill(process_of(2, tmp_path), signal.SIGSTOP)
    _, errors = process.communicate(timeout=30)
    assert process.returncode != 0
    assert "timed out waiting for a rank after 2 s (--timeout)" in errors
    assert re.search(r"rank 1 with 2 clients \[.*\]: round \d+, ", errors)
    assert re.search(r"rank 2 with 2 clients \[.*\]: no answer, stuck in round", errors)


def test_going_on_without_a_rank_needs_an_mpi_that_can(command):
    result = command(*TINY, "--on-failure", "continue", ranks=2)
    assert result.returncode == 2
    assert "started without user-level failure mitigation" in result.stderr
    assert "continue needs several ranks" in command(*TINY, "--on-failure", "continue").stderr


SPARE = """
import resource, time
from mfedpba_mpi.cli.main import main
from mfedpba_mpi.comm import waiting
from mfedpba_mpi.comm.launcher import launcher_rank_and_size

def cpu():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime

def noted(*args, wait=waiting.wait, **settings):
    start, began = cpu(), time.monotonic()
    wait(*args, **settings)
    with open("spare.txt", "a") as file:
        print(time.monotonic() - began, cpu() - start, file=file)

if launcher_rank_and_size()[0] == 6:
    waiting.wait = noted
main()
"""


def test_a_spare_rank_leaves_the_cores_alone(tmp_path):
    settings = [*map(str, TINY[:-1]), "300", "--partition", "m1"]
    line = ["mpirun", "-n", "7", sys.executable, "-c", SPARE, *settings]
    subprocess.run(line, cwd=tmp_path, capture_output=True, check=True, timeout=300, env=os.environ)
    wall, cpu = max([*map(float, line.split())] for line in (tmp_path / "spare.txt").read_text().splitlines())
    assert cpu < 0.05 * wall, f"{cpu:.2f} s of CPU in {wall:.1f} s"
