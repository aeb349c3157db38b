"""One execution of the instrumented command: tracks its processes, sends them signals, and waits for their end."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.chaos.board import Board

ROOT = Path(__file__).parents[2]
TIMEOUT = 150.0  # seconds for an attempt without a fault


class Stuck(Exception):
    """Processes did not end in time and were killed."""


class Attempt:
    """A running command.

    Parameters
    ----------
    args : arguments of ``mfedpba-mpi``.
    ranks : number of ranks; 1 runs without mpirun.
    scratch : new directory for the boards of its processes.
    plan : instructions for its processes, see `instrumented`.
    mitigating : whether to enable Open MPI's failure mitigation (ULFM).
    """

    def __init__(
        self, args: Sequence[object], ranks: int, scratch: Path, plan: Mapping[str, Any], mitigating: bool = False
    ):
        scratch.mkdir(parents=True)
        self.ranks, self._scratch = ranks, scratch
        ulfm = ["--with-ft", "ulfm"] if mitigating else []
        launcher = ["mpirun", *ulfm, "-n", str(ranks)] if ranks > 1 else []
        line = [*launcher, sys.executable, "-m", "tests.chaos.instrumented", *map(str, args)]
        environment = os.environ | {
            "CHAOS_BOARDS": str(scratch), "CHAOS_PLAN": json.dumps(plan),
            "TMPDIR": str(scratch), "OMPI_MCA_btl_sm_backing_directory": str(scratch),  # left by a killed launcher
        }  # fmt: skip
        self._output = open(scratch / "output", "w+b")  # noqa: SIM115
        pipe = subprocess.Popen(
            ["cat"], stdin=subprocess.PIPE, stdout=self._output
        )  # a separate process, because of file size limits
        self._pipe = pipe
        self.process = subprocess.Popen(
            line, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=pipe.stdin, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        assert pipe.stdin
        pipe.stdin.close()
        self.began = time.monotonic()
        self.boards: dict[int, Board] = {}
        self._handles: dict[int, int] = {}

    def find_processes(self) -> None:
        """Find the boards and processes of newly started ranks."""
        for rank in range(self.ranks):
            if rank not in self.boards and (self._scratch / f"rank-{rank}").exists():
                board = Board(self._scratch / f"rank-{rank}")
                self.boards[rank] = board
                with suppress(ProcessLookupError):
                    self._handles[rank] = os.pidfd_open(board["pid"])

    @property
    def alive(self) -> bool:
        """Whether the command (the launcher, if there is one) is running."""
        return self.process.poll() is None

    @property
    def round(self) -> int:
        """The largest current round of all ranks."""
        return max((board["round"] for board in self.boards.values()), default=0)

    def wait_until(self, condition: Callable[[], bool], timeout: float = TIMEOUT) -> bool:
        """Wait until the condition holds, watching for new processes; return False if the command ends before."""
        deadline = time.monotonic() + timeout
        while self.alive:
            self.find_processes()
            if condition():
                return True
            if time.monotonic() > deadline:
                self.kill()
                raise Stuck(f"timed out after {timeout:.0f} s")
            time.sleep(2e-3)
        return False

    def send(self, number: signal.Signals, rank: int) -> None:
        """Send a signal to a rank if it is running."""
        if rank in self._handles:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._handles[rank], number)

    def send_launcher(self, number: signal.Signals) -> None:
        """Send a signal to the command (launcher) if it is running."""
        self.process.send_signal(number)

    def release(self) -> None:
        """Release held processes."""
        for board in self.boards.values():
            board["release"] = 1

    def _running_ranks(self) -> list[int]:
        """Return the ranks that have not ended."""
        if not self._handles:
            return []
        poll = select.poll()
        for handle in self._handles.values():
            poll.register(handle, select.POLLIN)
        ended = {handle for handle, _ in poll.poll(0)}
        return [rank for rank, handle in self._handles.items() if handle not in ended]

    def finish(self, timeout: float, meanwhile: Callable[[], None] = lambda: None) -> float:
        """Wait until all processes have ended, calling `meanwhile` repeatedly; return the seconds it took."""
        began = time.monotonic()
        while self.alive or self._running_ranks():
            self.find_processes()
            meanwhile()
            seconds = time.monotonic() - began
            if seconds > timeout:
                points = {rank: self.boards[rank].point for rank in self._running_ranks()}
                launcher = "the launcher and " if self.alive else ""
                states = {rank: self._process_state(rank) for rank in self._running_ranks()}
                self.kill()
                raise Stuck(f"after {timeout:.0f} s {launcher}ranks {points} had not ended {states}")
            time.sleep(5e-3)
        return time.monotonic() - began

    def _process_state(self, rank: int) -> str:
        """Return the kernel's state of a process that does not end."""
        pid = self.boards[rank]["pid"]
        with suppress(OSError):
            state = next(line for line in Path(f"/proc/{pid}/status").read_text().split("\n") if "State" in line)
            return f"{state} in {Path(f'/proc/{pid}/wchan').read_text()}"
        return ""

    def kill(self) -> None:
        """Kill all processes of this attempt, by handle."""
        self.find_processes()
        if self.alive:
            self.process.kill()
        for rank in self.boards:
            self.send(signal.SIGKILL, rank)

    def close(self) -> tuple[int, str]:
        """Kill the remaining processes and return (exit code, output)."""
        self.kill()
        code = self.process.wait()
        self._pipe.wait(30)
        for handle in self._handles.values():
            os.close(handle)
        self._handles.clear()
        self._output.seek(0)
        text = self._output.read().decode(errors="replace")
        self._output.close()
        return code, text
