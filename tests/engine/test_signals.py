"""Signals: every rank stops in order after the round, and the run can be resumed."""

import os
import re
import signal
import subprocess
import sys
import time

import pytest

from mfedpba_mpi import load_run
from mfedpba_mpi.engine.signals import SIGNALS, Interrupted
from tests.ranks import LONG, process_of


def test_a_second_sigint_ends_the_process_at_once(stop):
    signal.raise_signal(signal.SIGINT)
    assert stop.signal == "SIGINT"
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_a_signal_outside_of_interruptible_blocks_interrupts_the_next_one_on_entry(stop):
    signal.raise_signal(signal.SIGTERM)
    with pytest.raises(Interrupted), stop.interruptible():
        pytest.fail("the block was entered")


def test_a_signal_inside_an_interruptible_block_interrupts_it(stop):
    with pytest.raises(Interrupted), stop.interruptible():
        signal.raise_signal(signal.SIGUSR1)
    assert stop.signal == "SIGUSR1"
    signal.raise_signal(signal.SIGTERM)  # outside of a block: only noted
    assert stop.signal == "SIGUSR1"  # the first one


def test_signals_are_ignored_after_the_end_of_a_run(stop):
    stop.ignore()
    for number in SIGNALS:
        signal.raise_signal(number)
    assert stop.signal == ""


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_run_in_order(started, tmp_path, number):
    process = started(*LONG)
    process.send_signal(number)
    began = time.monotonic()
    _, errors = process.communicate()
    assert time.monotonic() - began < 10
    assert process.returncode == 75
    assert re.search(rf"stopped by {number.name} after round \d+; resume with `mfedpba-mpi resume out`", errors)
    run = load_run(tmp_path / "out")
    assert run.status == "interrupted"
    assert run.attributes["reason"] in errors


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


def test_ctrl_c_on_mpirun_restores_the_terminal_and_prints_the_command_to_resume(tmp_path):
    """Open MPI's mpirun forwards whole lines only, and none after Ctrl-C, when it kills its ranks and exits with 1."""
    command = f"stty rows 40 cols 100 && exec mpirun -n 3 {sys.executable} -m mfedpba_mpi"
    line = [sys.executable, "-c", ON_TERMINAL, "sh", "-c", f"{command} {' '.join(map(str, LONG))} --out out"]
    with subprocess.Popen(line, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        until = time.monotonic() + 60
        while not (tmp_path / "out/run.h5").exists() and time.monotonic() < until:
            time.sleep(0.1)
        time.sleep(1)
        seen, _ = process.communicate(b"\x03", timeout=30)
    assert process.returncode in (1, 75)  # Open MPI, and MPICH, which lets ranks end in order
    assert b"; resume with `mpirun -n 3 mfedpba-mpi resume out`\r\n" in seen
    assert b"\x1b[?25" not in seen, "the cursor was hidden"


@pytest.mark.parametrize("rank", [0, 2, 5], ids=["server", "client", "spare"])
def test_a_signal_to_one_rank_ends_all_ranks(started, tmp_path, rank):
    process = started(*LONG, ranks=6)
    began = time.monotonic()
    os.kill(process_of(rank, tmp_path), signal.SIGTERM)
    _, errors = process.communicate(timeout=30)
    assert time.monotonic() - began < 10
    assert process.returncode == 75
    assert "stopped by SIGTERM" in errors
