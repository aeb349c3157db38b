"""``mfedpba-mpi watch``: a live view of a run or a study, from its files."""

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

    from mfedpba_mpi.watch.views import WatchedRun, WatchedStudy

_SECONDS = 1.0  # between updates
_ASCII = dict.fromkeys(range(0x2801, 0x2900), "*") | dict.fromkeys(range(0x2581, 0x2590), "#")
_ASCII |= dict(zip(map(ord, "│└─…↑↓"), "|+-.^v", strict=True))  # for terminals without Unicode


@click.command(short_help="Watch the progress of a run or a study.")
@click.argument("directory", metavar="RUN|DIR", type=PathType)
@click.option("--once", is_flag=True, help="print one view and exit (default without a terminal)")
def watch(directory: Path, once: bool) -> None:
    """Show the progress of the run in RUN, or of the study in DIR, once a second, until it ends or Ctrl-C is pressed.

    \b
    mfedpba-mpi watch runs/youtube-m2-mfedpba-s0
    mfedpba-mpi watch runs/main-table --once

    It only reads files, so it works on any node with access to them and does not affect the run.
    """
    with suppress(KeyboardInterrupt):
        _follow(find(directory), once)


def find(path: Path) -> WatchedRun | WatchedStudy:
    """The run or the study at a path, after one reading."""
    from mfedpba_mpi.records.run import LOG_NAME, in_full
    from mfedpba_mpi.studies.study_file import FILE
    from mfedpba_mpi.watch.views import WatchedRun, WatchedStudy

    directory = in_full(path.parent if path.name in (LOG_NAME, FILE) and path.is_file() else path)
    watched = WatchedStudy(directory) if (directory / FILE).is_file() else WatchedRun(directory)
    watched.read()
    if isinstance(watched, WatchedRun) and watched.state.status == WAITING:
        problem = f"contains neither {LOG_NAME} nor {FILE}" if directory.is_dir() else "is not a directory"
        raise UserError(
            f"watch: {path} {problem}; give the directory of a run (--out of `run`, by default in runs/) or of a study"
        )
    return watched


def _follow(watched: WatchedRun | WatchedStudy, once: bool) -> None:
    """Update the view on an alternate screen until the end; then print the last view on the normal screen."""
    from rich.live import Live

    from mfedpba_mpi.cli.console import console

    screen = console()
    if screen.is_terminal and not screen.is_dumb_terminal and not once and not watched.over:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # restores the terminal first
        pause = Event()
        with suppress(KeyboardInterrupt), Live(console=screen, screen=True, auto_refresh=False) as live:
            while not watched.over:
                _update_size(screen)
                live.update(rendered(watched, screen), refresh=True)
                start = time.monotonic()
                watched.read()
                pause.wait(max(_SECONDS, 4 * (time.monotonic() - start)))  # large logs are read less often
    _update_size(screen)
    screen.print(rendered(watched, screen), crop=False)


def _update_size(screen: Console) -> None:
    """Set the current size of the terminal; COLUMNS and LINES keep the size at the start of the command."""
    from rich.console import ConsoleDimensions

    if screen.is_terminal:
        screen.size = ConsoleDimensions(*os.get_terminal_size(sys.stdout.fileno()))


def rendered(watched: WatchedRun | WatchedStudy, screen: Console) -> Text:
    """The view in the size of the screen, less one line for the prompt; 120 x 40 without a terminal."""
    from rich.text import Text

    width, height = screen.size if screen.is_terminal else (screen.width, 40)
    lines = []
    for line in watched.view(width, height - 1)[: height - 1]:
        rich_line = Text(no_wrap=True)
        for text, style in line:
            text = "".join(c if c.isprintable() else "?" for c in text)  # names may contain control characters
            if not screen.encoding.startswith("utf"):
                text = text.translate(_ASCII).encode(screen.encoding, "replace").decode(screen.encoding)
            rich_line.append(text, style)
        rich_line.truncate(width, overflow="ellipsis" if screen.encoding.startswith("utf") else "crop")
        lines.append(rich_line)
    return Text("\n", no_wrap=True, overflow="crop").join(lines)
