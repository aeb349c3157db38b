"""``mfedpba-mpi data``: which datasets are there, what is in them, making and importing them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from mfedpba_mpi.data.catalog import CATALOG, TYPES, Dataset, check_name
from mfedpba_mpi.errors import UserError

if TYPE_CHECKING:
    from mfedpba_mpi.data.store import FeatureStore

PathType = click.Path(path_type=Path)
data_dir_option = click.option(
    "--data-dir",
    type=PathType,
    envvar="MFEDPBA_DATA_DIR",
    default=Path("data"),
    metavar="DIR",
    help="where feature stores are kept (or $MFEDPBA_DATA_DIR)  [default: data]",
)


@click.group()
def data() -> None:
    """List, inspect, import and synthesize datasets."""


@data.command("list")
@data_dir_option
def list_(data_dir: Path) -> None:
    """List the datasets of the catalog and all others in the data directory."""
    from mfedpba_mpi.console import console, table
    from mfedpba_mpi.data.store import locate

    others = {path.stem for folder in (data_dir, data_dir / "synthetic") for path in folder.glob("*.h5")} - set(CATALOG)
    rows = []
    for name in [*CATALOG, *sorted(others)]:
        path = locate(name, data_dir)
        rows.append(_row(name, path) if path else [*_shape(CATALOG[name]), "-", "not there yet"])
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


@data.command()
@click.argument("name", metavar="NAME|FILE.h5")
@data_dir_option
def inspect(name: str, data_dir: Path) -> None:
    """Show what a dataset holds: modalities, class sizes, where it comes from."""
    import numpy as np

    from mfedpba_mpi.console import console, table
    from mfedpba_mpi.data.store import FeatureStore, locate

    path = locate(name, data_dir)
    if path is None:
        place = name if name.endswith(".h5") else f"{name} in {data_dir}"
        raise UserError(
            f"there is no dataset {place}; `mfedpba-mpi data list` shows what there is, `data synthesize` makes a "
            "stand-in, `data import` brings in the real one"
        )
    store = FeatureStore(path)
    info = store.info
    sizes = np.bincount(store.labels(), minlength=info.classes)
    click.echo(f"{info.name}: {info.samples} samples, {info.classes} classes, {len(info.modalities)} modalities")
    click.echo("SYNTHETIC: made up, not measured" if store.origin == "synthetic" else "real data")
    click.echo(f"file: {path}")
    if info.note:
        console().print(info.note, markup=False)
    click.echo(f"samples a class: {sizes.min()} to {sizes.max()}, median {np.median(sizes):g}")
    headers = ["modality", "type", "width", "kind", "density", "min", "max", "mean", "constant columns"]
    console().print(table(headers, [_summary(store, m) for m in range(len(info.modalities))]))
    rows = [*sorted(store.provenance.items()), ("fingerprint", store.fingerprint)]
    console().print(table(["provenance", ""], rows))


def _summary(store: FeatureStore, m: int) -> list[str]:
    """One line on a modality; a sparse one stays sparse."""
    import numpy as np

    modality, values = store.info.modalities[m], store.modality(m)
    low, high = values.min(axis=0), values.max(axis=0)
    if isinstance(values, np.ndarray):
        nonzero = np.count_nonzero(values)
    else:
        nonzero, low, high = values.count_nonzero(), low.toarray(), high.toarray()
    cells = values.shape[0] * values.shape[1]
    return [
        modality.name,
        f"{modality.type} ({TYPES.get(modality.type, '?')})",
        str(modality.width),
        "sparse" if modality.sparse else f"dense {values.dtype}",
        f"{nonzero / cells:.2%}",
        f"{low.min():.4g}",
        f"{high.max():.4g}",
        f"{values.sum(dtype=np.float64) / cells:.4g}",
        str(np.count_nonzero(low == high)),
    ]


@data.command()
@click.argument("name", metavar=f"{'|'.join(CATALOG)}|synthetic")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="another seed, another dataset")
@click.option("--out", type=PathType, metavar="FILE.h5", help="[default: DIR/synthetic/NAME.h5]")
@click.option("--samples", type=int, help="for NAME synthetic  [default: 2000]")
@click.option("--classes", type=int, help="for NAME synthetic  [default: 10]")
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
    """Make a synthetic stand-in with the shape of a catalog entry, or a synthetic set of any shape."""
    from mfedpba_mpi.data.store import FeatureStore
    from mfedpba_mpi.data.synthetic import cache_name, free_form, write_synthetic
    from mfedpba_mpi.options import unknown

    if name == "synthetic":
        info = free_form(samples or 2000, classes or 10, _dims(dims or "64,128"))
    elif name not in CATALOG:
        raise unknown("dataset", name, [*CATALOG, "synthetic"])
    elif samples or classes or dims:
        raise UserError(f"--samples, --classes and --dims go with the name synthetic only; {name} has its own shape")
    else:
        info = CATALOG[name]
    suffix = f"-seed{seed}" if seed else ""  # a run without data takes the file of seed 0
    path = out or data_dir / "synthetic" / f"{cache_name(info)}{suffix}.h5"
    if path.exists() and FeatureStore(path).origin != "synthetic":
        raise UserError(f"{path} holds real data; choose another --out")
    write_synthetic(info, path, seed)
    click.echo(f"wrote {path}: {info.samples} samples, {info.classes} classes, SYNTHETIC")


def _dims(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UserError(f"dims: expected widths like 64,128, got '{text}'") from None


@data.command("import")
@click.argument("name")
@click.option(
    "--from", "source", type=PathType, required=True, metavar="FILE", help="an .h5 file with X0, X1, ... and y"
)
@click.option("--out", type=PathType, metavar="FILE.h5", help="[default: DIR/NAME.h5]")
@click.option("--overwrite", is_flag=True, help="replace what is there")
@data_dir_option
def import_(name: str, source: Path, out: Path | None, overwrite: bool, data_dir: Path) -> None:
    """Import real data under a catalog name, or under a new one (reuters_1200 follows reuters)."""
    from mfedpba_mpi.data.importers import import_file

    path = out or data_dir / f"{check_name(name)}.h5"
    if path.exists() and not overwrite:
        raise UserError(f"{path} is there already; --overwrite replaces it")
    import_file(name, source, path)
    click.echo(f"wrote {path}")
