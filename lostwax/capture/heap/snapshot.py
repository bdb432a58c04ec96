"""Remembers what modules hold, tells whether they still hold it, and puts it back.

It remembers objects by identity, also those in containers and plain objects at any depth, and the
gradients and memory of tensors. There are hundreds of modules with dozens of attributes each, and
nearly always nothing changes; so the walks run in C (`map`, `itemgetter`). Must not know of
programs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain, compress
from operator import is_, itemgetter
from typing import Any, NamedTuple

import torch
from torch import nn

from lostwax.capture.heap.contents import (
    ManyPlaces,
    fill,
    find_change,
    key_of,
    list_items,
    read,
    write,
)
from lostwax.capture.heap.edges import (
    CLASSES,
    HAS_EXTRA_PARTS,
    HOLDERS,
    IS_CUSTOM_HOLDER,
    IS_STREAM_OR_ARRAY,
    METHODS,
    MOST_OBJECTS,
    STREAMS,
    extra_parts,
    parts,
)
from lostwax.capture.heap.holders import (
    CONTAINERS,
    MISSING,
    ClassAttributes,
    ModuleAttributes,
    items,
    members,
)
from lostwax.classes import TENSORS


class HeldValue(NamedTuple):
    """One value that a module holds, in an attribute or deeper."""

    where: str
    name: str
    """The name of the attribute that holds it."""
    value: Any
    before: Any
    """The value in its place before the call."""
    known: frozenset[int]
    """The ids of all values that its container held before: their order does not matter."""
    is_attribute: bool


class TensorAttributeState(NamedTuple):
    """A tensor that is neither parameter nor buffer, as it was before the call."""

    tensor: torch.Tensor
    requires_grad: bool
    grad: torch.Tensor | None
    memory: int
    alias: torch.Tensor
    """Another tensor in the same memory."""

    def describe_changes(self) -> list[str]:
        found = []
        if self.tensor.untyped_storage()._cdata != self.memory:
            found.append("is given other data (x.data = ...)")
        if self.tensor.requires_grad is not self.requires_grad:
            found.append("is told to require gradients, or not to")
        if self.tensor.grad is not self.grad:
            found.append("is given another gradient (x.grad = ...)")
        return found

    def put_back(self) -> None:
        if self.describe_changes():
            self.tensor.grad = None
            self.tensor.data = self.alias
            self.tensor.requires_grad = self.requires_grad
            self.tensor.grad = self.grad


class Snapshot:
    """All that some modules hold, as it was when this was made."""

    def __init__(self, looked_at: ModuleAttributes) -> None:
        modules, held = looked_at.modules, looked_at.held
        self.looked_at, self._held = looked_at, held
        self.attributes = [*map(dict.copy, held)]
        """The attributes of each module."""
        self._registries = [*chain.from_iterable(map(_REGISTERED, held))]
        self._state = [*filter(None, chain.from_iterable(map(_STATE, held)))]
        self._state_before = self._state_given = [*map(dict.copy, self._state)]
        """The content of `_state` before the capture, and when the call begins (`replace`)."""
        self.tensors: list[TensorAttributeState] = []
        """The tensors that are neither parameters nor buffers."""
        self.is_cut = False
        """Is there more than we look at?"""
        classes = chain.from_iterable(map(CLASSES.__getitem__, set(map(type, modules))))
        self.classes = [*map(ClassAttributes, dict.fromkeys(classes))]
        """The user's classes of the modules."""
        odd = {cls for cls in {*map(type, modules)} if HAS_EXTRA_PARTS[cls]}
        more = [part for m in modules if type(m) in odd for part in extra_parts(m)] if odd else []
        self._empty, filled = self._find_containers([*self.classes, *more])
        self._filled: list[tuple[Any, Any]] = [(each, read(each)) for each in filled]
        """What else is in modules, and what was in it."""
        self._places = ManyPlaces(filled, self._empty)
        self._is_untouched = False

    def _find_containers(self, more: list[Any]) -> tuple[list[Any], list[Any]]:
        """All containers in the modules that are empty; and those with something in them, except
        the registries of parameters and buffers. `more` is beside what is in attributes."""
        filled, known = self.looked_at.filled, {*map(id, self._registries)}
        containers = [e for e in filled if type(e) in CONTAINERS and id(e) not in known]
        tuples = [each for each in filled if type(each) is tuple]
        left = self.looked_at.select(IS_CUSTOM_HOLDER.__getitem__)
        containers += more
        if any(map(HOLDERS.__getitem__, set(map(type, chain.from_iterable(tuples))))):
            left += [m for m in chain.from_iterable(tuples) if HOLDERS[type(m)]]
        inner = [*chain.from_iterable(map(members, containers))]
        left += compress(inner, map(HOLDERS.__getitem__, map(type, inner)))
        empty = self.looked_at.empty
        if left:
            count = len(containers)
            self._add_inner(containers, left)
            inner = [each for each in containers[count:] if type(each) in CONTAINERS and not each]
            empty = [*empty, *inner]
        children = filter(None, map(_CHILDREN, self._held))
        return empty, [*children, *(e for e in containers if type(e) not in CONTAINERS or e)]

    def _add_inner(self, containers: list[Any], left: list[Any]) -> None:
        """Add the containers that are deeper; nearly always there are none."""
        seen = set(map(id, chain(containers, self._held)))
        most = len(containers) + MOST_OBJECTS
        while left:
            if len(containers) >= most:
                self.is_cut = True
                return
            each = left.pop()
            if isinstance(each, torch.Tensor):
                if id(each) not in seen:
                    seen.add(id(each))
                    self._add_tensor(each)
                continue
            for part in parts(each):
                if key_of(part) not in seen:
                    seen.add(key_of(part))
                    left += [m for m in members(part) if HOLDERS[type(m)]]
                    if not isinstance(part, tuple):
                        containers.append(part)

    def _add_tensor(self, tensor: torch.Tensor) -> None:
        if type(tensor) in TENSORS and tensor.layout is torch.strided and tensor.is_leaf:
            with torch._C._DisableTorchDispatch():  # a capture that looks does not compute
                memory, alias = tensor.untyped_storage()._cdata, tensor.detach()
            marks = tensor.requires_grad, tensor.grad
            self.tensors.append(TensorAttributeState(tensor, *marks, memory, alias))

    def replace(self, fakes: Mapping[int, torch.Tensor]) -> None:
        """Put fakes (found by the tensor's id) in the places of parameters and buffers."""
        self._state_given = [
            {name: None if t is None else fakes[id(t)] for name, t in content.items()}
            for content in self._state_before
        ]
        _update(self._state, self._state_given)

    def is_untouched(self) -> bool:
        """Do the modules still hold exactly what they were given?"""
        self._is_untouched = (
            _are_same(self._held, self.attributes)
            and _are_same(self._state, self._state_given)
            and self._places.is_same()
            and not any(each.describe_changes() for each in self.tensors)
        )
        return self._is_untouched

    def list_changes(self) -> Iterator[tuple[Any, Any]]:
        """Yield what holds something else than it did, with what was in it."""
        for held, before in zip(self._held, self.attributes, strict=True):
            if held.keys() != before.keys() or any(held[k] is not v for k, v in before.items()):
                yield held, before
        for container in self._empty:
            if len(container):
                yield container, []
        state = zip(self._state, self._state_given, strict=True)
        for container, content in chain(state, self._filled):
            if find_change(container, content) is not None:
                yield container, content

    def list_changed_tensors(self) -> list[torch.Tensor]:
        """The tensors that are not as they were."""
        return [each.tensor for each in self.tensors if each.describe_changes()]

    def list_values(self) -> Iterator[Any]:
        """The values in the containers that modules hold, and those of their classes that are no
        methods."""
        known = [each for each, _ in self._filled if type(each) is not ClassAttributes]
        of_classes = chain.from_iterable(each.values() for each in self.classes)
        return chain(
            chain.from_iterable(map(members, known)),
            [each for each in of_classes if type(each) not in METHODS],
        )

    def holds(self, value: Any) -> bool:
        """Is this one of the containers in the modules?"""
        if isinstance(value, (tuple, frozenset)):
            return False
        known = chain(self._empty, self._registries, (each for each, _ in self._filled))
        return any(each is value for each in known)

    def held_values(self, where: str, name: str, value: Any, before: Any) -> Iterator[HeldValue]:
        """The values that an attribute holds: its own, or those in it at any depth."""
        at = HeldValue(where, name, value, before, frozenset((id(before),)), True)
        if HOLDERS[type(value)]:
            yield from self._held_values(at, set(map(id, self._held)))
        else:
            yield at

    def _held_values(self, first: HeldValue, seen: set[int]) -> Iterator[HeldValue]:
        left = [first]
        while left:
            at = left.pop()
            value, cls = at.value, type(at.value)
            if not HOLDERS[cls] or isinstance(value, torch.Tensor) or STREAMS[cls]:
                yield at
                continue
            if IS_STREAM_OR_ARRAY[cls]:  # an array, of a class of its own it may have attributes
                yield at
            is_like = type(at.before) is cls
            was = at.before if is_like else value
            inner: list[HeldValue] = []
            for part, before in zip(parts(value), parts(was), strict=True):
                if key_of(part) not in seen and len(seen) < MOST_OBJECTS:
                    seen.add(key_of(part))
                    contents = self._contents_before
                    known = contents.get(key_of(part), contents.get(key_of(before)))
                    if isinstance(part, tuple):
                        known = items(before) if is_like and len(part) == len(before) else None
                    inner += _list_members(at, part, known)
            left += reversed(inner)

    def content_before(self, container: Any) -> Any:
        """What was in a container before the call."""
        return self._contents_before.get(key_of(container))

    @cached_property
    def _contents_before(self) -> dict[Any, Any]:
        """What was in each container before the call."""
        state = zip(self._state, self._state_given, strict=True)
        return {key_of(each): content for each, content in chain(state, self._filled)}

    def restore(self) -> None:
        """Put everything back."""
        if self._is_untouched:
            _update(self._state, self._state_before)
            return
        state = {id(each) for each in self._state}
        for container, content in zip(self._state, self._state_before, strict=True):
            fill(container, content)
        for container, content in [*self.list_changes()]:
            if id(container) not in state:
                write(container, content)
        for each in self.tensors:
            each.put_back()


