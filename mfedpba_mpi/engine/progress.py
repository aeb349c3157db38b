"""What a run prints: its settings at the start, progress, and a table of clients at the end."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from mfedpba_mpi.cli.console import Throttle, bytes_of, console, count, table
from mfedpba_mpi.comm.launcher import started_by_mpirun
from mfedpba_mpi.config.fields import fields_of, toml
from mfedpba_mpi.config.run_config import RunConfig
from mfedpba_mpi.engine.observers import End, Observer, Round, Start
from mfedpba_mpi.methods.params import METHODS
from mfedpba_mpi.models.architecture import Architecture
from mfedpba_mpi.records.run import LOG_NAME, Run, bracketed, load_run
from mfedpba_mpi.records.tables import NumberText

# Settings that the first lines show in their own way.
_OMITTED = {
    *("dataset", "method", "partition", "clients", "alpha", "fusion", "validation", "seed", "samples", "classes"),
    *("dims", "rounds", "lr", "clip", "epochs", "batch_size", "feature_dim", "params"),
}
_SECONDS = 15.0  # between two lines if there is no progress bar


class Screen(Observer):
    """The observer that prints progress.

    Parameters
    ----------
    directory : the run's directory.
    spare : number of spare ranks.
    """

    decides = False

    def __init__(self, directory: Path, spare: int = 0):
        self.directory, self.spare = directory, spare
        self.console = console()
        self.bar: Progress | None = None
        self.accuracy = float("nan")

    def start(self, start: Start) -> None:
        self.stop()
        config, info = start.problem.config, start.store.info
        skew = "" if config.alpha is None else f", label skew alpha {config.alpha:g}"
        origin = "SYNTHETIC stand-in" if start.store.origin == "synthetic" else "real"
        self.console.print(
            f"[bold]{METHODS[config.method].label}[/] on [bold]{info.name}[/] ({origin} data: {info.samples} samples, "
            f"{info.classes} classes, {count(start.problem.M, 'modality', 'modalities')}), "
            f"partition {config.partition}{skew}, {count(start.problem.K, 'client')}, fusion {config.fusion}, "
            f"seed {config.seed}{'' if config.problem_seed is None else f', problem seed {config.problem_seed}'}"
        )
        self.console.print(settings_line(config), markup=False)
        self.measure = "validation accuracy" if config.validation else "accuracy"
        if config.validation:
            self.console.print(
                f"accuracies are measured on {config.validation:.0%} of the training rows, held out, not on test rows"
            )
        if start.store.origin == "synthetic" and info.name != "synthetic":
            where = escape(str(start.data_dir))
            command = f"data import {info.name} --from PATH"
            self.console.print(f"(no {info.name}.h5 in {where}; import the real data with `{command}`)")
        if not start.shards.resolve().is_relative_to(start.data_dir):
            self.console.print(f"(shards are in {escape(str(start.shards.parent.parent))})")
        workers = len(start.ranks) - 1
        ranks = "rank 1" if workers == 1 else f"ranks 1 to {workers}"
        where = f"server on rank 0, clients on {ranks}" if workers else "one process"
        kinds = Counter(start.environment["devices"])
        devices = ", ".join(kind if len(kinds) == 1 else f"{n} x {kind}" for kind, n in kinds.items())
        log = escape(str(self.directory / LOG_NAME))
        self.console.print(f"{where}, {start.environment['mpi']}, on {escape(devices)}; log {log}")
        if self.spare:
            self.console.print(f"{count(self.spare, 'rank')} idle: {start.problem.K + 1} ranks are enough")
        if start.finished:
            self.console.print(f"resuming after round {start.finished} of {config.rounds}")
        self.rounds, self.before = config.rounds, start.finished
        self.began, self.throttle = time.monotonic(), Throttle(_SECONDS)
        # mpirun forwards whole lines only, and may kill a process that has hidden the cursor
        if self.console.is_terminal and not started_by_mpirun():
            self.bar = Progress(
                TextColumn("round"), MofNCompleteColumn(), BarColumn(), TextColumn("{task.description}"),
                TimeElapsedColumn(), TextColumn("ETA"), TimeRemainingColumn(), console=self.console,
            )  # fmt: skip
            self.task = self.bar.add_task("", total=config.rounds, completed=start.finished)
            self.bar.start()

    def round(self, result: Round) -> None:
        tested = result.values["tested"]
        if tested.max() >= 0:
            self.accuracy = result.values["correct"].sum() / tested.sum()
        words = "" if np.isnan(self.accuracy) else f"{self.measure} {self.accuracy:6.2%}"
        if self.bar:
            self.bar.update(self.task, advance=1, description=words)
        elif self.throttle.due() or result.t in (self.before + 1, self.rounds):
            each = (time.monotonic() - self.began) / (result.t - self.before)
            left = time.strftime("%H:%M:%S", time.gmtime(each * (self.rounds - result.t)))
            self.console.print(f"round {result.t:4d}/{self.rounds}  {words}  {each:.3f} s per round  ETA {left}")
            self.throttle.reset()

    def end(self, end: End) -> None:
        self.stop()
        for line in summary(load_run(self.directory)):
            self.console.print(line)

    def stop(self) -> None:
        """Restore the terminal."""
        if self.bar:
            self.bar.stop()


def settings_line(config: RunConfig) -> str:
    """The main training settings, the method's weights and rates, and every other setting that is not the default."""
    words = [
        count(config.rounds, "round"), f"lr {config.lr:g}", f"clip {config.clip:g}",
        count(config.epochs, "local epoch"), f"batch size {config.batch_size}", f"feature dim {config.feature_dim}",
    ]  # fmt: skip
    own = {name: (getattr(config.params, name), field) for name, field in fields_of(type(config.params)).items()}
    rest = {
        name: (getattr(config, name), field) for name, field in fields_of(RunConfig).items() if name not in _OMITTED
    }
    shown = [(name, value) for name, (value, field) in own.items() if type(value) is float or value != field.default]
    shown += [(name, value) for name, (value, field) in rest.items() if value != field.default]
    words += [f"{name} {value:g}" if type(value) is float else f"{name} {toml(value)}" for name, value in shown]
    return ", ".join(words)


