"""``mfedpba-mpi data``: list, inspect, synthesize and import datasets."""

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
        raise UserError(f"out: {path} is a directory; give a file, for example {path / 'mine.h5'}")


@click.group()
def data() -> None:
    """List, inspect, import and synthesize datasets."""


@data.command("list", short_help="List the datasets.")
@data_dir_option
def list_(data_dir: Path) -> None:
    """List the catalog, registered datasets, and all other datasets in the data directory."""
    from mfedpba_mpi.cli.console import console, table
    from mfedpba_mpi.data.store import locate

    check_data_dir(data_dir)
    load_defaults()
    known = CATALOG | {name: info for name, (info, *_) in LOADERS.items()}
    others = {path.stem for folder in (data_dir, data_dir / "synthetic") for path in folder.glob("*.h5")} - set(known)
    rows = []
    for name in [*known, *sorted(others)]:
        path = locate(name, data_dir)
        status = "registered, stored at first use" if name in LOADERS else "missing"
        rows.append(_row(name, path) if path else [*_shape(known[name]), "-", status])
    console().print(table(["name", "samples", "classes", "modalities", "path", "origin"], rows))
    if any(row[-1] == "missing" for row in rows):
        click.echo("A run creates a synthetic stand-in for a missing dataset; `data import` imports the real data.")


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


@data.command(short_help="Show statistics of a dataset.")
@click.argument("name", metavar="NAME|FILE.h5")
@data_dir_option
def inspect(name: str, data_dir: Path) -> None:
    """Show the modalities, class sizes, quality statistics and provenance of a dataset.

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
        where = name if name.endswith(".h5") else f"{name} in {data_dir}"
        hint = nearest(name, [*CATALOG, *(file.stem for file in data_dir.glob("*.h5"))])
        raise UserError(
            f"there is no dataset {where}{hint}; `mfedpba-mpi data list` lists all datasets, `data synthesize` creates "
            "a stand-in, `data import` imports the real data"
        )
    store = FeatureStore(path)
    click.echo("SYNTHETIC: generated, not measured" if store.origin == "synthetic" else "real data")
    if store.info.note:
        console().print(store.info.note, markup=False)
    show(store)


def show(store: FeatureStore) -> None:
    """Print the shape, quality statistics and provenance of a store."""
    import numpy as np

    from mfedpba_mpi.cli.console import console, count, table
    from mfedpba_mpi.data.quality import measure_quality

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
    for modality, quality in zip(info.modalities, measure_quality(store), strict=True):
        rows.append([
            modality.name, f"{modality.type} {TYPES.get(modality.type, '')}", str(modality.width),
            f"{quality.nonzero:.1%}{', sparse' if modality.sparse else ''}", f"{quality.low:.4g} to {quality.high:.4g}",
            str(quality.constant_columns), str(quality.duplicate_rows), f"{quality.accuracy:.1%}",
        ])  # fmt: skip
        doubtful += [modality.name] * (quality.accuracy <= quality.chance)
    console().print(table(headers, rows))
    if doubtful:
        guess = f"{sizes.max() / info.samples:.1%}"
        console().print(
            f"{', '.join(doubtful)}: linear accuracy is no better than always predicting the largest class ({guess}); "
            "check that rows and labels are in the same order.",
            style="yellow",
            markup=False,
        )
    provenance = [("store", str(store.path)), *sorted(store.provenance.items()), ("fingerprint", store.fingerprint)]
    console().print(table(["provenance", ""], provenance))


@data.command("show", short_help="Draw a partition of a dataset.")
@click.argument("name", metavar="NAME|FILE.h5")
@click.option("--partition", metavar="m2|m1+|m1|FILE", help="[default: m2 if K <= M, m1+ if K > M]")
@click.option("--clients", metavar="N", help="number of clients K  [default: number of modalities M]")
@click.option("--alpha", metavar="X", help="label skew  [default: 0.5 if K > M, else no skew]")
@click.option("--seed", metavar="N", default=0, show_default=True, help="random seed")
@click.option("--out", type=PathType, metavar="FILE.png", help="[default: NAME-PARTITION-kK-sSEED.png]")
@data_dir_option
def show_partition(name: str, out: Path | None, data_dir: Path, **settings: object) -> None:
    """Draw the modalities and training samples of every client, as a run with these settings has them.

    \b
    mfedpba-mpi data show youtube --partition m1+
    mfedpba-mpi data show caltech101 --clients 50 --out caltech.png

    Writes a PNG and a PDF. A missing dataset is replaced by its synthetic stand-in, which the figure says.
    """
    import numpy as np

    from mfedpba_mpi.config.run_config import RunConfig
    from mfedpba_mpi.data.sources import open_dataset, resolve
    from mfedpba_mpi.engine.setup import draw_partition
    from mfedpba_mpi.report.run_figures import circles
    from mfedpba_mpi.report.style import MAX_NAME, label, save

    check_data_dir(data_dir)
    if out and (out.suffix != ".png" or out.is_dir()):
        raise UserError(f"out: {out} is not a FILE.png; give for example --out partition.png")
    given = {key: value for key, value in settings.items() if value is not None}
    config = resolve(RunConfig.of(dataset=name, **given), data_dir)
    store = open_dataset(config, data_dir)
    arrays = draw_partition(config, store.info, store.labels()).arrays()
    samples = np.diff(arrays["train_offsets"])[:, None] * arrays["modalities"]
    remark = "synthetic data" if store.origin == "synthetic" else ""
    names = [label(modality.name, MAX_NAME) for modality in store.info.modalities]
    kind = Path(config.partition).stem
    path = out or Path(f"{store.info.name}-{kind}-k{config.clients}-s{config.seed}.png")
    save(circles(samples, names, remark), path.with_name(path.name.removesuffix(".png")))
    click.echo(f"wrote {path} and .pdf{f' ({remark})' if remark else ''}")


@data.command(short_help="Create a synthetic dataset.")
@click.argument("name", metavar=f"{'|'.join(CATALOG)}|synthetic")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="seed of the generator")
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
    """Create a synthetic stand-in with the shape of a catalog entry, or a synthetic dataset of any shape.

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
        raise UserError(f"--samples, --classes and --dims need the name synthetic; {name} has a fixed shape")
    else:
        info = CATALOG[name]
    suffix = f"-seed{seed}" if seed else ""  # runs use the file of seed 0
    path = out or data_dir / "synthetic" / f"{cache_name(info)}{suffix}.h5"
    _check_file(path)
    if path.exists() and FeatureStore(path).origin != "synthetic":
        raise UserError(f"{path} has real data; choose another --out")
    write_synthetic(info, path, seed)
    click.echo(f"wrote {path}: {info.samples} samples, {info.classes} classes, SYNTHETIC")


