"""Reading the log of a run, finished or still running. `data/seal.py` describes how the log detects damage."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import h5py
import numpy as np

from mfedpba_mpi.cli.console import count
from mfedpba_mpi.data.partition import Partition
from mfedpba_mpi.data.seal import open_image
from mfedpba_mpi.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

LOG_NAME, CHECKPOINTS = "run.h5", "checkpoints"  # in a run's directory
FORMAT, FORMAT_VERSION = "mfedpba-run", 1  # of the log; logs of version 0.1.0 of the program have neither


class RunWarning(NamedTuple):
    """A warning of a run, and the round that it concerns (0: before the first)."""

    round: int
    text: str


@dataclass(frozen=True, repr=False)
class Run:
    """The log of a run, complete or not.

    Attributes
    ----------
    path : Path
        The log file.
    attributes : dict
        The log's root attributes, with those in JSON parsed (``config``, ``hosts``, ``modalities``, ...).
    rounds : dict of str to array
        Arrays whose first axis is the round.
    partition : dict of str to array
        The clients and their rows.
    final : dict of str to array
        The final state and its digests; empty until the run is complete.
    warnings : sequence of RunWarning
        Every warning of the run, with its round.
    """

    path: Path
    attributes: dict[str, Any]
    rounds: dict[str, np.ndarray]
    partition: dict[str, Any]
    final: dict[str, Any]
    warnings: Sequence[RunWarning] = ()

    def __repr__(self) -> str:
        done, config = len(self.rounds.get("tested", ())), self.attributes["config"]
        what = f"{self.attributes['label']} on {self.attributes['dataset']}{bracketed(self.remark)}"
        return f"<Run {self.path.parent}: {what}, {self.status} after {done} of {count(config['rounds'], 'round')}>"

    @property
    def status(self) -> str:
        """``running``, ``complete``, ``interrupted`` or ``failed``."""
        return str(self.attributes["status"])

    @property
    def synthetic(self) -> bool:
        """Whether the data are synthetic. Must be shown with every number of the run."""
        return self.attributes["data_origin"] == "synthetic"

    @property
    def validation(self) -> bool:
        """Whether accuracies were measured on held-out training rows, not on test rows."""
        return bool(self.attributes["config"].get("validation"))

    @property
    def remark(self) -> str:
        """What must be shown with every number of the run: synthetic data, validation rows; "" if neither."""
        return ", ".join(["synthetic data"] * self.synthetic + ["validation rows"] * self.validation)

    @property
    def evaluated(self) -> np.ndarray:
        """The rounds (from 1) after which the clients were evaluated."""
        return np.flatnonzero(self.rounds["tested"].max(axis=1, initial=-1) >= 0) + 1

    def average(self) -> np.ndarray:
        """Avg = sum_k correct_k / sum_k tested_k of every evaluated round (the paper's formula)."""
        rows = self.evaluated - 1
        return self.rounds["correct"][rows].sum(axis=1) / self.rounds["tested"][rows].sum(axis=1)

    def client_mean(self) -> np.ndarray:
        """Unweighted mean of the clients' accuracies in every evaluated round (the paper's text)."""
        return self.rounds["accuracy"][self.evaluated - 1].mean(axis=1)

    def summary(self) -> dict[str, float]:
        """Accuracy of the last round, of the best round, and mean of the last five evaluated rounds."""
        average, mean = self.average(), self.client_mean()
        if not len(average):
            return {}
        return {
            "last": float(average[-1]), "best": float(average.max()), "last_five": float(average[-5:].mean()),
            "client_mean_last": float(mean[-1]), "client_mean_last_five": float(mean[-5:].mean()),
        }  # fmt: skip

    @property
    def predictors(self) -> tuple[str, ...]:
        """Names of the method's ways to predict, that of `accuracy` first; () if there is only one."""
        logged = sorted(name.removeprefix("accuracy_") for name in self.rounds if name.startswith("accuracy_"))
        if len(logged) < 2:
            return ()
        if "predictors" in self.final:
            return tuple(self.final["predictors"])
        accuracy = self.rounds["accuracy"]
        return tuple(
            sorted(
                logged, key=lambda name: not np.array_equal(self.rounds[f"accuracy_{name}"], accuracy, equal_nan=True)
            )
        )

    def by_predictor(self) -> dict[str, Run]:
        """The run with the accuracies of each of its `predictors`, ``{"": run}`` if there is only one."""
        default, *others = self.predictors or ("",)
        tested = self.rounds["tested"]
        runs = {default: self}
        for name in others:
            accuracy = self.rounds[f"accuracy_{name}"]
            correct = np.where(tested > 0, np.rint(np.nan_to_num(accuracy) * tested), tested).astype(int)
            runs[name] = replace(self, rounds=self.rounds | {"accuracy": accuracy, "correct": correct})
        return runs

    def time_parts(self) -> dict[str, np.ndarray]:
        """Seconds of every round by activity. Evaluation that overlaps with the server's step does not count."""
        parts = {name: self.rounds[f"seconds_{name}"] for name in ("train", "server", "eval", "comm", "checkpoint")}
        others = sum(seconds for name, seconds in parts.items() if name != "eval")
        parts["eval"] = np.clip(self.rounds["seconds_total"] - others, 0, parts["eval"])
        return parts

    def formula_floats(self) -> np.ndarray | None:
        """Floats per client, round and direction by the paper's formula, None for other methods than these.

        MFedPBA: C (|M_k| d + C). FedProto with prototypes of each modality: C |M_k| d.
        """
        method, config = self.attributes["method"], self.attributes["config"]
        C = self.attributes["classes"]
        features = C * self.partition["modalities"].sum(axis=1) * config["feature_dim"]
        if method == "fedproto" and config["fedproto"]["proto_scope"] == "modality":
            return features
        return features + C**2 if method == "mfedpba" else None

    def as_partition(self) -> Partition:
        """The run's partition, to save it or use it in other runs. Its test rows are those of the accuracies."""
        return Partition.from_arrays(self.partition, self.attributes["modalities"])

    def predictions(self) -> pd.DataFrame:
        """A data frame with one row per test item of the last round: true and predicted class."""
        from mfedpba_mpi.records.frames import predictions_frame

        return predictions_frame(self)

    def frame(self) -> pd.DataFrame:
        """A tidy data frame with one row per round and client. `records/frames.py` describes the columns."""
        from mfedpba_mpi.records.frames import clients_rounds_frame

        return clients_rounds_frame(self)

    def rounds_frame(self) -> pd.DataFrame:
        """A data frame with one row per round."""
        from mfedpba_mpi.records.frames import rounds_frame

        return rounds_frame(self)

    def clients_frame(self) -> pd.DataFrame:
        """A data frame with one row per client."""
        from mfedpba_mpi.records.frames import clients_frame

        return clients_frame(self)

    def modalities_frame(self) -> pd.DataFrame:
        """A data frame with one row per value of the arrays that have an axis of modalities."""
        from mfedpba_mpi.records.frames import modalities_frame

        return modalities_frame(self)


def mean_of_clients(values: np.ndarray) -> np.ndarray:
    """Mean over the clients that are not NaN, (T, K) -> (T,); NaN if all are."""
    known = ~np.isnan(values)
    total = np.where(known, values, 0).sum(axis=1)
    return np.divide(total, known.sum(axis=1), out=np.full(len(values), np.nan), where=known.any(axis=1))


def bracketed(remark: str) -> str:
    """A remark in brackets, to be appended to other text; "" if there is none."""
    return f" ({remark})" if remark else ""


def joint_remark(remarks: Iterable[str]) -> str:
    """One remark for numbers of several runs that are shown together."""
    found = set(remarks)
    text = ", ".join(sorted(found - {""}))
    return f"partly {text}" if text and "" in found else text


def load_run(path: str | Path) -> Run:
    """Read a run's log.

    Parameters
    ----------
    path : str or Path
        The run's directory, or its ``run.h5``. The log of a running run can be read at any time.

    Returns
    -------
    Run
        The log.
    """
    path = Path(path)
    path = path / LOG_NAME if path.is_dir() else path
    with _reading(path) as file:
        return _read(in_full(path.parent) / path.name, file)


def run_directory(path: Path) -> Path:
    """The run's directory, where `path` is that directory or the log in it."""
    return in_full(path.parent if path.name == LOG_NAME and path.is_file() else path)


def in_full(path: Path) -> Path:
    """`path`, resolved if its last part is ``.`` or ``..``, so that it ends with a name."""
    return path.resolve() if path.name in ("", "..") else path


@contextmanager
def _reading(path: Path) -> Iterator[h5py.File]:
    if not path.is_file():
        raise UserError(f"no run at {path}; a run's directory contains {LOG_NAME}")
    if not os.access(path, os.R_OK):
        raise UserError(f"{path} cannot be read; check its permissions")
    try:
        with open_image(path) as file:
            yield file
    except (OSError, KeyError, ValueError, RuntimeError) as error:
        raise UserError(
            f"{path} is not a readable run log (damaged, or another file): {error}; `mfedpba-mpi resume` restores it "
            "if there is a checkpoint"
        ) from None


def _read(path: Path, file: h5py.File) -> Run:
    attributes = {name: _plain(value) for name, value in file.attrs.items()}
    version = attributes.get("format_version", FORMAT_VERSION)
    if version != FORMAT_VERSION:
        raise UserError(
            f"{path} has format version {version}, this program reads version {FORMAT_VERSION}; it was written by "
            f"mfedpba-mpi {attributes.get('version', 'of an unknown version')}, use that"
        )
    for name in ("config", "hosts", "modalities", "resumed"):
        attributes[name] = json.loads(attributes[name])
    for name in ("plugins", "devices"):  # not in logs of version 0.1.0
        attributes[name] = json.loads(attributes.get(name, "[]"))
    rounds = {name: data[()] for name, data in file["rounds"].items()}
    final = {name: _array(data) for name, data in file["final"].items()} if "final" in file else {}
    if final:
        final["server_sha256"] = file["final"].attrs["server_sha256"]
        if "predicted" in final:  # not in logs of version 0.1.0
            final["predictors"] = json.loads(file["final/predicted"].attrs["predictors"])
    partition = {name: _array(data) for name, data in file["partition"].items()}
    for name, kind in (("accuracy", float), ("correct", int), ("tested", int)):  # exist before the first round, too
        rounds.setdefault(name, np.empty((0, len(partition["rank"])), kind))
    warnings: list[RunWarning] = []
    if "warnings" in file:
        warnings = list(map(RunWarning, file["warnings/round"][()].tolist(), _array(file["warnings/text"])))
    return Run(path, attributes, rounds, partition, final, warnings)


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _array(data: h5py.Dataset) -> Any:
    return data.asstr()[()].tolist() if h5py.check_string_dtype(data.dtype) else data[()]
