"""What a module reads beside its arguments (`capture/surroundings/`), as texts that another process
can compare: facts, by path.

Of parameters and buffers only the types count: programs read their current data. Must not decide
what is looked at.
"""

from __future__ import annotations

import hashlib
import os
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from lostwax.capture.heap.cached import CachedResults
from lostwax.capture.surroundings.tensor_places import data_of, layout_of, storage_key
from lostwax.capture.surroundings.world import Surroundings
from lostwax.capture.surroundings.world_entry import WorldEntry
from lostwax.export_cache.spelling import ADDRESS, NoTextError, spell, spell_class, spell_plain
from lostwax.export_cache.unread import is_large
from lostwax.identity import ByIdentity

Facts = dict[str, str]
_MOST_BYTES = 1 << 16
"""Of a tensor whose data a capture may know."""


def read_facts(world: Surroundings, unread: Iterable[str]) -> Facts:
    """What was found at each path, but for the environment; of large numbers at these paths no
    more than that. Raises `NoTextError` if something has no text."""
    if world.unsure:
        raise NoTextError(world.unsure[0])
    if world.random:
        raise NoTextError("a random generator")
    numbers = TensorNumbers()
    entries = world.entries
    kept = [(p, e) for p, e in entries.items() if not p.startswith(_ENVIRONMENT)]
    texts: dict[Any, str] = {}
    facts = {path: _read_known(path, entry, numbers, texts) for path, entry in kept}
    facts |= {
        path: "a large number" for path in unread if path in facts and is_large(entries[path])
    }
    if ADDRESS.search("\n".join(facts)):
        raise NoTextError(next(f"{p}: an address" for p in facts if ADDRESS.search(p)))
    return facts


def read_variables(names: Iterable[str]) -> Facts:
    """The variables of the environment with these names."""
    return {f"{_ENVIRONMENT}[{each!r}]": repr(os.environ.get(each)) for each in names}


_ENVIRONMENT = "os.environ"
"""How the paths of a look at all of it begin."""


class TensorNumbers:
    """TensorNumbers for tensors and their memory: equal ones are the same object."""

    def __init__(self) -> None:
        self._tensors: ByIdentity[torch.Tensor, int] = ByIdentity()
        self._storages: dict[int, int] = {}

    def of(self, tensor: torch.Tensor) -> tuple[int, int]:
        return (
            self._tensors.setdefault(tensor, len(self._tensors)),
            self._storages.setdefault(storage_key(tensor), len(self._storages)),
        )


def digest_facts(facts: Mapping[str, str]) -> str:
    """Equal for equal facts."""
    found = hashlib.blake2b(digest_size=16)
    found.update("\n".join([f"{path}\0{facts[path]}" for path in sorted(facts)]).encode())
    return found.hexdigest()


def find_difference(facts: Mapping[str, str], before: Mapping[str, str]) -> str:
    """The first difference in words; "" if there is none."""
    for path, text in facts.items():
        if path not in before:
            return f"{path} is new"
        if before[path] != text:
            return f"{path} has changed"
    return next((f"{path} is gone" for path in before if path not in facts), "")


def _read_known(path: str, entry: WorldEntry, numbers: TensorNumbers, texts: dict[Any, str]) -> str:
    """As `_read_fact`; what many modules have, flags and empty dicts, is spelled once."""
    kind, _, content = entry
    if (kind == "kind" and type(content) is type) or (kind == "value" and type(entry.held) is bool):
        found = texts.get(content)
        if found is None:
            found = texts[content] = _read_fact(path, entry, numbers)
        return found
    return _read_fact(path, entry, numbers)


def _read_fact(path: str, entry: WorldEntry, numbers: TensorNumbers) -> str:
    try:
        return f"{entry.kind} {_READERS[entry.kind](entry, numbers)}"
    except NoTextError as error:
        raise NoTextError(f"{path}: {error}") from None


def spell_type(tensor: torch.Tensor) -> str:
    """All of a tensor but its data."""
    return f"{spell_class(type(tensor))} {spell_plain(read_type(tensor)[1:])}"


def read_type(tensor: torch.Tensor) -> tuple[Any, ...]:
    marks = tensor.dtype, tuple(tensor.shape), tensor.device, tensor.layout, tensor.requires_grad
    kinds = tensor.is_leaf, tensor.is_inference(), tensor.is_conj(), tensor.is_neg()
    return type(tensor), *marks, *kinds, *_read_layout(tensor)


def _read_layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    return layout_of(tensor) if tensor.layout is torch.strided else ()


def _read_state(entry: WorldEntry, numbers: TensorNumbers) -> str:
    registry, first, _ = entry.content
    if entry.held is None:
        return f"{registry} None"
    return f"{registry} {first} {spell_type(entry.held)} {numbers.of(entry.held)}"


def _read_tensor(entry: WorldEntry, numbers: TensorNumbers) -> str:
    tensor: torch.Tensor = entry.held
    data = data_of(tensor) if is_compared(tensor) else b""
    return f"{spell_type(tensor)} {numbers.of(tensor)} {_digest(data)}"


def is_compared(tensor: torch.Tensor) -> bool:
    """Are its data a fact?"""
    return tensor.numel() * tensor.element_size() <= _MOST_BYTES


def _read_array(entry: WorldEntry, numbers: TensorNumbers) -> str:
    if isinstance(entry.content, bytes):
        return _digest(entry.content)
    *kind, data = entry.content
    return f"{kind} {_digest(data)}"


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _read_kind(entry: WorldEntry, numbers: TensorNumbers) -> str:
    if isinstance(entry.content, tuple):
        cls, names = entry.content
        return f"{spell_class(cls)} {names}"
    return spell_class(entry.content)


def _read_value(entry: WorldEntry, numbers: TensorNumbers) -> str:
    cls, value = entry.content if isinstance(entry.content, tuple) else (bool, entry.content)
    return f"{cls.__qualname__} {value!r}"


def _read_order(entry: WorldEntry, numbers: TensorNumbers) -> str:
    return _spell_all(entry.held)


def _spell_all(values: Iterable[Any]) -> str:
    return ", ".join([_spell_key(each) for each in values])


def _spell_key(key: Any) -> str:
    return f"({_spell_all(key)})" if type(key) is tuple else spell(key)


def _read_cache(entry: WorldEntry, numbers: TensorNumbers) -> str:
    found: CachedResults = entry.content
    return f"{spell(entry.held.__wrapped__)} {_spell_all([key for key, _ in found.values()])}"


def _read_object(entry: WorldEntry, numbers: TensorNumbers) -> str:
    held = entry.held
    if type(held) is not weakref.ref:
        return spell(held)
    found = held()
    if found is not None and not isinstance(found, torch.Tensor):
        raise NoTextError(f"a weak reference to a {type(found).__qualname__}")
    return f"weak {None if found is None else numbers.of(found)}"


_READERS: dict[str, Callable[[WorldEntry, TensorNumbers], str]] = {
    "value": _read_value,
    "object": _read_object,
    "module": lambda entry, _: spell_class(type(entry.held)),
    "kind": _read_kind,
    "state": _read_state,
    "tensor": _read_tensor,
    "array": _read_array,
    "order": _read_order,
    "cache": _read_cache,
    "memory": lambda entry, _: repr(entry.content),
}
