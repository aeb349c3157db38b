"""What a run shows: a few words at the start, progress while it goes, a short table at the end; rank 0 only."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from mfedpba_mpi.cli.console import bytes_of, console, count, table
from mfedpba_mpi.comm.launcher import started_by_mpirun
from mfedpba_mpi.config.fields import fields_of, toml
from mfedpba_mpi.config.run_config import RunConfig
from mfedpba_mpi.engine.observers import End, Observer, Round, Start
from mfedpba_mpi.methods.params import METHODS
from mfedpba_mpi.models.architecture import Architecture
from mfedpba_mpi.records.run import LOG_NAME, Run, load_run

# What the words at the start say of a configuration in another place.
_SAID = {
    *("dataset", "method", "partition", "clients", "alpha", "fusion", "validation", "seed", "samples", "classes"),
    *("dims", "rounds", "lr", "epochs", "batch_size", "feature_dim", "params"),
}
_QUIET_SECONDS = 15.0  # between two lines where there is no bar


class Screen(Observer):
    """The observer that people look at.

    Parameters
    ----------
    directory : where the run's log is.
    spare : how many ranks have nothing to do.
    brief : no table at the end.
    """

    decides = False

    def __init__(self, directory: Path, spare: int = 0, brief: bool = False):
        self.directory, self.spare, self.brief = directory, spare, brief
        self.console = console()
        self.bar: Progress | None = None
        self.accuracy = float("nan")

    def warn(self, words: str) -> None:
        self.console.print(f"[yellow]{escape(words)}[/]")

    def start(self, start: Start) -> None:
        self.stop()
        config, info = start.problem.config, start.store.info
        skew = "" if config.alpha is None else f", label skew alpha {config.alpha:g}"
        origin = "SYNTHETIC stand-in" if start.store.origin == "synthetic" else "real"
        self.console.print(
            f"[bold]{METHODS[config.method].label}[/] on [bold]{info.name}[/] ({origin} data: {info.samples} samples, "
            f"{info.classes} classes, {count(start.problem.M, 'modality', 'modalities')}), "
            f"partition {config.partition}{skew}, {count(start.problem.K, 'client')}, fusion {config.fusion}, "
            f"seed {config.seed}"
        )
        self.console.print(settings_line(config), markup=False)
        self.measure = "validation accuracy" if config.validation else "accuracy"
        if config.validation:
            self.console.print(
                f"accuracies are of {config.validation:.0%} of the training rows, held out, not of test rows"
            )
        if start.store.origin == "synthetic" and info.name != "synthetic":
            where = escape(str(start.data_dir))
            self.console.print(f"(there is no {info.name}.h5 in {where}; `data import` brings in the real data)")
        if not start.shards.resolve().is_relative_to(start.data_dir):
            self.console.print(f"(the clients' rows are dealt out in {escape(str(start.shards.parent.parent))})")
        workers = len(start.ranks) - 1
        where = f"server on rank 0, clients on ranks 1 to {workers}" if workers else "one process"
        self.console.print(f"{where}, {start.environment['mpi']}; log {escape(str(self.directory / LOG_NAME))}")
        if self.spare:
            needed = start.problem.K + 1
            idle = f"{count(self.spare, 'rank')} {'has' if self.spare == 1 else 'have'}"
            self.console.print(f"{idle} nothing to do: {needed} ranks would do")
        if start.finished:
            self.console.print(f"goes on after round {start.finished} of {config.rounds}")
        self.rounds, self.before = config.rounds, start.finished
        self.began = self.spoke = time.monotonic()
        # Open MPI's mpirun passes on whole lines, and may kill what hid a cursor.
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
        for warning in result.warnings:
            self.warn(f"round {result.t}: {warning}")
        now = time.monotonic()
        if self.bar:
            self.bar.update(self.task, advance=1, description=words)
        elif now - self.spoke > _QUIET_SECONDS or result.t in (self.before + 1, self.rounds):
            each = (now - self.began) / (result.t - self.before)
            left = time.strftime("%H:%M:%S", time.gmtime(each * (self.rounds - result.t)))
            self.console.print(f"round {result.t:4d}/{self.rounds}  {words}  {each:.3f} s a round  ETA {left}")
            self.spoke = now

    def end(self, end: End) -> None:
        self.stop()
        for line in () if self.brief else summary(load_run(self.directory)):
            self.console.print(line)

    def stop(self) -> None:
        """Leave the terminal as it was."""
        if self.bar:
            self.bar.stop()


def settings_line(config: RunConfig) -> str:
    """How clients learn, the method's weights and rates, and whatever else is not at its default."""
    words = [
        count(config.rounds, "round"), f"lr {config.lr:g}", count(config.epochs, "local epoch"),
        f"batch size {config.batch_size}", f"feature dim {config.feature_dim}",
    ]  # fmt: skip
    own = {name: (getattr(config.params, name), field) for name, field in fields_of(type(config.params)).items()}
    rest = {name: (getattr(config, name), field) for name, field in fields_of(RunConfig).items() if name not in _SAID}
    shown = [(name, value) for name, (value, field) in own.items() if type(value) is float or value != field.default]
    shown += [(name, value) for name, (value, field) in rest.items() if value != field.default]
    words += [f"{name} {value:g}" if type(value) is float else f"{name} {toml(value)}" for name, value in shown]
    return ", ".join(words)


