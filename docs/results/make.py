"""The numbers of docs/results.md and docs/choices.md from the runs behind them: ``python docs/results/make.py RUNS``.

RUNS/NAME holds runs of the study NAME.toml that is beside this file. Their numbers go into NAME.csv and their
accuracies after each round into NAME-rounds.csv, a line a run, where lines of runs that are not there stay. From these
lines come the figures NAME-*.png and the tables of these pages and of clients.md, each between the lines ``<!-- NAME
MEASURE -->`` and ``<!-- end -->``. The measure may be ``clients``, the accuracy of each client; several measures,
with commas between them, are shown in one table, see ``study table --measure``. A column may follow that is subtracted,
see ``study table --against``.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mfedpba_mpi.files import write_text
from mfedpba_mpi.records.run import Run
from mfedpba_mpi.records.tables import csv_text
from mfedpba_mpi.report import save
from mfedpba_mpi.report.study_figures import client_cells, figures_from
from mfedpba_mpi.studies.formats import as_markdown, of_predictors, runs_csv
from mfedpba_mpi.studies.measures import MEASURES
from mfedpba_mpi.studies.study import SEED, RunKey, Study
from mfedpba_mpi.studies.study_file import find_study
from mfedpba_mpi.studies.tables import Results, RunValue, ended_runs, table_of, with_predictor

HERE = Path(__file__).parent
PAGES = [HERE.parent / "results.md", HERE.parent / "choices.md", HERE / "clients.md"]
BLOCK = re.compile(r"(<!-- ([\w-]+) ([\w,]+) ?([\w, ]*) -->\n).*?(<!-- end -->)", re.DOTALL)
Lines = list[tuple[RunKey, dict[str, str]]]


@dataclass
class Record:
    """A study, the numbers of each of its runs in the study's order, and the accuracies of some after each round."""

    study: Study
    runs: Lines
    rounds: Lines

    @classmethod
    def of(cls, name: str, runs: Path) -> Record:
        """What is known of a study, with what the runs that are there add to it."""
        study, there = find_study(str(HERE / f"{name}.toml")), (runs / name).is_dir()
        numbers = _merge(study, HERE / f"{name}.csv", runs_csv(study, runs / name) if there else "")
        rounds = _merge(study, HERE / f"{name}-rounds.csv", _rounds(study, runs / name) if there else "")
        return cls(study, numbers, rounds)

    def draw(self) -> None:
        """The figures of the page; accuracies over rounds only where those of all runs beside each other are known."""
        curves = {place.path: row for place, row in self.rounds}
        gaps = {_beside(place) for place, _ in self.runs if place.path not in curves}
        found = [
            (
                place,
                _as_run(row, {} if _beside(place) in gaps else curves[place.path]),
                _number(row, self.study.layout.measure[0]),
            )
            for place, row in self.runs
        ]
        page = "".join(path.read_text(encoding="utf-8") for path in PAGES)
        for kind, _, figure, _ in figures_from(self.study, found):
            if f"{self.study.name}-{kind}.png" in page:
                save(figure, HERE / f"{self.study.name}-{kind}")
                (HERE / f"{self.study.name}-{kind}.pdf").unlink()

    def table(self, measures: str, against: str) -> str:
        """The table of a measure, or that of several, in Markdown."""
        return as_markdown(*(self.results(measure, against) for measure in measures.split(",")))

    def results(self, measure: str, against: str) -> Results:
        """The table of a measure, if need be as differences to a column."""
        kind = MEASURES[measure][0]
        found = [
            RunValue(place, float(cell or "nan"), row["remark"], predictor)
            for place, row in self.runs
            for predictor, cell in (of_predictors(row, measure) if kind.of_predictor else {"": row[measure]}).items()
            if cell or row["status"] != "complete"
        ]
        return table_of(self.study, found, kind, against)

    def clients(self) -> Iterator[str]:
        """For each problem, a cell of the table with its seed, the accuracy of each client, a row a method."""
        cells: dict[str, dict[str, list[list[float]]]] = {}
        for place, row in self.runs:
            if row["status"] == "complete":
                problem = [] if "problem_seed" in self.study.settings else [f"seed {place.labels[SEED]}"]
                methods = cells.setdefault(", ".join([self.study.title, *_beside(place), *problem]), {})
                averages = of_predictors(row, "last_five")
                for predictor, clients in of_predictors(row, "clients").items():
                    accuracies = [float(x) for x in (*clients.split(), averages[predictor])]
                    methods.setdefault(with_predictor(place.labels["method"], predictor), []).append(accuracies)
        for title, methods in cells.items():
            heads, texts = client_cells(methods)
            yield _markdown(title, ["method", *heads], [[name, *texts[name]] for name in methods])


def _merge(study: Study, file: Path, text: str) -> Lines:
    """The lines of `file` and those of `text`, which win, in the study's order; written back where some are new."""
    texts = [file.read_text(encoding="utf-8")] if file.exists() else []
    lines = {
        tuple(line[axis] for axis in study.axes): line
        for each in [*texts, text]
        for line in csv.DictReader(each.splitlines(), restval="")
    }
    known = [(place, lines[key]) for place in study.run_keys() if (key := tuple(place.labels.values())) in lines]
    headers = dict.fromkeys(name for _, line in known for name in line)  # of as many rounds as any run has
    if text and known:
        write_text(file, csv_text(headers, ([line.get(name) for name in headers] for _, line in known)))
    return known


def _rounds(study: Study, directory: Path) -> str:
    """A line of CSV for each run that has ended: its choices and its average accuracy in % after each round."""
    lines, longest = [], 0
    for place, run in ended_runs(study, directory):
        lines.append(",".join([*place.labels.values(), *(f"{100 * x:.2f}" for x in run.average())]))
        longest = max(longest, len(run.average()))
    return "\n".join([",".join([*study.axes, *map(str, range(1, longest + 1))]), *lines])


def _as_run(row: dict[str, str], curve: dict[str, str]) -> Run:
    """As much of a run as figures of a study need: what it was measured on, and its accuracy after each round."""
    average = np.array([float(x) for t, x in curve.items() if t.isdigit() and x])[:, None]
    rounds = {"accuracy": average / 100, "correct": average, "tested": np.full_like(average, 100)} if curve else {}
    origin = "synthetic" if "synthetic" in row["remark"] else "real"
    attributes = {"status": row["status"], "data_origin": origin, "config": {"validation": "valid" in row["remark"]}}
    return Run(HERE, attributes, rounds, {}, {})


def _beside(place: RunKey) -> tuple[str, ...]:
    """What a run has in common with those that it is compared with: all but its method and its seed."""
    return tuple(label for axis, label in place.labels.items() if axis not in ("method", SEED))


def _number(row: dict[str, str], measure: str) -> float:
    return float(row[measure] or "nan")


def _markdown(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    ruled = [heads, ["---", *["---:"] * (len(heads) - 1)], *rows]
    return "\n".join([title, "", *(f"| {' | '.join(row)} |" for row in ruled), ""])


def main(runs: Path) -> None:
    """Make everything anew."""
    records = {path.stem: Record.of(path.stem, runs) for path in sorted(HERE.glob("*.toml"))}
    for record in records.values():
        record.draw()

    def block(match: re.Match[str]) -> str:
        first, name, measure, against, last = match.groups()
        record = records[name]
        inner = "\n".join(record.clients()) if measure == "clients" else record.table(measure, against)
        return f"{first}{inner}{last}"

    for page in PAGES:
        write_text(page, BLOCK.sub(block, page.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
