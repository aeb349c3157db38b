"""Reading a run back, finished or still going; `data/sealed.py` says how its log is kept from damage."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np

from mfedpba_mpi.cli.console import count
from mfedpba_mpi.data.partition import Partition
from mfedpba_mpi.data.sealed import open_image
from mfedpba_mpi.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

LOG_NAME, CHECKPOINTS = "run.h5", "checkpoints"  # in a run's directory


@dataclass(frozen=True, repr=False)
class Run:
    """A run as far as it has come.

    Attributes
    ----------
    attributes : the log's root attributes; ``config`` already parsed.
    rounds : by name, arrays whose first axis is the round.
    partition, final : by name, arrays (and the digests); `final` is empty while the run is going.
    """

    path: Path
    attributes: dict[str, Any]
    rounds: dict[str, np.ndarray]
    partition: dict[str, Any]
    final: dict[str, Any]

    def __repr__(self) -> str:
        done, config = len(self.rounds.get("tested", ())), self.attributes["config"]
        what = f"{self.attributes['label']} on {self.attributes['dataset']}{self.remark}"
        return f"<Run {self.path.parent}: {what}, {self.status} after {done} of {count(config['rounds'], 'round')}>"

    @property
    def status(self) -> str:
        """``running``, ``complete``, ``interrupted`` or ``failed``."""
        return str(self.attributes["status"])

    @property
    def synthetic(self) -> bool:
        """Whether the data were made up; say so wherever a number of this run is shown."""
        return self.attributes["data_origin"] == "synthetic"

    @property
    def validation(self) -> bool:
        """Whether accuracies were measured on held out training rows, not on test rows."""
        return bool(self.attributes["config"].get("validation"))

    @property
    def remark(self) -> str:
        """What must be said wherever a number of this run is shown, in brackets after a blank; often nothing."""
        said = ["synthetic data"] * self.synthetic + ["validation rows"] * self.validation
        return f" ({', '.join(said)})" if said else ""

    @property
    def evaluated(self) -> np.ndarray:
        """The rounds (from 1) after which the clients were tested."""
        return np.flatnonzero(self.rounds["tested"].max(axis=1, initial=-1) >= 0) + 1

    def average(self) -> np.ndarray:
        """Avg = sum_k correct_k / sum_k tested_k of every evaluated round, the paper's formula."""
        rows = self.evaluated - 1
        return self.rounds["correct"][rows].sum(axis=1) / self.rounds["tested"][rows].sum(axis=1)

    def client_mean(self) -> np.ndarray:
        """The arithmetic mean of the clients' accuracies of every evaluated round, as the paper's words have it."""
        return self.rounds["accuracy"][self.evaluated - 1].mean(axis=1)

    def summary(self) -> dict[str, float]:
        """Accuracy in the last round, the best round, and on average over the last five evaluated rounds."""
        average, mean = self.average(), self.client_mean()
        if not len(average):
            return {}
        return {
            "last": float(average[-1]), "best": float(average.max()), "last_five": float(average[-5:].mean()),
            "client_mean_last": float(mean[-1]), "client_mean_last_five": float(mean[-5:].mean()),
        }  # fmt: skip

    def time_parts(self) -> dict[str, np.ndarray]:
        """Where the seconds of every round went; of the evaluation what did not hide behind the server's step."""
        parts = {name: self.rounds[f"seconds_{name}"] for name in ("train", "server", "eval", "comm", "checkpoint")}
        others = sum(seconds for name, seconds in parts.items() if name != "eval")
        parts["eval"] = np.clip(self.rounds["seconds_total"] - others, 0, parts["eval"])
        return parts

    def formula_floats(self) -> np.ndarray | None:
        """Floats of each client, a round and way, by the paper's C (M_k d + C); None where it is not MFedPBA."""
        if self.attributes["method"] != "mfedpba":
            return None
        C, d = self.attributes["classes"], self.attributes["config"]["feature_dim"]
        return C * (self.partition["modalities"].sum(axis=1) * d + C)

    def as_partition(self) -> Partition:
        """Who owns what, to be saved and used by other runs; test rows are those that accuracies were measured on."""
        return Partition.from_arrays(self.partition, self.attributes["modalities"])

    def predictions(self) -> pd.DataFrame:
        """A data frame with a row for each test item in the last round: the true class and the predicted one."""
        from mfedpba_mpi.records.frames import predictions_frame

        return predictions_frame(self)

    def frame(self) -> pd.DataFrame:
        """A tidy data frame with a row for each round and client; `records/frames.py` says what is in the four."""
        from mfedpba_mpi.records.frames import clients_rounds_frame

        return clients_rounds_frame(self)

    def rounds_frame(self) -> pd.DataFrame:
        """A data frame with a row a round."""
        from mfedpba_mpi.records.frames import rounds_frame

        return rounds_frame(self)

    def clients_frame(self) -> pd.DataFrame:
        """A data frame with a row a client."""
        from mfedpba_mpi.records.frames import clients_frame

        return clients_frame(self)

    def modalities_frame(self) -> pd.DataFrame:
        """A data frame with a row for each value of the arrays with an axis of modalities."""
        from mfedpba_mpi.records.frames import modalities_frame

        return modalities_frame(self)


