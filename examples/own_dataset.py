"""Data of your own: scikit-learn's 1797 handwritten digits, seen through three modalities.

mfedpba-mpi --plugin examples/own_dataset.py --dataset digits --rounds 15 --lr 0.02 --families DNN

The first run stores them as data/digits.h5. `python examples/own_dataset.py` makes two runs from Python.

For a file that is there already (.mat, .npz, .h5, tables) `mfedpba-mpi data import custom --name NAME --from FILE` does
the same.
"""

import numpy as np
from sklearn.datasets import load_digits

from mfedpba_mpi import Dataset, Modality, RunConfig, register_dataset, simulate

DIGITS = Dataset(
    "digits", samples=1797, classes=10, note="scikit-learn's handwritten digits in three parts",
    modalities=(Modality("upper", "I", 32), Modality("lower", "I", 32), Modality("ink", "I", 8)),
)  # fmt: skip


def load() -> tuple[np.ndarray, list[np.ndarray]]:
    """The digits, and of each image its upper half, its lower half, and the ink in each column."""
    digits = load_digits()
    images = digits.images
    return digits.target, [images[:, :4].reshape(-1, 32), images[:, 4:].reshape(-1, 32), images.sum(axis=1)]


register_dataset(DIGITS, load)

if __name__ == "__main__":
    for method in ("local", "mfedpba"):
        run = simulate(
            RunConfig.of(dataset="digits", method=method, rounds=15, lr=0.02, families=("DNN",)),
            overwrite=True,
            quiet=True,
        )
        print(f"{run.attributes['label']}: {run.summary()['last_five']:.2%}")
