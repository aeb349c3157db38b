"""Synthetic data: stand-ins with the exact shapes of the catalog entries, and datasets of free shape.

A sample i of class c has a latent vector, which modality m observes with its own error::

    z_i^m = mu_c + STYLE s_{c,j(i)} + noise (e_i + q_m e_i^m)

where mu_c is the class mean, s_{c,j} one of a few styles of the class, e_i the sample's noise, shared by all modalities
(so that modalities agree on which samples are atypical), e_i^m the modality's own noise, and q_m its scale. A dense
modality is a fixed random two-layer map of z plus noise on every feature. A sparse modality is text: softmax(z) is the
topic mixture, every language has its own words (Zipf-distributed) for each topic, and counts are weighted by TF-IDF.
The generator does not depend on any method. `noise` alone sets the difficulty; RECIPES sets it so that a client of the
m2 partition that trains alone is about as accurate as Local in the paper.

Values are rounded to multiples of 1/1024. That hides the last bits, in which CPUs and BLAS libraries differ, so the
same seed gives the same dataset on every machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from scipy.sparse import coo_matrix, csr_matrix

from mfedpba_mpi.cli.console import count
from mfedpba_mpi.config.fields import unknown
from mfedpba_mpi.data.catalog import CATALOG, TYPES, Dataset, Modality
from mfedpba_mpi.data.scratch import Scratch
from mfedpba_mpi.data.store import FeatureStore, Values, write_store
from mfedpba_mpi.errors import UserError
from mfedpba_mpi.rng import generator

REVISION = 1  # increase it with any change below except RECIPES; cached files of another revision are recreated
STYLES, STYLE = 3, 0.5
HIDDEN, SMOOTH, FEATURE_NOISE = 64, 5, 0.3
TOKENS, TOPICAL, SHARPNESS = 90, 0.7, 2.0  # of a text: median length, share of on-topic words, softmax scale


@dataclass(frozen=True)
class Recipe:
    """Difficulty of a dataset: overall `noise`, `errors` q_m, latent dimension; class sizes fall as rank^-skew."""

    noise: float
    errors: tuple[float, ...]
    latent: int = 16
    skew: float = 0.0


RECIPES = {
    "caltech101": Recipe(noise=0.9, errors=(0.8, 0.95, 0.85), latent=24, skew=0.67),
    "reuters": Recipe(noise=0.58, errors=(1.2, 0.8, 1.3, 0.6, 1.1), skew=0.4),
    "nus-wide": Recipe(noise=1.5, errors=(0.9, 0.8, 1.0, 2.0), skew=0.2),
    "youtube": Recipe(noise=0.9, errors=(1.7, 1.7, 2.3, 0.4, 1.7, 1.1)),
    "mfeat": Recipe(noise=0.42, errors=(1.5, 0.3, 0.6, 0.2, 1.2, 0.0), latent=8),
    "synthetic": Recipe(noise=0.7, errors=(0.5, 1.0)),
}


def free_form(samples: int, classes: int, dims: tuple[int, ...]) -> Dataset:
    """Describe a dense dataset of any shape; modality types cycle through I, L, A, T to use all extractor families."""
    if samples < classes or classes < 2 or not dims or min(dims) < 1:
        raise UserError(
            f"synthetic: {count(samples, 'sample')}, {count(classes, 'class', 'classes')} and widths "
            f"{','.join(map(str, dims)) or 'none'} are not a valid shape; give at least 2 classes, one sample for "
            "each, and widths of at least 1"
        )
    types = list(TYPES)
    modalities = tuple(Modality(f"M{m + 1}", types[m % len(types)], width) for m, width in enumerate(dims))
    return Dataset("synthetic", samples, classes, modalities, "A synthetic dataset of a free shape.")


def synthesize(name_or_info: str | Dataset, seed: int = 0) -> tuple[Dataset, np.ndarray, list[Values]]:
    """Generate a dataset with the shape of a catalog entry or a `Dataset`: (info, labels, values of each modality)."""
    if isinstance(name_or_info, str) and name_or_info not in CATALOG:
        raise unknown("dataset", name_or_info, CATALOG)
    info = CATALOG[name_or_info] if isinstance(name_or_info, str) else name_or_info
    recipe = RECIPES.get(info.name, RECIPES["synthetic"])
    rng = generator(seed, f"synthetic {info.name}")
    labels = rng.permutation(np.repeat(np.arange(info.classes), class_sizes(info, recipe.skew)))
    means = rng.standard_normal((info.classes, recipe.latent))
    styles = STYLE * rng.standard_normal((info.classes, STYLES, recipe.latent))
    centre = means[labels] + styles[labels, rng.integers(STYLES, size=info.samples)]
    shared = rng.standard_normal(centre.shape)
    values: list[Values] = []
    for m, modality in enumerate(info.modalities):
        rng = generator(seed, f"synthetic {info.name} modality", m)
        error = recipe.errors[m % len(recipe.errors)]
        z = centre + recipe.noise * (shared + error * rng.standard_normal(centre.shape))
        values.append((_text if modality.sparse else _dense)(z, modality.width, rng))
    return info, labels, values


def class_sizes(info: Dataset, skew: float) -> np.ndarray:
    """Return the class sizes (C,), each at least one, proportional to rank^-skew (largest-remainder rounding)."""
    share = np.arange(1, info.classes + 1) ** -skew
    exact = share / share.sum() * (info.samples - info.classes)
    sizes = np.floor(exact).astype(np.int64)
    sizes[np.argsort(sizes - exact, kind="stable")[: info.samples - info.classes - sizes.sum()]] += 1
    return sizes + 1


def _round(values: np.ndarray) -> np.ndarray:
    """Round to multiples of 1/1024, as float32; overwrites its argument."""
    values *= 1024
    return np.rint(values, out=values).astype(np.float32) / np.float32(1024)


def _dense(z: np.ndarray, width: int, rng: np.random.Generator) -> np.ndarray:
    """Map the latent z to (N, width) float32 features by a random two-layer network with unequal input scales.

    Neighbouring features are correlated, like histogram bins or frequency bands, so that convolutions are useful.
    """
    scale = rng.random(z.shape[1]) / z.std()
    hidden = np.tanh((z * scale) @ rng.standard_normal((z.shape[1], HIDDEN)))
    weights = sliding_window_view(rng.standard_normal((HIDDEN, width + SMOOTH - 1)), SMOOTH, axis=1).sum(axis=2)
    features = hidden @ (weights / np.sqrt(HIDDEN * SMOOTH))
    features += FEATURE_NOISE * rng.standard_normal(features.shape, dtype=np.float32)
    return _round(features)


def _text(z: np.ndarray, width: int, rng: np.random.Generator) -> csr_matrix:
    """Generate texts with topic mixture softmax(z) and return their TF-IDF, (N, width) float32 CSR, never dense."""
    N, topics = z.shape
    mixture = np.cumsum(np.exp(SHARPNESS * (z - z.max(axis=1, keepdims=True))), axis=1)
    mixture = mixture / mixture[:, -1:] + np.arange(N)[:, None]  # one increasing sequence for searchsorted
    lengths = np.maximum(10, rng.lognormal(np.log(TOKENS), 0.3, N)).astype(np.int64)
    text = np.repeat(np.arange(N), lengths)
    topic = np.searchsorted(mixture.ravel(), text + rng.random(len(text))) - topics * text
    topic[rng.random(len(text)) >= TOPICAL] = topics  # the extra topic of common words
    zipf = np.cumsum(1 / (np.arange(width) + 3.0))
    rank = np.searchsorted(zipf, zipf[-1] * rng.random(len(text)))
    vocabulary = rng.permuted(np.tile(np.arange(width), (topics + 1, 1)), axis=1)
    counts = coo_matrix((np.ones(len(text)), (text, vocabulary[topic, rank])), shape=(N, width)).tocsr()
    document_frequency = np.bincount(counts.indices, minlength=width)
    counts.data = _round((1 + np.log(counts.data)) * np.log(N / document_frequency[counts.indices]))
    counts.eliminate_zeros()
    return csr_matrix(counts, dtype=np.float32)


def cache_name(info: Dataset) -> str:
    """Return the file name of a stand-in, without suffix; it includes the shape if that is free."""
    if info.name in CATALOG:
        return info.name
    return f"{info.name}-n{info.samples}-c{info.classes}-d{'x'.join(str(m.width) for m in info.modalities)}"


def write_synthetic(info: Dataset, path: Path, seed: int = 0) -> None:
    """Generate a synthetic dataset and write it as a feature store."""
    info, labels, values = synthesize(info, seed)
    write_store(path, info, labels, values, "synthetic", _provenance(info, seed))


def ensure_synthetic(info: Dataset, scratch: Scratch) -> Path:
    """Return the path of the stand-in; create it if it is missing, unreadable, or made with other constants."""

    def is_fresh(path: Path) -> bool:
        try:
            store = FeatureStore(path)
        except UserError:
            return False
        return store.provenance == _provenance(info, 0) and store.info == info

    path, exists = scratch.find(f"synthetic/{cache_name(info)}.h5", is_fresh)
    if not exists:
        write_synthetic(info, path)
    return path


def _provenance(info: Dataset, seed: int) -> dict[str, str]:
    recipe = RECIPES.get(info.name, RECIPES["synthetic"])
    return {"generator": f"mfedpba_mpi synthetic, revision {REVISION}", "recipe": str(recipe), "seed": str(seed)}
