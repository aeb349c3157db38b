"""`mfedpba-mpi watch`: a live view of a run, or of a study, by its files alone.

Nothing is written and no lock is taken, so it may be started anywhere that sees the files, also on another node. A log
is read anew only when it has changed; see `records.runlog` for why it can be read at any time.
"""

from __future__ import annotations

import math
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

import click
import numpy as np

from mfedpba_mpi.data.commands import PathType
from mfedpba_mpi.drawing import Line, Span, bar, braille, flow, flow_each, grid, shape, spark
from mfedpba_mpi.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from mfedpba_mpi.records.run import Run

WAITING, STARTING, RUNNING, COMPLETE = "waiting", "starting", "running", "complete"
INTERRUPTED, FAILED, SILENT, UNREADABLE = "interrupted", "failed", "no news", "unreadable"
_STYLES = {RUNNING: "green", STARTING: "green", COMPLETE: "bold green", FAILED: "bold red", WAITING: "dim"}
_SECONDS = 1.0  # between two looks
_RECENT = 20  # rounds that tell how fast it goes
_PATIENCE, _FIRST_PATIENCE = 60.0, 600.0  # seconds without news, at least, of a run, and of one before its first round
_LAST = 6  # ended runs in the view of a study
_CELL = 19  # columns that a client needs
_PLAIN = dict.fromkeys(range(0x2801, 0x2900), "*") | dict.fromkeys(range(0x2581, 0x2590), "#")
_PLAIN |= dict(zip(map(ord, "│└─…↑↓"), "|+-.^v", strict=True))  # for terminals without Unicode


@click.command(short_help="Watch a run, or a study, while it goes on.")
@click.argument("directory", metavar="RUN|DIR", type=PathType)
@click.option("--once", is_flag=True, help="print one view and end (as where there is no terminal)")
def watch(directory: Path, once: bool) -> None:
    """Show how far the run in RUN, or the study in DIR, has come, once a second, until it ends or Ctrl-C is pressed.

    It reads files only, so it may be started on any node that sees them, and disturbs nothing.
    """
    with suppress(KeyboardInterrupt):
        _follow(find(directory), once)


def find(path: Path) -> WatchedRun | WatchedStudy:
    """What there is to be seen at a path, looked at once."""
    from mfedpba_mpi.records.run import LOG_NAME
    from mfedpba_mpi.studies.study import FILE

    directory = path.parent if path.name in (LOG_NAME, FILE) and path.is_file() else path
    watched = WatchedStudy(directory) if (directory / FILE).is_file() else WatchedRun(directory)
    watched.look()
    if isinstance(watched, WatchedRun) and watched.status == WAITING:
        there = "is no directory" if not directory.is_dir() else f"holds neither {LOG_NAME} nor {FILE}"
        raise UserError(
            f"watch: {path} {there}; give the directory of a run (--out of `run`; by default one in runs) or of a study"
        )
    return watched


def _follow(watched: WatchedRun | WatchedStudy, once: bool) -> None:
    """Show it on a screen of its own until it is over; leave the last view where the command was typed."""
    from rich.live import Live

    from mfedpba_mpi.console import console

    screen = console()
    if screen.is_terminal and not screen.is_dumb_terminal and not once and not watched.over:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # the terminal is put in order first
        pause = Event()
        with suppress(KeyboardInterrupt), Live(console=screen, screen=True, auto_refresh=False) as live:
            while not watched.over:
                _measure(screen)
                live.update(rendered(watched, screen), refresh=True)
                began = time.monotonic()
                watched.look()
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


