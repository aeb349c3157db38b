"""Runs and studies to watch, and their views as text."""

import io
from pathlib import Path

import numpy as np
from rich.console import Console

from mfedpba_mpi import Run
from mfedpba_mpi.cli.watch import rendered
from mfedpba_mpi.data.seal import open_image, seal
from mfedpba_mpi.errors import RUNNING
from mfedpba_mpi.records.run import LOG_NAME
from mfedpba_mpi.records.status import RunState
from mfedpba_mpi.watch.views import WatchedRun

STUDY = """
title = "Small"
[settings]
dataset = "synthetic"
[cross]
method = ["local", "fedproto"]
seed = [0, 1]
"""


def run_of(T=5, K=3, rounds=10, warnings=(), **changes):
    """A running run: T finished rounds of two seconds each; client k computed for (k + 1) / 10 seconds per round."""
    clients = np.arange(1, K + 1) / 10
    attributes = {
        "label": "MFedPBA", "dataset": "mfeat", "data_origin": "synthetic", "status": RUNNING, "ranks": K + 1,
        "hosts": ["node1", "node2"], "resumed": [], "seconds_setup": 3.0, "seed": 0,
        "config": {"rounds": rounds, "partition": "m2", "validation": 0.0},
    }  # fmt: skip
    arrays = {
        "tested": np.full((T, K), 20), "correct": np.linspace(5, 15, T).round().astype(int)[:, None].repeat(K, 1),
        "accuracy": np.full((T, K), 0.5), "loss_ce": np.ones((T, K)), "server_rec": np.full(T, np.nan),
        "seconds_total": np.full(T, 2.0), "seconds_train": np.full(T, 1.0), "seconds_server": np.full(T, 0.5),
        "seconds_eval": np.full(T, 0.25), "seconds_comm": np.full(T, 0.25), "seconds_checkpoint": np.zeros(T),
        "seconds_client": np.tile(clients, (T, 1)),
    }  # fmt: skip
    empty = {name: arrays[name][:0] for name in ("accuracy", "correct", "tested")}  # as `load_run` returns them
    partition = {"rank": np.arange(1, K + 1)}
    return Run(Path("somewhere/run.h5"), attributes | changes, arrays if T else empty, partition, {}, warnings)


def watched(run, status=RUNNING, reason=""):
    """A run in this state, as `watch` sees it."""
    result = WatchedRun(Path("somewhere"))
    result.run, result.state = run, RunState(status, reason)
    return result


def shown(subject, width=80, height=24, **options):
    """The view of a watched run or study on a terminal of this size, as text."""
    screen = Console(file=io.StringIO(), force_terminal=True, width=width, height=height, color_system=None, **options)
    screen.print(rendered(subject, screen))
    return screen.file.getvalue().rstrip("\n")


def set_attributes(directory, **attributes):
    """Change attributes of the log in a directory."""
    path, aside = directory / LOG_NAME, directory / "aside"
    with open_image(path) as file:
        file.attrs.update(attributes)
        file.flush()
        aside.write_bytes(seal(file.id.get_file_image()))
    aside.replace(path)


def study_at(directory, finished):
    """A study with one complete run, one running run (if its lock is held) and two waiting ones."""
    for method in ("local", "fedproto"):
        (directory / method).mkdir(parents=True)
        finished(method=method).path.parent.rename(directory / method / "s0")
    set_attributes(directory / "fedproto/s0", status=RUNNING)
    (directory / "study.toml").write_text(STUDY)
    return directory
