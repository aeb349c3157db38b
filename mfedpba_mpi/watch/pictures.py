"""The live view of a run as lines of text."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mfedpba_mpi.cli.console import count, duration
from mfedpba_mpi.errors import COMPLETE, FAILED, INTERRUPTED, RUNNING, WAITING
from mfedpba_mpi.records.run import Run, mean_of_clients
from mfedpba_mpi.records.status import RECENT, STARTING, RunState
from mfedpba_mpi.watch.drawing import Line, Span, bar, braille, flow, flow_each, grid, grid_shape, spark

STYLES = {RUNNING: "green", STARTING: "green", COMPLETE: "bold green", FAILED: "bold red", WAITING: "dim"}
MIN_CLIENT_CELL = 19  # characters
MAX_WARNINGS = 3


def run_lines(run: Run, state: RunState, age: float, directory: Path, width: int, height: int) -> list[Line]:
    """The view of a run. `age` is the time since its log changed, in seconds."""
    pace = pace_of(run, age if state.status == RUNNING else 0.0)
    top = flow(_title(run, directory if height > 21 else None), width)
    top += [*flow([styled(state.status), *pace.phrases(state.status)], width), *reason_lines(state, directory, width)]
    top += _warning_lines(run, width)
    if state.status == RUNNING:
        done = bar(pace.t / pace.T, width)
        top.append([(done, "green"), ("─" * (width - len(done)), "dim")])
    bottom = [*flow(_time_shares(run), width), *_rank_lines(run, width)]
    free = height - len(top) - len(bottom) - 2  # title and axis of the curve
    middle = _client_lines(last_accuracy(run), width, max(1, free // 3))
    middle += _loss_lines(losses(run), width, max(2, free // 5))
    return [*top, *average_curve(run, width, min(16, free - len(middle))), *middle, *bottom]


@dataclass(frozen=True)
class Pace:
    """The progress of a run: round t of T, recent seconds per round, seconds so far, and estimated seconds left."""

    t: int
    T: int
    each: float
    elapsed: float
    left: float

    def phrases(self, status: str) -> Iterator[Span]:
        """The progress as phrases."""
        yield f"round {self.t}/{self.T}", "bold"
        yield f"elapsed {duration(self.elapsed)}", ""
        if not math.isnan(self.each):
            if status == RUNNING:
                yield f"ETA {duration(self.left)}", ""
            yield f"{self.each:.3g} s per round", ""


def pace_of(run: Run, age: float) -> Pace:
    """The progress of a run. `age` is the time since its last round ended, 0 if it is not running."""
    seconds = run.rounds.get("seconds_total", np.zeros(0))
    t, T = len(seconds), int(run.attributes["config"]["rounds"])
    each = float(seconds[-RECENT:].mean()) if t else math.nan
    elapsed = float(run.attributes["seconds_setup"] + seconds.sum()) + age
    left = max(0.0, (T - t) * each - min(age, each)) if t else math.nan
    return Pace(t, T, each, elapsed, left)


def last_accuracy(run: Run) -> np.ndarray:
    """The clients' accuracies (K,) in the last evaluated round; empty if there is none."""
    if not len(run.evaluated):
        return np.zeros(0)
    return run.rounds["accuracy"][run.evaluated[-1] - 1]


def losses(run: Run) -> dict[str, np.ndarray]:
    """The loss terms by name, means over participants and those of the server, as arrays over rounds without NaN."""
    found = {}
    for name, values in run.rounds.items():
        kind, _, term = name.partition("_")
        if kind == "loss":
            values = mean_of_clients(values)
        if kind in ("loss", "server") and not np.isnan(values).all():
            found[f"{kind} {term}"] = values[~np.isnan(values)]
    return dict(sorted(found.items()))


def busy(run: Run) -> dict[int, float]:
    """The share of recent time in which each rank computed; {} if the run was resumed on another number of ranks.

    The log has the placement of the first start only.
    """
    ranks = run.attributes["ranks"]
    total = run.rounds.get("seconds_total", np.zeros(0))[-RECENT:].sum()
    if _last_start(run)["ranks"] != ranks or not total:
        return {}
    seconds = np.zeros(ranks)
    np.add.at(seconds, run.partition["rank"], run.rounds["seconds_client"][-RECENT:].sum(axis=0))
    seconds[0] += run.rounds["seconds_server"][-RECENT:].sum()
    return dict(enumerate((seconds / total).tolist()))


def _last_start(run: Run) -> dict[str, Any]:
    """Ranks and hosts of the last start or resume."""
    return run.attributes["resumed"][-1] if run.attributes["resumed"] else run.attributes


