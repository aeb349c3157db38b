"""Kinds of input files: how to write a valid one, how to read all of it, and whether this package writes the format.

To add a kind, add an entry to KINDS.
"""

import gzip
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
from PIL import Image
from scipy.sparse import csr_matrix, random_array, save_npz

from mfedpba_mpi import load_run
from mfedpba_mpi.cli import console  # noqa: F401  imported here once instead of in every case
from mfedpba_mpi.cli.data import data
from mfedpba_mpi.comm.serial import SerialComm
from mfedpba_mpi.config.run_config import fit_to_data, make_config, read_toml
from mfedpba_mpi.data import importing, quality  # noqa: F401
from mfedpba_mpi.data.catalog import CATALOG, Dataset, Modality
from mfedpba_mpi.data.partition import make_partition
from mfedpba_mpi.data.partition_file import read_partition_file
from mfedpba_mpi.data.readers import images
from mfedpba_mpi.data.readers.descriptors import WIDTHS, describe
from mfedpba_mpi.data.shards import has_shards, read_clients, read_partition, write_shards
from mfedpba_mpi.data.sources import describe as describe_dataset
from mfedpba_mpi.data.store import FeatureStore, write_store
from mfedpba_mpi.engine.loop import run_rounds
from mfedpba_mpi.records.checkpoint import Checkpoints, Saved
from mfedpba_mpi.records.run_log import RunLog
from tests.data.readers import matfiles

N = 40
Image.preinit()


@dataclass(frozen=True)
class Kind:
    """A kind of file.

    Attributes
    ----------
    make : writes a valid file, or a directory of files, into a directory and returns its path.
    read : reads the whole content and returns its digest.
    ours : whether this package writes the format; damage must then never change the content without an error.
    named : whether errors name the file; otherwise they name a setting in it.
    share : relative number of cases, smaller for a slow kind.
    """

    make: Callable[[Path], Path]
    read: Callable[[Path], str]
    ours: bool = False
    named: bool = True
    share: float = 1.0


def digest(*parts: object) -> str:
    """Return the SHA-256 of arrays by their bytes, and of other objects by their repr."""
    total = hashlib.sha256()
    for part in parts:
        if isinstance(part, csr_matrix):
            part = part.toarray()
        total.update(part.tobytes() if isinstance(part, np.ndarray) else repr(part).encode())
    return total.hexdigest()


LABELS = np.arange(N) % 3
_rng = np.random.default_rng(0)
DENSE = _rng.standard_normal((N, 6)).astype(np.float32) + LABELS[:, None]
SPARSE = csr_matrix(random_array((N, 30), density=0.2, rng=_rng, dtype=np.float32))


def make_store(directory: Path, sparse: bool) -> Path:
    path = directory / "toy.h5"
    one = Modality("b", "L", 30, sparse=True) if sparse else Modality("a", "I", 6)
    info = Dataset("toy", N, 3, (one,), "A toy.")
    write_store(path, info, LABELS, [SPARSE if sparse else DENSE], "real", {"source": "dice"}, ["x", "y", "ü"])
    return path


def read_store(path: Path) -> str:
    store = FeatureStore(path)
    header = (store.info, store.origin, store.provenance, store.fingerprint, store.class_names)
    return digest(header, store.labels(), *map(store.modality, range(len(store.info.modalities))))


def make_shards(directory: Path) -> Path:
    info = Dataset("toy", N, 3, (Modality("a", "I", 6), Modality("b", "L", 30, sparse=True)))
    store = directory / "store" / "toy.h5"
    write_store(store, info, LABELS, [DENSE, SPARSE], "synthetic", {})
    path = directory / "shards.h5"
    write_shards(path, FeatureStore(store), make_partition(LABELS, 2, 3, "m1+", 0.5, 0, 8), "a key")
    return path


def read_shards(path: Path) -> str:
    clients, partition = read_clients(path, range(3)), read_partition(path)
    parts = [part for client in clients for part in (client.labels, client.n_train, *client.values.values())]
    rows = (*partition.train, *partition.test)
    return digest(has_shards(path, "a key"), *parts, partition.modalities, *rows)


PARTITION_INFO = Dataset("toy", N, 3, (Modality("a", "I", 6), Modality("b", "T", 8)))


