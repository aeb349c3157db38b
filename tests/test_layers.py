"""Layers of the package, and its mirror in the tests.

A module imports only modules of its own layer and of the layers below, only `comm` imports mpi4py, and every module has
a test file of its name.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PACKAGE = TESTS.parent / "mfedpba_mpi"

# From the bottom up. A package stands for those of its modules that are not listed themselves.
LAYERS = [
    ["errors", "files", "rng", "plugins", "engine.signals"],
    ["config.fields"],
    ["data.catalog"],
    ["data.partition", "data.partition_file", "data.seal", "data.store"],  # files, whatever the settings
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
    """All modules that a file imports, also inside functions, except for those under TYPE_CHECKING."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        for inner in ast.walk(node):
            if isinstance(inner, ast.ImportFrom):
                yield inner.module or ""
            elif isinstance(inner, ast.Import):
                yield from (alias.name for alias in inner.names)


def height(module: str) -> int:
    """The index of a module's layer in LAYERS."""
    name = module
    while name not in HEIGHT:
        name, dot, _ = name.rpartition(".")
        assert dot, f"{module} is not in LAYERS"
    return HEIGHT[name]


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_nothing_from_higher_layers(module):
    others = [
        name.removeprefix("mfedpba_mpi.") for name in imported(MODULES[module]) if name.startswith("mfedpba_mpi.")
    ]
    assert [name for name in others if height(name) > height(module)] == []


def test_only_comm_imports_mpi4py():
    users = {module.partition(".")[0] for module, path in MODULES.items() if any("mpi4py" in n for n in imported(path))}
    assert users == {"comm"}


def has_test_file(path: Path) -> bool:
    """Whether a/b.py has the test file tests/a/test_b.py or, with several test files, tests/a/b/test_b.py."""
    folder, name = TESTS / path.relative_to(PACKAGE).parent, f"test_{path.name}"
    return (folder / name).is_file() or (folder / path.stem / name).is_file()


def test_every_module_has_a_test_file_of_its_name():
    modules = {name: path for name, path in MODULES.items() if path.name not in ("__init__.py", "__main__.py")}
    assert [name for name, path in modules.items() if not has_test_file(path)] == []
