"""The pages of a run, of several runs, and of a study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from mfedpba_mpi.cli.console import count, duration
from mfedpba_mpi.config.fields import flat
from mfedpba_mpi.engine.progress import client_rows, payload_text
from mfedpba_mpi.errors import UserError
from mfedpba_mpi.records.run import LOG_NAME, Run, joint_remark, load_run
from mfedpba_mpi.records.status import overview, read_state
from mfedpba_mpi.report import prototype_figures, run_figures, study_figures
from mfedpba_mpi.report.groups import differing, grouped
from mfedpba_mpi.report.page import Page
from mfedpba_mpi.report.style import NoData, capitalised, caption_of
from mfedpba_mpi.studies.formats import as_tables
from mfedpba_mpi.studies.study import SEED, Study
from mfedpba_mpi.studies.study_file import FILE, read_study
from mfedpba_mpi.studies.tables import cell_of, combine, tabulate, with_predictor

CLIENTS = "accuracy of each client k0, k1, ... in % (mean of the last five rounds)"
ACCURACIES = {"mean of the last five rounds": "last_five", "last round": "last", "best round": "best"}


def make_page(sources: Sequence[Path]) -> Page:
    """The page of a study, a run, or several runs, by their directories."""
    if len(sources) == 1 and (sources[0] / FILE).is_file():
        return study_page(read_study(sources[0] / FILE), sources[0])
    for path in sources:
        if (path / FILE).is_file():
            raise UserError(f"report: {path} is a study and gets its own page; give it alone, or give runs only")
        if path.is_dir() and not (path / LOG_NAME).is_file():
            raise UserError(
                f"report: {path} contains neither {LOG_NAME} nor {FILE}; give the directory of a run or of a study"
            )
    runs = [load_run(path) for path in sources]
    return run_page(runs[0]) if len(runs) == 1 else runs_page(runs)


def run_page(run: Run) -> Page:
    """The page of a run: results, warnings, figures, settings and machine."""
    attributes, rounds = run.attributes, len(run.rounds["tested"])
    config = attributes["config"]
    page = Page(
        f"{attributes['label']} on {attributes['dataset']}",
        f"{_problem([run])}; {run.status} after {rounds} of {count(config['rounds'], 'round')}",
        run.remark,
    )
    page.section("Result")
    page.facts(_result(run))
    if len(run.evaluated):
        page.table("clients", "Clients after the last evaluated round", *client_rows(run))
    if run.warnings:
        page.table("warnings", "Warnings", ["round", "warning"], [(t or "start", text) for t, text in run.warnings])
    section = ""
    for name, drawing in run_figures.draw_all(run):
        figure = run_figures.FIGURES[name]
        if figure.section != section:
            page.section(section := figure.section)
        page.figure(name, figure.title, drawing, caption_of(figure.draw))
    page.section("Settings and machine")
    page.facts(flat(config))
    machine = ("version", "torch", "mpi", "ranks", "device", "threads", "started", "data_fingerprint")
    page.facts({name: attributes[name] for name in machine} | {"hosts": ", ".join(sorted(set(attributes["hosts"])))})
    return page


def _result(run: Run) -> dict[str, object]:
    facts: dict[str, object] = {"status": run.status, "reason": run.attributes.get("reason", "")}
    if not len(run.rounds["tested"]):
        return facts
    for predictor, judged in run.by_predictor().items() if run.summary() else ():
        what, summary = with_predictor("average accuracy", predictor), judged.summary()
        facts |= {f"{what}, {label}": f"{summary[name]:.2%}" for label, name in ACCURACIES.items()}
    total = run.rounds["seconds_total"]
    facts["time"] = f"{duration(total.sum())}, {np.median(total):.3g} s per round (median)"
    facts["payload per round"] = payload_text(run)
    return {name: value for name, value in facts.items() if value != ""}


def _problem(runs: Sequence[Run]) -> str:
    """Partition, clients, label skew, fusion and seed, as far as all runs have them in common."""
    formats = {
        "partition": "partition {}", "clients": "{}", "alpha": "alpha {}", "fusion": "fusion {}", "seed": "seed {}"
    }  # fmt: skip
    found = {name: {run.attributes["config"].get(name) for run in runs} for name in formats}
    common = {name: next(iter(values)) for name, values in found.items() if len(values) == 1}
    if common.get("clients"):
        common["clients"] = count(common["clients"], "client")
    return ", ".join(formats[name].format(value) for name, value in common.items() if value is not None)


def runs_page(runs: Sequence[Run]) -> Page:
    """The page that compares several runs. Runs that differ in the seed only form a group."""
    groups = grouped(runs)
    runs = [run for group in groups.values() for run in group]
    differ = differing(runs)
    datasets = list(dict.fromkeys(run.attributes["dataset"] for run in runs))
    page = Page(
        f"{', '.join(groups)} on {' and '.join(datasets)}", _problem(runs), joint_remark(run.remark for run in runs)
    )
    page.section("Result")
    if names := [name for name in differ if name not in ("method", SEED)]:
        page.text(f"These runs differ in {', '.join(names)}; see the table of runs below before comparing them.")
    rows = []
    for name, group in study_figures.split_by_predictor(groups).items():
        cells = [cell_of([100 * run.summary()[m] for run in group if run.summary()]) for m in ACCURACIES.values()]
        rows.append([name, len(group), *(cell.text() if cell else None for cell in cells)])
    short = any(len(run.evaluated) < 5 for run in runs)
    note = "If fewer than five rounds were evaluated, the mean of all of them." if short else ""
    page.table("accuracy", "Average accuracy in %", ["group", "runs", *ACCURACIES], rows, caption=note)
    drawing, caption = study_figures.convergence(groups), caption_of(study_figures.convergence)
    note = study_figures.predictor_note(groups)
    page.figure("convergence", "Average accuracy over rounds", drawing, caption + note)
    _add_client_table(page, "clients", capitalised(CLIENTS), groups)
    with suppress(NoData):
        drawing, caption = prototype_figures.prototypes(*runs), caption_of(prototype_figures.prototypes)
        page.section("Prototypes")
        page.figure("prototypes", prototype_figures.PROTOTYPES_TITLE, drawing, caption)
    page.section("Runs")
    columns = {
        "group": [name for name, group in groups.items() for _ in group],
        "directory": [str(run.path.parent) for run in runs], "status": [run.status for run in runs],
        "finished rounds": [len(run.rounds["tested"]) for run in runs],
    } | {name: values for name, values in differ.items() if name != "method"}  # fmt: skip
    page.table("runs", "Runs", list(columns), list(zip(*columns.values(), strict=True)))
    return page


def study_page(study: Study, directory: Path) -> Page:
    """The page of a study: table, figures, and in an appendix the accuracy of each client."""
    parts = tabulate(study, directory)
    states = [read_state(directory / place.path) for place in study.run_keys()]
    page = Page(study.title, f"{count(len(states), 'run')} in {directory}: {overview(states)}", parts[0].remark)
    page.section("Result")
    for i, (results, table) in enumerate(zip(combine(parts), as_tables(*parts), strict=True), 1):
        title = capitalised(results.measure.label) or "Results"
        name = "table" if i == 1 else f"table-{i}"
        page.table(name, title, table.headers, table.rows, table.marks, table.caption)
    for name, title, figure, caption in study_figures.figures_of(study, directory):
        page.figure(name, title, figure, caption)
    _add_appendix(page, study, directory)
    page.section("Settings of the study")
    axes = {axis: ", ".join(choice.label for choice in choices) for axis, choices in study.axes.items()}
    page.facts({**study.settings, **axes})
    return page


def _add_appendix(page: Page, study: Study, directory: Path) -> None:
    """Add tables with the accuracy of each client, one per cell of the study."""
    cells = list(study_figures.runs_by_method(study, directory))
    if cells:
        page.section(f"Appendix: {CLIENTS}")
    for number, (title, groups) in enumerate(cells, 1):
        _add_client_table(page, f"clients-{number}", title, groups)


def _add_client_table(page: Page, name: str, title: str, groups: Mapping[str, Sequence[Run]]) -> None:
    if any(run.summary() for group in groups.values() for run in group):
        page.table(name, title, *study_figures.client_table(groups))