def _dims(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UserError(f"dims: expected integers separated by commas, e.g. 64,128, got {text!r}") from None


@data.command("import", short_help="Import real data.")
@click.argument("name")
@click.option(
    "--from", "source", type=PathType, required=True, metavar="PATH",
    help="a .mat, .h5 or .npz file, or a directory with the unpacked download, images or tables",
)  # fmt: skip
@click.option("--out", type=PathType, metavar="FILE.h5", help="[default: DIR/NAME.h5]")
@click.option("--name", "own_name", metavar="NAME", help="name of a custom dataset")
@click.option(
    "--types", metavar="I,L,A,T",
    help="types of a custom dataset's views (image, language, audio, time series), which determine the extractor "
    "families  [default: L for sparse views, I for dense]",
)  # fmt: skip
@click.option("--overwrite", is_flag=True, help="replace an existing file")
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
    """Import real data: read, match with the catalog, check, store, and show statistics.

    \b
    mfedpba-mpi data import caltech101 --from Caltech101-all.mat
    mfedpba-mpi data import caltech101 --from 101_ObjectCategories/
    mfedpba-mpi data import reuters_1200 --from Reuters-1200.mat      # a subset, under its own name
    mfedpba-mpi data import custom --name scenes --from scenes.mat --types I,I,L

    NAME is caltech101, reuters, nus-wide, youtube or mfeat, a variant like reuters_1200 or nus-wide-8, or custom.
    See data/README.md for the download of each original.
    """
    from mfedpba_mpi.data.guard import run_guarded

    if name != "custom" and (own_name or types):
        raise UserError(f"--name and --types need `data import custom`; {name} has a fixed name and types")
    if name == "custom" and (not own_name or own_name in CATALOG):
        taken = f"; {own_name} is a catalog name, use `data import {own_name}`" if own_name else ""
        raise UserError(f"a custom dataset needs its own name: --name NAME{taken}")
    name, views = (own_name, _types(types)) if name == "custom" and own_name else (name, None)
    path = out or data_dir / f"{check_name(name)}.h5"
    _check_file(path)
    if path.exists() and not overwrite:
        raise UserError(f"{path} exists already; --overwrite replaces it")

    def work() -> None:
        from mfedpba_mpi.data.importing import import_dataset

        show(import_dataset(name, source, path, views))
        click.echo(f"wrote {path}; run it with --dataset {path if out else name}")

    run_guarded(work, source, path)


def _types(text: str | None) -> list[str]:
    return [part.strip().upper() for part in text.split(",")] if text else []


@data.command("clean", short_help="Remove the shards of datasets.")
@click.option("--dry-run", is_flag=True, help="show what would be freed, remove nothing")
@data_dir_option
def clean_shards(dry_run: bool, data_dir: Path) -> None:
    """Remove the shards in the data directory, which are copies of the datasets ordered by client.

    A run reads its shards before round 1 and recreates missing ones, so nothing is lost. Do not clean while runs are
    starting. Datasets are never removed.
    """
    from mfedpba_mpi.cli.console import bytes_of, count

    files = [path for path in (data_dir / "shards").glob("*") if path.suffix in (".h5", ".part")]
    freed = sum(map(disk_of, files))
    if not dry_run:
        remove(files)
    verb = "would free" if dry_run else "freed"
    click.echo(f"{verb} {bytes_of(freed)}, {count(len(files), 'file')} in {data_dir / 'shards'}")
