"""Partitions as files, for `--partition FILE`.

FILE.csv has a line for each sample that a client has; the column ``set`` may be absent, then the seed splits 75/25::

    client,sample,set,modalities
    0,17,train,I1 I2
    0,4,test,I1 I2
    1,5,train,T

Clients count from 0 without gaps, samples are row numbers of the store from 0, modalities are names (or numbers from 0)
with blanks between them, the same in all lines of a client. FILE.h5 has the group /partition of a run's log (see
`records/run_log.py`), so a log is such a file too: modalities (K, M) bool, train_rows, train_offsets, test_rows,
test_offsets. Samples that are nobody's are left out in both.
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
from mfedpba_mpi.data.sealed import open_image
from mfedpba_mpi.data.store import get, member, open_file, put, reading, replacing, text
from mfedpba_mpi.errors import UserError

FORMAT, VERSION = "mfedpba-partition", 1
COLUMNS = ("client", "sample", "set", "modalities")
LEAST = 2  # training rows of a client: BatchNorm needs two
REMEDY = "give a CSV file, a run's run.h5, or what Partition.save has written"
_ARRAYS = ("modalities", "train_rows", "train_offsets", "test_rows", "test_offsets")


def read_partition_file(path: Path, info: Dataset) -> Partition:
    """The partition of a dataset that is in a file, checked; its rows may have to be split yet."""
    names = tuple(modality.name for modality in info.modalities)
    found = _read_csv(path, names) if path.name.endswith(".csv") else _read_h5(path, names)
    if not found.modalities:
        raise UserError(f"{path} has no clients; {REMEDY}")
    if found.samples not in (None, info.samples):
        raise UserError(
            f"{path} is for a dataset of {found.samples} samples, but {info.name} has {info.samples}; give the owner "
            "of each, -1 for nobody"
        )
    owner = np.full(info.samples, -1)
    for k, owned in enumerate(found.modalities):
        rows = np.concatenate([found.train[k], found.test[k]])
        if not len(rows):
            raise UserError(f"{path}: client {k} has no samples; give it some, or number the clients without gaps")
        if not owned:
            raise UserError(f"{path}: client {k} has no modality; give it one of {', '.join(names)}")
        outside = rows[(rows < 0) | (rows >= info.samples)]
        if len(outside):
            raise UserError(
                f"{path}: client {k} has sample {outside[0]}, but {info.name} has samples 0 to {info.samples - 1}"
            )
        taken, several = rows[owner[rows] >= 0], np.unique(rows, return_counts=True)
        if len(taken):
            raise UserError(
                f"{path}: sample {taken[0]} is in clients {owner[taken[0]]} and {k}; a sample belongs to one client"
            )
        if several[1].max() > 1:
            raise UserError(f"{path}: client {k} has sample {several[0][several[1].argmax()]} twice; drop one of them")
        owner[rows] = k
    return found


def deal_from_file(path: Path, info: Dataset, labels: np.ndarray, seed: int, validation: float) -> Partition:
    """The partition in a file, ready for a run: split, and every client with something to train and to test on."""
    partition = read_partition_file(path, info).divided(labels, seed, validation)
    for k, (train, test) in enumerate(zip(partition.train, partition.test, strict=True)):
        if len(train) < LEAST or not len(test):
            held = " after --validation" if validation else ""
            raise UserError(
                f"{path}: client {k} has {len(train)} training and {len(test)} test samples{held}; "
                f"it needs at least {LEAST} and 1"
            )
    return partition


def _read_csv(path: Path, names: Sequence[str]) -> Partition:
    known = {number: m for m, number in enumerate(numbered(len(names)))} | {w: m for m, w in enumerate(_words(names))}
    owned: dict[int, frozenset[int]] = {}
    rows: dict[tuple[int, str], list[int]] = {}
    try:
        reader = csv.reader(io.StringIO(path.read_text("utf-8-sig"), newline=""), strict=True)
        header = [word.strip() for word in next(reader, [])]
        if len(header) != len(set(header)) or set(header) not in (set(COLUMNS), set(COLUMNS) - {"set"}):
            raise UserError(
                f"{path}: its first line is {printable(','.join(header)[:60])!r}; it must be {','.join(COLUMNS)} "
                "(set may be left out)"
            )
        for words in reader:
            if not words:
                continue
            where = f"{path}, line {reader.line_num}"
            if len(words) != len(header):
                raise UserError(f"{where}: {len(words)} values for {len(header)} columns; there is one for each")
            line = dict(zip(header, map(str.strip, words), strict=True))
            client, sample = (_number(line[name], name, where) for name in ("client", "sample"))
            part = line.get("set", "train")
            if part not in ("train", "test"):
                raise UserError(f"{where}: set is {printable(part[:30])!r}; it must be train or test")
            for word in line["modalities"].split():
                if word not in known:
                    raise UserError(f"{where}: no modality {printable(word[:30])!r}; there are: {', '.join(names)}")
            own = frozenset(known[word] for word in line["modalities"].split())
            if owned.setdefault(client, own) != own:
                raise UserError(
                    f"{where}: client {client} has other modalities than in its lines before; they must be the same"
                )
            rows.setdefault((client, part), []).append(sample)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or printable(str(error))
        raise UserError(f"cannot read the partition {path}: {reason}; {REMEDY}") from None
    if missing := sorted(set(range(len(owned))) - set(owned)):
        raise UserError(f"{path}: there is no client {missing[0]}; number the clients from 0 without gaps")
    if "set" in header and owned and not any(part == "test" for _, part in rows):
        raise UserError(f"{path}: no line has test as its set; leave the column out to have samples split by the seed")
    K = range(len(owned))
    train, test = (tuple(np.sort(np.array(rows.get((k, s), []), np.int64)) for k in K) for s in ("train", "test"))
    return Partition(tuple(tuple(sorted(owned[k])) for k in K), train, test, tuple(names))


def _number(word: str, name: str, where: str) -> int:
    if not (word.isdecimal() and len(word) < 18):
        raise UserError(f"{where}: {name} is {printable(word[:30])!r}; it must be a whole number from 0 on")
    return int(word)


def _words(names: Sequence[str]) -> Sequence[str]:
    """What modalities are called where blanks divide them: by their numbers, if one has a blank in its name."""
    return names if all(name.split() == [name] for name in names) else numbered(len(names))


def _read_h5(path: Path, names: Sequence[str]) -> Partition:
    with reading(path, None, None, REMEDY, _open) as file:
        if json.loads(file.attrs.get("config", "{}")).get("validation"):
            raise UserError(
                f"{path} is the log of a run with --validation, tested on training rows; use that of a run without"
            )
        group = member(file, "partition")
        written = json.loads(file.attrs.get("modalities", "[]"))
        found = Partition.of_log({name: get(group, name) for name in _ARRAYS}, written)
        if found.names not in (tuple(names), numbered(len(names))):
            there = printable(", ".join(found.names))
            raise UserError(f"{path} is for the modalities {there}, the dataset has {', '.join(names)}; use its own")
        if "samples" in file.attrs:
            found = replace(found, samples=int(file.attrs["samples"]))
    return found


def _open(path: Path) -> h5py.File:
    """A log when its checksum is right, any other HDF5 as it is."""
    with open(path, "rb") as file:
        plain = file.read(8) == b"\x89HDF\r\n\x1a\n"
    return open_file(path) if plain else open_image(path)


def write_partition(path: Path, partition: Partition) -> None:
    """Write a FILE.csv or FILE.h5."""
    if path.suffix == ".h5":
        with replacing(path, FORMAT, VERSION) as file:
            file.attrs["modalities"] = text(json.dumps(partition.names))
            if partition.samples is not None:
                file.attrs["samples"] = partition.samples
            group = file.create_group("partition")
            for name, array in partition.arrays().items():
                put(group, name, array)
    elif path.suffix == ".csv":
        words, columns = _words(partition.names), [c for c in COLUMNS if c != "set" or partition.is_split]
        lines = io.StringIO()
        writer = csv.DictWriter(lines, columns, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        for k, own in enumerate(partition.modalities):
            common = {"client": k, "modalities": " ".join(words[m] for m in own)}
            for part, rows in (("train", partition.train[k]), ("test", partition.test[k])):
                writer.writerows({**common, "set": part, "sample": row} for row in rows.tolist())
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(lines.getvalue(), encoding="utf-8")
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror}; choose another place") from None
    else:
        raise UserError(f"partition: {path} ends neither in .csv nor in .h5; name it so")
