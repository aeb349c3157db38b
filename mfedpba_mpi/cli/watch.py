"""`mfedpba-mpi watch`: a live view of a run, or of a study, from any node that sees its files."""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

import click

from mfedpba_mpi.cli.paths import PathType
from mfedpba_mpi.errors import WAITING, UserError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from mfedpba_mpi.watch.watched import WatchedRun, WatchedStudy

_SECONDS = 1.0  # between two looks
_PLAIN = dict.fromkeys(range(0x2801, 0x2900), "*") | dict.fromkeys(range(0x2581, 0x2590), "#")
_PLAIN |= dict(zip(map(ord, "│└─…↑↓"), "|+-.^v", strict=True))  # for terminals without Unicode


@click.command(short_help="Watch a run, or a study, while it goes on.")
@click.argument("directory", metavar="RUN|DIR", type=PathType)
@click.option("--once", is_flag=True, help="print one view and end (as where there is no terminal)")
def watch(directory: Path, once: bool) -> None:
    """Show how far the run in RUN, or the study in DIR, has come, once a second, until it ends or Ctrl-C is pressed.

    \b
    mfedpba-mpi watch runs/youtube-m2-mfedpba-s0
    mfedpba-mpi watch runs/main-table --once

    It reads files only, so it may be started on any node that sees them, and disturbs nothing.
    """
    with suppress(KeyboardInterrupt):
        _follow(find(directory), once)


def find(path: Path) -> WatchedRun | WatchedStudy:
    """What there is to be seen at a path, looked at once."""
    from mfedpba_mpi.records.run import LOG_NAME, in_full
    from mfedpba_mpi.studies.study_file import FILE
    from mfedpba_mpi.watch.watched import WatchedRun, WatchedStudy

    directory = in_full(path.parent if path.name in (LOG_NAME, FILE) and path.is_file() else path)
    watched = WatchedStudy(directory) if (directory / FILE).is_file() else WatchedRun(directory)
    watched.read()
    if isinstance(watched, WatchedRun) and watched.state.status == WAITING:
        there = "is no directory" if not directory.is_dir() else f"holds neither {LOG_NAME} nor {FILE}"
        raise UserError(
            f"watch: {path} {there}; give the directory of a run (--out of `run`; by default one in runs) or of a study"
        )
    return watched


def _follow(watched: WatchedRun | WatchedStudy, once: bool) -> None:
    """Show it on a screen of its own until it is over; leave the last view where the command was typed."""
    from rich.live import Live

    from mfedpba_mpi.cli.console import console

    screen = console()
    if screen.is_terminal and not screen.is_dumb_terminal and not once and not watched.over:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # the terminal is put in order first
        pause = Event()
        with suppress(KeyboardInterrupt), Live(console=screen, screen=True, auto_refresh=False) as live:
            while not watched.over:
                _measure(screen)
                live.update(rendered(watched, screen), refresh=True)
                began = time.monotonic()
                watched.read()
                pause.wait(max(_SECONDS, 4 * (time.monotonic() - began)))  # a huge log is read less often
    _measure(screen)
    screen.print(rendered(watched, screen), crop=False)


def _measure(screen: Console) -> None:
    """Take the terminal's size as it is now, whatever COLUMNS and LINES said when the command was started."""
    from rich.console import ConsoleDimensions

    if screen.is_terminal:
        screen.size = ConsoleDimensions(*os.get_terminal_size(sys.stdout.fileno()))


def rendered(watched: WatchedRun | WatchedStudy, screen: Console) -> Text:
    """The view, as large as the screen is now but for a line for the prompt, and 120 x 40 where there is none."""
    from rich.text import Text

    width, height = screen.size if screen.is_terminal else (screen.width, 40)
    lines = []
    for line in watched.view(width, height - 1)[: height - 1]:
        text = Text(no_wrap=True)
        for words, style in line:
            words = "".join(c if c.isprintable() else "?" for c in words)  # whatever is in a name
            if not screen.encoding.startswith("utf"):
                words = words.translate(_PLAIN).encode(screen.encoding, "replace").decode(screen.encoding)
            text.append(words, style)
        text.truncate(width, overflow="ellipsis" if screen.encoding.startswith("utf") else "crop")
        lines.append(text)
    return Text("\n", no_wrap=True, overflow="crop").join(lines)
