"""`mfedpba-mpi report`."""

from __future__ import annotations

import webbrowser
from pathlib import Path

import click

from mfedpba_mpi.data.commands import PathType
from mfedpba_mpi.errors import UserError


@click.command(short_help="Make a page with figures and tables of a run, several runs or a study.")
@click.argument("sources", metavar="RUN...", nargs=-1, required=True, type=PathType)
@click.option("--out", type=PathType, default=Path("report"), metavar="DIR", help="where it goes  [default: report]")
@click.option("--open", "opening", is_flag=True, help="open the page in a browser")
def report(sources: tuple[Path, ...], out: Path, opening: bool) -> None:
    """Make OUT/index.html, one page that needs nothing else, and OUT/figures and OUT/tables for papers.

    \b
    mfedpba-mpi report runs/youtube-m2-mfedpba-s0                 everything about a run, finished or going
    mfedpba-mpi report runs/mfeat-m2-local-s0 runs/mfeat-m2-mfedpba-s0      runs beside each other
    mfedpba-mpi report runs/main-table                            a study
    """
    from mfedpba_mpi.report.making import make_page

    page = make_page(sources)
    try:
        out.mkdir(parents=True, exist_ok=True)
        page.write_files(out)
        page.write(out / "index.html")
    except OSError as error:
        raise UserError(f"out: cannot write in {out}: {error.strerror}; choose another --out") from None
    click.echo(f"{len(page.figures)} figures and {len(page.tables)} tables in {out}; the page: {out / 'index.html'}")
    if opening:
        webbrowser.open((out / "index.html").resolve().as_uri())
