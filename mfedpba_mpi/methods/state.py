"""What a client or a server keeps from one round to the next, declared by attribute name.

A class lists in `persistent` the attributes that later rounds depend on: checkpoints hold them, and a resumed run gets
them back. Such an attribute is a tensor, a NumPy array, a number, a string, a module, an object with `state_dict` and
`load_state_dict` such as an optimizer, None, or a dict, list or tuple of these. Attributes that serve only within a
round are `transient`. `Undeclared` finds attributes that are neither and change all the same.

In a checkpoint every value has a path: "net.0.weight" (a module's own names), "moments.W" (a dict's key, in which the
characters %.:# are written as %25 and so on), "seen.#3" (a whole number as key, or the place in a list). What is not a
tensor ends in a colon and its kind, for example "rate:number"; of a dict that is the list of its keys.
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
FORMS = (NONE, DICT, LIST, TUPLE)  # these name no value, but the form of others


class Stateful:
    """An object whose `persistent` attributes are its state; a subclass adds to those of its bases."""

    persistent: ClassVar[tuple[str, ...]] = ()
    transient: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def declared(cls, kind: str) -> list[str]:
        """The attributes that the class and its bases list as `kind`, "persistent" or "transient"."""
        return list(dict.fromkeys(name for base in reversed(cls.__mro__) for name in vars(base).get(kind, ())))

    def state_dict(self) -> dict[str, Tensor]:
        """Every persistent value by its path, for example "model.classifier.weight"; tensors are not copied."""
        state: dict[str, Tensor] = {}
        for name in self.declared("persistent"):
            if not hasattr(self, name):
                raise UserError(
                    f"{type(self).__name__} lists {name} in `persistent`, but has no such attribute; create it in "
                    "__init__ (None will do)"
                )
            try:
                state |= _flattened(name, getattr(self, name))
            except UserError as error:
                raise UserError(f"{type(self).__name__}.{error}") from None
        return state

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take up an earlier `state_dict`; a tensor of the same shape keeps its memory."""
        for name in self.declared("persistent"):
            setattr(self, name, _restored(getattr(self, name, None), _below(name, state)))
        if self.state_dict().keys() != state.keys():
            raise ValueError(f"the state of {type(self).__name__} has {sorted(self.state_dict())}, not {sorted(state)}")


def _flattened(path: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        if value.layout != torch.strided:
            raise UserError(f"{path} is a sparse tensor, which a checkpoint cannot hold; use value.to_dense()")
        yield path, value.detach()
    elif value is None:
        yield path + NONE, torch.zeros(0)
    elif isinstance(value, np.ndarray | np.generic):
        yield path + (ARRAY if isinstance(value, np.ndarray) else SCALAR), _from_numpy(path, np.asarray(value))
    elif isinstance(value, bool | int | float):
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise UserError(f"{path} is {value}, which a checkpoint cannot hold; whole numbers have at most 64 bits")
        yield path + NUMBER, torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else None)
    elif isinstance(value, str):
        yield path + TEXT, _bytes(value)
    elif isinstance(value, nn.Module):
        yield from ((f"{path}.{name}", x) for name, x in value.state_dict().items())
    elif hasattr(value, "state_dict"):
        yield from _flattened(path, value.state_dict())
    elif isinstance(value, Mapping | list | tuple):
        items = value if isinstance(value, Mapping) else dict(enumerate(value))
        named = {_segment(path, key): item for key, item in items.items()}
        form = TUPLE if isinstance(value, tuple) else LIST if isinstance(value, list) else DICT
        yield path + form, _bytes(json.dumps(list(items)))
        for segment, item in named.items():
            yield from _flattened(f"{path}.{segment}", item)
    else:
        kind = type(value).__name__
        raise UserError(f"{path} is a {kind}, which a checkpoint cannot hold; use tensors, numbers, modules or dicts")


def _bytes(text: str) -> Tensor:
    return torch.tensor(list(text.encode("utf-8", "surrogatepass")), dtype=torch.uint8)


def _text(x: Tensor) -> str:
    return bytes(x.tolist()).decode("utf-8", "surrogatepass")


