"""What goes on the page of a run, of several runs beside each other, and of a study."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from mfedpba_mpi.console import duration
from mfedpba_mpi.options import flat
from mfedpba_mpi.records.run import Run, load_run, remark_of
from mfedpba_mpi.report import prototype_figures, run_figures, study_figures
from mfedpba_mpi.report.page import Page
from mfedpba_mpi.screen import client_rows, payload_line
from mfedpba_mpi.studies.formats import as_table
from mfedpba_mpi.studies.state import overview, state_of
from mfedpba_mpi.studies.study import FILE, SEED, Study, read_study
from mfedpba_mpi.studies.tables import cell_of, tabulate

SECTIONS = {
    "Data": ("partition",),
    "Training": ("accuracy", "losses", "gradients"),
    "Prototypes": ("prototypes", "structures"),
    "Cost": ("communication", "times"),
}  # of a run's page, and the figures there
ACCURACIES = {"mean of the last five": "last_five", "last round": "last", "best round": "best"}


def make_page(sources: Sequence[Path]) -> Page:
    """The page of what is in these directories: a study, a run, or several runs."""
    if len(sources) == 1 and (sources[0] / FILE).is_file():
        return study_page(read_study(sources[0] / FILE), sources[0])
    runs = [load_run(path) for path in sources]
    return run_page(runs[0]) if len(runs) == 1 else runs_page(runs)


def run_page(run: Run) -> Page:
    """Everything about one run."""
    attributes, rounds = run.attributes, len(run.rounds["tested"])
    config = attributes["config"]
    page = Page(
        f"{attributes['label']} on {attributes['dataset']}",
        f"{config['partition']}, {config['clients']} clients, fusion {config['fusion']}, seed {config['seed']}; "
        f"{run.status} after {rounds} of {config['rounds']} rounds",
        run.remark.strip(" ()"),
    )
    page.section("Result")
    page.facts(_result(run))
    if len(run.evaluated):
        page.table("clients", "Clients after the last evaluated round", *client_rows(run))
    drawn = {name: (title, figure) for name, title, figure in run_figures.drawable(run)}
    for section, names in SECTIONS.items():
        if there := [name for name in names if name in drawn]:
            page.section(section)
        for name in there:
            page.figure(name, *drawn[name])
    page.section("Settings and machine")
    page.facts(flat(config))
    machine = ("version", "torch", "mpi", "ranks", "device", "threads", "started", "data_fingerprint")
    page.facts({name: attributes[name] for name in machine} | {"hosts": ", ".join(sorted(set(attributes["hosts"])))})
    return page


def _result(run: Run) -> dict[str, object]:
    facts: dict[str, object] = {"status": run.status, "reason": run.attributes.get("reason", "")}
    if not len(run.rounds["tested"]):
        return facts
    if summary := run.summary():
        facts |= {f"average accuracy, {words}": f"{summary[name]:.2%}" for words, name in ACCURACIES.items()}
    total = run.rounds["seconds_total"]
    facts["time"] = f"{duration(total.sum())}, {np.median(total):.3g} s a round (median)"
    facts["payload a round"] = payload_line(run).partition(": ")[2]
    return {name: value for name, value in facts.items() if value != ""}


def runs_page(runs: Sequence[Run]) -> Page:
    """Runs beside each other; those that differ in nothing but the seed are one group."""
    groups = grouped(runs)
    page = Page(f"{len(runs)} runs: {', '.join(groups)}", remark=remark_of(runs))
    page.section("Result")
    rows = []
    for name, group in groups.items():
        cells = [cell_of([100 * run.summary()[m] for run in group if run.summary()]) for m in ACCURACIES.values()]
        rows.append([name, len(group), *(cell.text(2) if cell else None for cell in cells)])
    page.table("accuracy", "Average accuracy in %", ["", "runs", *ACCURACIES], rows)
    page.figure("convergence", "Convergence", study_figures.convergence(groups))
    _client_table(page, "clients", "Accuracy of each client in %", groups)
    if all("E" in run.final for run in runs[:2]):
        page.section("Prototypes")
        page.figure("prototypes", "Feature prototypes", prototype_figures.prototypes(*runs[:2]))
    page.section("Runs")
    rows = [[name, str(run.path.parent), run.status, run.attributes["seed"]] for name in groups for run in groups[name]]
    page.table("runs", "Runs", ["", "directory", "status", "seed"], rows)
    return page


def grouped(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Runs by their name for people: the method's, and where that names several, their directories."""
    by_settings: dict[str, list[Run]] = {}
    for run in runs:
        settings = {name: value for name, value in run.attributes["config"].items() if name != SEED}
        by_settings.setdefault(json.dumps(settings), []).append(run)
    groups: dict[str, list[Run]] = {}
    labels = [group[0].attributes["label"] for group in by_settings.values()]
    for label, group in zip(labels, by_settings.values(), strict=True):
        groups[label if labels.count(label) == 1 else f"{label} ({group[0].path.parent.name})"] = group
    return groups


def study_page(study: Study, directory: Path) -> Page:
    """A study's table and figures, and in the appendix the accuracy of each client."""
    results = tabulate(study, directory)
    states = [state_of(directory / place.path) for place in study.places()]
    page = Page(study.title, f"{len(states)} runs in {directory}: {overview(states)}", results.remark)
    page.section("Result")
    table = as_table(results)
    page.table("table", _plain(study, results.title), table.headers, table.rows, table.marks, table.caption)
    for name, title, figure in study_figures.figures_of(study, directory):
        page.figure(name, _plain(study, title), figure)
    _appendix(page, study, directory)
    page.section("The study")
    crossed = {axis: ", ".join(choice.label for choice in choices) for axis, choices in study.axes.items()}
    page.facts({**study.settings, **crossed})
    return page


def _plain(study: Study, title: str) -> str:
    """A title without the study's own, and what must be said of its data, which are at the top of the page."""
    words = title.removeprefix(study.title).partition(": ")[2]
    return words[:1].upper() + words[1:] if title.startswith(study.title) and words else title


def _appendix(page: Page, study: Study, directory: Path) -> None:
    """For every cell of the table the accuracy of each client."""
    cells = list(study_figures.cells_of(study, directory))
    if cells:
        page.section("Appendix: accuracy of each client in %")
    for number, (title, groups) in enumerate(cells, 1):
        _client_table(page, f"clients-{number}", title, groups)


def _client_table(page: Page, name: str, title: str, groups: Mapping[str, Sequence[Run]]) -> None:
    if any(run.summary() for group in groups.values() for run in group):
        page.table(name, title, *study_figures.client_table(groups))
