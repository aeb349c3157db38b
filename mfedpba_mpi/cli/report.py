"""``mfedpba-mpi report``: a page with figures and tables."""

from __future__ import annotations

import webbrowser
from pathlib import Path

import click

from mfedpba_mpi.cli.paths import PathType
from mfedpba_mpi.errors import UserError


@click.command(short_help="Make a page with figures and tables of a run, several runs or a study.")
@click.argument("sources", metavar="RUN...", nargs=-1, required=True, type=PathType)
@click.option("--out", type=PathType, metavar="DIR", help="output directory  [default: report/<names of the runs>]")
@click.option("--open", "opening", is_flag=True, help="open the page in a browser")
def report(sources: tuple[Path, ...], out: Path | None, opening: bool) -> None:
    """Make OUT/index.html, a self-contained page, and OUT/figures and OUT/tables for papers.

    \b
    mfedpba-mpi report runs/youtube-m2-mfedpba-s0                           one run, finished or not
    mfedpba-mpi report runs/mfeat-m2-local-s0 runs/mfeat-m2-mfedpba-s0      a comparison of runs
    mfedpba-mpi report runs/main-table                                      a study
    """
    from mfedpba_mpi.cli.console import count
    from mfedpba_mpi.records.run import run_directory
    from mfedpba_mpi.report.pages import make_page

    directories: dict[Path, Path] = {}
    for path in sources:
        directory = run_directory(path)
        if directories.setdefault(directory.resolve(), directory) is not directory:
            click.echo(f"{path} is given more than once; it is included once")
    page = make_page(list(directories.values()))
    out = out or Path("report") / "+".join(map(_name, sources))[:200]
    try:
        out.mkdir(parents=True, exist_ok=True)
        page.write_files(out)
        page.write(out / "index.html")
    except OSError as error:
        raise UserError(f"out: cannot write in {out}: {error.strerror}; choose another --out") from None
    contents = f"{count(len(page.figures), 'figure')} and {count(len(page.tables), 'table')}"
    click.echo(f"{contents} in {out}; page: {out / 'index.html'}")
    if opening and not webbrowser.open((out / "index.html").resolve().as_uri()):
        click.echo("no browser found; open the page by hand")


def _name(path: Path) -> str:
    """A name for a run or a study from its path: gallery-local-s0 for runs/gallery/local/s0."""
    path = path.parent if path.name == "run.h5" else path
    parts = [part for part in path.parts if part not in (path.anchor, "..", "runs")]
    return "-".join(parts) or path.resolve().name