def _from_numpy(path: str, value: np.ndarray) -> Tensor:
    try:
        return torch.from_numpy(value)
    except TypeError:
        raise UserError(f"{path} has the dtype {value.dtype}, which a checkpoint cannot hold; use numbers") from None


def _segment(path: str, key: object) -> str:
    """A dict's key, or a place in a list, as a part of a path."""
    if isinstance(key, int) and not isinstance(key, bool):
        return f"#{key}"
    if not isinstance(key, str):
        raise UserError(f"{path} has the key {key!r}; a checkpoint holds dicts whose keys are strings or whole numbers")
    return re.sub("[%.:#]", lambda match: f"%{ord(match[0]):02X}", key) or "%"


def _below(path: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What `state` has at `path` (under the name "" or of a kind) and below it."""
    return {
        name[len(path) :].removeprefix("."): value
        for name, value in state.items()
        if name == path or name.startswith((f"{path}.", f"{path}:"))
    }


def _restored(now: Any, state: Mapping[str, Tensor]) -> Any:
    """What `state` says, in the memory of `now` where that fits; a module or an optimizer takes it up itself."""
    if isinstance(now, nn.Module):
        now.load_state_dict(state)
        return now
    if hasattr(now, "load_state_dict"):
        now.load_state_dict(_restored(now.state_dict(), state))
        return now
    if "" in state:
        fits = isinstance(now, Tensor) and (now.shape, now.dtype) == (state[""].shape, state[""].dtype)
        return now.copy_(state[""]) if fits else state[""]
    for kind, read in _KINDS.items():
        if kind in state:
            return read(state[kind])
    form = next((form for form in (DICT, LIST, TUPLE) if form in state), "")
    if not form:  # it is of another class, as will be said
        return now
    keys = json.loads(_text(state[form]))
    old = now if isinstance(now, Mapping) else dict(enumerate(now)) if isinstance(now, list | tuple) else {}
    items = {key: _restored(old.get(key), _below(_segment("", key), state)) for key in keys}
    return items if form == DICT else list(items.values()) if form == LIST else tuple(items.values())


_KINDS: dict[str, Callable[[Tensor], Any]] = {
    NUMBER: lambda x: x.item(),
    SCALAR: lambda x: x.cpu().numpy()[()],
    ARRAY: lambda x: x.cpu().numpy(),
    TEXT: _text,
    NONE: lambda _: None,
}


class Undeclared:
    """Finds what changes from round to round but is neither persistent nor transient.

    That is attributes, those of modules among the persistent ones, and names in the user's own classes and files.
    """

    def __init__(self, watched: Iterable[Stateful]):
        self._watched = list(watched)
        self._before = self._look()

    def changes(self) -> list[str]:
        """What has changed since the last call, each as ``Class.attribute`` or ``module.name``."""
        now = self._look()
        changed = [
            name for old, new in zip(self._before, now, strict=True) for name in new if old.get(name) != new[name]
        ]
        self._before = now
        return list(dict.fromkeys(changed))

    def _look(self) -> list[dict[str, bytes]]:
        """Digests by name: of each watched object, and last of what they have in common."""
        found = []
        common: dict[str, Any] = {}
        for watched in self._watched:
            values, known, classes = _undeclared(watched)
            declared = {*watched.declared("persistent"), *watched.declared("transient")}
            found.append(_digests(values, known))
            for cls in filter(_is_users, classes):
                for place, names in (
                    (cls.__qualname__, vars(cls)),
                    (cls.__module__, vars(sys.modules[cls.__module__])),
                ):
                    common |= {
                        f"{place}.{name}": value
                        for name, value in names.items()
                        if name not in declared and not _is_fixed(name, value)
                    }
        return [*found, _digests(common, set())]


def _undeclared(watched: Stateful) -> tuple[dict[str, Any], set[int], set[type]]:
    """Its undeclared attributes by name, addresses of what is declared, and the classes of it and its modules."""
    persistent, own = watched.declared("persistent"), type(watched).__name__
    declared = {*persistent, *watched.declared("transient")}
    values = {f"{own}.{name}": value for name, value in _attributes(watched) if name not in declared}
    known = {_memory(x) for x in watched.state_dict().values()}
    parts: list[object] = [watched]
    for name in persistent:
        if isinstance(module := getattr(watched, name, None), nn.Module):
            values |= {f"{own}.{name}.{path}": value for path, value in _plain_attributes(module)}
            parts += module.modules()
    return values, known | {id(part) for part in parts}, {cls for part in parts for cls in type(part).__mro__}


def _digests(values: Mapping[str, Any], known: set[int]) -> dict[str, bytes]:
    """Of each value, without what lies at `known` addresses."""
    found = {}
    for name, value in values.items():
        digest = hashlib.sha256()
        _feed(digest, value, set(known))
        found[name] = digest.digest()
    return found


@functools.cache
def _is_users(cls: type) -> bool:
    """Whether a class is in a file of the user's: neither ours nor a library's."""
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    installed = re.search(r"[/\\](site-packages|dist-packages|lib[/\\]python[\d.]+)[/\\]", file or "")
    return bool(file) and not installed and cls.__module__.partition(".")[0] != "mfedpba_mpi"


_FIXED = (
    type, FunctionType, BuiltinFunctionType, MethodType, ModuleType, property, classmethod, staticmethod
)  # fmt: skip


def _is_fixed(name: str, value: object) -> bool:
    """Whether a name of a class or a module stands for nothing that could change from round to round."""
    return name.startswith("__") or name in ("persistent", "transient", "_abc_impl") or isinstance(value, _FIXED)


def _attributes(value: object) -> Iterator[tuple[str, Any]]:
    """The attributes of an object, in its dictionary or in slots."""
    yield from getattr(value, "__dict__", {}).items()
    for cls in type(value).__mro__:
        slots = vars(cls).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                yield name, getattr(value, name)


def _memory(x: Tensor) -> int:
    """Where a tensor lies; the same for all its views."""
    return x.untyped_storage().data_ptr() if x.layout == torch.strided else id(x)


_OF_EVERY_MODULE = {*vars(nn.Module()), "_backward_hooks", "training"}


def _plain_attributes(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """What a module and those inside it hold beside the parameters and buffers of its `state_dict`, by path."""
    for path, part in module.named_modules():
        names = [name for name in vars(part) if name not in _OF_EVERY_MODULE]
        for name in (*names, *part._non_persistent_buffers_set):
            yield f"{path}.{name}".removeprefix("."), getattr(part, name)


def _feed(digest: Any, value: Any, seen: set[int]) -> None:
    """Add everything that can change in `value` to a digest, but for objects and tensors at addresses in `seen`."""
    digest.update(f"{type(value).__name__} ".encode())
    if value is None or isinstance(value, str | bytes | bool | int | float | complex | np.generic):
        digest.update(repr(value).encode())
        return
    if id(value) in seen or isinstance(value, type | FunctionType | MethodType | ModuleType | torch.device):
        return
    seen.add(id(value))
    if isinstance(value, Tensor):
        if value.layout == torch.strided and _memory(value) in seen:
            return
        value = value.detach().cpu().to_dense().contiguous()
        digest.update(repr(value.shape).encode() + value.view(-1).view(torch.uint8).numpy().tobytes())
    elif isinstance(value, np.ndarray):
        digest.update(repr(value.shape).encode() + value.tobytes())
    elif isinstance(value, torch.Generator | np.random.RandomState):
        _feed(digest, value.get_state(), seen)
    elif isinstance(value, np.random.Generator):
        _feed(digest, value.bit_generator.state, seen)
    elif isinstance(value, random.Random):
        _feed(digest, value.getstate(), seen)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            _feed(digest, key, seen)
            _feed(digest, item, seen)
    elif isinstance(value, Set):
        for item in sorted(map(repr, value)):
            _feed(digest, item, seen)
    elif isinstance(value, list | tuple | deque):
        for item in value:
            _feed(digest, item, seen)
    else:
        if hasattr(value, "state_dict"):
            _feed(digest, value.state_dict(), seen)
        parts = list(_plain_attributes(value) if isinstance(value, nn.Module) else _attributes(value))
        for name, item in parts:
            _feed(digest, name, seen)
            _feed(digest, item, seen)
        if not parts and " at 0x" not in (said := repr(value)):  # itertools.count and the like
            digest.update(said.encode())
