"""State of clients and servers between rounds, declared by attribute name.

A class lists in `persistent` the attributes that later rounds depend on. Checkpoints store them, and a resumed run
restores them. Such an attribute is a tensor, a NumPy array, a number, a string, None, a module, an object with
`state_dict` and `load_state_dict` such as an optimizer, or a dict, list or tuple of these. Attributes used only within
a round are `transient`. `UndeclaredState` detects attributes that are neither, but change from round to round.

In a checkpoint every value has a path: "net.0.weight" (names within a module), "moments.W" (a dict key, with the
characters %.:# escaped as %25 etc.), "seen.#3" (an integer key or a list index). The path of a value that is not a
tensor ends in a colon and its kind, for example "rate:number". Containers store the list of their keys under such a
path.
"""

from __future__ import annotations

import functools
import hashlib
import json
import random
import re
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from mfedpba_mpi.errors import UserError

NUMBER, SCALAR, ARRAY, TEXT, NONE = ":number", ":scalar", ":array", ":text", ":none"
DICT, LIST, TUPLE = ":dict", ":list", ":tuple"
STRUCTURE_SUFFIXES = (NONE, DICT, LIST, TUPLE)  # structure only; digests skip these paths


class Stateful:
    """Base class of objects with `persistent` attributes as state; a subclass adds to the lists of its bases."""

    persistent: ClassVar[tuple[str, ...]] = ()
    transient: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def declared(cls, kind: str) -> list[str]:
        """Return the attributes that the class and its bases list as `kind`, "persistent" or "transient"."""
        return list(dict.fromkeys(name for base in reversed(cls.__mro__) for name in vars(base).get(kind, ())))

    def state_dict(self) -> dict[str, Tensor]:
        """Return every persistent value by path, for example "model.classifier.weight"; tensors are not copied."""
        state: dict[str, Tensor] = {}
        for name in self.declared("persistent"):
            if not hasattr(self, name):
                raise UserError(
                    f"{type(self).__name__} lists {name} in `persistent`, but has no such attribute; set it in "
                    "__init__ (None is allowed)"
                )
            try:
                state |= _flatten(name, getattr(self, name))
            except UserError as error:
                raise UserError(f"{type(self).__name__}.{error}") from None
        return state

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore the state from a `state_dict`; tensors of the same shape and dtype keep their memory."""
        for name in self.declared("persistent"):
            setattr(self, name, _restore(getattr(self, name, None), _subtree(name, state)))
        if self.state_dict().keys() != state.keys():
            raise ValueError(f"{type(self).__name__}: expected state {sorted(self.state_dict())}, got {sorted(state)}")


def _flatten(path: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield (path, tensor) pairs that represent a value in a checkpoint."""
    if isinstance(value, Tensor):
        if value.layout != torch.strided:
            raise UserError(f"{path} is a sparse tensor, which a checkpoint cannot store; use value.to_dense()")
        yield path, value.detach()
    elif value is None:
        yield path + NONE, torch.zeros(0)
    elif isinstance(value, np.ndarray | np.generic):
        yield path + (ARRAY if isinstance(value, np.ndarray) else SCALAR), _from_numpy(path, np.asarray(value))
    elif isinstance(value, bool | int | float):
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise UserError(f"{path} is {value}, which a checkpoint cannot store; integers must fit in 64 bits")
        yield path + NUMBER, torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else None)
    elif isinstance(value, str):
        yield path + TEXT, _encode_text(value)
    elif isinstance(value, nn.Module):
        yield from ((f"{path}.{name}", x) for name, x in value.state_dict().items())
    elif hasattr(value, "state_dict"):
        yield from _flatten(path, value.state_dict())
    elif isinstance(value, Mapping | list | tuple):
        items = value if isinstance(value, Mapping) else dict(enumerate(value))
        named = {_path_segment(path, key): item for key, item in items.items()}
        form = TUPLE if isinstance(value, tuple) else LIST if isinstance(value, list) else DICT
        yield path + form, _encode_text(json.dumps(list(items)))
        for segment, item in named.items():
            yield from _flatten(f"{path}.{segment}", item)
    else:
        kind = type(value).__name__
        raise UserError(f"{path} is a {kind}, which a checkpoint cannot store; use tensors, numbers, modules or dicts")


def _encode_text(text: str) -> Tensor:
    return torch.tensor(list(text.encode("utf-8", "surrogatepass")), dtype=torch.uint8)


