"""The live view of a run as lines of characters."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mfedpba_mpi.cli.console import count, duration
from mfedpba_mpi.errors import COMPLETE, FAILED, INTERRUPTED, RUNNING, WAITING
from mfedpba_mpi.records.run import Run, mean_of_clients
from mfedpba_mpi.records.status import RECENT, STARTING, RunState
from mfedpba_mpi.watch.drawing import Line, Span, bar, braille, flow, flow_each, grid, shape, spark

STYLES = {RUNNING: "green", STARTING: "green", COMPLETE: "bold green", FAILED: "bold red", WAITING: "dim"}
CELL = 19  # columns of a client
LAST_WARNINGS = 3  # shown


def run_lines(run: Run, state: RunState, age: float, directory: Path, width: int, height: int) -> list[Line]:
    """The view of a run whose log changed `age` seconds ago."""
    pace = pace_of(run, age if state.status == RUNNING else 0.0)
    top = flow(_title(run, directory if height > 21 else None), width)
    top += [*flow([styled(state.status), *pace.words(state.status)], width), *reason_lines(state, directory, width)]
    top += _warnings(run, width)
    if state.status == RUNNING:
        done = bar(pace.t / pace.T, width)
        top.append([(done, "green"), ("─" * (width - len(done)), "dim")])
    below = [*flow(_shares(run), width), *_ranks(run, width)]
    free = height - len(top) - len(below) - 2  # two lines of text around the curve
    middle = _clients(last_accuracy(run), width, max(1, free // 3))
    middle += _losses(losses(run), width, max(2, free // 5))
    return [*top, *average_curve(run, width, min(16, free - len(middle))), *middle, *below]


@dataclass(frozen=True)
class Pace:
    """Round t of T; recent seconds per round, total seconds so far, and seconds left."""

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


def pace_of(run: Run, age: float) -> Pace:
    """The speed of a run whose last round ended `age` seconds ago (0 for a run that is not running)."""
    seconds = run.rounds.get("seconds_total", np.zeros(0))
    t, T = len(seconds), int(run.attributes["config"]["rounds"])
    each = float(seconds[-RECENT:].mean()) if t else math.nan
    elapsed = float(run.attributes["seconds_setup"] + seconds.sum()) + age
    left = max(0.0, (T - t) * each - min(age, each)) if t else math.nan
    return Pace(t, T, each, elapsed, left)


def last_accuracy(run: Run) -> np.ndarray:
    """The clients' accuracies (K,) in the last evaluated round; empty before the first."""
    if not len(run.evaluated):
        return np.zeros(0)
    return run.rounds["accuracy"][run.evaluated[-1] - 1]


def losses(run: Run) -> dict[str, np.ndarray]:
    """The loss terms by name, (rounds,) each: means over participating clients, and the server's."""
    found = {}
    for name, values in run.rounds.items():
        kind, _, term = name.partition("_")
        if kind == "loss":
            values = mean_of_clients(values)
        if kind in ("loss", "server") and not np.isnan(values).all():
            found[f"{kind} {term}"] = values[~np.isnan(values)]
    return dict(sorted(found.items()))


def busy(run: Run) -> dict[int, float]:
    """The share of recent time in which each rank computed; {} if the log lacks the placement."""
    now = run.attributes["resumed"][-1]["ranks"] if run.attributes["resumed"] else run.attributes["ranks"]
    total = run.rounds.get("seconds_total", np.zeros(0))[-RECENT:].sum()
    if now != run.attributes["ranks"] or not total:
        return {}
    seconds = np.zeros(now)
    np.add.at(seconds, run.partition["rank"], run.rounds["seconds_client"][-RECENT:].sum(axis=0))
    seconds[0] += run.rounds["seconds_server"][-RECENT:].sum()
    return dict(enumerate((seconds / total).tolist()))


def average_curve(run: Run, width: int, height: int) -> list[Line]:
    """The average accuracy over rounds: a line of text, a curve of `height` lines if there is room, the axis."""
    average = run.average()
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
    """A status with its colour."""
    return status, STYLES.get(status, "bold yellow")


def reason_lines(state: RunState, directory: Path, width: int) -> list[Line]:
    """Why a run is in its state, and how to resume it."""
    words = [(state.reason, "red" if state.status == FAILED else "yellow")] if state.reason else []
    if state.status in (INTERRUPTED, FAILED) and "mfedpba-mpi resume" not in state.reason:
        words.append((f"resume with `mfedpba-mpi resume {directory}`", ""))
    return flow_each(words, width)[:6]


def _warnings(run: Run, width: int) -> list[Line]:
    """The last warnings, a line each."""
    last = run.warnings[-LAST_WARNINGS:]
    texts = [f"warning{f' (round {t})' if t else ''}: {text}" for t, text in last]
    if len(run.warnings) > len(last):
        texts.append(f"{count(len(run.warnings) - len(last), 'earlier warning')}, see the report")
    return [[(text if len(text) <= width else f"{text[: width - 1]}…", "yellow")] for text in texts]


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
    """The last value and a sparkline of each term; without room for that, an arrow for the last five rounds."""
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
