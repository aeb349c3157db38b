"""Example of a new dataset: scikit-learn's 1797 handwritten digits, split into three modalities.

mfedpba-mpi --plugin examples/own_dataset.py --dataset digits --rounds 15 --lr 0.02 --families DNN

The first run stores the dataset as data/digits.h5. `python examples/own_dataset.py` starts two runs from Python.

An existing file (.mat, .npz, .h5, tables) can be imported without a plugin:
`mfedpba-mpi data import custom --name NAME --from FILE`.
"""

import numpy as np
from sklearn.datasets import load_digits

from mfedpba_mpi import Dataset, Modality, RunConfig, register_dataset, simulate

DIGITS = Dataset(
    "digits", samples=1797, classes=10, note="scikit-learn's handwritten digits in three parts",
    modalities=(Modality("upper", "I", 32), Modality("lower", "I", 32), Modality("ink", "I", 8)),
)  # fmt: skip


def load() -> tuple[np.ndarray, list[np.ndarray]]:
    """Return the labels and three modalities: upper half, lower half, and column sums of each image."""
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
