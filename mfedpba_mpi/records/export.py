"""Runs as files for other programs: CSV, Parquet, or TensorBoard's event files.

A table contains all runs, with a column `run` to group by in pandas or R, so a script for one run works for fifty.
TensorBoard gets one directory per run, which it shows as the run's name; the name says if the data are synthetic.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from mfedpba_mpi.config.fields import flat
from mfedpba_mpi.data.catalog import printable
from mfedpba_mpi.errors import UserError
from mfedpba_mpi.files import replacing
from mfedpba_mpi.records.run import Run, bracketed

Writer = Callable[[Path], None]
TABLES = {
    "rounds": "rounds_frame", "clients_rounds": "frame", "clients": "clients_frame", "modalities": "modalities_frame"
}  # fmt: skip
EVENTS = "events.out.tfevents.mfedpba-mpi"  # a fixed name, so that a second export replaces the first


def named(runs: Sequence[Run]) -> dict[str, Run]:
    """Runs by the names of their directories, with as many parent directories as are needed to make them unique."""
    places = [run.path.parent if run.path.name == "run.h5" else run.path.with_suffix("") for run in runs]
    parts = [[printable(part) for part in Path(os.path.abspath(place)).parts[1:]] or ["run"] for place in places]
    for depth in range(1, max(map(len, parts)) + 1):
        names = ["/".join(part[-depth:]) for part in parts]
        if len(set(names)) == len(names):
            return dict(zip(names, runs, strict=True))
    raise UserError(f"the names of {', '.join(map(str, places))} are not unique; rename one")


def table_files(runs: dict[str, Run], directory: Path, suffix: str) -> dict[Path, Writer]:
    """Writers of all tables, as CSV or Parquet (`suffix`), and of the runs' settings, by path."""
    files: dict[Path, Writer] = {
        directory / f"{name}.{suffix}": partial(_write_table, runs, name, suffix) for name in TABLES
    }
    return files | {directory / "config.json": partial(_write_settings, runs)}


def event_files(runs: dict[str, Run], directory: Path) -> dict[Path, Writer]:
    """Writers of one event file per run, with its scalars and its settings, by path."""
    return {
        directory / f"{name}{bracketed(run.remark)}" / EVENTS: partial(_write_events, name, run)
        for name, run in runs.items()
    }


def write(files: dict[Path, Writer], overwrite: bool) -> None:
    """Write all files, or none if one of them exists already or cannot be written."""
    path = Path()
    try:
        for path in files:
            if path.exists() and not overwrite:
                raise UserError(f"{path} exists already; replace it with --overwrite")
        with ExitStack() as stack:
            for path, write_file in files.items():
                path.parent.mkdir(parents=True, exist_ok=True)
                write_file(stack.enter_context(replacing(path)))
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}; choose another directory") from None


def _write_table(runs: dict[str, Run], name: str, suffix: str, path: Path) -> None:
    """Write one of TABLES for all runs. The first columns are run, method, dataset, seed, synthetic and validation."""
    import pandas as pd

    frames = []
    for key, run in runs.items():
        frame = getattr(run, TABLES[name])()
        labels = {"run": key, **{column: frame.attrs[column] for column in ("method", "dataset", "seed")}}
        frames.append(frame.assign(**labels).astype({column: type(value) for column, value in labels.items()}))
    table = pd.concat(frames, ignore_index=True)
    first = [*labels, "synthetic", "validation"]
    table = table[[*first, *(column for column in table.columns if column not in first)]]
    table.attrs = {"runs": {key: frame.attrs for key, frame in zip(runs, frames, strict=True)}}
    if suffix == "csv":
        table.to_csv(path, index=False, lineterminator="\n", encoding="utf-8")
    else:
        table.to_parquet(path, index=False, engine="pyarrow")


def _write_settings(runs: dict[str, Run], path: Path) -> None:
    path.write_text(json.dumps({name: _settings(run) for name, run in runs.items()}, indent=2) + "\n", encoding="utf-8")


def _settings(run: Run) -> dict[str, Any]:
    """The log's attributes, and whether its numbers are of synthetic data or validation rows."""
    return {"synthetic": run.synthetic, "validation": run.validation, **run.attributes}


def _write_events(name: str, run: Run, path: Path) -> None:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.hparams.summary_v2 import hparams_pb
    from tensorboard.plugins.text.summary_v2 import text_pb
    from tensorboard.summary.writer.record_writer import RecordWriter

    start, times = _clock(run)
    code = json.dumps(_settings(run), indent=2).replace("\n", "\n    ")  # Markdown shows indented text verbatim
    text = f"**{run.remark or 'real data'}**, {run.status}\n\n    {code}"
    events = [
        Event(wall_time=start, file_version="brain.Event:2"),
        Event(wall_time=start, summary=hparams_pb(_hyper_parameters(run), name, start)),
        Event(wall_time=start, summary=text_pb("run", text)),
    ]
    for t, (wall_time, scalars) in enumerate(zip(times, _scalars(run), strict=True), 1):
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
        events.append(Event(wall_time=wall_time, step=t, summary=Summary(value=values)))
    with path.open("wb") as file:
        writer = RecordWriter(file)
        for event in events:
            writer.write(event.SerializeToString())


def _clock(run: Run) -> tuple[float, list[float]]:
    """Start time, and end times of all rounds, in seconds since 1970; a resume starts its own clock."""
    import numpy as np

    seconds = run.rounds.get("seconds_total", np.zeros(0))
    starts = [
        (0, run.attributes["started"]),
        *((again["round"], again["started"]) for again in run.attributes["resumed"]),
    ]
    times = np.zeros(len(seconds))
    for finished, words in starts:
        times[finished:] = datetime.fromisoformat(words).timestamp() + np.cumsum(seconds[finished:])
    return datetime.fromisoformat(starts[0][1]).timestamp(), times.tolist()


def _scalars(run: Run) -> Iterator[dict[str, float]]:
    """The scalars of each round by tag: those of `rounds_frame`, clients' accuracies, and transport plans."""
    import pandas as pd

    rounds = run.rounds_frame().drop(columns=["correct", "tested", "synthetic", "validation"]).astype(float)
    rounds.columns = [{"accuracy": "accuracy/average"}.get(name, name.replace("_", "/", 1)) for name in rounds.columns]
    clients, plans = run.frame(), run.modalities_frame().query("client.isna()")
    clients = clients.assign(tag="accuracy/client_" + clients["client"].astype(str), value=clients["accuracy"])
    plans = plans.assign(tag=plans["quantity"] + "/" + plans["modality"])
    columns = ["round", "tag", "value"]
    numbers = pd.concat([rounds.melt("round", var_name="tag"), clients[columns], plans[columns]]).dropna()
    for _, group in numbers.groupby("round"):
        yield dict(zip(group["tag"], group["value"], strict=True))


def _hyper_parameters(run: Run) -> dict[str, bool | float | str]:
    """The settings for TensorBoard: a method's own as method.name, lists as text, and the origin of the data."""
    settings = {"data_origin": run.attributes["data_origin"], **flat(run.attributes["config"])}
    return {
        name: value if isinstance(value, (bool, int, float)) else printable(str(value))
        for name, value in settings.items()
        if value is not None
    }
