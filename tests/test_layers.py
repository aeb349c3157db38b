"""Imports point one way: a module knows of those below it, and of its own layer, and nothing above it knows of MPI."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "mfedpba_mpi"

# From the bottom up; a name stands for a module, or for all modules of a package that are not named themselves.
LAYERS = [
    ["errors", "files", "rng", "plugins", "engine.signals"],
    ["config.fields"],
    ["data.catalog"],
    ["data.partition", "data.partition_file", "data.sealed", "data.store"],  # files, whatever the settings
    ["models.architecture", "methods.params"],  # what there is, without torch
    ["config"],
    ["comm"],
    ["cli.console", "records.tables"],
    ["data"],
    ["models"],
    ["methods"],
    ["engine.clock", "engine.digests", "engine.observers", "engine.setup"],
    ["records"],
    ["engine.round"],
    ["engine.progress", "engine.resume"],
    ["engine.loop"],
    ["engine"],
    ["planning"],
    ["studies"],
    ["report", "watch"],
    ["cli"],
    ["__main__"],
]
HEIGHT = {name: height for height, names in enumerate(LAYERS) for name in names}
MODULES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
    if path != PACKAGE / "__init__.py"
}


def imported(path: Path) -> Iterator[str]:
    """All modules that a file imports, wherever in it, but for those that only type checkers see."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        for inner in ast.walk(node):
            if isinstance(inner, ast.ImportFrom):
                yield inner.module or ""
            elif isinstance(inner, ast.Import):
                yield from (alias.name for alias in inner.names)


def height(module: str) -> int:
    room = module
    while room not in HEIGHT:
        room, dot, _ = room.rpartition(".")
        assert dot, f"{module} has no place in LAYERS"
    return HEIGHT[room]


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_nothing_from_above(module):
    others = [
        name.removeprefix("mfedpba_mpi.") for name in imported(MODULES[module]) if name.startswith("mfedpba_mpi.")
    ]
    assert [name for name in others if height(name) > height(module)] == []


def test_only_comm_imports_mpi4py():
    users = {module.partition(".")[0] for module, path in MODULES.items() if any("mpi4py" in n for n in imported(path))}
    assert users == {"comm"}
