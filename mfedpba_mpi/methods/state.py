"""What a client or a server keeps from one round to the next, declared by attribute name.

A class lists in `persistent` the attributes that later rounds depend on: checkpoints hold them, and a resumed run gets
them back. Such an attribute is a tensor, a NumPy array, a number, a module, an object with `state_dict` and
`load_state_dict` such as an optimizer, None, or a dict or list of these. Attributes that serve only within a round are
`transient`. `Undeclared` finds attributes that are neither and change all the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Set
from types import FunctionType, MethodType, ModuleType
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

NUMBER, ARRAY = ":number", ":array"  # end the names of values that are not tensors themselves


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
        names = self.declared("persistent")
        return {path: x for name in names for path, x in _flattened(name, getattr(self, name))}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take up an earlier `state_dict`; a tensor of the same shape keeps its memory."""
        for name in self.declared("persistent"):
            setattr(self, name, _restored(getattr(self, name, None), _below(name, state)))
        if self.state_dict().keys() != state.keys():
            raise ValueError(f"the state of {type(self).__name__} has {sorted(self.state_dict())}, not {sorted(state)}")


def _flattened(path: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield path, value.detach()
    elif isinstance(value, np.ndarray):
        yield path + ARRAY, torch.from_numpy(value)
    elif isinstance(value, bool | int | float):
        yield path + NUMBER, torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else None)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _flattened(f"{path}.{key}", item)
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from _flattened(f"{path}.{number}", item)
    elif hasattr(value, "state_dict"):
        yield from _flattened(path, value.state_dict())
    elif value is not None:
        kind = type(value).__name__
        raise TypeError(f"{path} is a {kind}, which a checkpoint cannot hold; use tensors, numbers, modules or dicts")


def _below(path: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What `state` has at `path` (under the name "" or ":number" or ":array") and below it."""
    return {
        name[len(path) :].removeprefix("."): value
        for name, value in state.items()
        if name.partition(":")[0] == path or name.startswith(f"{path}.")
    }


def _restored(now: Any, state: Mapping[str, Tensor]) -> Any:
    """`now` with the values of `state`, in place where possible."""
    if NUMBER in state:
        return state[NUMBER].item()
    if ARRAY in state:
        return state[ARRAY].cpu().numpy()
    if "" in state:
        return now.copy_(state[""]) if isinstance(now, Tensor) and now.shape == state[""].shape else state[""]
    if isinstance(now, nn.Module):
        now.load_state_dict(state)
    elif isinstance(now, list | tuple):
        return type(now)(_restored(item, _below(str(number), state)) for number, item in enumerate(now))
    elif hasattr(now, "load_state_dict"):
        now.load_state_dict(_restored(now.state_dict(), state))
    elif state:
        found = dict(now or {})
        for word in dict.fromkeys(name.partition(".")[0].partition(":")[0] for name in state):
            key = int(word) if word.isdigit() and word not in found else word
            found[key] = _restored(found.get(key), _below(word, state))
        return found
    return now


class Undeclared:
    """Finds attributes that change from round to round but are neither persistent nor transient."""

    def __init__(self, watched: Iterable[Stateful]):
        self._watched = list(watched)
        self._before = [_digests(each) for each in self._watched]

    def changes(self) -> list[str]:
        """What has changed since the last call, each as ``Class.attribute``."""
        now = [_digests(each) for each in self._watched]
        changed = dict.fromkeys(
            f"{type(each).__name__}.{name}"
            for each, old, new in zip(self._watched, self._before, now, strict=True)
            for name in new
            if old.get(name) != new[name]
        )
        self._before = now
        return list(changed)


def _digests(watched: Stateful) -> dict[str, bytes]:
    """A digest of every attribute that is not declared, also of the modules in those that are."""
    persistent, transient = (watched.declared(kind) for kind in ("persistent", "transient"))
    values = {name: value for name, value in vars(watched).items() if name not in (*persistent, *transient)}
    known = {_memory(x) for x in watched.state_dict().values()}
    for name in persistent:
        if isinstance(module := getattr(watched, name, None), nn.Module):
            values |= {f"{name}.{path}": value for path, value in _plain_attributes(module)}
            known |= {id(part) for part in module.modules()}
    found = {}
    for name, value in values.items():
        digest = hashlib.sha256()
        _feed(digest, value, set(known))
        found[name] = digest.digest()
    return found


def _memory(x: Tensor) -> int:
    """Where a tensor lies; the same for all its views."""
    return x.untyped_storage().data_ptr()


def _plain_attributes(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """What a module and those inside it hold beside the parameters and buffers of its `state_dict`, by path."""
    for path, part in module.named_modules():
        names = [name for name in vars(part) if not name.startswith("_") and name != "training"]
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
        if _memory(value) in seen:
            return
        value = value.detach().cpu().contiguous()
        digest.update(repr(value.shape).encode() + value.view(-1).view(torch.uint8).numpy().tobytes())
    elif isinstance(value, np.ndarray):
        digest.update(repr(value.shape).encode() + value.tobytes())
    elif isinstance(value, torch.Generator):
        _feed(digest, value.get_state(), seen)
    elif isinstance(value, np.random.Generator):
        _feed(digest, value.bit_generator.state, seen)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            _feed(digest, key, seen)
            _feed(digest, item, seen)
    elif isinstance(value, Set):
        for item in sorted(map(repr, value)):
            _feed(digest, item, seen)
    elif isinstance(value, list | tuple):
        for item in value:
            _feed(digest, item, seen)
    else:
        if hasattr(value, "state_dict"):
            _feed(digest, value.state_dict(), seen)
        parts = _plain_attributes(value) if isinstance(value, nn.Module) else getattr(value, "__dict__", {}).items()
        for name, item in parts:
            _feed(digest, name, seen)
            _feed(digest, item, seen)
