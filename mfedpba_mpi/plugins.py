"""Plugins: files that register methods, extractors and datasets of your own; see examples/.

A plugin is a Python file (``--plugin FILE.py``, or a list of files in $MFEDPBA_PLUGINS) or a module of an installed
package (entry points of the group `mfedpba_mpi.plugins`). It is executed once in a process, and registers what it has.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import sys
import traceback
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from types import ModuleType

from mfedpba_mpi.errors import UserError

GROUP = "mfedpba_mpi.plugins"
VARIABLE = "MFEDPBA_PLUGINS"

LOADED: dict[str, str] = {}
"""What this process has loaded: absolute path of a file, or name of an installed module -> SHA-256 of the source.

That of a file covers the modules beside it, or below, that it imports.
"""


def load(file: str | Path) -> None:
    """Execute a plugin, unless this process already has; whatever is wrong in it is a UserError that names the line.

    Its module is in `sys.modules`, so that dataclasses and type hints work, and can import its neighbours.
    """
    path = Path(file).resolve()
    if str(path) in LOADED:
        return
    try:
        source = path.read_bytes()
    except OSError as error:
        raise UserError(f"plugin: cannot read {file}: {error.strerror}") from None
    module = ModuleType(f"mfedpba_mpi_plugin_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    LOADED[str(path)] = ""
    before = set(sys.modules)
    try:
        exec(compile(source, str(path), "exec"), module.__dict__)
        LOADED[str(path)] = hashlib.sha256(source + _imported(path, before)).hexdigest()
    except Exception as error:
        del LOADED[str(path)], sys.modules[module.__name__]
        raise UserError(f"plugin: {file}{_line(error, path)}: {_what(error)}") from error


def _imported(path: Path, before: Set[str]) -> bytes:
    """The sources of the modules beside a plugin, or below, that were not loaded `before` it was executed."""
    new = [module for name, module in sys.modules.items() if name not in before and not name.startswith("mfedpba_mpi.")]
    files = filter(None, (getattr(module, "__file__", None) for module in new))
    own = {file for file in files if Path(file).is_relative_to(path.parent) and "site-packages" not in file}
    return b"".join(Path(file).read_bytes() for file in sorted(own))


@functools.cache
def load_defaults() -> None:
    """Load the plugins that need no ``--plugin``: those of $MFEDPBA_PLUGINS, and those of installed packages."""
    from importlib.metadata import entry_points

    for file in filter(None, os.environ.get(VARIABLE, "").split(os.pathsep)):
        load(file)
    for entry in entry_points(group=GROUP):
        try:
            entry.load()
        except Exception as error:
            raise UserError(f"plugin: the installed {entry.value} cannot be loaded: {_what(error)}") from error
        source = sys.modules[entry.module].__file__
        LOADED[entry.module] = hashlib.sha256(Path(source).read_bytes()).hexdigest() if source else ""


def arguments() -> list[str]:
    """What makes another process load the same files: ``--plugin FILE`` for each."""
    return [word for name in LOADED if os.path.isabs(name) for word in ("--plugin", name)]


def recorded(before: str = "[]") -> str:
    """The loaded plugins as a run's log has them, in JSON; `before` where there are none."""
    return json.dumps([{"file": name, "sha256": digest} for name, digest in LOADED.items()]) if LOADED else before


def restore(entries: Sequence[Mapping[str, str]]) -> list[str]:
    """Load the plugins that `recorded` names; those whose source is not what it was.

    One that has been loaded from elsewhere under the same file name takes the place of the recorded one.
    """
    load_defaults()
    changed = []
    for entry in entries:
        name = entry["file"]
        moved = [other for other in LOADED if os.path.basename(other) == os.path.basename(name)]
        if name not in LOADED and not moved:
            if not os.path.isfile(name):
                raise UserError(
                    f"plugin: the run was started with {name}, which is not there any more; "
                    "say where it is with --plugin FILE.py"
                )
            load(name)
        here = name if name in LOADED else moved[0]
        if LOADED[here] != entry["sha256"]:
            changed.append(here)
    return changed


def _line(error: Exception, path: Path) -> str:
    """Where in a plugin an error comes from."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    number = error.lineno if isinstance(error, SyntaxError) and error.filename == str(path) else (lines or [None])[-1]
    return f", line {number}" if number else ""


def _what(error: Exception) -> str:
    words = error.msg if isinstance(error, SyntaxError) else " ".join(str(error).split())
    return f"{type(error).__name__}: {words}"