def summary(run: Run) -> Iterator[str | Table]:
    """Lines to print at the end: clients, accuracies, time, payload and the path of the log."""
    yield client_table(run, f"Clients after the last round{bracketed(run.remark)}")
    last = "five" if len(run.evaluated) >= 5 else count(len(run.evaluated), "round")
    for predictor, judged in run.by_predictor().items():
        s, by = judged.summary(), f" by {predictor}" if predictor else ""
        yield (
            f"{run.attributes['label']}: average accuracy{by}{bracketed(run.remark)}: last round {s['last']:.2%}, "
            f"best {s['best']:.2%}, mean of the last {last} {s['last_five']:.2%} "
            f"(unweighted mean of clients {s['client_mean_last_five']:.2%})"
        )
    total = run.rounds["seconds_total"]
    shares = ", ".join(f"{name} {part.sum() / total.sum():.0%}" for name, part in run.time_parts().items())
    yield f"time: {total.sum():.1f} s, {np.median(total):.3f} s per round (median of {len(total)}); {shares}"
    yield f"payload per round: {payload_text(run)}"
    yield escape(f"log: {run.path}   (Python: mfedpba_mpi.load_run({str(run.path.parent)!r}))")


def client_table(run: Run, title: str, most: int = 24) -> Table:
    """The clients as a table, the first `most` of them if there are many."""
    headers, rows = client_rows(run)
    more = [["", f"and {len(rows) - most} more", *[""] * (len(headers) - 2)]] if len(rows) > most else []
    return table(headers, [*rows[:most], *more], title)


def client_rows(run: Run) -> tuple[list[str], list[list[object]]]:
    """Headers and rows: modalities, networks, samples and last accuracy of each client."""
    names, part = run.attributes["modalities"], run.partition
    accuracy = run.rounds["accuracy"][run.evaluated[-1] - 1]
    train, test = np.diff(part["train_offsets"]), np.diff(part["test_offsets"])
    rows: list[list[object]] = []
    for k in range(len(train)):
        owned = " ".join(names[m] for m in np.flatnonzero(part["modalities"][k]))
        networks = ", ".join(str(Architecture.from_dict(a)) for a in json.loads(part["architectures"][k]))
        rows.append([k, owned, networks, train[k], test[k], NumberText(f"{accuracy[k]:.2%}", accuracy[k])])
    return ["client", "modalities", "networks", "train", "validation" if run.validation else "test", "accuracy"], rows


def payload_text(run: Run) -> str:
    """Mean payload of a round, beside the paper's formula if it has one for the run."""
    up, down = run.rounds["bytes_up"].sum(axis=1).mean(), run.rounds["bytes_down"].sum(axis=1).mean()
    text = f"{bytes_of(up)} up, {bytes_of(down)} down"
    formula = run.formula_floats()
    if formula is None:
        return text
    each = bytes_of(4 * (formula @ run.rounds["participants"].T).mean())
    return f"{text} (paper's formula, own modalities in both directions: {each} up, {each} down)"
