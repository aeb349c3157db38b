"""One start of the instrumented command: its processes, where they are, signals to them, and their end."""

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
LONGEST = 150.0  # seconds that an attempt may last in which nothing is wrong


class Stuck(Exception):
    """Processes did not end in time; they have been killed."""


class Attempt:
    """A running command.

    Parameters
    ----------
    args : of ``mfedpba-mpi``.
    ranks : 1: without mpirun.
    scratch : a new directory for its boards.
    plan : orders to its processes, see `instrumented`.
    mitigating : with Open MPI's failure mitigation.
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
            "TMPDIR": str(scratch), "OMPI_MCA_btl_sm_backing_directory": str(scratch),  # what a killed launcher leaves
        }  # fmt: skip
        self._output = open(scratch / "output", "w+b")  # noqa: SIM115
        pipe = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=self._output)  # limits of files are not for it
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

    def look(self) -> None:
        """Find processes that have just begun."""
        for rank in range(self.ranks):
            if rank not in self.boards and (self._scratch / f"rank-{rank}").exists():
                board = Board(self._scratch / f"rank-{rank}")
                self.boards[rank] = board
                with suppress(ProcessLookupError):
                    self._handles[rank] = os.pidfd_open(board["pid"])

    @property
    def alive(self) -> bool:
        """Whether the command (the launcher, where there is one) has not ended."""
        return self.process.poll() is None

    @property
    def round(self) -> int:
        """The round that the foremost rank is in."""
        return max((board["round"] for board in self.boards.values()), default=0)

    def wait_until(self, there: Callable[[], bool], longest: float = LONGEST) -> bool:
        """Wait until something is so; False where the command ended before. Processes are looked at all the time."""
        until = time.monotonic() + longest
        while self.alive:
            self.look()
            if there():
                return True
            if time.monotonic() > until:
                self.kill()
                raise Stuck(f"nothing happened for {longest:.0f} s")
            time.sleep(2e-3)
        return False

    def send(self, number: signal.Signals, rank: int) -> None:
        """A signal to a rank, if it lives."""
        if rank in self._handles:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._handles[rank], number)

    def send_launcher(self, number: signal.Signals) -> None:
        """A signal to the command itself, if it lives."""
        self.process.send_signal(number)

    def release(self) -> None:
        """Let a held process go on."""
        for board in self.boards.values():
            board["release"] = 1

    def _living(self) -> list[int]:
        """The ranks that have not ended."""
        if not self._handles:
            return []
        poll = select.poll()
        for handle in self._handles.values():
            poll.register(handle, select.POLLIN)
        ended = {handle for handle, _ in poll.poll(0)}
        return [rank for rank, handle in self._handles.items() if handle not in ended]

    def finish(self, longest: float, meanwhile: Callable[[], None] = lambda: None) -> float:
        """Wait for the end of all processes; the seconds that took."""
        began = time.monotonic()
        while self.alive or self._living():
            self.look()
            meanwhile()
            seconds = time.monotonic() - began
            if seconds > longest:
                where = {rank: self.boards[rank].point for rank in self._living()}
                launcher = "the launcher and " if self.alive else ""
                stacks = {rank: self._stack(rank) for rank in self._living()}
                self.kill()
                raise Stuck(f"after {longest:.0f} s {launcher}ranks {where} had not ended {stacks}")
            time.sleep(5e-3)
        return time.monotonic() - began

    def _stack(self, rank: int) -> str:
        """What the system says of a process that does not end."""
        pid = self.boards[rank]["pid"]
        with suppress(OSError):
            state = next(line for line in Path(f"/proc/{pid}/status").read_text().split("\n") if "State" in line)
            return f"{state} in {Path(f'/proc/{pid}/wchan').read_text()}"
        return ""

    def kill(self) -> None:
        """End what this attempt has started, by handle."""
        self.look()
        if self.alive:
            self.process.kill()
        for rank in self.boards:
            self.send(signal.SIGKILL, rank)

    def close(self) -> tuple[int, str]:
        """(exit code, output); every process has ended, or is ended now."""
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
