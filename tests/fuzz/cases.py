"""Fuzz cases: a valid file of a kind is damaged at random and read in a child process."""

import os
import select
import signal
import sys
import traceback
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mfedpba_mpi.errors import UserError
from tests.fuzz.damage import damage
from tests.fuzz.kinds import KINDS, Kind

FINE = ("same", "other", "refused")  # see tests/fuzz/__main__.py
FAILURES = ("different", "unclear", "traceback", "crash", "hang", "litter")
TIMEOUT = 30.0  # seconds for a case, on a busy machine


@dataclass(frozen=True)
class Result:
    """Outcome of a case; `detail` is the error message, or the end of the traceback."""

    kind: str
    case: int
    damage: str
    outcome: str
    detail: str


class Fuzz:
    """Runs cases of one kind in a new directory."""

    def __init__(self, name: str, directory: Path) -> None:
        self.name, self.kind, self.directory = name, KINDS[name], directory
        home = directory / "data"
        home.mkdir(parents=True)
        self.source = self.kind.make(home)
        files = (
            sorted(file for file in self.source.rglob("*") if file.is_file()) if self.source.is_dir() else [self.source]
        )
        self.files = {file: file.read_bytes() for file in files}
        outcome, self.good = self._read()
        if outcome != "read":
            raise RuntimeError(f"cannot read the valid file of kind '{name}': {self.good}")

    def run(self, seed: int, case: int, keep: Path | None = None) -> Result:
        """Run case number `case` of a seed, independent of other cases; save the damaged file in `keep`."""
        rng = np.random.default_rng([seed, zlib.crc32(self.name.encode()), case])
        file = list(self.files)[int(rng.integers(len(self.files)))]
        content, done = damage(self.files[file], rng)
        file.write_bytes(content)
        if keep:
            keep.mkdir(parents=True, exist_ok=True)
            (keep / file.name).write_bytes(content)
        outcome, detail = self._read()
        if outcome == "read":
            outcome = "same" if detail == self.good else "different" if self.kind.ours else "other"
        elif outcome == "refused" and ("\n" in detail or not detail.isprintable() or not self._named(file, detail)):
            outcome = "unclear"
        elif litter := [path.name for path in self.directory.rglob("*.part") if path not in self.files]:
            outcome, detail = "litter", ", ".join(litter)
        file.write_bytes(self.files[file])
        return Result(self.name, case, f"{file.name} ({len(self.files[file])} bytes): {done}", outcome, detail)

    def _named(self, file: Path, message: str) -> bool:
        """Whether the message names the file, or the directory if a directory was read."""
        names_directory = self.source.is_dir() and str(self.source) in message
        return file.name in message or names_directory or not self.kind.named

    def _read(self) -> tuple[str, str]:
        """Read the source in a child process; return (outcome, digest or message)."""
        log = self.directory / "log"
        log.write_bytes(b"")
        receiver, sender = os.pipe()
        child = os.fork()
        if child == 0:
            _child(self.kind, self.source, log, sender)
        os.close(sender)
        with open(receiver, "rb", buffering=0) as report:
            in_time = bool(select.select([report], [], [], TIMEOUT)[0])
            answer = report.read().decode() if in_time else ""
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # including its own children
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if not in_time:
            return "hang", f"no result after {TIMEOUT:g} seconds"
        if not answer:
            return "crash", signal.Signals(-code).name if code < 0 else f"exit code {code}"
        outcome, _, detail = answer.partition(" ")
        if outcome == "traceback":
            detail = "\n".join([detail, *log.read_text(errors="replace").splitlines()[-12:]])
        return outcome, detail


def _child(kind: Kind, source: Path, log: Path, sender: int) -> None:
    os.setpgid(0, 0)
    with open(log, "wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    try:
        answer = f"read {kind.read(source)}"
    except UserError as error:
        answer = f"refused {error}"
    except BaseException as error:
        traceback.print_exc()
        answer = f"traceback {type(error).__name__}: {error}"
    sys.stderr.flush()
    os.write(sender, answer.encode(errors="replace")[:60_000])
    os._exit(0)


def run_cases(
    names: list[str], cases: int, seed: int, directory: Path, report: Callable[[str], None]
) -> Iterator[Result]:
    """Run `cases` cases, divided among the kinds by their shares."""
    ends = np.cumsum([KINDS[name].share for name in names])
    counts = np.diff(np.rint(ends * cases / ends[-1]).astype(int), prepend=0)
    for name, count in zip(names, counts.tolist(), strict=True):
        report(name)
        fuzz = Fuzz(name, directory / name.replace(" ", "-"))
        for case in range(count):
            yield fuzz.run(seed, case)
