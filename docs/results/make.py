"""The numbers of docs/results.md from the runs behind them: ``python docs/results/make.py RUNS``.

RUNS/NAME holds the runs of the study NAME.toml that is beside this file. Of every study that is there come its raw
numbers NAME.csv, its figures NAME-*.png, and its tables in results.md and clients.md, each between the lines
``<!-- NAME MEASURE -->`` and ``<!-- end -->``. The measure may be ``clients``, the accuracy of each client; a column
may follow that is subtracted, see ``study table --against``. What is not there stays as it is.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from mfedpba_mpi.report import save
from mfedpba_mpi.report.study_figures import cells_of, client_table, figures_of
from mfedpba_mpi.studies.study import Study, find_study, put
from mfedpba_mpi.studies.tables import as_markdown, raw, tabulate

HERE = Path(__file__).parent
BLOCK = re.compile(r"(<!-- ([\w-]+) (\w+) ?(\w*) -->\n).*?(<!-- end -->)", re.DOTALL)


def main(runs: Path) -> None:
    """Make everything anew whose runs are there."""
    studies = {path.stem: find_study(str(path)) for path in sorted(HERE.glob("*.toml")) if (runs / path.stem).is_dir()}
    for name, study in studies.items():
        put(HERE / f"{name}.csv", raw(study, runs / name))
        for kind, _, figure in figures_of(study, runs / name):
            save(figure, HERE / f"{name}-{kind}")
            (HERE / f"{name}-{kind}.pdf").unlink()
    for page in (HERE.parent / "results.md", HERE / "clients.md"):
        put(page, BLOCK.sub(lambda match: _block(match, studies, runs), page.read_text(encoding="utf-8")))


def _block(match: re.Match[str], studies: dict[str, Study], runs: Path) -> str:
    first, name, measure, against, last = match.groups()
    if name not in studies:
        return match[0]
    study, directory = studies[name], runs / name
    if measure == "clients":
        return first + "\n".join(_clients(study, directory)) + last
    return first + as_markdown(tabulate(study, directory, measure, against)) + last


def _clients(study: Study, directory: Path) -> Iterator[str]:
    for title, groups in cells_of(study, directory):
        heads, rows = client_table(groups)
        lines = [heads, ["---"] + ["---:"] * (len(heads) - 1), *rows]
        yield "\n".join([f"{study.title}: {title}", "", *(f"| {' | '.join(line)} |" for line in lines), ""])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
