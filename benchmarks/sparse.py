"""A training step on sparse rows, compared with dense rows: a reuters client (21531 words, 90 per document).

* sparse: our step; it multiplies and updates only those rows of the first weights that the batch's words select.
* dense 2000: our step on dense rows of 2000 numbers, with the same hidden layers.
* dense 21531: our step on the same documents as dense rows.

``python -m benchmarks memory`` runs reuters at full size on six ranks and measures their memory in addition to that of
the interpreter and torch.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from scipy.sparse import csr_array

from benchmarks.common import Case, interleaved
from benchmarks.parallel import mpirun
from mfedpba_mpi.data.catalog import Modality
from mfedpba_mpi.models.architecture import Architecture
from mfedpba_mpi.models.extractors import build_extractor
from mfedpba_mpi.models.inputs import modality_rows
from mfedpba_mpi.models.manual_sgd import training_pass

WIDTH, WORDS, ROWS, B, D = 21531, 90, 240, 12, 24


def run() -> Iterator[Case]:
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    frequency = 1 / np.arange(1, WIDTH + 1)  # Zipf
    frequency /= frequency.sum()
    columns = np.concatenate([rng.choice(WIDTH, WORDS, replace=False, p=frequency) for _ in range(ROWS)])
    documents = csr_array((rng.random(ROWS * WORDS), columns, np.arange(ROWS + 1) * WORDS), shape=(ROWS, WIDTH))
    for name, architecture in {
        "DNN": Architecture("DNN", (256, 128, 64)),
        "CNN1D": Architecture("CNN1D", (128, 64), (8, 16)),
    }.items():
        steps = {
            "sparse": epoch(documents, architecture, sparse=True),
            "dense 2000": epoch(rng.standard_normal((ROWS, 2000)), architecture),
            "dense 21531": epoch(documents.toarray(), architecture),
        }
        times = interleaved(steps, repeats=5)
        yield Case("sparse", f"{name}, a step", {key: value / (ROWS // B) for key, value in times.items()})


def epoch(values: np.ndarray | csr_array, architecture: Architecture, sparse: bool = False) -> Callable[[], None]:
    """Return a function that trains on all rows once, batch by batch."""
    extractor = build_extractor(architecture, Modality("x", "L", values.shape[1], sparse), D)
    rows, chain, g = modality_rows(values, ROWS), training_pass(extractor), torch.randn(B, D) / 100

    @torch.inference_mode()
    def steps() -> None:
        for start in range(0, ROWS, B):
            chain.forward(rows.batch(start, start + B))
            chain.gradient(g.clone(), False)
            for leaf in chain.leaves():
                leaf.step(0.005)

    return steps


def memory() -> Iterator[Case]:
    """Peak resident memory of two rounds of reuters at full size (18758 documents, five languages) on six ranks."""
    code = "import resource, torch; print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    bare = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    idle = 1024 * int(bare.stdout)
    with tempfile.TemporaryDirectory() as directory:
        run = mpirun(6, Path(directory), "--dataset", "reuters", "--rounds", 2)
    notes = {"all ranks, without interpreter and torch (MB)": (sum(run.memory) - 6 * idle) / 1e6}
    notes |= {"interpreter and torch, per rank (MB)": idle / 1e6}
    yield Case("memory", "reuters-n6", {"round": run.median("total")}, notes)
