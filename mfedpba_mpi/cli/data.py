"""``mfedpba-mpi data``: which datasets are there, what is in them, making and importing them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from mfedpba_mpi.cli.clean import disk_of, remove
from mfedpba_mpi.cli.paths import PathType, check_data_dir, data_dir_option
from mfedpba_mpi.config.fields import nearest
from mfedpba_mpi.data.catalog import CATALOG, LOADERS, TYPES, Dataset, check_name
from mfedpba_mpi.errors import UserError
from mfedpba_mpi.plugins import load_defaults

if TYPE_CHECKING:
    from mfedpba_mpi.data.store import FeatureStore


def _check_file(path: Path) -> None:
    if path.is_dir():
        raise UserError(f"out: {path} is a directory; name a file in it, for example {path / 'mine.h5'}")


@click.group()
def data() -> None:
    """List, inspect, import and synthesize datasets."""


@data.command("list", short_help="List the datasets.")
@data_dir_option
def list_(data_dir: Path) -> None:
    """List the datasets of the catalog and all others in the data directory."""
    from mfedpba_mpi.cli.console import console, table
    from mfedpba_mpi.data.store import locate

    check_data_dir(data_dir)
    load_defaults()
    known = CATALOG | {name: info for name, (info, *_) in LOADERS.items()}
    others = {path.stem for folder in (data_dir, data_dir / "synthetic") for path in folder.glob("*.h5")} - set(known)
    rows = []
    for name in [*known, *sorted(others)]:
        path = locate(name, data_dir)
        later = "registered, stored at first use" if name in LOADERS else "not there yet"
        rows.append(_row(name, path) if path else [*_shape(known[name]), "-", later])
    console().print(table(["name", "samples", "classes", "modalities", "where", "origin"], rows))
    if any(row[-1] == "not there yet" for row in rows):
        click.echo("A run makes a synthetic stand-in for what is not there; `data import` brings in the real data.")


def _row(name: str, path: Path) -> list[str]:
    from mfedpba_mpi.data.store import FeatureStore

    try:
        store = FeatureStore(path)
    except UserError:
        return [name, "", "", "", str(path), "unreadable"]
    return [name, *_shape(store.info)[1:], str(path), store.origin]


def _shape(info: Dataset) -> list[str]:
    views = " ".join(f"{m.name}:{m.width}" for m in info.modalities)
    return [info.name, str(info.samples), str(info.classes), views]


@data.command(short_help="Show what a dataset holds.")
@click.argument("name", metavar="NAME|FILE.h5")
@data_dir_option
def inspect(name: str, data_dir: Path) -> None:
    """Show what a dataset holds: modalities, class sizes, where it comes from.

    \b
    mfedpba-mpi data inspect mfeat
    """
    from mfedpba_mpi.cli.console import console
    from mfedpba_mpi.data.sources import make_registered
    from mfedpba_mpi.data.store import FeatureStore, locate

    check_data_dir(data_dir)
    load_defaults()
    path = locate(name, data_dir)
    if path is None and name in LOADERS:
        path = make_registered(name, data_dir)
    if path is None:
        place = name if name.endswith(".h5") else f"{name} in {data_dir}"
        hint = nearest(name, [*CATALOG, *(there.stem for there in data_dir.glob("*.h5"))])
        raise UserError(
            f"there is no dataset {place}{hint}; `mfedpba-mpi data list` shows what there is, `data synthesize` makes "
            "a stand-in, `data import` brings in the real one"
        )
    store = FeatureStore(path)
    click.echo("SYNTHETIC: made up, not measured" if store.origin == "synthetic" else "real data")
    if store.info.note:
        console().print(store.info.note, markup=False)
    show(store)


def show(store: FeatureStore) -> None:
    """What a store holds, and how well each modality tells the classes apart."""
    import numpy as np

    from mfedpba_mpi.cli.console import console, count, table
    from mfedpba_mpi.data.quality import look

    info, sizes = store.info, np.bincount(store.labels(), minlength=store.info.classes)
    click.echo(
        f"{info.name}: {info.samples} samples, {info.classes} classes ({sizes.min()} to {sizes.max()} samples, median "
        f"{np.median(sizes):g}), {count(len(info.modalities), 'modality', 'modalities')}"
    )
    headers = [
        "modality",
        "type",
        "width",
        "non-zero",
        "range",
        "constant columns",
        "duplicate rows",
        "linear accuracy",
    ]
    rows, doubtful = [], []
    for modality, seen in zip(info.modalities, look(store), strict=True):
        rows.append([
            modality.name, f"{modality.type} {TYPES.get(modality.type, '')}", str(modality.width),
            f"{seen.nonzero:.1%}{', sparse' if modality.sparse else ''}", f"{seen.low:.4g} to {seen.high:.4g}",
            str(seen.constant_columns), str(seen.duplicate_rows), f"{seen.accuracy:.1%}",
        ])  # fmt: skip
        doubtful += [modality.name] * (seen.accuracy <= seen.chance)
    console().print(table(headers, rows))
    if doubtful:
        guess = f"{sizes.max() / info.samples:.1%}"
        console().print(
            f"{', '.join(doubtful)}: no better than guessing the largest class ({guess}). Are the rows and the labels "
            "in the same order?",
            style="yellow",
            markup=False,
        )
    provenance = [("store", str(store.path)), *sorted(store.provenance.items()), ("fingerprint", store.fingerprint)]
    console().print(table(["provenance", ""], provenance))


@data.command(short_help="Make a synthetic dataset.")
@click.argument("name", metavar=f"{'|'.join(CATALOG)}|synthetic")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="another seed, another dataset")
@click.option("--out", type=PathType, metavar="FILE.h5", help="[default: DIR/synthetic/NAME.h5]")
@click.option("--samples", type=click.IntRange(1), help="for NAME synthetic  [default: 2000]")
@click.option("--classes", type=click.IntRange(2), help="for NAME synthetic  [default: 10]")
@click.option("--dims", metavar="W,W,...", help="widths, for NAME synthetic  [default: 64,128]")
@data_dir_option
def synthesize(
    name: str,
    seed: int,
    out: Path | None,
    samples: int | None,
    classes: int | None,
    dims: str | None,
    data_dir: Path,
) -> None:
    """Make a synthetic stand-in with the shape of a catalog entry, or a synthetic set of any shape.

    \b
    mfedpba-mpi data synthesize youtube
    mfedpba-mpi data synthesize synthetic --samples 6000 --dims 64,128,32 --out data/mine.h5
    """
    from mfedpba_mpi.config.fields import unknown
    from mfedpba_mpi.data.store import FeatureStore
    from mfedpba_mpi.data.synthetic import cache_name, free_form, write_synthetic

    if name == "synthetic":
        info = free_form(samples or 2000, classes or 10, _dims("64,128" if dims is None else dims))
    elif name not in CATALOG:
        raise unknown("dataset", name, [*CATALOG, "synthetic"])
    elif (samples, classes, dims) != (None, None, None):
        raise UserError(f"--samples, --classes and --dims go with the name synthetic only; {name} has its own shape")
    else:
        info = CATALOG[name]
    suffix = f"-seed{seed}" if seed else ""  # a run without data takes the file of seed 0
    path = out or data_dir / "synthetic" / f"{cache_name(info)}{suffix}.h5"
    _check_file(path)
    if path.exists() and FeatureStore(path).origin != "synthetic":
        raise UserError(f"{path} holds real data; choose another --out")
    write_synthetic(info, path, seed)
    click.echo(f"wrote {path}: {info.samples} samples, {info.classes} classes, SYNTHETIC")


def _dims(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UserError(f"dims: expected whole numbers separated by commas, e.g. 64,128, got {text!r}") from None


@data.command("import", short_help="Import real data.")
@click.argument("name")
@click.option(
    "--from", "source", type=PathType, required=True, metavar="PATH",
    help="a .mat, .h5 or .npz file, or the directory of the unpacked download, of images, or of tables",
)  # fmt: skip
@click.option("--out", type=PathType, metavar="FILE.h5", help="[default: DIR/NAME.h5]")
@click.option("--name", "own_name", metavar="NAME", help="what a custom dataset is to be called")
@click.option(
    "--types", metavar="I,L,A,T",
    help="of a custom dataset's views: image, language, audio, time series; they decide which networks are drawn"
    "  [default: L for sparse views, I for dense]",
)  # fmt: skip
@click.option("--overwrite", is_flag=True, help="replace what is there")
@data_dir_option
def import_(
    name: str,
    source: Path,
    out: Path | None,
    own_name: str | None,
    types: str | None,
    overwrite: bool,
    data_dir: Path,
) -> None:
    """Import real data: read, match with the catalog, check, look at it, and store it, all or nothing.

    \b
    mfedpba-mpi data import caltech101 --from Caltech101-all.mat
    mfedpba-mpi data import caltech101 --from 101_ObjectCategories/
    mfedpba-mpi data import reuters_1200 --from Reuters-1200.mat      # a subset has a name of its own
    mfedpba-mpi data import custom --name scenes --from scenes.mat --types I,I,L

    NAME is caltech101, reuters, nus-wide, youtube or mfeat, a variant like reuters_1200 or nus-wide-8, or custom.
    data/README.md says where each original is found.
    """
    from mfedpba_mpi.data.guard import guarded

    if name != "custom" and (own_name or types):
        raise UserError(f"--name and --types go with `data import custom` only; {name} has a name and types")
    if name == "custom" and (not own_name or own_name in CATALOG):
        given = f", and {own_name} is the catalog's: `data import {own_name}`" if own_name else ""
        raise UserError(f"a custom dataset needs a name of its own: --name NAME{given}")
    name, views = (own_name, _types(types)) if name == "custom" and own_name else (name, None)
    path = out or data_dir / f"{check_name(name)}.h5"
    _check_file(path)
    if path.exists() and not overwrite:
        raise UserError(f"{path} is there already; --overwrite replaces it")

    def work() -> None:
        from mfedpba_mpi.data.importing import import_dataset

        show(import_dataset(name, source, path, views))
        click.echo(f"wrote {path}; run it with --dataset {path if out else name}")

    guarded(work, source, path)


def _types(text: str | None) -> list[str]:
    return [part.strip().upper() for part in text.split(",")] if text else []


@data.command("clean", short_help="Remove the shards of datasets.")
@click.option("--dry-run", is_flag=True, help="say what would be freed; remove nothing")
@data_dir_option
def clean_shards(dry_run: bool, data_dir: Path) -> None:
    """Remove the shards in the data directory: copies of the datasets, dealt out to the clients of a run.

    A run reads its shards before round 1 and makes them again where they are missing, so nothing is lost. Do not clean
    while runs are starting. Datasets are never removed.
    """
    from mfedpba_mpi.cli.console import bytes_of, count

    spare = [path for path in (data_dir / "shards").glob("*") if path.suffix in (".h5", ".part")]
    freed = sum(map(disk_of, spare))
    if not dry_run:
        remove(spare)
    verb = "would free" if dry_run else "freed"
    click.echo(f"{verb} {bytes_of(freed)}, {count(len(spare), 'file')} in {data_dir / 'shards'}")
