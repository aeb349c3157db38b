"""How the time of the MFedPBA server's round grows with classes C, modalities M, clients K and width d, one at a time.

Every case differs from the base in one size, and has clients with two modalities and samples of all classes. `formula`
is the paper's cost relative to the base, with S steps of the autoencoder, and T_s the measured iterations of the plans:

    K C^2 + S (sum_k |M_k| C d^2 + sum_k |M_k| C d + C M^2 d + T_s M C^2)

Terms have no constants in it, so it is a growth, not a prediction. `rest` and `rest_formula` are the same without
L_align and its term, and `align` is the share of L_align in the time. `iterations` are those of one step. Seconds are
CPU seconds of one thread, because the functions are too many to wait for a quiet moment of each.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import torch

from benchmarks.common import Case, interleaved
from benchmarks.server import Rounds, make_problem
from mfedpba_mpi.data.synthetic import free_form
from mfedpba_mpi.methods.base import Problem

BASE = {"C": 20, "M": 3, "K": 12, "d": 48, "gw_epsilon": 0.25, "server_epochs": 10}
CASES = {
    "C": (40, 80), "M": (6, 12), "K": (48, 192), "d": (192, 384), "gw_epsilon": (0.05, 1.0), "server_epochs": (20,)
}  # fmt: skip


def run() -> Iterator[Case]:
    """The base, then the cases by size."""
    torch.set_num_threads(1)
    sizes = {"base": BASE}
    sizes |= {f"{name} {BASE[name]} -> {value}": {**BASE, name: value} for name in CASES for value in CASES[name]}
    whole = {case: Rounds(problem_of(**given)) for case, given in sizes.items()}
    rest = {f"{case}, rest": Rounds(problem_of(**given, without=("align",))) for case, given in sizes.items()}
    best = interleaved({**whole, **rest}, repeats=5, clock=time.process_time)
    align = {case: float(np.mean(whole[case].iterations)) / sizes[case]["server_epochs"] for case in sizes}
    costs = {case: cost(**given, iterations=align[case]) for case, given in sizes.items()}
    rest_costs = {case: cost(**given, iterations=0.0) for case, given in sizes.items()}
    for case in sizes:
        seconds = {"round": best[case], "base": best["base"]}
        notes = {
            "formula": costs[case] / costs["base"],
            "rest": best[f"{case}, rest"] / best["base, rest"],
            "rest_formula": rest_costs[case] / rest_costs["base"],
            "align": 1 - best[f"{case}, rest"] / best[case],
            "iterations": align[case],
        }
        yield Case("server-cost", case, seconds, notes)


def problem_of(C: int, M: int, K: int, d: int, **parameters: object) -> Problem:
    """Return a problem of these sizes whose clients have two modalities and samples of all classes."""
    info = free_form(20 * K * C, C, (16,) * M)
    shape = {"dataset": "synthetic", "samples": info.samples, "classes": C, "dims": (16,) * M}
    return make_problem(info, **shape, clients=K, partition="m2", alpha=1e4, feature_dim=d, mfedpba=parameters)


def cost(C: int, M: int, K: int, d: int, server_epochs: int, iterations: float, **_: object) -> float:
    """Return the paper's cost of a round, where each client has two modalities."""
    prototypes = 2 * K * C
    return K * C**2 + server_epochs * (prototypes * d**2 + prototypes * d + C * M**2 * d + iterations * M * C**2)