class WatchedRun:
    """The run in a directory, looked at again and again.

    Attributes
    ----------
    run : its log as last read, None before there is one.
    status, reason : as far as can be seen from here.
    news : seconds since the log last changed.
    """

    def __init__(self, directory: Path):
        self.directory = directory
        self.run: Run | None = None
        self.status, self.reason, self.host = WAITING, "", ""
        self.news = 0.0
        self._damage = ""
        self._mark: object = None  # of the log that was read
        self._changed: float | None = None

    @property
    def over(self) -> bool:
        return self.status in (COMPLETE, INTERRUPTED, FAILED)

    def look(self) -> None:
        """See how far it is. Who holds the lock is asked first: a run writes its last words before it lets go."""
        alive = self._alive()
        self._read()
        if alive is False:  # or has it just been started?
            alive = self._alive()
        self.news = time.monotonic() - (self._changed or time.monotonic())
        self.status, self.reason = self._judge(alive)

    def _alive(self) -> bool | None:
        """Whether the process that holds the lock lives, None if that cannot be known without trying to take it."""
        from mfedpba_mpi.records.lock import LOCK_NAME, held, owner_of

        owner = owner_of(self.directory / LOCK_NAME)
        self.host = str(owner.get("host", ""))
        return held(self.directory) if self.host == socket.gethostname() else None

    def _read(self) -> None:
        from mfedpba_mpi.records.run import LOG_NAME, load_run

        try:
            found = (self.directory / LOG_NAME).stat()
        except OSError:
            self.run, self._damage, self._mark, self._changed = None, "", None, None
            return
        mark = (found.st_mtime_ns, found.st_size, found.st_ino)
        if mark == self._mark:
            return
        # another node's clock is asked once; from then on it is ours that counts
        age = max(0.0, time.time() - found.st_mtime) if self._changed is None else 0.0
        self._changed = time.monotonic() - age
        try:
            self.run, self._damage, self._mark = load_run(self.directory), "", mark
        except UserError as error:
            self._damage, self._mark = str(error), None  # and try again

    def _judge(self, alive: bool | None) -> tuple[str, str]:
        from mfedpba_mpi.records.run import CHECKPOINTS
        from mfedpba_mpi.studies.state import OUTPUT, PROMPT, last_words

        if self._damage:
            return UNREADABLE, self._damage
        if self.run is None:
            if alive or (alive is None and self.host):
                return STARTING, f"on {self.host}, no log yet"
            if (self.directory / CHECKPOINTS).exists():
                return UNREADABLE, "the log is gone; `mfedpba-mpi resume` makes it anew from a checkpoint"
            said = last_words(self.directory) if (self.directory / OUTPUT).exists() else PROMPT
            return (WAITING, "") if said.startswith(PROMPT) else (FAILED, said)
        seconds = self.run.rounds.get("seconds_total", np.zeros(0))[-_RECENT:]
        late = self.news > (max(_PATIENCE, 10 * seconds.max()) if len(seconds) else _FIRST_PATIENCE)
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time.time() - self.news))
        if alive:
            return RUNNING, f"its process lives, but there is {SILENT} since {since}" if late else ""
        if self.run.status != RUNNING:
            return self.run.status, str(self.run.attributes.get("reason", ""))
        if alive is False:
            return INTERRUPTED, "its process is gone without a word"
        if not late:
            return RUNNING, ""
        where = f"; whether it lives can be seen on {self.host} only" if self.host else ""
        return SILENT, f"{SILENT} since {since}{where}"

    def view(self, width: int, height: int) -> list[Line]:
        run, said = self.run, _said(self.status, self.reason, self.directory, width)
        if run is None:
            return [*flow([(str(self.directory), "bold")], width), *flow([(self.status, "bold")], width), *said]
        pace = pace_of(run, self.news if self.status == RUNNING else 0.0)
        top = flow(_title(run, self.directory if height > 21 else None), width)
        state = [] if self.status == SILENT else [_styled(self.status)]  # said in whole below
        top += [*flow([*state, *pace.words(self.status)], width), *said]
        if self.status == RUNNING:
            done = bar(pace.t / pace.T, width)
            top.append([(done, "green"), ("─" * (width - len(done)), "dim")])
        below = [*flow(_shares(run), width), *_ranks(run, width)]
        free = height - len(top) - len(below) - 2  # the curve's two lines of words
        middle = _clients(last_accuracy(run), width, max(1, free // 3))
        middle += _losses(losses(run), width, max(2, free // 5))
        return [*top, *average_curve(run, width, min(16, free - len(middle))), *middle, *below]


class WatchedStudy:
    """The runs of a study, looked at again and again; those that are complete, once."""

    def __init__(self, directory: Path):
        from mfedpba_mpi.studies.study import FILE, read_study

        self.directory, self.study = directory, read_study(directory / FILE)
        self._watched = {place.path: WatchedRun(directory / place.path) for place in self.study.places()}
        self._rows: dict[Path, Row] = {}

    @property
    def over(self) -> bool:
        return all(row.status in (COMPLETE, FAILED) for row in self._rows.values())

    def look(self) -> None:
        for path, watched in list(self._watched.items()):
            watched.look()
            self._rows[path] = Row.of(path, watched)
            if watched.status == COMPLETE:
                del self._watched[path]

    def view(self, width: int, height: int) -> list[Line]:
        from mfedpba_mpi.console import count, duration
        from mfedpba_mpi.studies.state import State, overview

        rows = list(self._rows.values())
        going = [row for row in rows if row.status not in (COMPLETE, INTERRUPTED, FAILED, WAITING)]
        ended = sorted((row for row in rows if row.ended), key=lambda row: row.when)[-_LAST:]
        known = {SILENT: INTERRUPTED, UNREADABLE: INTERRUPTED, STARTING: RUNNING}
        found = overview(State(known.get(row.status, row.status)) for row in rows)
        marks = sorted({row.remark.strip(" ()") for row in rows if row.remark})
        left = time_left(rows)
        top = flow(
            [(self.study.title, "bold"), *((mark, "yellow") for mark in marks), (str(self.directory), "dim")], width
        )
        words = [f"{count(len(rows), 'run')}: {found}", *([f"about {duration(left)} to go"] if left else [])]
        top += flow([(word, "") for word in words], width)
        if not going and not self.over:
            top += flow([("nothing is running at the moment", "yellow")], width)
        run = next((self._watched[row.path].run for row in going if row.status == RUNNING), None)
        most = (height - len(top)) // (2 if run else 1)
        shown = [*going, *reversed(ended)]
        parts = zip(*(row.path.parts for row in rows), strict=True)
        telling = [i for i, part in enumerate(parts) if len(set(part)) > 1]
        lines = [*top, *_table(shown, telling, width, most)]
        reasons = {row.reason: row for row in reversed(shown) if row.reason}  # each once
        why = flow_each([(f"{row.path}: {reason}", _styled(row.status)[1]) for reason, row in reasons.items()], width)
        lines += why[: max(0, min(3, most - len(shown)) if run else most - len(shown))]
        if run:
            path = str(run.path.parent.relative_to(self.directory))
            heading = flow([(path, "bold")], width)
            free = height - len(lines) - len(heading) - 2
            lines += [*heading, *average_curve(run, width, min(16, free))]
        return lines


@dataclass(frozen=True)
class Row:
    """A run of a study in a line: when its log changed, how many seconds it has taken for which share of its rounds."""

    path: Path
    status: str
    progress: str = ""
    reason: str = ""
    remark: str = ""
    when: float = -math.inf
    seconds: float = 0.0
    share: float = 0.0

    @property
    def ended(self) -> bool:
        return self.status in (COMPLETE, INTERRUPTED, FAILED)

    @classmethod
    def of(cls, path: Path, watched: WatchedRun) -> Row:
        from mfedpba_mpi.studies.state import State

        if watched.run is None:
            return cls(path, watched.status, "", watched.reason)
        run = watched.run
        pace = pace_of(run, watched.news if watched.status == RUNNING else 0.0)
        average = run.average() if "tested" in run.rounds else np.zeros(0)
        accuracy = float(average[-1]) if len(average) else math.nan
        progress = State(watched.status, pace.t, pace.T, accuracy).progress
        when = time.time() - watched.news
        return cls(path, watched.status, progress, watched.reason, run.remark, when, pace.elapsed, pace.t / pace.T)


def time_left(rows: Sequence[Row]) -> float:
    """Seconds until the last run ends if all take what the complete ones took, and as many go at once; 0: unknown."""
    complete = [row.seconds for row in rows if row.status == COMPLETE]
    side_by_side = sum(row.status == RUNNING for row in rows)
    if not complete or not side_by_side:
        return 0.0
    todo = sum(1 - row.share for row in rows if row.status not in (COMPLETE, FAILED))
    return todo * sum(complete) / len(complete) / side_by_side


@dataclass(frozen=True)
class Pace:
    """Round t of T; seconds a round of late, in all, and until the end."""

    t: int
    T: int
    each: float
    elapsed: float
    left: float

    def words(self, status: str) -> Iterator[Span]:
        from mfedpba_mpi.console import duration

        yield f"round {self.t}/{self.T}", "bold"
        yield f"elapsed {duration(self.elapsed)}", ""
        if not math.isnan(self.each):
            if status == RUNNING:
                yield f"ETA {duration(self.left)}", ""
            yield f"{self.each:.3g} s a round", ""


def pace_of(run: Run, news: float) -> Pace:
    """How fast a run goes whose last round ended `news` seconds ago; 0 for one that does not go on."""
    seconds = run.rounds.get("seconds_total", np.zeros(0))
    t, T = len(seconds), int(run.attributes["config"]["rounds"])
    each = float(seconds[-_RECENT:].mean()) if t else math.nan
    elapsed = float(run.attributes["seconds_setup"] + seconds.sum()) + news
    left = max(0.0, (T - t) * each - min(news, each)) if t else math.nan
    return Pace(t, T, each, elapsed, left)


def last_accuracy(run: Run) -> np.ndarray:
    """The clients' accuracies when they were last tested (K,); none before."""
    if "tested" not in run.rounds or not len(run.evaluated):
        return np.zeros(0)
    return run.rounds["accuracy"][run.evaluated[-1] - 1]


def losses(run: Run) -> dict[str, np.ndarray]:
    """The terms that there are, by name: means over the clients that took part, and the server's; (rounds,) each."""
    found = {}
    for name, values in run.rounds.items():
        kind, _, term = name.partition("_")
        if kind == "loss":
            taking_part = ~np.isnan(values)
            count = np.maximum(1, taking_part.sum(axis=1))
            values = np.where(taking_part.any(axis=1), np.where(taking_part, values, 0).sum(axis=1) / count, np.nan)
        if kind in ("loss", "server") and not np.isnan(values).all():
            found[f"{kind} {term}"] = values[~np.isnan(values)]
    return dict(sorted(found.items()))


def busy(run: Run) -> dict[int, float]:
    """The share of recent time that each rank has computed; {} where the log does not say who was where."""
    now = run.attributes["resumed"][-1]["ranks"] if run.attributes["resumed"] else run.attributes["ranks"]
    total = run.rounds.get("seconds_total", np.zeros(0))[-_RECENT:].sum()
    if now != run.attributes["ranks"] or not total:
        return {}
    seconds = np.zeros(now)
    np.add.at(seconds, run.partition["rank"], run.rounds["seconds_client"][-_RECENT:].sum(axis=0))
    seconds[0] += run.rounds["seconds_server"][-_RECENT:].sum()
    return dict(enumerate((seconds / total).tolist()))


def average_curve(run: Run, width: int, height: int) -> list[Line]:
    """The average accuracy over rounds: a line of words, `height` lines of dots (none where that is low), the axis."""
    average = run.average() if "tested" in run.rounds else np.zeros(0)
    measure = "validation accuracy" if run.validation else "accuracy"
    if not len(average):
        return [[(f"no {measure} yet", "dim")]]
    best = int(average.argmax())
    name = f"average {measure}" if width >= 60 else "average" if not run.validation else "validation"
    words = [(f"{name} {average[-1]:.2%}", "bold"), (f"best {average[best]:.2%} (round {run.evaluated[best]})", "")]
    title = flow(words, width)
    height -= len(title) - 1
    if height < 2 or width < 16:
        return title
    low, high = math.floor(20 * average.min()) / 20, math.ceil(20 * average.max()) / 20
    high = high if high > low else low + 0.05
    lines = braille(run.evaluated, average, low, high, width - 6, height)
    labels = [f"{high:4.0%}", *[" " * 4] * (height - 2), f"{low:4.0%}"]
    first, last = str(run.evaluated[0]), f" round {run.evaluated[-1]}"
    axis = f"{'':4s} └{first} {'─' * (width - 7 - len(first) - len(last))}{last}"
    pairs = zip(labels, lines, strict=True)
    return [*title, *([(f"{label} │", "dim"), (line, "cyan")] for label, line in pairs), [(axis, "dim")]]


def _styled(status: str) -> Span:
    return status, _STYLES.get(status, "bold yellow")


def _said(status: str, reason: str, directory: Path, width: int) -> list[Line]:
    words = [(reason, "red" if status == FAILED else "yellow")] if reason else []
    if status in (INTERRUPTED, FAILED):
        words.append((f"mfedpba-mpi resume {directory} goes on", ""))
    return flow_each(words, width)[:6]


def _title(run: Run, directory: Path | None) -> Iterator[Span]:
    attributes, config = run.attributes, run.attributes["config"]
    yield f"{attributes['label']} on {attributes['dataset']}", "bold"
    if run.synthetic:
        yield "SYNTHETIC data", "yellow"
    K = len(run.partition["rank"])
    yield f"partition {config['partition']}, {K} client{'' if K == 1 else 's'}, seed {attributes['seed']}", ""
    if directory:
        yield str(directory), "dim"


def _clients(accuracy: np.ndarray, width: int, rows: int) -> list[Line]:
    K = len(accuracy)
    if not K:
        return []
    shown, lines, each = shape(K, width, rows, _CELL)
    more: list[Line] = []
    if shown < K:
        shown, lines, each = shape(K, width, max(1, rows - 1 - (width < 60)), _CELL)
        known = accuracy[~np.isnan(accuracy)]
        low, *quartiles, high = (f"{q:.0%}" for q in np.quantile(known, (0, 0.25, 0.5, 0.75, 1)))
        words = f"all: {low} to {high}, quartiles {' '.join(quartiles)}"
        more = flow([(f"and {K - shown} more", "dim"), (words, "dim")], width)
    digits = len(str(shown - 1))
    cells: list[Line] = []
    for k in range(shown):
        name = f"client {k:{digits}d} " if each > 30 else f"c{k:<{digits}d} "
        words = "      -" if math.isnan(accuracy[k]) else f"{accuracy[k]:7.1%}"
        room = each - len(name) - len(words)
        cells.append([(name, "dim"), (f"{bar(accuracy[k], room):{room}s}", "blue"), (words, "")])
    return [*grid(cells, each, lines), *more]


def _losses(terms: dict[str, np.ndarray], width: int, rows: int) -> list[Line]:
    """The last value of each with its course, or an arrow for the last five rounds where there is no room."""
    if not terms:
        return []
    longest = max(map(len, terms))
    shown, lines, each = shape(len(terms), width, rows, longest + 18)
    if shown < len(terms):
        words = [("losses", "dim")]
        for name, v in terms.items():
            before = v[-6:][0]
            arrow = " ↑" if v[-1] > before else " ↓" if v[-1] < before else ""
            words.append((f"{name.removeprefix('loss ')} {v[-1]:.3g}{arrow}", "magenta"))
        return flow(words, width)
    cells: list[Line] = []
    for name, values in terms.items():
        head = f"{name:{longest}s} {values[-1]:<9.3g}"
        cells.append([(head, ""), (spark(values, each - len(head)), "magenta")])
    return grid(cells, each, lines)


def _shares(run: Run) -> Iterator[Span]:
    total = run.rounds.get("seconds_total", np.zeros(0)).sum()
    if total:
        yield "time", "dim"
        for name in ("train", "server", "eval", "comm", "checkpoint"):
            yield f"{name} {run.rounds[f'seconds_{name}'].sum() / total:.0%}", ""


def _ranks(run: Run, width: int) -> list[Line]:
    from mfedpba_mpi.console import count

    last = run.attributes["resumed"][-1] if run.attributes["resumed"] else run.attributes
    hosts, shares = list(last["hosts"]), busy(run)
    where = hosts[0] if len(hosts) == 1 else f"{len(hosts)} hosts: {', '.join(hosts)}"
    words = [(f"{count(last['ranks'], 'rank')} on {where}", "")]
    if len(shares) > 16:
        low, middle, high = np.quantile(list(shares.values()), (0, 0.5, 1))
        words.append((f"busy {low:.0%} to {high:.0%}, median {middle:.0%}", ""))
    elif shares:
        words += [("busy", "dim"), *((f"{rank}: {share:.0%}", "") for rank, share in shares.items())]
    return flow(words, width)[:4]


def _table(rows: Sequence[Row], telling: Sequence[int], width: int, height: int) -> list[Line]:
    """Runs, a line each, as many as there is room for; of long paths the end. `telling` parts of paths differ."""
    from mfedpba_mpi.console import duration

    room = height if len(rows) <= height else max(0, height - 1)
    more: list[Line] = [[(f"and {len(rows) - room} more", "dim")]] if len(rows) > room else []
    rows = rows[:room]
    paths = [str(row.path) for row in rows]
    columns = [[row.status for row in rows], [row.progress for row in rows]]
    columns.append([duration(row.seconds) if row.seconds else "" for row in rows])
    wide = [max(map(len, cells), default=0) for cells in columns]
    longest = max(map(len, paths), default=0)
    if longest + sum(wide) + 6 > width < 60:  # without the time, and what is the same in all
        columns[2], wide[2] = [""] * len(rows), 0
        paths = ["/".join(row.path.parts[i] for i in telling) for row in rows] if telling else paths
        longest = max(map(len, paths))
    longest = max(8, min(longest, width - sum(wide) - 6 + 2 * (not wide[2])))
    lines: list[Line] = []
    for path, status, progress, took in zip(paths, *columns, strict=True):
        path = path if len(path) <= longest else f"…{path[1 - longest :]}"
        line = [(f"{path:{longest}s}  ", ""), (f"{status:{wide[0]}s}  ", _styled(status)[1])]
        lines.append([*line, (f"{progress:{wide[1]}s}  {took:>{wide[2]}s}".rstrip(), "")])
    return lines + more