def summary(run: Run) -> Iterator[str | Table]:
    """The clients, the average, where time went, the payload and where the log is, as lines to print."""
    yield client_table(run, f"Clients after the last round{run.remark}")
    s, last = run.summary(), "five" if len(run.evaluated) >= 5 else count(len(run.evaluated), "round")
    yield (
        f"{run.attributes['label']}: average accuracy{run.remark}: last round {s['last']:.2%}, best {s['best']:.2%}, "
        f"mean of the last {last} {s['last_five']:.2%} (unweighted mean of clients {s['client_mean_last_five']:.2%})"
    )
    total = run.rounds["seconds_total"]
    shares = ", ".join(f"{name} {part.sum() / total.sum():.0%}" for name, part in run.time_parts().items())
    yield f"time: {total.sum():.1f} s, {np.median(total):.3f} s a round (median of {len(total)}); {shares}"
    yield payload_line(run)
    yield escape(f"log: {run.path}   (Python: mfedpba_mpi.load_run({str(run.path.parent)!r}))")


def client_table(run: Run, title: str, most: int = 24) -> Table:
    """The first few clients, where there are many, as a table."""
    headers, rows = client_rows(run)
    more = [["", f"and {len(rows) - most} more", *[""] * (len(headers) - 2)]] if len(rows) > most else []
    return table(headers, [*rows[:most], *more], title)


def client_rows(run: Run) -> tuple[list[str], list[list[object]]]:
    """Modalities, networks, samples and accuracy of each client after the last evaluated round."""
    names, part = run.attributes["modalities"], run.partition
    accuracy = run.rounds["accuracy"][run.evaluated[-1] - 1]
    train, test = np.diff(part["train_offsets"]), np.diff(part["test_offsets"])
    rows: list[list[object]] = []
    for k in range(len(train)):
        owned = " ".join(names[m] for m in np.flatnonzero(part["modalities"][k]))
        networks = ", ".join(str(Architecture.from_dict(a)) for a in json.loads(part["architectures"][k]))
        rows.append([k, owned, networks, train[k], test[k], f"{accuracy[k]:.2%}"])
    return ["client", "modalities", "networks", "train", "validation" if run.validation else "test", "accuracy"], rows


def payload_line(run: Run) -> str:
    """Payload a round, measured, beside the paper's formula K 2 C (M_k d + C)."""
    up, down = run.rounds["bytes_up"].sum(axis=1).mean(), run.rounds["bytes_down"].sum(axis=1).mean()
    line = f"payload a round: {bytes_of(up)} up, {bytes_of(down)} down"
    formula = run.formula_floats()
    if formula is None:
        return line
    each = bytes_of(4 * (formula @ run.rounds["participants"].T).mean())
    return f"{line} (the paper's formula, own modalities both ways: {each} up, {each} down)"
