"""A run as tidy pandas data frames.

The shape of an array in /rounds decides which frame it goes to, so the arrays of a new method need no code here. The
first axis is always the round. The other axes:

* none: a column of `rounds_frame`;
* (K,): a column of `clients_rounds_frame`;
* (M,) and (K, M): rows of `modalities_frame`.

With K = M (the default) (K,) and (M,) are the same shape. Then arrays named ``gw_...`` (the server's transport plans)
are per modality and all others per client. Arrays of other shapes are in no frame; ``frame.attrs["left_out"]`` lists
them.

Missing numbers are NaN, or <NA> for integers (-1 in the log), whose columns are Int64. Every frame has the columns
`synthetic` and `validation`, which qualify its accuracies, and `attrs`.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd

from mfedpba_mpi.data.catalog import printable
from mfedpba_mpi.errors import UserError
from mfedpba_mpi.models.architecture import Architecture
from mfedpba_mpi.records.run import Run, mean_of_clients

OF_MODALITIES = "gw_"  # of modalities, even if K = M
SUMMED = ("bytes_", "wire_", "seconds_")  # over clients, in rows per round


def rounds_frame(run: Run) -> pd.DataFrame:
    """One row per round.

    `accuracy` is the paper's average, sum_k correct_k / sum_k tested_k; `accuracy_<predictor>` is the same for another
    predictor; `accuracy_client_mean` is the unweighted mean; `participants` is their number. Bytes and seconds are
    summed over clients; other floating-point values, such as losses, are averaged over the clients that have one.
    """
    of_clients = _arrays(run, "client")
    columns: dict[str, Any] = {"round": np.arange(1, _length(run) + 1)}
    tested, correct, accuracy = (_of(run, of_clients, name) for name in ("tested", "correct", "accuracy"))
    seen = tested >= 0
    total = np.where(seen, tested, 0).sum(axis=1)
    columns["accuracy"] = _divide(np.where(seen, correct, 0).sum(axis=1), total)
    columns["accuracy_client_mean"] = mean_of_clients(accuracy)
    columns["correct"], columns["tested"] = (
        np.where(seen.any(axis=1), np.where(seen, values, 0).sum(axis=1), -1).astype(int)
        for values in (correct, tested)
    )
    columns["participants"] = _of(run, of_clients, "participants").astype(bool).sum(axis=1)
    for name, values in of_clients.items():
        if name.startswith("accuracy_"):
            columns[name] = _divide(np.where(tested > 0, values * tested, 0).sum(axis=1), total)
        elif name.startswith(SUMMED):
            columns[name] = np.where(values > 0, values, 0).sum(axis=1)
        elif values.dtype.kind == "f" and name != "accuracy":
            columns[name] = mean_of_clients(values)
    return _finish(run, columns | _arrays(run))


def clients_rounds_frame(run: Run) -> pd.DataFrame:
    """One row per round and client: accuracy, correct, tested, losses, bytes, seconds, and whether it took part."""
    T, (K, _) = _length(run), run.partition["modalities"].shape
    columns: dict[str, Any] = {"round": np.repeat(np.arange(1, T + 1), K), "client": np.tile(np.arange(K), T)}
    of_clients = _arrays(run, "client")
    names = ["accuracy", "correct", "tested", "participants"]
    for name in [*names, *(name for name in of_clients if name not in names)]:
        values = _of(run, of_clients, name).ravel()
        columns["participant" if name == "participants" else name] = values
    return _finish(run, columns)


def modalities_frame(run: Run) -> pd.DataFrame:
    """One row per value of the arrays with an axis of modalities: round, client, modality, quantity, value.

    `client` is <NA> for values of the server, such as ``gw_trace``. Missing values have no row.
    """
    names = np.array([printable(name) for name in run.attributes["modalities"]], object)
    none, no_name = np.zeros(0, int), np.zeros(0, object)
    parts = [(none, none, no_name, no_name, np.zeros(0))]
    for axes in (("modality",), ("client", "modality")):
        for quantity, values in _arrays(run, *axes).items():
            t, *k, m = np.nonzero(values >= 0 if values.dtype.kind == "i" else ~np.isnan(values.astype(float)))
            clients = k[0] if k else np.full(len(t), -1)
            parts.append((t + 1, clients, names[m], np.full(len(t), quantity, object), values[t, *k, m].astype(float)))
    rounds, clients, modalities, quantities, numbers = map(np.concatenate, zip(*parts, strict=True))
    columns = {
        "round": rounds, "client": _column(clients), "modality": pd.array(modalities, "str"),
        "quantity": pd.array(quantities, "str"), "value": numbers,
    }  # fmt: skip
    return _finish(run, columns)


def clients_frame(run: Run) -> pd.DataFrame:
    """One row per client: modalities, networks, training and test samples, number of classes, rank, last accuracy."""
    part, names = run.partition, [printable(name) for name in run.attributes["modalities"]]
    K = len(part["modalities"])
    accuracy = _of(run, _arrays(run, "client"), "accuracy")
    known = np.flatnonzero(~np.isnan(accuracy).all(axis=1))
    columns = {
        "client": np.arange(K),
        "modalities": pd.array([", ".join(names[m] for m in np.flatnonzero(own)) for own in part["modalities"]], "str"),
        "networks": pd.array([_networks(text) for text in part["architectures"]], "str"),
        "train": np.diff(part["train_offsets"]),
        "test": np.diff(part["test_offsets"]),
        "classes": (part["counts"] > 0).sum(axis=1),
        "rank": np.asarray(part["rank"]),
        "accuracy": accuracy[known[-1]] if len(known) else np.full(K, np.nan),
    }
    return _finish(run, columns)


def predictions_frame(run: Run) -> pd.DataFrame:
    """One row per test item of the last round: client, row of the store, modality, true class, predicted class.

    An item is a row of the store; with fusion "separate", a row and a modality (otherwise <NA>). Methods with several
    predictors have a column ``predicted_<predictor>`` for each; `predicted` is the one of the accuracies.
    """
    if "predicted" not in run.final:
        raise UserError(f"{run.path} has no predictions: the run is not complete, or was made by an older version")
    names = np.array([printable(name) for name in run.attributes["modalities"]], object)
    part, start, columns = run.partition, 0, []
    for k, items in enumerate(run.final["predicted_items"]):
        test = slice(*part["test_offsets"][k : k + 2])
        rows, labels = part["test_rows"][test], run.final["test_labels"][test]
        owned = names[part["modalities"][k]] if run.attributes["config"]["fusion"] == "separate" else [pd.NA] * items
        stop = start + items * len(rows)
        columns.append((
            np.full(stop - start, k), np.tile(rows, items), np.repeat(owned, len(rows)), np.tile(labels, items),
            run.final["predicted"][:, start:stop],
        ))  # fmt: skip
        start = stop
    clients, rows, modalities, labels, predicted = (np.concatenate(c, -1) for c in zip(*columns, strict=True))
    frame = {"client": clients, "row": rows, "modality": pd.array(modalities, "str"), "true": labels.astype(int)}
    frame["predicted"] = predicted[0].astype(int)
    names = run.final["predictors"]
    if len(names) > 1:
        frame |= {f"predicted_{name}": values.astype(int) for name, values in zip(names, predicted, strict=True)}
    return _finish(run, frame)


def axes_of(name: str, shape: tuple[int, ...], K: int, M: int) -> tuple[str, ...] | None:
    """The axes after the round by the rule of this module; None for other shapes."""
    known: dict[tuple[int, ...], tuple[str, ...]] = {
        (): (), (M,): ("modality",), (K,): ("client",), (K, M): ("client", "modality")
    }  # fmt: skip
    if shape == (M,) and name.startswith(OF_MODALITIES):
        return ("modality",)
    return known.get(shape)


def _arrays(run: Run, *axes: str) -> dict[str, np.ndarray]:
    """The arrays of /rounds with these axes after the round, padded to all rounds."""
    K, M = run.partition["modalities"].shape
    return {
        name: _padded(values, _length(run))
        for name, values in run.rounds.items()
        if axes_of(name, values.shape[1:], K, M) == axes
    }


def _length(run: Run) -> int:
    return max(map(len, run.rounds.values()), default=0)


def _padded(values: np.ndarray, T: int) -> np.ndarray:
    """`values` padded with missing values to T rows: a method may stop writing an array."""
    missing = {"f": np.nan, "b": False}.get(values.dtype.kind, -1)
    return np.concatenate([values, np.full((T - len(values), *values.shape[1:]), missing, values.dtype)])


def _of(run: Run, arrays: dict[str, np.ndarray], name: str) -> np.ndarray:
    """An array (T, K) that every log has from its first round on; empty before."""
    empty = {"accuracy": float, "participants": bool}.get(name, int)
    return arrays[name] if name in arrays else np.zeros((0, len(run.partition["modalities"])), empty)


def _divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.divide(a, b, out=np.full(len(b), np.nan), where=b > 0)


def _networks(text: str) -> str:
    return ", ".join(str(Architecture.from_dict(fields)) for fields in json.loads(text))


def _column(values: Any) -> Any:
    """Values as a column; integers become nullable, and missing where they are negative."""
    if not isinstance(values, np.ndarray) or values.dtype.kind not in "iu":
        return values
    return pd.arrays.IntegerArray(values.astype(np.int64), values < 0)


def _finish(run: Run, columns: dict[str, Any]) -> pd.DataFrame:
    """The frame with the columns `synthetic` and `validation`, and `attrs`."""
    keys = ("round", "client")  # never missing (modalities_frame makes its own)
    frame = pd.DataFrame({name: values if name in keys else _column(values) for name, values in columns.items()})
    frame["synthetic"], frame["validation"] = run.synthetic, run.validation
    frame = frame.astype({"synthetic": bool, "validation": bool})  # even without rows
    K, M = run.partition["modalities"].shape
    frame.attrs = {
        **{name: printable(str(run.attributes[name])) for name in ("method", "label", "dataset", "data_origin")},
        "seed": int(run.attributes["seed"]), "status": run.status, "synthetic": run.synthetic,
        "validation": run.validation, "remark": run.remark,
        "left_out": [n for n, v in run.rounds.items() if axes_of(n, v.shape[1:], K, M) is None],
    }  # fmt: skip
    return frame
