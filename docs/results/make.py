"""The numbers of docs/results.md from the runs behind them: ``python docs/results/make.py RUNS``.

RUNS/NAME holds runs of the study NAME.toml that is beside this file. Their numbers go into NAME.csv, a line a run,
where lines of runs that are not there stay; their figures are NAME-*.png. From the lines come the tables of results.md
and clients.md, each between the lines ``<!-- NAME MEASURE -->`` and ``<!-- end -->``. The measure may be ``clients``,
the accuracy of each client; a column may follow that is subtracted, see ``study table --against``; several measures,
with commas between them, are the columns of one table, where the study itself has only one.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mfedpba_mpi.report import save
from mfedpba_mpi.report.study_figures import client_cells, figures_of
from mfedpba_mpi.studies.formats import as_markdown, raw
from mfedpba_mpi.studies.study import SEED, Place, Study, find_study, put
from mfedpba_mpi.studies.tables import MEASURES, Results, lay_out, subtracted

HERE = Path(__file__).parent
BLOCK = re.compile(r"(<!-- ([\w-]+) ([\w,]+) ?(\w*) -->\n).*?(<!-- end -->)", re.DOTALL)


@dataclass
class Record:
    """A study and the line of each of its runs, in the study's order."""

    study: Study
    runs: list[tuple[Place, dict[str, str]]]

    @classmethod
    def of(cls, name: str, runs: Path) -> Record:
        """Read what is known of a study; write it anew, and draw it, where there are runs."""
        study, file = find_study(str(HERE / f"{name}.toml")), HERE / f"{name}.csv"
        texts = [file.read_text(encoding="utf-8")] if file.exists() else []
        if (runs / name).is_dir():
            texts.append(raw(study, runs / name))
        lines = {
            tuple(line.split(",")[: len(study.axes)]): line for text in texts for line in text.splitlines()[1:]
        }  # the later ones win
        known = [(place, lines[key]) for place in study.places() if (key := tuple(place.labels.values())) in lines]
        header = texts[-1].splitlines()[0] if texts else ""
        if (runs / name).is_dir():
            put(file, "\n".join([header, *(line for _, line in known)]) + "\n")
            for kind, _, figure in figures_of(study, runs / name):
                save(figure, HERE / f"{name}-{kind}")
                (HERE / f"{name}-{kind}.pdf").unlink()
        return cls(study, [(place, next(csv.DictReader([header, line]))) for place, line in known])

    def table(self, measures: str, against: str) -> str:
        """The table of a measure, or that of several, in Markdown."""
        parts = [self.results(measure, against) for measure in measures.split(",")]
        if len(parts) == 1:
            return as_markdown(parts[0])
        labels = [label for label, _ in parts[0].rows]
        columns = [[cell.text(part.measure.digits) if cell else "-" for _, (cell,) in part.rows] for part in parts]
        heads = [parts[0].corner, *(part.measure.label for part in parts)]
        return _markdown(self.study.title, heads, list(zip(labels, *columns, strict=True)))

    def results(self, measure: str, against: str) -> Results:
        """The table of a measure, if need be as differences to a column."""
        found = [
            (place, float(row[measure] or "nan"), f" ({row['remark']})" if row["remark"] else "")
            for place, row in self.runs
            if row[measure] or row["status"] != "complete"
        ]
        kind = MEASURES[measure][0]
        return subtracted(self.study, found, kind, against) if against else lay_out(self.study, found, kind)

    def clients(self) -> Iterator[str]:
        """For each cell of the table the accuracy of each client, a row a method."""
        cells: dict[str, dict[str, list[list[float]]]] = {}
        for place, row in self.runs:
            if row["status"] == "complete":
                rest = [label for axis, label in place.labels.items() if axis not in ("method", SEED)]
                accuracies = [float(x) for x in (*row["clients"].split(), row["last_five"])]
                methods = cells.setdefault(", ".join([self.study.title, *rest]), {})
                methods.setdefault(place.labels["method"], []).append(accuracies)
        for title, methods in cells.items():
            heads, texts = client_cells(methods)
            yield _markdown(title, ["method", *heads], [[name, *texts[name]] for name in methods])


def _markdown(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    ruled = [heads, ["---", *["---:"] * (len(heads) - 1)], *rows]
    return "\n".join([title, "", *(f"| {' | '.join(row)} |" for row in ruled), ""])


def main(runs: Path) -> None:
    """Make everything anew."""
    records = {path.stem: Record.of(path.stem, runs) for path in sorted(HERE.glob("*.toml"))}

    def block(match: re.Match[str]) -> str:
        first, name, measure, against, last = match.groups()
        record = records[name]
        inner = "\n".join(record.clients()) if measure == "clients" else record.table(measure, against)
        return f"{first}{inner}{last}"

    for page in (HERE.parent / "results.md", HERE / "clients.md"):
        put(page, BLOCK.sub(block, page.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