def _decode_text(x: Tensor) -> str:
    return bytes(x.tolist()).decode("utf-8", "surrogatepass")


def _from_numpy(path: str, value: np.ndarray) -> Tensor:
    try:
        return torch.from_numpy(value)
    except TypeError:
        raise UserError(
            f"{path} has dtype {value.dtype}, which a checkpoint cannot store; use a numeric dtype"
        ) from None


def _path_segment(path: str, key: object) -> str:
    """Escape a dict key or a list index for use in a path."""
    if isinstance(key, int) and not isinstance(key, bool):
        return f"#{key}"
    if not isinstance(key, str):
        raise UserError(f"{path} has the key {key!r}; dict keys in a checkpoint must be strings or integers")
    return re.sub("[%.:#]", lambda match: f"%{ord(match[0]):02X}", key) or "%"


def _subtree(path: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the entries of `state` at `path` (under "" or ":kind") and below it, with paths relative to it."""
    return {
        name[len(path) :].removeprefix("."): value
        for name, value in state.items()
        if name == path or name.startswith((f"{path}.", f"{path}:"))
    }


def _restore(current: Any, state: Mapping[str, Tensor]) -> Any:
    """Rebuild a value from `state`, in the memory of `current` if shape and dtype match.

    Modules and optimizers load the state themselves.
    """
    if isinstance(current, nn.Module):
        current.load_state_dict(state)
        return current
    if hasattr(current, "load_state_dict"):
        current.load_state_dict(_restore(current.state_dict(), state))
        return current
    if "" in state:
        fits = isinstance(current, Tensor) and (current.shape, current.dtype) == (state[""].shape, state[""].dtype)
        return current.copy_(state[""]) if fits else state[""]
    for kind, decode in _DECODERS.items():
        if kind in state:
            return decode(state[kind])
    container = next((kind for kind in (DICT, LIST, TUPLE) if kind in state), "")
    if not container:  # the state of another class; `load_state_dict` raises
        return current
    keys = json.loads(_decode_text(state[container]))
    is_sequence = isinstance(current, list | tuple)
    old = current if isinstance(current, Mapping) else dict(enumerate(current)) if is_sequence else {}
    items = {key: _restore(old.get(key), _subtree(_path_segment("", key), state)) for key in keys}
    return items if container == DICT else list(items.values()) if container == LIST else tuple(items.values())


_DECODERS: dict[str, Callable[[Tensor], Any]] = {
    NUMBER: lambda x: x.item(),
    SCALAR: lambda x: x.cpu().numpy()[()],
    ARRAY: lambda x: x.cpu().numpy(),
    TEXT: _decode_text,
    NONE: lambda _: None,
}


class UndeclaredState:
    """Detects values that change from round to round but are neither persistent nor transient.

    It checks attributes of the watched objects, non-state attributes of their persistent modules, and class attributes
    and globals in user code.
    """

    def __init__(self, watched: Iterable[Stateful]):
        self._watched = list(watched)
        self._before = self._all_digests()

    def changes(self) -> list[str]:
        """Return the names that changed since the last call, as ``Class.attribute`` or ``module.name``."""
        now = self._all_digests()
        changed = [
            name for old, new in zip(self._before, now, strict=True) for name in new if old.get(name) != new[name]
        ]
        self._before = now
        return list(dict.fromkeys(changed))

    def _all_digests(self) -> list[dict[str, bytes]]:
        """Return digests by name: one dict per watched object, and a last one for class attributes and globals."""
        found = []
        common: dict[str, Any] = {}
        for watched in self._watched:
            values, known, classes = _undeclared_attributes(watched)
            declared = {*watched.declared("persistent"), *watched.declared("transient")}
            found.append(_digests(values, known))
            for cls in filter(_is_user_class, classes):
                for scope, names in (
                    (cls.__qualname__, vars(cls)),
                    (cls.__module__, vars(sys.modules[cls.__module__])),
                ):
                    common |= {
                        f"{scope}.{name}": value
                        for name, value in names.items()
                        if name not in declared and not _is_constant(name, value)
                    }
        return [*found, _digests(common, set())]


def _undeclared_attributes(watched: Stateful) -> tuple[dict[str, Any], set[int], set[type]]:
    """Return undeclared attributes by name, addresses of declared values, and the classes of the object and modules."""
    persistent, own = watched.declared("persistent"), type(watched).__name__
    declared = {*persistent, *watched.declared("transient")}
    values = {f"{own}.{name}": value for name, value in _attributes(watched) if name not in declared}
    known = {_storage_address(x) for x in watched.state_dict().values()}
    parts: list[object] = [watched]
    for name in persistent:
        if isinstance(module := getattr(watched, name, None), nn.Module):
            values |= {f"{own}.{name}.{path}": value for path, value in _non_state_attributes(module)}
            parts += module.modules()
    return values, known | {id(part) for part in parts}, {cls for part in parts for cls in type(part).__mro__}


def _digests(values: Mapping[str, Any], known: set[int]) -> dict[str, bytes]:
    """Compute the digest of each value, skipping objects and tensors at `known` addresses."""
    found = {}
    for name, value in values.items():
        digest = hashlib.sha256()
        _update_digest(digest, value, set(known))
        found[name] = digest.digest()
    return found


@functools.cache
def _is_user_class(cls: type) -> bool:
    """Whether a class is defined in user code, not in this package or an installed library."""
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    installed = re.search(r"[/\\](site-packages|dist-packages|lib[/\\]python[\d.]+)[/\\]", file or "")
    return bool(file) and not installed and cls.__module__.partition(".")[0] != "mfedpba_mpi"


_CONSTANT_TYPES = (
    type, FunctionType, BuiltinFunctionType, MethodType, ModuleType, property, classmethod, staticmethod
)  # fmt: skip


def _is_constant(name: str, value: object) -> bool:
    """Whether an attribute of a class or a module cannot change from round to round."""
    return (
        name.startswith("__") or name in ("persistent", "transient", "_abc_impl") or isinstance(value, _CONSTANT_TYPES)
    )


def _attributes(value: object) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of an object, from its `__dict__` and its slots."""
    yield from getattr(value, "__dict__", {}).items()
    for cls in type(value).__mro__:
        slots = vars(cls).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                yield name, getattr(value, name)


def _storage_address(x: Tensor) -> int:
    """Address of a tensor's storage; the same for all its views."""
    return x.untyped_storage().data_ptr() if x.layout == torch.strided else id(x)


_STANDARD_MODULE_ATTRIBUTES = {*vars(nn.Module()), "_backward_hooks", "training"}


def _non_state_attributes(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of a module and its submodules that are not in its `state_dict`, by path."""
    for path, part in module.named_modules():
        names = [name for name in vars(part) if name not in _STANDARD_MODULE_ATTRIBUTES]
        for name in (*names, *part._non_persistent_buffers_set):
            yield f"{path}.{name}".removeprefix("."), getattr(part, name)


def _update_digest(digest: Any, value: Any, seen: set[int]) -> None:
    """Add all mutable content of `value` to a digest, skipping objects and tensors at addresses in `seen`."""
    digest.update(f"{type(value).__name__} ".encode())
    if value is None or isinstance(value, str | bytes | bool | int | float | complex | np.generic):
        digest.update(repr(value).encode())
        return
    if id(value) in seen or isinstance(value, type | FunctionType | MethodType | ModuleType | torch.device):
        return
    seen.add(id(value))
    if isinstance(value, Tensor):
        if value.layout == torch.strided and _storage_address(value) in seen:
            return
        value = value.detach().cpu().to_dense().contiguous()
        digest.update(repr(value.shape).encode() + value.view(-1).view(torch.uint8).numpy().tobytes())
    elif isinstance(value, np.ndarray):
        digest.update(repr(value.shape).encode() + value.tobytes())
    elif isinstance(value, torch.Generator | np.random.RandomState):
        _update_digest(digest, value.get_state(), seen)
    elif isinstance(value, np.random.Generator):
        _update_digest(digest, value.bit_generator.state, seen)
    elif isinstance(value, random.Random):
        _update_digest(digest, value.getstate(), seen)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            _update_digest(digest, key, seen)
            _update_digest(digest, item, seen)
    elif isinstance(value, Set):
        for item in sorted(map(repr, value)):
            _update_digest(digest, item, seen)
    elif isinstance(value, list | tuple | deque):
        for item in value:
            _update_digest(digest, item, seen)
    else:
        if hasattr(value, "state_dict"):
            _update_digest(digest, value.state_dict(), seen)
        parts = list(_non_state_attributes(value) if isinstance(value, nn.Module) else _attributes(value))
        for name, item in parts:
            _update_digest(digest, name, seen)
            _update_digest(digest, item, seen)
        if not parts and " at 0x" not in (text := repr(value)):  # for example itertools.count
            digest.update(text.encode())
