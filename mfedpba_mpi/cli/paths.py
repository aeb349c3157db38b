"""The type of paths on the command line, and the option --data-dir."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from mfedpba_mpi.data.catalog import DATA_DIR_VARIABLE
from mfedpba_mpi.errors import UserError


class _Path(click.Path):
    """A path. An empty one, for example from an unset shell variable, is refused."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("the path is empty; use '.' for the current directory", param, ctx)
        return super().convert(value, param, ctx)


PathType = _Path(path_type=Path)
data_dir_option = click.option(
    "--data-dir",
    type=PathType,
    envvar=DATA_DIR_VARIABLE,
    default=Path("data"),
    metavar="DIR",
    help=f"directory of the feature stores (or ${DATA_DIR_VARIABLE})  [default: data]",
)


def check_data_dir(data_dir: Path) -> None:
    """Refuse a data directory that does not exist; the default one is made when needed."""
    if data_dir != Path("data") and not data_dir.is_dir():
        raise UserError(f"data-dir: {data_dir} is not a directory; create it, or give the directory of the stores")
