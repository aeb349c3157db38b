"""The paper's ablation of MFedPBA: the whole method, without each loss term in turn, and with equal averaging."""

from __future__ import annotations

import csv
import dataclasses
from pathlib import Path

import click

from mfedpba_mpi.comm.launcher import announced
from mfedpba_mpi.config import RunConfig
from mfedpba_mpi.console import console, table
from mfedpba_mpi.errors import UserError
from mfedpba_mpi.launch import Safety, claim, launch
from mfedpba_mpi.methods.catalog import MFedPBA
from mfedpba_mpi.options import fields_of
from mfedpba_mpi.records.run import load_run
from mfedpba_mpi.resuming import status_of_same

TERMS = fields_of(MFedPBA)["without"].metadata["choices"]
VARIANTS: dict[str, dict[str, object]] = {
    "full": {},
    **{f"w/o {term}": {"without": (term,)} for term in TERMS},
    "EA": {"equal_average": True},
}
COLUMNS = ("variant", "last five", "last", "best", "against full")


def run_ablation(config: RunConfig, data_dir: Path, out: Path, safety: Safety) -> None:
    """Run every variant to its end under `out`, on every rank; rank 0 prints and stores the table."""
    if config.method != "mfedpba":
        raise UserError(f"ablate: the parts left out are mfedpba's, but the method is {config.method}")
    if config.params.without or config.params.equal_average:
        raise UserError("ablate: leaves parts out itself; drop --without and --equal-average")
    runs = {name: out / name.replace("w/o ", "without-") for name in VARIANTS}
    for number, (name, changes) in enumerate(VARIANTS.items(), 1):
        click.echo(f"== {name} ({number} of {len(VARIANTS)})")
        variant = dataclasses.replace(config, params=dataclasses.replace(config.params, **changes))
        if status_of_same(runs[name], variant) != "complete":
            claim(runs[name], overwrite=True)
            launch(variant, data_dir, runs[name], safety, resume=True, brief=True)
    if announced()[0] == 0:
        report(runs, out)


def report(runs: dict[str, Path], out: Path) -> None:
    """Average accuracy in % of every variant, on the screen and in ``ablation.csv``."""
    loaded = {name: load_run(path) for name, path in runs.items()}
    summaries = {name: run.summary() for name, run in loaded.items()}
    full = summaries["full"]["last_five"]
    rows = [
        (
            name,
            *(f"{100 * s[key]:.2f}" for key in ("last_five", "last", "best")),
            f"{100 * (s['last_five'] - full):+.2f}",
        )
        for name, s in summaries.items()
    ]
    run = loaded["full"]
    origin = f"{run.attributes['data_origin']} data" + (", validation rows" if run.validation else "")
    config = run.attributes["config"]
    console().print(
        table(
            COLUMNS, rows,
            f"Ablation of MFedPBA on {config['dataset']} ({origin}), {config['partition']}, fusion {config['fusion']}, "
            f"{config['rounds']} rounds, seed {config['seed']}: average accuracy in %",
        )
    )  # fmt: skip
    with open(out / "ablation.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*COLUMNS, "dataset", "data origin"])
        writer.writerows([*row, config["dataset"], run.attributes["data_origin"]] for row in rows)
    click.echo(f"table: {out / 'ablation.csv'}")