def _update(containers: Sequence[dict[str, Any]], contents: Sequence[dict[str, Any]]) -> None:
    """Update each container with its content."""
    deque(map(dict.update, containers, contents), maxlen=0)


def _are_same(containers: Sequence[dict[str, Any]], contents: Sequence[dict[str, Any]]) -> bool:
    """Are the same objects under the same names in each container, in the same order?"""
    now = chain.from_iterable(map(dict.values, containers))
    return (
        [*map(len, containers)] == [*map(len, contents)]
        and all(map(is_, now, chain.from_iterable(map(dict.values, contents))))
        and [*chain.from_iterable(containers)] == [*chain.from_iterable(contents)]
    )


def _list_members(at: HeldValue, part: Any, known: Any) -> Iterator[HeldValue]:
    """The values in a container now, and those that are gone."""
    before = dict(list_items(known) or ())
    now = dict(items(part))
    all_of_them = frozenset(map(id, before.values()))
    for key in {**now, **before}:
        value, was = now.get(key, MISSING), before.get(key, MISSING)
        if part is at.value:
            yield HeldValue(f"{at.where}[{key!r}]", at.name, value, was, all_of_them, False)
        else:
            yield HeldValue(f"{at.where}.{key}", key, value, was, frozenset((id(was),)), True)


_REGISTERED = itemgetter("_parameters", "_buffers", "_modules")
_STATE, _CHILDREN = itemgetter("_parameters", "_buffers"), itemgetter("_modules")
REGISTRIES = frozenset(nn.Module().__dict__)
"""The names of the attributes that every module has."""
