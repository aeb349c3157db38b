"""The numbers of a run that tables of studies show."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from mfedpba_mpi.config.fields import unknown
from mfedpba_mpi.records.run import Run


@dataclass(frozen=True)
class Measure:
    """A number of a run, and how to show it.

    Attributes
    ----------
    quantity : what is measured, where that is the same for several measures, which differ in their `rounds`.
    of_predictor : a method with several predictors has a number for each.
    plain : show no deviations and mark no best cells.
    last_five : the number is a mean over the last five rounds, or over all if there are fewer.
    """

    label: str
    larger_is_better: bool = False
    digits: int = 3
    quantity: str = ""
    rounds: str = ""
    of_predictor: bool = False
    plain: bool = False
    last_five: bool = False


def _accuracy(
    label: str, name: str, rounds: str = "", last_five: bool = False
) -> tuple[Measure, Callable[[Run], float]]:
    """A measure of `Run.summary`, in percent. Those with `rounds` are of the average accuracy."""
    quantity = "average accuracy in %" if rounds else ""
    measure = Measure(f"{label} in %", True, 2, quantity, rounds, of_predictor=True, last_five=last_five)
    return measure, lambda run: 100 * run.summary()[name]


def _prototypes(words: str, low: int, high: int) -> tuple[Measure, Callable[[Run], float]]:
    """The share of (client, class) prototypes that are means of `low` to `high` training samples."""

    def share(run: Run) -> float:
        counts = run.partition["counts"]
        return 100 * float(((counts >= low) & (counts <= high)).sum() / (counts > 0).sum())

    return Measure(f"share of (client, class) prototypes made from {words}, in %", digits=2, plain=True), share


FIRST_ROUNDS = 10  # accuracies are still low and unsteady; `_diverged` and `_largest_fall` leave them out
DIVERGED = 0.6  # a client that keeps less of its accuracy from one round to the next has diverged


def _diverged(run: Run) -> float:
    """The number of clients that lose two fifths of their accuracy, or more, from one evaluated round to the next."""
    accuracy = run.rounds["accuracy"][run.evaluated - 1][run.evaluated > FIRST_ROUNDS]
    return float((accuracy[1:] < DIVERGED * accuracy[:-1]).any(axis=0).sum())


def _largest_fall(run: Run) -> float:
    """The largest fall of the average accuracy from one evaluated round to the next, in points."""
    falls = -np.diff(run.average()[run.evaluated > FIRST_ROUNDS])
    return 100 * max(0.0, falls.max(initial=0.0))


MEASURES: dict[str, tuple[Measure, Callable[[Run], float]]] = {
    "last_five": _accuracy(
        "average accuracy (mean of the last five rounds)", "last_five", "last five rounds", last_five=True
    ),
    "last": _accuracy("average accuracy after the last round", "last", "last round"),
    "best": _accuracy("best average accuracy of a round", "best", "best round"),
    "client_mean": _accuracy(
        "unweighted mean of the clients' accuracies (last five rounds)", "client_mean_last_five", last_five=True
    ),
    "seconds": (
        Measure("seconds per round (median)"),
        lambda run: float(np.median(run.rounds["seconds_total"])),
    ),
    "client_seconds": (
        Measure("CPU seconds of a client per round (mean over clients, median over rounds)"),
        lambda run: float(np.median(run.rounds["seconds_client"].mean(axis=1))),
    ),
    "kilobytes": (
        Measure("payload per round in kB, up and down together", digits=1),
        lambda run: float((run.rounds["bytes_up"] + run.rounds["bytes_down"]).sum(axis=1).mean() / 1000),
    ),
    "plan_trace": (
        Measure(
            "trace of MFedPBA's transport plans (mean over modalities, last five rounds)", plain=True, last_five=True
        ),
        lambda run: float(np.nanmean(run.rounds["gw_trace"][-5:])) if "gw_trace" in run.rounds else np.nan,
    ),
    "diverged": (Measure("clients that lose two fifths of their accuracy in a round", digits=1), _diverged),
    "largest_fall": (Measure("largest fall of the average accuracy in a round, in points", digits=1), _largest_fall),
    "from_one": _prototypes("one sample", 1, 1),
    "from_two": _prototypes("two samples", 2, 2),
    "from_few": _prototypes("fewer than five samples", 1, 4),
}


def checked_measures(names: Sequence[str]) -> Sequence[str]:
    """The names, if all are keys of `MEASURES`; else a UserError."""
    for name in names:
        if name not in MEASURES:
            raise unknown("measure", name, MEASURES)
    return names
