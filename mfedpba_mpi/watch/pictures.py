"""A run in lines of characters: what a live view shows of it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mfedpba_mpi.cli.console import count, duration
from mfedpba_mpi.errors import COMPLETE, FAILED, INTERRUPTED, RUNNING, WAITING
from mfedpba_mpi.records.run import Run, mean_of_clients
from mfedpba_mpi.watch.drawing import Line, Span, bar, braille, flow, flow_each, grid, shape, spark

STARTING, SILENT, UNREADABLE = "starting", "no news", "unreadable"  # what only who looks on can say of a run
STYLES = {RUNNING: "green", STARTING: "green", COMPLETE: "bold green", FAILED: "bold red", WAITING: "dim"}
RECENT = 20  # rounds that tell how fast it goes
CELL = 19  # columns that a client needs


def run_lines(run: Run, status: str, reason: str, news: float, directory: Path, width: int, height: int) -> list[Line]:
    """The view of a run whose log changed `news` seconds ago."""
    pace = pace_of(run, news if status == RUNNING else 0.0)
    top = flow(_title(run, directory if height > 21 else None), width)
    state = [] if status == SILENT else [styled(status)]  # said in whole below
    top += [*flow([*state, *pace.words(status)], width), *said(status, reason, directory, width)]
    if status == RUNNING:
        done = bar(pace.t / pace.T, width)
        top.append([(done, "green"), ("─" * (width - len(done)), "dim")])
    below = [*flow(_shares(run), width), *_ranks(run, width)]
    free = height - len(top) - len(below) - 2  # the curve's two lines of words
    middle = _clients(last_accuracy(run), width, max(1, free // 3))
    middle += _losses(losses(run), width, max(2, free // 5))
    return [*top, *average_curve(run, width, min(16, free - len(middle))), *middle, *below]


@dataclass(frozen=True)
class Pace:
    """Round t of T; seconds a round of late, in all, and until the end."""

    t: int
    T: int
    each: float
    elapsed: float
    left: float

    def words(self, status: str) -> Iterator[Span]:
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
    each = float(seconds[-RECENT:].mean()) if t else math.nan
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
            values = mean_of_clients(values)
        if kind in ("loss", "server") and not np.isnan(values).all():
            found[f"{kind} {term}"] = values[~np.isnan(values)]
    return dict(sorted(found.items()))


def busy(run: Run) -> dict[int, float]:
    """The share of recent time that each rank has computed; {} where the log does not say who was where."""
    now = run.attributes["resumed"][-1]["ranks"] if run.attributes["resumed"] else run.attributes["ranks"]
    total = run.rounds.get("seconds_total", np.zeros(0))[-RECENT:].sum()
    if now != run.attributes["ranks"] or not total:
        return {}
    seconds = np.zeros(now)
    np.add.at(seconds, run.partition["rank"], run.rounds["seconds_client"][-RECENT:].sum(axis=0))
    seconds[0] += run.rounds["seconds_server"][-RECENT:].sum()
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


def styled(status: str) -> Span:
    """A status in its colour."""
    return status, STYLES.get(status, "bold yellow")


def said(status: str, reason: str, directory: Path, width: int) -> list[Line]:
    """Why a run is in its state, if there is something to say, and how it goes on."""
    words = [(reason, "red" if status == FAILED else "yellow")] if reason else []
    if status in (INTERRUPTED, FAILED) and "mfedpba-mpi resume" not in reason:
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
    shown, lines, each = shape(K, width, rows, CELL)
    more: list[Line] = []
    if shown < K:
        shown, lines, each = shape(K, width, max(1, rows - 1 - (width < 60)), CELL)
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
        for name, seconds in run.time_parts().items():
            yield f"{name} {seconds.sum() / total:.0%}", ""


def _ranks(run: Run, width: int) -> list[Line]:
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
