"""Paths on the command line, and the directory of feature stores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from mfedpba_mpi.data.catalog import DATA_DIR_VARIABLE
from mfedpba_mpi.errors import UserError


class _Path(click.Path):
    """A path; an empty one, as of a variable that is not set, does not mean this directory."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("the path is empty; this directory is '.'", param, ctx)
        return super().convert(value, param, ctx)


PathType = _Path(path_type=Path)
data_dir_option = click.option(
    "--data-dir",
    type=PathType,
    envvar=DATA_DIR_VARIABLE,
    default=Path("data"),
    metavar="DIR",
    help=f"where feature stores are kept (or ${DATA_DIR_VARIABLE})  [default: data]",
)


def check_data_dir(data_dir: Path) -> None:
    """Refuse a directory of stores that is not there; the default one is made when it is needed."""
    if data_dir != Path("data") and not data_dir.is_dir():
        raise UserError(f"data-dir: {data_dir} is not a directory; make it, or name the one that holds the stores")