def mean_of_clients(values: np.ndarray) -> np.ndarray:
    """(T, K) -> (T,), over those that are not NaN; NaN where all are."""
    known = ~np.isnan(values)
    total = np.where(known, values, 0).sum(axis=1)
    return np.divide(total, known.sum(axis=1), out=np.full(len(values), np.nan), where=known.any(axis=1))


def remark_of(runs: Iterable[Run]) -> str:
    """What must be said wherever numbers of these runs are shown together, without brackets; often nothing."""
    return joint_remark(run.remark for run in runs)


def joint_remark(remarks: Iterable[str]) -> str:
    """One remark for several, each as `Run.remark` has it."""
    said = {remark.strip(" ()") for remark in remarks}
    words = ", ".join(sorted(said - {""}))
    return f"partly {words}" if words and "" in said else words


def load_run(path: str | Path) -> Run:
    """Read a run's log.

    Parameters
    ----------
    path : the run's directory, or its ``run.h5``. A run that is being written may be read at any time.
    """
    path = Path(path)
    path = path / LOG_NAME if path.is_dir() else path
    with _reading(path) as file:
        return _read(in_full(path.parent) / path.name, file)


def run_directory(path: Path) -> Path:
    """The directory of the run at `path`, which may be its log."""
    return in_full(path.parent if path.name == LOG_NAME and path.is_file() else path)


def in_full(path: Path) -> Path:
    """`path` with a last part that names it: ``.`` and ``..`` are written out."""
    return path.resolve() if path.name in ("", "..") else path


def status_of(directory: Path) -> str | None:
    """The status of the run in a directory, None where there is none."""
    path = directory / LOG_NAME
    if not path.is_file():
        return None
    with _reading(path) as file:
        return str(file.attrs["status"])


@contextmanager
def _reading(path: Path) -> Iterator[h5py.File]:
    if not path.is_file():
        raise UserError(f"no run at {path}; a run's directory holds {LOG_NAME}")
    if not os.access(path, os.R_OK):
        raise UserError(f"{path} is there, but you may not read it; see to its permissions")
    try:
        with open_image(path) as file:
            yield file
    except (OSError, KeyError, ValueError, RuntimeError) as error:
        raise UserError(
            f"{path} is not a readable run log (damaged, or not ours): {error}; `mfedpba-mpi resume` makes it anew "
            "where there is a checkpoint"
        ) from None


def _read(path: Path, file: h5py.File) -> Run:
    attributes = {name: _plain(value) for name, value in file.attrs.items()}
    for name in ("config", "hosts", "modalities", "resumed"):
        attributes[name] = json.loads(attributes[name])
    attributes["plugins"] = json.loads(attributes.get("plugins", "[]"))  # the first logs did not have it
    rounds = {name: data[()] for name, data in file["rounds"].items()}
    final = {name: _array(data) for name, data in file["final"].items()} if "final" in file else {}
    if final:
        final["server_sha256"] = file["final"].attrs["server_sha256"]
        if "predicted" in final:  # the first logs do not have it
            final["predictors"] = json.loads(file["final/predicted"].attrs["predictors"])
    partition = {name: _array(data) for name, data in file["partition"].items()}
    for name, kind in (("accuracy", float), ("correct", int), ("tested", int)):  # there also before the first round
        rounds.setdefault(name, np.empty((0, len(partition["rank"])), kind))
    return Run(path, attributes, rounds, partition, final)


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _array(data: h5py.Dataset) -> Any:
    return data.asstr()[()].tolist() if h5py.check_string_dtype(data.dtype) else data[()]
