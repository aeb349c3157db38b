"""Partition files for `--partition FILE`.

FILE.csv has one line per assigned sample. Without the column ``set``, the run's seed draws a 75/25 split::

    client,sample,set,modalities
    0,17,train,I1 I2
    0,4,test,I1 I2
    1,5,train,T

Clients are numbered from 0 without gaps. Samples are row numbers in the store, from 0. Modalities are names (or numbers
from 0) separated by blanks, the same in all lines of a client. FILE.h5 has the group /partition of a run's log (see
`records/run_log.py`), so a log is a partition file too: modalities (K, M) bool, train_rows, train_offsets, test_rows,
test_offsets. Unassigned samples are omitted in both formats.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np

from mfedpba_mpi.data.catalog import Dataset, printable
from mfedpba_mpi.data.partition import Partition, numbered
from mfedpba_mpi.data.seal import open_image
from mfedpba_mpi.data.store import encode_text, get, member, new_file, open_file, put, reading
from mfedpba_mpi.errors import UserError
from mfedpba_mpi.files import write_text

FORMAT, VERSION = "mfedpba-partition", 1
COLUMNS = ("client", "sample", "set", "modalities")
MIN_TRAIN_ROWS = 2  # BatchNorm needs two
REMEDY = "give a CSV file, a run's run.h5, or a file written by Partition.save"
_ARRAYS = ("modalities", "train_rows", "train_offsets", "test_rows", "test_offsets")


def read_partition_file(path: Path, info: Dataset) -> Partition:
    """Read a partition file and check it against the dataset; its rows may not be split into train and test yet."""
    names = tuple(modality.name for modality in info.modalities)
    found = _read_csv(path, names) if path.name.endswith(".csv") else _read_h5(path, names)
    if not found.modalities:
        raise UserError(f"{path} has no clients; {REMEDY}")
    if found.samples not in (None, info.samples):
        raise UserError(
            f"{path} is for a dataset of {found.samples} samples, but {info.name} has {info.samples}; give the owner "
            "of every sample, -1 to leave it out"
        )
    owner = np.full(info.samples, -1)
    for k, owned in enumerate(found.modalities):
        rows = np.concatenate([found.train[k], found.test[k]])
        if not len(rows):
            raise UserError(f"{path}: client {k} has no samples; assign some, or number the clients without gaps")
        if not owned:
            raise UserError(f"{path}: client {k} has no modality; give it one of {', '.join(names)}")
        outside = rows[(rows < 0) | (rows >= info.samples)]
        if len(outside):
            raise UserError(
                f"{path}: client {k} has sample {outside[0]}, but {info.name} has samples 0 to {info.samples - 1}"
            )
        taken = rows[owner[rows] >= 0]
        if len(taken):
            raise UserError(
                f"{path}: clients {owner[taken[0]]} and {k} both have sample {taken[0]}; assign it to one client"
            )
        samples, counts = np.unique(rows, return_counts=True)
        if counts.max() > 1:
            raise UserError(f"{path}: client {k} has sample {samples[counts.argmax()]} twice; remove one of the two")
        owner[rows] = k
    return found


def load_partition(path: Path, info: Dataset, labels: np.ndarray, seed: int, validation: float) -> Partition:
    """Read a partition file for a run: split the rows, and check that every client has training and test rows."""
    partition = read_partition_file(path, info).with_splits(labels, seed, validation)
    for k, (train, test) in enumerate(zip(partition.train, partition.test, strict=True)):
        if len(train) < MIN_TRAIN_ROWS or not len(test):
            after = " after --validation" if validation else ""
            raise UserError(
                f"{path}: client {k} has {len(train)} training and {len(test)} test samples{after}; "
                f"it needs at least {MIN_TRAIN_ROWS} and 1"
            )
    return partition


def _read_csv(path: Path, names: Sequence[str]) -> Partition:
    accepted = {number: m for m, number in enumerate(numbered(len(names)))}
    accepted |= {name: m for m, name in enumerate(_csv_names(names))}
    owned: dict[int, frozenset[int]] = {}
    rows: dict[tuple[int, str], list[int]] = {}
    try:
        reader = csv.reader(io.StringIO(path.read_text("utf-8-sig"), newline=""), strict=True)
        header = [word.strip() for word in next(reader, [])]
        if len(header) != len(set(header)) or set(header) not in (set(COLUMNS), set(COLUMNS) - {"set"}):
            raise UserError(
                f"{path}: the first line is {printable(','.join(header)[:60])!r}; it must be {','.join(COLUMNS)} "
                "(set is optional)"
            )
        for words in reader:
            if not words:
                continue
            where = f"{path}, line {reader.line_num}"
            if len(words) != len(header):
                raise UserError(f"{where}: {len(words)} values for {len(header)} columns; give one value for each")
            line = dict(zip(header, map(str.strip, words), strict=True))
            client, sample = (_number(line[name], name, where) for name in ("client", "sample"))
            part = line.get("set", "train")
            if part not in ("train", "test"):
                raise UserError(f"{where}: set is {printable(part[:30])!r}; it must be train or test")
            for word in line["modalities"].split():
                if word not in accepted:
                    raise UserError(
                        f"{where}: unknown modality {printable(word[:30])!r}; choose from: {', '.join(names)}"
                    )
            own = frozenset(accepted[word] for word in line["modalities"].split())
            if owned.setdefault(client, own) != own:
                raise UserError(
                    f"{where}: client {client} has other modalities in an earlier line; give the same in all lines"
                )
            rows.setdefault((client, part), []).append(sample)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or printable(str(error))
        raise UserError(f"cannot read the partition {path}: {reason}; {REMEDY}") from None
    if missing := sorted(set(range(len(owned))) - set(owned)):
        raise UserError(f"{path}: client {missing[0]} is missing; number the clients from 0 without gaps")
    if "set" in header and owned and not any(part == "test" for _, part in rows):
        raise UserError(f"{path}: no sample is in the test set; omit the column `set` for a split drawn from the seed")
    K = range(len(owned))
    train, test = (tuple(np.sort(np.array(rows.get((k, s), []), np.int64)) for k in K) for s in ("train", "test"))
    return Partition(tuple(tuple(sorted(owned[k])) for k in K), train, test, tuple(names))


def _number(word: str, name: str, where: str) -> int:
    if not (word.isdecimal() and len(word) < 18):
        raise UserError(f"{where}: {name} is {printable(word[:30])!r}; it must be an integer >= 0")
    return int(word)


def _csv_names(names: Sequence[str]) -> Sequence[str]:
    """Return the modality names used in CSV files: the names, or numbers if any name contains a blank."""
    return names if all(name.split() == [name] for name in names) else numbered(len(names))


def _read_h5(path: Path, names: Sequence[str]) -> Partition:
    with reading(path, None, None, REMEDY, _open) as file:
        if json.loads(file.attrs.get("config", "{}")).get("validation"):
            raise UserError(
                f"{path} is the log of a run with --validation, so its test rows are training rows; use the log of a "
                "run without --validation"
            )
        group = member(file, "partition")
        written = json.loads(file.attrs.get("modalities", "[]"))
        found = Partition.from_arrays({name: get(group, name) for name in _ARRAYS}, written)
        if found.names not in (tuple(names), numbered(len(names))):
            raise UserError(
                f"{path} is for the modalities {printable(', '.join(found.names))}, but the dataset has "
                f"{', '.join(names)}; use a partition of this dataset"
            )
        if "samples" in file.attrs:
            found = replace(found, samples=int(file.attrs["samples"]))
    return found


def _open(path: Path) -> h5py.File:
    """Open a plain HDF5 file, or a sealed log after checking its checksum."""
    with open(path, "rb") as file:
        is_plain = file.read(8) == b"\x89HDF\r\n\x1a\n"
    return open_file(path) if is_plain else open_image(path)


def write_partition(path: Path, partition: Partition) -> None:
    """Write a partition as FILE.csv or FILE.h5."""
    if path.suffix == ".h5":
        with new_file(path, FORMAT, VERSION) as file:
            file.attrs["modalities"] = encode_text(json.dumps(partition.names))
            if partition.samples is not None:
                file.attrs["samples"] = partition.samples
            group = file.create_group("partition")
            for name, array in partition.arrays().items():
                put(group, name, array)
    elif path.suffix == ".csv":
        names, columns = _csv_names(partition.names), [c for c in COLUMNS if c != "set" or partition.is_split]
        lines = io.StringIO()
        writer = csv.DictWriter(lines, columns, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        for k, own in enumerate(partition.modalities):
            common = {"client": k, "modalities": " ".join(names[m] for m in own)}
            for part, rows in (("train", partition.train[k]), ("test", partition.test[k])):
                writer.writerows({**common, "set": part, "sample": row} for row in rows.tolist())
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text(path, lines.getvalue())
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror}; choose another path") from None
    else:
        raise UserError(f"partition: {path} does not end in .csv or .h5; change the suffix")
