"""Remembers what modules hold, tells whether they still hold it, and puts it back.

It remembers objects by identity, also those in containers and plain objects at any depth, and the
gradients and memory of tensors. There are hundreds of modules with dozens of attributes each, and
nearly always nothing changes; so the walks run in C (`map`, `itemgetter`). Must not know of
programs.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain, compress, filterfalse, repeat
from operator import call, is_, itemgetter
from typing import Any, NamedTuple

import torch
from torch import nn

from lostwax.cache import Cache
from lostwax.capture.python.containers import (
    CLASSES,
    GONE,
    HOLDERS,
    HOLDERS_BUT_TUPLES,
    MOVING,
    NAMED,
    ODD,
    STREAMS,
    ClassAttributes,
    items,
    key_of,
    members,
    own_items,
    parts,
)  # fmt: skip
from lostwax.capture.python.iterators import Stream
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


class PlainTensor(NamedTuple):
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

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        held = self._held = list(map(vars, modules))
        self.attributes = list(map(dict.copy, held))
        """The attributes of each module."""
        try:
            self._getters = _known_getters(modules, held)
            self._values = list(chain.from_iterable(map(call, self._getters, held)))
        except KeyError:  # two modules of one class have attributes of other names
            self._getters = list(map(_new_getter, held))
            self._values = list(chain.from_iterable(map(call, self._getters, held)))
        self._registries = list(chain.from_iterable(map(_REGISTERED, held)))
        self._hooks = list(map(_HOOKS, held))
        """The containers of hooks, which every module has."""
        self._hooked = list(filter(None, chain.from_iterable(self._hooks)))
        self._empty = list(filterfalse(None, self._registries))
        self._state = list(filter(None, chain.from_iterable(map(_STATE, held))))
        self._state_before = self._state_given = list(map(dict.copy, self._state))
        """The content of `_state` before the capture, and when the call begins (`replace`)."""
        self._children = list(filter(None, map(_CHILDREN, held)))
        self._children_before = list(map(dict.copy, self._children))
        self.tensors: list[PlainTensor] = []
        """The tensors that are neither parameters nor buffers."""
        self.streams: list[Stream] = []
        classes = chain.from_iterable(map(CLASSES.__getitem__, set(map(type, modules))))
        self.classes = list(map(ClassAttributes, dict.fromkeys(classes)))
        """The user's classes of the modules."""
        containers = self._find_containers()
        self._empty += filterfalse(None, containers)
        self._filled: list[tuple[Any, Any]] = [(v, _copy(v)) for v in filter(None, containers)]
        self._untouched = False

    def _find_containers(self) -> list[Any]:
        """All containers in the modules, except their registries of state and children, and
        except empty containers of hooks."""
        values, types = self._values, list(map(type, self._values))
        containers = list(compress(values, map(HOLDERS_BUT_TUPLES.__getitem__, types)))
        left: list[Any] = []
        if any(map(ODD.__getitem__, set(map(type, containers)))):
            left = [v for v in containers if ODD[type(v)]]
            containers = [v for v in containers if not ODD[type(v)]]
        containers += self._hooked
        containers += self.classes
        tuples = list(compress(values, map(is_, types, repeat(tuple))))
        if any(map(HOLDERS.__getitem__, set(map(type, chain.from_iterable(tuples))))):
            left += [m for m in chain.from_iterable(tuples) if HOLDERS[type(m)]]
        inner = list(chain.from_iterable(map(members, containers)))
        left += compress(inner, map(HOLDERS.__getitem__, map(type, inner)))
        if left:
            self._add_inner(containers, left)
        return containers

    def _add_inner(self, containers: list[Any], left: list[Any]) -> None:
        """Add the containers that are deeper; nearly always there are none."""
        seen = set(map(id, chain(containers, self._held)))
        most = len(containers) + _MOST
        while left and len(containers) < most:
            each = left.pop()
            if isinstance(each, torch.Tensor):
                if id(each) not in seen:
                    seen.add(id(each))
                    self._add_tensor(each)
                continue
            if MOVING[type(each)] and id(each) not in seen:
                seen.add(id(each))
                self.streams.append(Stream(each))
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
            self.tensors.append(PlainTensor(tensor, *marks, memory, alias))

    def replace(self, fakes: Mapping[int, torch.Tensor]) -> None:
        """Put fakes (found by the tensor's id) in the places of parameters and buffers."""
        self._state_given = [
            {name: None if t is None else fakes[id(t)] for name, t in content.items()}
            for content in self._state_before
        ]
        _update(self._state, self._state_given)

    def is_untouched(self) -> bool:
        """Do the modules still hold exactly what they were given?"""
        held, before = self._held, self.attributes
        if any(self._empty) or list(map(len, held)) != list(map(len, before)):
            return False
        try:
            values = chain.from_iterable(map(call, self._getters, held))
            if not all(map(is_, values, self._values)):
                return False
            registries = chain.from_iterable(map(_REGISTERED, held))
            if not all(map(is_, registries, self._registries)):
                return False
            if not self.has_same_hooks():
                return False
        except KeyError:
            return False
        self._untouched = (
            _are_same(self._state, self._state_given)
            and _are_same(self._children, self._children_before)
            and self.has_same_contents()
        )
        return self._untouched

    def has_same_hooks(self) -> bool:
        """Do the same modules have hooks? (Which these are, `has_same_contents` tells.)"""
        hooks = list(map(_HOOKS, self._held))
        hooked = list(filter(None, chain.from_iterable(hooks)))
        return hooks == self._hooks and len(hooked) == len(self._hooked)

    def has_same_values(self) -> bool:
        """Have the modules the very same values in their own attributes?"""
        try:
            return all(
                map(is_, chain.from_iterable(map(call, self._getters, self._held)), self._values)
            )
        except KeyError:
            return False

    def has_more_hooks(self) -> bool:
        """Have containers of hooks been filled that were empty?"""
        return any(self._unhooked)

    @cached_property
    def _unhooked(self) -> list[Any]:
        """The containers of hooks that are empty."""
        filled = set(map(id, self._hooked))
        return [each for each in chain.from_iterable(self._hooks) if id(each) not in filled]

    def contents(self) -> Iterator[Any]:
        """The values in the containers that modules hold."""
        return chain.from_iterable(map(members, [content for _, content in self._filled]))

    def has_same_contents(self) -> bool:
        """Do containers, plain tensors and iterators in the modules hold what they did?"""
        if any(self._empty) or not _are_kept(self._filled):
            return False
        is_changed = any(each.describe_changes() for each in self.tensors)
        return not (is_changed or any(each.is_moved() for each in self.streams))

    def list_changes(self) -> Iterator[tuple[Any, Any]]:
        """Yield the containers in the modules that have changed, with what was in them."""
        for container in (*self._empty, *self._unhooked):
            if container:
                yield container, type(container)()
        for container, content in self._filled:
            if not _are_kept([(container, content)]):
                yield container, content

    def holds(self, value: Any) -> bool:
        """Is this one of the containers in the modules?"""
        known = chain(self._empty, self._registries, (each for each, _ in self._filled))
        return any(each is value for each in known)

    def list_moved(self) -> list[Any]:
        """The tensors, iterators and random generators that are not as they were."""
        moved: list[Any] = [each.tensor for each in self.tensors if each.describe_changes()]
        streams = [each for each in self.streams if STREAMS[type(each.value)]]
        return moved + [each.value for each in streams if each.is_moved()]

    def held_values(self, where: str, name: str, value: Any, before: Any) -> Iterator[HeldValue]:
        """The values that an attribute holds: its own, or those in it at any depth."""
        at = HeldValue(where, name, value, before, frozenset((id(before),)), True)
        if HOLDERS[type(value)]:
            yield from self._held_values(at, set(map(id, self._held)))
        else:
            yield at

    def _held_values(self, at: HeldValue, seen: set[int]) -> Iterator[HeldValue]:
        value = at.value
        cls = type(value)
        if not HOLDERS[cls] or isinstance(value, torch.Tensor) or MOVING[cls]:
            yield at
            return
        is_like = type(at.before) is type(value)
        for part, before in zip(parts(value), parts(at.before if is_like else value), strict=True):
            if key_of(part) not in seen and len(seen) < _MOST:
                seen.add(key_of(part))
                contents = self._contents_before
                known = contents.get(key_of(part), contents.get(key_of(before)))
                if isinstance(part, tuple):
                    known = before if is_like else None
                yield from self._members(at, part, known, seen)

    def _members(self, at: HeldValue, part: Any, known: Any, seen: set[int]) -> Iterator[HeldValue]:
        """The values in a container now, and those that are gone."""
        is_attribute = part is not at.value
        before = {} if known is None or not _is_comparable(part, known) else dict(items(known))
        now = dict(items(part))
        all_of_them = frozenset(map(id, before.values()))
        for key, value in [*now.items(), *((key, GONE) for key in before if key not in now)]:
            was = before.get(key, GONE)
            if is_attribute:
                there = HeldValue(f"{at.where}.{key}", key, value, was, frozenset((id(was),)), True)
            else:
                there = HeldValue(f"{at.where}[{key!r}]", at.name, value, was, all_of_them, False)
            yield from self._held_values(there, seen)

    def content_before(self, container: Any) -> Any:
        """What was in a container before the call."""
        return self._contents_before.get(key_of(container))

    @cached_property
    def _contents_before(self) -> dict[int, Any]:
        """What was in each container before the call."""
        state = zip(self._state, self._state_given, strict=True)
        children = zip(self._children, self._children_before, strict=True)
        return {key_of(c): content for c, content in chain(state, children, self._filled)}

    def restore(self) -> None:
        """Put everything back."""
        if self._untouched:
            _update(self._state, self._state_before)
            return
        for held, attributes in zip(self._held, self.attributes, strict=True):
            held.clear()
            held.update(attributes)
        for container in (*self._empty, *self._unhooked):
            container.clear()
        state = zip(self._state, self._state_before, strict=True)
        children = zip(self._children, self._children_before, strict=True)
        for container, content in chain(state, children, self._filled):
            if not _are_kept([(container, content)]):
                fill(container, content)
        for each in self.tensors:
            each.put_back()
        for stream in self.streams:
            stream.put_back()