def make_partition_file(suffix: str) -> Callable[[Path], Path]:
    def make(directory: Path) -> Path:
        path = directory / f"partition.{suffix}"
        make_partition(LABELS, 2, 3, "m1+", 0.5, 0, 8).save(path)
        return path

    return make


def read_partition_digest(path: Path) -> str:
    partition = read_partition_file(path, PARTITION_INFO)
    return digest(partition.digest, partition.is_split)


def make_mat(version: str) -> Callable[[Path], Path]:
    def make(directory: Path) -> Path:
        many = matfiles.cell(DENSE.astype(float), SPARSE)
        names = matfiles.cell("one", "two", "six")
        content = (
            dict(x1=DENSE, x2=SPARSE) if version == "4" else dict(X=many, categories=names, about=dict(year=LABELS[:1]))
        )
        return matfiles.write(directory / "toy.mat", version, **content, Y=LABELS[:, None].astype(float))

    return make


def make_h5(directory: Path) -> Path:
    path = directory / "toy.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("X0", data=DENSE, chunks=(8, 6), compression="gzip")
        for name in ("data", "indices", "indptr"):
            file[f"X1/{name}"] = getattr(SPARSE, name)
        file["X1/shape"] = SPARSE.shape
        file["y"] = LABELS
        file["class_names"] = ["x", "y", "z"]
        file.attrs.update(view_names=["a", "b"], n_classes=3, source="dice")
    return path


def make_npz(directory: Path) -> Path:
    path = directory / "toy.npz"
    np.savez_compressed(path, view1=DENSE, view2=SPARSE.toarray(), y=LABELS)
    return path


def make_tables(directory: Path) -> Path:
    np.savetxt(directory / "a.csv", DENSE, delimiter=",", header="p,q,r,s,t,u", comments="")
    (directory / "b.txt.gz").write_bytes(
        gzip.compress("".join(f"{row[0]:.3f} {row[1]:.3f}\n" for row in DENSE).encode(), mtime=0)
    )
    np.save(directory / "c.npy", DENSE)
    save_npz(directory / "d.npz", SPARSE)
    (directory / "y.txt").write_text("".join(f"class{label}\n" for label in LABELS))
    return directory


def _pairs(row: np.ndarray) -> str:
    return " ".join(f"{i}:{value:.3f}" for i, value in enumerate(row, 1))


def make_reuters(directory: Path) -> Path:
    for language in ("EN", "FR", "GR", "IT", "SP"):
        text = "".join(f"{['C15', 'M11', 'ECAT'][y]} {_pairs(row)} \n" for y, row in zip(LABELS, DENSE, strict=True))
        (directory / f"Index_EN-{language}").write_text(text)
    return directory


def make_youtube(directory: Path) -> Path:
    (directory / "train").mkdir()
    for family in (name for known in importing.VIEW_ALIASES["youtube"] for name in known):
        rows = enumerate(zip(LABELS, DENSE, strict=True))
        text = "".join(f"#I {i}\n{y + 1} {_pairs(row)}\n" for i, (y, row) in rows)
        (directory / "train" / f"{family}.txt").write_text(f"# {family}\n{text}")
    return directory


def make_nuswide(directory: Path) -> Path:
    for name, width in (("Normalized_CH", 64), ("Normalized_CORR", 144), ("Normalized_CM55", 225), ("BoW_int", 500)):
        np.savetxt(directory / f"{name}.dat", np.arange(N * width).reshape(N, width) % 17, fmt="%d")
    for concept in range(10):
        (directory / f"Labels_{concept}.txt").write_text("".join(f"{i % 10 == concept:d}\n" for i in range(N)))
    return directory


def make_mfeat(directory: Path) -> Path:
    for modality in CATALOG["mfeat"].modalities:
        row = " ".join("1" * modality.width)
        (directory / f"mfeat-{modality.name}").write_text(f"{row}\n" * CATALOG["mfeat"].samples)
    return directory


def imported(name: str) -> Callable[[Path], str]:
    """Return a function that imports a file as dataset `name` with the command, which reads in a guarded process."""

    def read(path: Path) -> str:
        out = path.parent / "out" / "imported.h5"
        own = ["custom", "--name", name] if name == "toy" else [name]
        data.main(["import", *own, "--from", str(path), "--out", str(out), "--overwrite"], standalone_mode=False)
        return FeatureStore(out).fingerprint

    return read


