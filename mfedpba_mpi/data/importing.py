"""Import published dataset files into a feature store: read, match with the catalog, check, write."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy.sparse import csr_matrix, issparse

from mfedpba_mpi.cli.console import count
from mfedpba_mpi.config.fields import unknown
from mfedpba_mpi.data.catalog import CATALOG, TYPES, Dataset, Modality, base_of, check_name
from mfedpba_mpi.data.guard import cpu_time_limit
from mfedpba_mpi.data.readers import h5, images, mat, mfeat, nuswide, reuters, tables, youtube
from mfedpba_mpi.data.readers.source import Reader, Source
from mfedpba_mpi.data.store import FeatureStore, Values, decode_text, write_store
from mfedpba_mpi.errors import UserError

READERS: tuple[Reader, ...] = (h5, mat, mfeat, reuters, youtube, nuswide, tables, images)  # tried in this order
ORIGINAL_READERS: dict[str, Reader] = {  # of each dataset's original download, tried first
    "caltech101": images,
    "reuters": reuters,
    "nus-wide": nuswide,
    "youtube": youtube,
    "mfeat": mfeat,
}

# Common names of the catalog's modalities, in the catalog's order.
VIEW_ALIASES: dict[str, tuple[tuple[str, ...], ...]] = {
    "caltech101": (("hog",), ("gist",), ("lbp",)),
    "reuters": (
        ("en", "english"), ("fr", "french"), ("gr", "ge", "de", "german"), ("it", "italian"), ("sp", "es", "spanish"),
    ),
    "nus-wide": (
        ("ch", "color histogram"), ("corr", "cc", "color correlogram"), ("cm", "cm55", "color moments"),
        ("bow", "bag of words", "sift"),
    ),
    "youtube": (
        ("audio_mfcc",), ("audio_spectrogram_stream",), ("audio_volume_stream",), ("vision_cuboids_histogram",),
        ("vision_hist_motion_estimate",), ("vision_hog_features",),
    ),
    "mfeat": (
        ("fou", "mfeat-fou"), ("fac", "mfeat-fac"), ("kar", "mfeat-kar"), ("pix", "mfeat-pix"), ("zer", "mfeat-zer"),
        ("mor", "mfeat-mor"),
    ),
}  # fmt: skip
ARCHIVES = (".zip", ".tar", ".gz", ".tgz", ".bz2", ".xz", ".rar", ".7z")
DIGITS = "0123456789"
MIN_CPU_SECONDS, MIN_BYTES_PER_SECOND = 60.0, 1e5  # CPU time limit of a reader: constant part, and slowest rate
PICKLES = (".pkl", ".pickle", ".pt", ".pth", ".joblib")


def import_dataset(name: str, source: Path, out: Path, types: Sequence[str] | None = None) -> FeatureStore:
    """Import the dataset in `source` as the feature store `out`; on an error no store is written.

    Parameters
    ----------
    name : a catalog name, which requires the catalog's shape, or a variant (``reuters_1200``), which requires its
        modalities in any width. With `types`, any other name; all views are then taken unchanged.
    types : a key of TYPES for each view, or one for all; empty: L for sparse views, I for dense ones.
    """
    base = base_of(check_name(name))
    if base is None and types is None:
        custom = f"`mfedpba-mpi data import custom --name {name}` imports your own dataset"
        raise UserError(f"{unknown('dataset', name, CATALOG)}, or a variant like reuters_1200; {custom}")
    scratch = out.with_name(f".{out.name}.parts")
    reader, found = _read(source, scratch, base)
    labels, classes, class_names = encode_labels(found, source)
    provenance = {**found.details, "reader": reader.FORMAT.split(":")[0], "file": source.resolve().name}
    if base and types is None:
        order, how = match_views(base, found, source)
        widths = [found.views[i].shape[1] for i in order]
        modalities = tuple(
            Modality(m.name, m.type, width, m.sparse) for m, width in zip(base.modalities, widths, strict=True)
        )
        provenance["modalities"] = f"{_describe_matching(modalities, order, found.view_names)} (by {how})"
    else:
        order, modalities = list(range(len(found.views))), _custom_modalities(found, types or (), source)
    info = Dataset(name, len(labels), classes, modalities, base.note if base else "")
    _check_shape(info)
    views = [_convert_storage(found.views[i], modality.sparse) for i, modality in zip(order, modalities, strict=True)]
    provenance["sha256"] = digest(found.files, source)
    try:
        write_store(out, info, labels, views, "real", provenance, class_names)
    except UserError as error:
        raise UserError(f"{source}: {error}") from error
    shutil.rmtree(scratch, ignore_errors=True)
    return FeatureStore(out)


def _read(source: Path, scratch: Path, base: Dataset | None) -> tuple[Reader, Source]:
    """Read `source` with the first reader that recognises it; the reader of the original download is tried first."""
    if not source.exists():
        raise UserError(f"{source} does not exist; check the path")
    if source.suffix in PICKLES or (source.is_file() and re.match(rb"\x80[\x02-\x05]", _head(source))):
        raise UserError(f"{source} is a pickle, which can run code and is never loaded; save plain arrays (.npz)")
    original = [ORIGINAL_READERS[base.name]] if base else []
    reader = next((reader for reader in (*original, *READERS) if reader.recognises(source)), None)
    if reader is None and source.suffix in ARCHIVES:
        raise UserError(f"{source} is an archive; unpack it and pass the directory")
    if reader is None:
        near = [str(path) for path in sorted(source.glob(f"{base.name}*"))] if base and source.is_dir() else []
        hint = f" (did you mean {' or '.join(near[:3])}?)" if near else ""
        known = "; ".join(reader.FORMAT for reader in ((h5, mat, tables, *original) if base else READERS))
        raise UserError(f"{source} has an unknown format{hint}; supported: {known}")
    size = sum(file.stat().st_size for file in ([source] if source.is_file() else source.rglob("*")) if file.is_file())
    try:
        with cpu_time_limit(MIN_CPU_SECONDS + size / MIN_BYTES_PER_SECOND):
            found = reader.read(source, scratch)
    except OSError as error:
        raise UserError(f"cannot read {error.filename or source}: {error.strerror or error}") from error
    for m, view in enumerate(found.views):
        if len(found.labels) != view.shape[0] or not view.size:
            raise UserError(
                f"{source}: view {m + 1} is {view.shape[0]} x {view.shape[1]}, but there are "
                f"{count(len(found.labels), 'label')}; give one row for each label"
            )
    return reader, found


def _head(path: Path) -> bytes:
    with open(path, "rb") as file:
        return file.read(2)


def encode_labels(found: Source, source: Path) -> tuple[np.ndarray, int, Sequence[str] | None]:
    """Return (labels 0..C-1, C, class names); the original labels, numbers or strings, are numbered in sorted order.

    Labels that are strings, or not 0..C-1 or 1..C, become the class names unless the source has names.
    """
    labels = found.labels
    if labels.dtype.kind == "f" and np.array_equal(labels, np.rint(labels)) and np.abs(labels).max(initial=0) < 2**53:
        labels = labels.astype(np.int64)
    if labels.dtype.kind not in "biuSU":
        raise UserError(f"{source}: labels must be integers or strings, not {labels[:3].tolist()} ...; convert them")
    if found.classes and labels.dtype.kind in "iu":
        if not len(labels) >= found.classes > labels.max():
            raise UserError(
                f"{source} has {found.classes} classes for {len(labels)} samples, and the largest label is "
                f"{labels.max()}; number the labels from 0 to {found.classes - 1}"
            )
        return labels, found.classes, found.class_names
    values, codes = np.unique(labels, return_inverse=True)
    if not 1 < len(values) < len(labels):
        raise UserError(f"{source}: {len(labels)} samples have {len(values)} distinct labels; check the label array")
    names = found.class_names
    if names is None and not any(np.array_equal(values, np.arange(len(values)) + first) for first in (0, 1)):
        names = [decode_text(value) for value in values]
    return codes, len(values), names


def match_views(base: Dataset, found: Source, source: Path) -> tuple[list[int], str]:
    """Return the view index for each modality of a catalog entry, and how they were matched (name, order or width).

    The rules are tried in this order: names (digits at the end are ignored); widths equal to the catalog's, in order;
    for each modality the first unused view of its width, so that views of equal width keep their order; the order
    alone, if there are as many views as modalities.
    """
    M, names = len(base.modalities), [_normalize_name(name) for name in found.view_names]
    accepted = [
        {_normalize_name(name) for name in (modality.name, *aliases)}
        for modality, aliases in zip(base.modalities, VIEW_ALIASES[base.name], strict=True)
    ]
    by_name = [[i for i, name in enumerate(names) if {name, name.rstrip(DIGITS)} & known] for known in accepted]
    if all(len(hits) == 1 for hits in by_name):
        return [hits[0] for hits in by_name], "name"
    widths, wanted = [view.shape[1] for view in found.views], [m.width for m in base.modalities]
    if widths == wanted:
        return list(range(M)), "order"
    by_width: list[int] = []
    for width in wanted:
        by_width += [i for i, w in enumerate(widths) if w == width and i not in by_width][:1]
    if len(by_width) == M:
        return by_width, "width"
    if len(widths) == M:
        return list(range(M)), "order"
    raise UserError(
        f"{source} has {_describe_widths(widths)}, which cannot be matched with the {_describe_widths(wanted)} of "
        f"{base.name}; `mfedpba-mpi data import custom --name NAME` imports all views unchanged"
    )


def _normalize_name(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _describe_matching(modalities: Sequence[Modality], order: Sequence[int], names: Sequence[str]) -> str:
    """Return the matching as text: ``I1 = view 4 hog, ...``."""
    known = [f" {name}" for name in names] or [""] * (max(order) + 1)
    return ", ".join(f"{m.name} = view {i + 1}{known[i]}" for m, i in zip(modalities, order, strict=True))


def _custom_modalities(found: Source, types: Sequence[str], source: Path) -> tuple[Modality, ...]:
    """Return the modalities of a custom dataset, one per view."""
    M, names = len(found.views), found.view_names
    types = list(types) * M if len(types) == 1 else types or ["L" if issparse(view) else "I" for view in found.views]
    if len(types) != M or not set(types) <= set(TYPES):
        raise UserError(
            f"types: {source} has {count(M, 'view')}; give {M} of {', '.join(TYPES)} (comma-separated), or one for all"
        )
    if len({*names} - {""}) != M:
        names = [f"V{m + 1}" for m in range(M)]
    return tuple(Modality(n, t, v.shape[1], issparse(v)) for n, t, v in zip(names, types, found.views, strict=True))


def _check_shape(info: Dataset) -> None:
    """Raise a UserError if a dataset with a catalog name has another shape."""
    entry = CATALOG.get(info.name, info)
    if (info.samples, info.classes, info.modalities) != (entry.samples, entry.classes, entry.modalities):
        raise UserError(
            f"{info.name} has {_describe_shape(entry)}, but the file has {_describe_shape(info)}; import a subset or "
            f"variant under its own name, for example {info.name}_{info.samples}"
        )


def _describe_shape(info: Dataset) -> str:
    return f"{info.samples} samples, {info.classes} classes and {_describe_widths([m.width for m in info.modalities])}"


def _describe_widths(widths: Sequence[int]) -> str:
    return f"{count(len(widths), 'view')} of width{'s' * (len(widths) > 1)} {', '.join(map(str, widths))}"


def _convert_storage(view: Values, sparse: bool) -> Values:
    """Convert a view to sparse (CSR) or dense."""
    if sparse == issparse(view):
        return view
    return csr_matrix(view) if sparse else view.toarray()  # type: ignore[union-attr]


def digest(files: Sequence[Path], source: Path) -> str:
    """Return the SHA-256 of one file, or of the lines ``<SHA-256>  <relative path>`` of several, sorted by path."""
    sums = {}
    for path in files:
        with open(path, "rb") as file:
            sums[path] = hashlib.file_digest(file, "sha256").hexdigest()
    if list(sums) == [source]:
        return sums[source]
    lines = sorted((path.relative_to(source).as_posix(), total) for path, total in sums.items())
    return hashlib.sha256("".join(f"{total}  {path}\n" for path, total in lines).encode()).hexdigest()