def _update(containers: Sequence[dict[str, Any]], contents: Sequence[dict[str, Any]]) -> None:
    """Update each container with its content."""
    deque(map(dict.update, containers, contents), maxlen=0)


def _are_same(containers: Sequence[dict[str, Any]], contents: Sequence[dict[str, Any]]) -> bool:
    """Do they hold the same objects under the same names in the same order?"""
    if list(map(len, containers)) != list(map(len, contents)):
        return False
    now, before = (chain.from_iterable(map(dict.values, c)) for c in (containers, contents))
    if not all(map(is_, now, before)):
        return False
    return list(chain.from_iterable(containers)) == list(chain.from_iterable(contents))


def _is_comparable(part: Any, known: Any) -> bool:
    return not isinstance(part, tuple) or (isinstance(known, tuple) and len(part) == len(known))


def _copy(value: Any) -> Any:
    if isinstance(value, dict) and type(value) is not dict:
        return dict(own_items(value))
    return [*list.__iter__(value)] if isinstance(value, list) else value.copy()


def fill(container: Any, content: Any) -> None:
    """Let a container hold this, and nothing else."""
    if isinstance(container, list):
        container[:] = content
    elif isinstance(container, deque):
        container.clear()
        container.extend(content)
    elif isinstance(container, dict) and type(container) is not dict:
        its: Any = OrderedDict if isinstance(container, OrderedDict) else dict
        its.clear(container)  # not what its class makes of that
        for key, value in content.items():
            its.__setitem__(container, key, value)
    else:
        container.clear()
        container.update(content)