def make_image(suffix: str) -> Callable[[Path], Path]:
    def make(directory: Path) -> Path:
        path = directory / f"image.{suffix}"
        pixels = np.add.outer(np.arange(90), np.arange(120))[..., None] * [1, 2, 3]
        Image.fromarray(pixels.astype(np.uint8)).save(path)
        return path

    return make


def make_part(directory: Path) -> Path:
    path = directory / "image.part"
    images._save_part(path, np.linspace(0, 1, 2 * sum(WIDTHS.values()), dtype=np.float16).reshape(2, -1))
    return path


def read_part(path: Path) -> str:
    """Read a cached part; a damaged one is recreated."""
    rows = images._load_part(path)
    return digest(rows) if rows is not None else read_part(make_part(path.parent))


TOML = """
dataset = "mfeat"   # digits
method = "mfedpba"
seed = 3
alpha = 0.5
rounds = 7
families = ["DNN"]

[mfedpba]
lambda_1 = 0.02
"""


def make_toml(directory: Path) -> Path:
    path = directory / "run.toml"
    path.write_text(TOML)
    return path


def run_briefly(directory: Path) -> Path:
    config = make_config({"dataset": "synthetic", "samples": N, "classes": 3, "dims": (6, 8), "rounds": 2})
    config = fit_to_data(config, describe_dataset(config, directory))
    out = directory / "run"
    out.mkdir()
    run_rounds(config, directory / "data", SerialComm(), [RunLog(out)], Checkpoints(out, every=1))
    return out


def make_log(directory: Path) -> Path:
    path = directory / "run.h5"
    (run_briefly(directory) / "run.h5").rename(path)
    return path


def read_log(path: Path) -> str:
    run = load_run(path)
    return digest(*(part[name] for part in (run.attributes, run.rounds, run.partition, run.final) for name in part))


def make_checkpoint(directory: Path) -> Path:
    path = directory / "round-00000002"
    (run_briefly(directory) / "checkpoints" / path.name).rename(path)
    return path


def read_checkpoint(path: Path) -> str:
    saved = Saved(path)
    saved.check()
    tensors = [part for k in range(2) for part in (*saved.client(k)[:2], *saved.server())]
    return digest(
        saved.config, saved.round, read_log(path / "log.h5"), *(x.numpy() for t in tensors for x in t.values())
    )


KINDS: dict[str, Kind] = {
    "log": Kind(make_log, read_log, ours=True),
    "checkpoint": Kind(make_checkpoint, read_checkpoint, ours=True),
    "store dense": Kind(lambda directory: make_store(directory, sparse=False), read_store, ours=True),
    "store sparse": Kind(lambda directory: make_store(directory, sparse=True), read_store, ours=True),
    "shards": Kind(make_shards, read_shards, ours=True),
    "partition h5": Kind(make_partition_file("h5"), read_partition_digest, ours=True),
    "partition csv": Kind(make_partition_file("csv"), read_partition_digest),
    "image part": Kind(make_part, read_part, ours=True),
    "mat 4": Kind(make_mat("4"), imported("toy")),
    "mat 5": Kind(make_mat("5"), imported("toy")),
    "mat 7": Kind(make_mat("7"), imported("toy")),
    "mat 7.3": Kind(make_mat("7.3"), imported("toy")),
    "h5": Kind(make_h5, imported("toy")),
    "npz": Kind(make_npz, imported("toy")),
    "tables": Kind(make_tables, imported("toy")),
    "reuters": Kind(make_reuters, imported("reuters_40")),
    "youtube": Kind(make_youtube, imported("youtube_40")),
    "nus-wide": Kind(make_nuswide, imported("nus-wide_40")),
    "mfeat": Kind(make_mfeat, imported("mfeat_1"), share=0.2),
    "jpeg": Kind(make_image("jpg"), lambda path: digest(describe(path))),
    "png": Kind(make_image("png"), lambda path: digest(describe(path))),
    "config": Kind(make_toml, lambda path: make_config({}, read_toml(path)).to_json(), named=False),
}
