"""Data of your own as a feature store, and two runs on it from Python: scikit-learn's 1797 handwritten digits.

python examples/own_dataset.py

For a file that is there already (.mat, .npz, .h5, tables) `mfedpba-mpi data import custom --name NAME --from FILE` does
the same.
"""

from pathlib import Path

from sklearn.datasets import load_digits

from mfedpba_mpi import RunConfig, simulate
from mfedpba_mpi.data.catalog import Dataset, Modality
from mfedpba_mpi.data.store import write_store


def make(path: Path) -> None:
    """Three modalities of each image: its upper half, its lower half, and the ink in each column."""
    digits = load_digits()
    images = digits.images
    views = {"upper": images[:, :4].reshape(-1, 32), "lower": images[:, 4:].reshape(-1, 32)}
    views["ink"] = images.sum(axis=1)
    modalities = tuple(Modality(name, "I", view.shape[1]) for name, view in views.items())
    info = Dataset("digits", len(images), 10, modalities, "scikit-learn's handwritten digits in three parts")
    write_store(path, info, digits.target, list(views.values()), "real", {"source": "sklearn.datasets.load_digits"})


if __name__ == "__main__":
    make(Path("data/digits.h5"))
    for method in ("local", "mfedpba"):
        run = simulate(RunConfig.of(dataset="digits", method=method, rounds=30, lr=0.02), overwrite=True, quiet=True)
        print(f"{run.attributes['label']}: {run.summary()['last_five']:.2%}")