def _are_kept(pairs: Sequence[tuple[Any, Any]]) -> bool:
    """Do the containers hold the same objects (under the same names) in the same order?"""
    containers, contents = [c for c, _ in pairs], [c for _, c in pairs]
    if list(map(len, containers)) != list(map(len, contents)):
        return False
    now, before = (chain.from_iterable(map(members, c)) for c in (containers, contents))
    if not all(map(is_, now, before)):
        return False
    names, named = (chain.from_iterable(filter(_is_dict, c)) for c in (containers, contents))
    return list(names) == list(named)


def _is_dict(container: Any) -> bool:
    return isinstance(container, NAMED)


# ------------------------------------------------------------------------------------ attributes


Getter = Callable[[dict[str, Any]], tuple[Any, ...]]


def _new_getter(held: dict[str, Any]) -> Getter:
    """A function that returns a module's attributes at once, except those of every module."""
    names = [name for name in held if name not in _STANDARD_NAMES]
    return itemgetter(*names) if len(names) > 1 else lambda held: tuple(map(held.get, names))


def _known_getters(modules: Sequence[nn.Module], held: Sequence[dict[str, Any]]) -> list[Getter]:
    """The getter of each module. Modules of one class nearly always have the same attributes, so we
    keep the class's last getter and check only their number: a missing name raises KeyError."""
    known = list(map(_GETTERS.get, map(type, modules)))
    if None in known or list(map(len, held)) != list(map(_COUNT, known)):
        known = list(map(_note_getter, map(type, modules), held))
    return list(map(_GETTER, known))


def _note_getter(cls: type, held: dict[str, Any]) -> tuple[int, Getter]:
    known = _GETTERS.get(cls)
    if known is None or known[0] != len(held):
        known = _CACHE.keep(cls, (len(held), _new_getter(held)))
    return known


_CACHE = Cache[type, tuple[int, Getter]](__name__, "getters", 1000)
_GETTERS = _CACHE.table
_MOST = 20_000
"""How many containers we look into at most, beside those that modules hold themselves: an object
may hold all the world."""
_COUNT: Any = itemgetter(0)
_GETTER: Any = itemgetter(1)
_STANDARD_NAMES = [n for n, v in nn.Module().__dict__.items() if isinstance(v, (dict, set))]
_REGISTERED = itemgetter("_parameters", "_buffers", "_modules")
_STATE, _CHILDREN = itemgetter("_parameters", "_buffers"), itemgetter("_modules")
_HOOKS = itemgetter(
    *[n for n in _STANDARD_NAMES if n not in ("_parameters", "_buffers", "_modules")]
)
REGISTRIES = frozenset(nn.Module().__dict__)
"""The names of the attributes that every module has."""
