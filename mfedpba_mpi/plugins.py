"""Plugins: Python files that register your own methods, extractors and datasets; see examples/.

A plugin is a Python file (``--plugin FILE.py``, or a list of files in $MFEDPBA_PLUGINS) or a module of an installed
package (entry points of the group `mfedpba_mpi.plugins`). Each process executes it once.
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
"""Plugins loaded in this process: absolute path of a file, or name of an installed module -> SHA-256 of the source.

The SHA-256 of a file includes the modules that it imports from its own directory or below.
"""


def load(file: str | Path) -> None:
    """Execute a plugin, unless it is loaded already; any error in it becomes a UserError with the line number.

    Its module is in `sys.modules`, as dataclasses and type hints require, and it can import modules beside it.
    """
    path = Path(file).resolve()
    if str(path) in LOADED:
        return
    try:
        source = path.read_bytes()
    except OSError as error:
        raise UserError(f"plugin: cannot read {file}: {error.strerror}; check the path") from None
    module = ModuleType(f"mfedpba_mpi_plugin_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    LOADED[str(path)] = ""
    before = set(sys.modules)
    try:
        exec(compile(source, str(path), "exec"), module.__dict__)
        LOADED[str(path)] = hashlib.sha256(source + _local_sources(path, before)).hexdigest()
    except Exception as error:
        del LOADED[str(path)], sys.modules[module.__name__]
        raise UserError(f"plugin: {file}{_error_line(error, path)}: {_error_text(error)}") from error


def _local_sources(path: Path, before: Set[str]) -> bytes:
    """Return the sources of the modules that a plugin imported from its directory or below.

    `before` are the modules that were loaded before the plugin was executed.
    """
    new = [module for name, module in sys.modules.items() if name not in before and not name.startswith("mfedpba_mpi.")]
    files = filter(None, (getattr(module, "__file__", None) for module in new))
    own = {file for file in files if Path(file).is_relative_to(path.parent) and "site-packages" not in file}
    return b"".join(Path(file).read_bytes() for file in sorted(own))


@functools.cache
def load_defaults() -> None:
    """Load the plugins in $MFEDPBA_PLUGINS and those of installed packages."""
    from importlib.metadata import entry_points

    for file in filter(None, os.environ.get(VARIABLE, "").split(os.pathsep)):
        load(file)
    for entry in entry_points(group=GROUP):
        try:
            entry.load()
        except Exception as error:
            raise UserError(f"plugin: cannot load the installed module {entry.value}: {_error_text(error)}") from error
        source = sys.modules[entry.module].__file__
        LOADED[entry.module] = hashlib.sha256(Path(source).read_bytes()).hexdigest() if source else ""


def arguments() -> list[str]:
    """Return the command-line arguments that load the same files in another process: ``--plugin FILE`` for each."""
    return [word for name in LOADED if os.path.isabs(name) for word in ("--plugin", name)]


def to_json(default: str = "[]") -> str:
    """Return the loaded plugins as JSON for the log of a run, or `default` if there are none."""
    return json.dumps([{"file": name, "sha256": digest} for name, digest in LOADED.items()]) if LOADED else default


def restore(entries: Sequence[Mapping[str, str]]) -> list[str]:
    """Load the plugins listed by `to_json`; return those with changed source.

    A loaded plugin with the same file name in another directory replaces the listed one.
    """
    load_defaults()
    changed = []
    for entry in entries:
        name = entry["file"]
        moved = [other for other in LOADED if os.path.basename(other) == os.path.basename(name)]
        if name not in LOADED and not moved:
            if not os.path.isfile(name):
                raise UserError(
                    f"plugin: the run was started with {name}, which no longer exists; give its new path, "
                    f"which must end in {os.path.basename(name)}, with --plugin FILE.py"
                )
            load(name)
        loaded = name if name in LOADED else moved[0]
        if LOADED[loaded] != entry["sha256"]:
            changed.append(loaded)
    return changed


def _error_line(error: Exception, path: Path) -> str:
    """Return the line of a plugin that raised an error, as ``, line N``."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    number = error.lineno if isinstance(error, SyntaxError) and error.filename == str(path) else (lines or [None])[-1]
    return f", line {number}" if number else ""


def _error_text(error: Exception) -> str:
    """Return the type and message of an error on one line."""
    message = error.msg if isinstance(error, SyntaxError) else " ".join(str(error).split())
    return f"{type(error).__name__}: {message}"