def average_curve(run: Run, width: int, height: int) -> list[Line]:
    """The average accuracy over rounds: its last and best value, and, if there is room, a curve of `height` lines."""
    average = run.average()
    measure = "validation accuracy" if run.validation else "accuracy"
    if not len(average):
        return [[(f"no {measure} yet", "dim")]]
    best = int(average.argmax())
    name = f"average {measure}" if width >= 60 else "average" if not run.validation else "validation"
    phrases = [(f"{name} {average[-1]:.2%}", "bold"), (f"best {average[best]:.2%} (round {run.evaluated[best]})", "")]
    title = flow(phrases, width)
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
    """A status with its style."""
    return status, STYLES.get(status, "bold yellow")


def reason_lines(state: RunState, directory: Path, width: int) -> list[Line]:
    """The reason for the state of a run, and how to resume it; at most six lines."""
    phrases = [(state.reason, "red" if state.status == FAILED else "yellow")] if state.reason else []
    if state.status in (INTERRUPTED, FAILED) and "mfedpba-mpi resume" not in state.reason:
        phrases.append((f"resume with `mfedpba-mpi resume {directory}`", ""))
    return flow_each(phrases, width)[:6]


def _warning_lines(run: Run, width: int) -> list[Line]:
    """The last warnings, one line each, cut at the width."""
    last = run.warnings[-MAX_WARNINGS:]
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
    yield f"partition {config['partition']}, {count(K, 'client')}, seed {attributes['seed']}", ""
    if directory:
        yield str(directory), "dim"


def _client_lines(accuracy: np.ndarray, width: int, max_rows: int) -> list[Line]:
    """A bar with the accuracy of each client; quantiles over all clients if some do not fit."""
    K = len(accuracy)
    if not K:
        return []
    shown, rows, cell_width = grid_shape(K, width, max_rows, MIN_CLIENT_CELL)
    more: list[Line] = []
    if shown < K:
        shown, rows, cell_width = grid_shape(K, width, max(1, max_rows - 1 - (width < 60)), MIN_CLIENT_CELL)
        known = accuracy[~np.isnan(accuracy)]
        low, *quartiles, high = (f"{q:.0%}" for q in np.quantile(known, (0, 0.25, 0.5, 0.75, 1)))
        text = f"all: {low} to {high}, quartiles {' '.join(quartiles)}"
        more = flow([(f"and {K - shown} more", "dim"), (text, "dim")], width)
    digits = len(str(shown - 1))
    cells: list[Line] = []
    for k in range(shown):
        name = f"client {k:{digits}d} " if cell_width > 30 else f"c{k:<{digits}d} "
        text = "      -" if math.isnan(accuracy[k]) else f"{accuracy[k]:7.1%}"
        room = cell_width - len(name) - len(text)
        cells.append([(name, "dim"), (f"{bar(accuracy[k], room):{room}s}", "blue"), (text, "")])
    return [*grid(cells, cell_width, rows), *more]


def _loss_lines(terms: dict[str, np.ndarray], width: int, max_rows: int) -> list[Line]:
    """The last value and a sparkline of each term; without room for all, an arrow for the trend of five rounds."""
    if not terms:
        return []
    longest = max(map(len, terms))
    shown, rows, cell_width = grid_shape(len(terms), width, max_rows, longest + 18)
    if shown < len(terms):
        phrases = [("losses", "dim")]
        for name, values in terms.items():
            before = values[-6:][0]
            arrow = " ↑" if values[-1] > before else " ↓" if values[-1] < before else ""
            phrases.append((f"{name.removeprefix('loss ')} {values[-1]:.3g}{arrow}", "magenta"))
        return flow(phrases, width)
    cells: list[Line] = []
    for name, values in terms.items():
        head = f"{name:{longest}s} {values[-1]:<9.3g}"
        cells.append([(head, ""), (spark(values, cell_width - len(head)), "magenta")])
    return grid(cells, cell_width, rows)


def _time_shares(run: Run) -> Iterator[Span]:
    total = run.rounds.get("seconds_total", np.zeros(0)).sum()
    if total:
        yield "time", "dim"
        for name, seconds in run.time_parts().items():
            yield f"{name} {seconds.sum() / total:.0%}", ""


def _rank_lines(run: Run, width: int) -> list[Line]:
    last, shares = _last_start(run), busy(run)
    hosts = list(last["hosts"])
    where = hosts[0] if len(hosts) == 1 else f"{len(hosts)} hosts: {', '.join(hosts)}"
    phrases = [(f"{count(last['ranks'], 'rank')} on {where}", "")]
    if len(shares) > 16:
        low, median, high = np.quantile(list(shares.values()), (0, 0.5, 1))
        phrases.append((f"busy {low:.0%} to {high:.0%}, median {median:.0%}", ""))
    elif shares:
        phrases += [("busy", "dim"), *((f"{rank}: {share:.0%}", "") for rank, share in shares.items())]
    return flow(phrases, width)[:4]
