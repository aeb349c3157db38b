"""The paper's ablation of MFedPBA on any run: the variants of the study `ablation`, one after the other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from mfedpba_mpi.cli.console import count
from mfedpba_mpi.comm.launcher import launcher_rank_and_size
from mfedpba_mpi.config.fields import check, nested
from mfedpba_mpi.config.run_config import RunConfig
from mfedpba_mpi.engine.launch import FaultTolerance, claim, launch
from mfedpba_mpi.engine.resume import find_same, resumed
from mfedpba_mpi.errors import UserError
from mfedpba_mpi.methods.params import MFedPBAParameters
from mfedpba_mpi.studies.formats import save, show_table
from mfedpba_mpi.studies.study import SEED, find_study
from mfedpba_mpi.studies.tables import tabulate


def run_ablation(config: RunConfig, data_dir: Path, out: Path, fault_tolerance: FaultTolerance) -> None:
    """Run every variant to its end under `out`, on every rank; rank 0 prints and stores the table."""
    if config.method != "mfedpba":
        raise UserError(f"ablate: the parts left out are mfedpba's, but the method is {config.method}")
    if config.params.without or config.params.equal_average:
        raise UserError("ablate: leaves parts out itself; drop --without and --equal-average")
    study = find_study("ablation")
    settings = f"{config.dataset} {config.partition}, fusion {config.fusion}, {count(config.rounds, 'round')}"
    study = replace(study, title=f"Ablation of MFedPBA, {settings}, seed {config.seed}", settings={})
    study = replace(study, axes={name: choices for name, choices in study.axes.items() if name != SEED})
    places = study.places()
    for number, (place, choice) in enumerate(zip(places, study.axes["variant"], strict=True), 1):
        click.echo(f"== {choice.label} ({number} of {len(places)})")
        changes = nested(choice.settings).get("mfedpba", {})
        changes = {name: check(MFedPBAParameters, name, value) for name, value in changes.items()}
        variant = replace(config, params=replace(config.params, **changes))
        variant, complete = resumed(find_same(out / place.path, variant), variant, data_dir)
        if not complete:
            claim(out / place.path, overwrite=True)
            launch(variant, data_dir, out / place.path, fault_tolerance, resume=True)
    if launcher_rank_and_size()[0] == 0:
        results = tabulate(study, out)
        show_table(results)
        save(study, results, out)
