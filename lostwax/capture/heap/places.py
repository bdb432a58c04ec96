"""Where a function may keep something: what it can reach, and what is in there.

From a function we follow what it is closed over, its defaults, and the globals that its code names,
on through containers, objects and classes (`edges.py`). What we meet is remembered with its
content, and can be compared later. Must not run anything, and must not look at tensors' values.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, NamedTuple

import torch
from torch import nn

from lostwax.bytecode import (
    Outline,
    argument_defaults,
    closure_variables,
    modules_imported,
    outline,
)
from lostwax.cache import PerClass
from lostwax.capture.heap.cached import ResultCache
from lostwax.capture.heap.contents import find_change, key_of, read, read_cell
from lostwax.capture.heap.edges import METHODS, MOST_OBJECTS, OPENERS, extra_parts, open_value
from lostwax.capture.heap.hidden import CALLS, DEFAULTS, Fixed, OpaqueState
from lostwax.capture.heap.holders import (
    CONTAINERS,
    MISSING,
    NAMED,
    ClassAttributes,
    Content,
    NamedAttributes,
    TensorAttributes,
    has_items,
    items,
    members,
)
from lostwax.fake.asked_tensor import read_attributes, select_attributes
from lostwax.fake.tensor import FakeTensor
from lostwax.identity import Seen
from lostwax.location import STANDING_IN, is_user_code, is_user_file

Named = tuple[str, Any]


class Place(NamedTuple):
    """Where something may be kept: a container, a variable, attributes."""

    name: str
    """What the user calls it, or what holds it."""
    value: Any
    content: Any
    """What was in it when it was found."""


class PlaceChange(NamedTuple):
    name: str
    key: Any = None
    """The key or name whose value has changed."""


class Places:
    """The places that some values lead to."""

    def __init__(self, watched: Seen, opens_watched: bool = True, follows: bool = True) -> None:
        """`watched` are the program's modules; are those opened whose classes are torch's own? Are
        functions followed that are found, or only those that begin (`begin`)?"""
        self.functions: list[FunctionType] = []
        """The functions that were found."""
        self.buffers: list[dict[str, Any]] = []
        """The registries of buffers of modules."""
        self.reaches_unknown = False
        """Have we met something that may lead further than we see, as the methods of an object do?
        Then what the program's modules hold is to be compared as a whole."""
        self.sets_attributes = False
        """Does one of the functions set attributes?"""
        self._watched = watched
        self._opens_watched = opens_watched
        self._follows = follows
        self._found: dict[Any, Place] = {}
        self._is_cut = False
        """Is there more than we look at? Then what has changed is not known."""
        self._empty: list[Any] = []
        """Empty containers, of which modules have many, ..."""
        self._empty_names: list[str] = []
        """... and their names."""
        self.fakes: list[tuple[str, FakeTensor]] = []
        """Fakes that are not opened yet: they have attributes only if code of the user's has set
        some (`open_fakes`)."""
        self._bare: list[dict[str, Any]] = []
        """The dictionaries of tensors without attributes of the user's."""
        self._count = 0
        """How many entries these had."""
        self.caches: list[ResultCache] = []
        """The caches of functions that were found."""
        known = (sys.modules, sys.stdout, sys.stderr)  # what is printed is no state
        self._seen: dict[int, Any] = {id(each): each for each in known}

    # ---------------------------------------------------------------------------------- the walk

    def add(self, name: str, value: Any) -> None:
        """Find the places that a value leads to."""
        self._open_all([(name, value)])

    def leave_out(self, values: Iterable[Any]) -> None:
        """Do not open these."""
        self._seen.update({id(each): each for each in values})

    def begin(self, function: FunctionType) -> None:
        """Find the places that a function leads to which is about to run."""
        self._note_function(function)
        self._open_all(self._open_code(function))

    def _open_all(self, left: list[Named]) -> None:
        seen = self._seen
        while left:
            name, value = left.pop()
            open_it = _OPENERS[type(value)]
            if open_it is None or id(value) in seen:
                continue
            seen[id(value)] = value
            if len(seen) > MOST_OBJECTS:
                self.reaches_unknown = self._is_cut = True
                return
            left += open_it(self, name, value)

    def note(self, name: str, place: Any) -> None:
        """Remember what is in this place, and in no other that it leads to."""
        if type(place) in CONTAINERS and not place:
            self._empty.append(place)
            self._empty_names.append(name)
            return
        key = key_of(place)
        if key not in self._found:
            if type(place) is ResultCache:
                self.caches.append(place)
            called = place.describe(name) if type(place) in (Fixed, ResultCache) else name
            self._found[key] = Place(called, place, read(place))

    def open_by_table(self, name: str, value: Any) -> Iterable[Named]:
        holders, leads, acts = open_value(value)
        self.reaches_unknown |= acts
        found = [(name, each) for _, each in leads]
        for place in holders:
            is_called = type(place) is OpaqueState and CALLS.watch(value)
            self.note(f"{name} (or calls a method of it, which may)" if is_called else name, place)
            if place is value:
                found += [(name, each) for each in members(place)] if has_items(place) else ()
            elif isinstance(place, NAMED):
                found += [(_name_of(key, name), each) for key, each in _select_items(place)]
        return found

    def open_function(self, _: str, function: FunctionType) -> Iterable[Named]:
        code = function.__code__
        if not (is_user_code(code) or code.co_filename in STANDING_IN):  # it may be a decorator's
            return [] if "stands_for" in vars(function) else closure_variables(function)
        self._note_function(function)
        return self._open_code(function) if self._follows else ()

    def _note_function(self, function: FunctionType) -> None:
        self.note(function.__name__, vars(function))
        self.note(function.__name__, Fixed(function, DEFAULTS))
        if function.__kwdefaults__:
            self.note(function.__name__, function.__kwdefaults__)

    def _open_code(self, function: FunctionType) -> list[Named]:
        """What a function holds, and what its code names."""
        self.functions.append(function)
        found = [*argument_defaults(function)]
        if function.__closure__:
            code = function.__code__
            is_set = outline(code).nonlocals_set()
            for name, cell in zip(code.co_freevars, function.__closure__, strict=True):
                if (
                    name in is_set or read_cell(cell) is not MISSING
                ):  # else it is a function to come
                    self.note(name, cell)
            found += closure_variables(function)
        return found + self._open_names(function, found)

    def _open_names(self, function: FunctionType, held: Sequence[Named]) -> list[Named]:
        """The globals that a function's code names, and the attributes of Python's modules; `held`
        is what the function holds itself."""
        known, code = function.__globals__, outline(function.__code__)
        reaches_unknown = code.has_imports() or code.may_reach_unnamed()
        self.sets_attributes |= code.sets_attributes() or code.may_set_computed_names()
        self.reaches_unknown |= reaches_unknown
        # (A name that no source can have comes from a rewrite of the code: pytest's, of `assert`.)
        named = [(name, known[name]) for name in code.names if name in known and name[:1] != "@"]
        modules = [v for _, v in (*named, *held) if isinstance(v, ModuleType)]
        if code.has_imports():
            names = [name for each in code.codes for name in modules_imported(each, known)]
            modules += [sys.modules[name] for name in names if name in sys.modules]
        for name in code.globals_set():
            self.note(name, NamedAttributes(known, (name,)))
        if reaches_unknown and "globals" in code.names:
            self.note(function.__name__, known)
        found = [each for each in named if not isinstance(each[1], ModuleType)]
        return found + (self._open_python_modules(modules, code) if modules else [])

    def _open_python_modules(self, modules: list[ModuleType], code: Outline) -> list[Named]:
        """What the names in the code are in modules, and in modules that are named in these."""
        found, opened = list[Named](), list[ModuleType]()
        is_computed = code.may_set_computed_names()
        sets_attributes = is_computed or code.sets_attributes()
        while modules:
            module = modules.pop()
            if module in opened:
                continue
            opened.append(module)
            held = vars(module)
            is_users = is_user_file(held.get("__file__") or "")
            if sets_attributes:
                is_any = is_computed and is_users
                self.note(module.__name__, NamedAttributes(held, None if is_any else code.names))
            for name in code.names:
                value = held.get(name)
                if isinstance(value, ModuleType):
                    modules.append(value)
                elif is_users or not isinstance(value, BuiltinFunctionType):
                    found.append((name, value))
        return found

    def open_python_module(self, _: str, module: ModuleType) -> Iterable[Named]:
        """One that no name led to."""
        self.reaches_unknown |= is_user_file(vars(module).get("__file__") or "")
        return ()

    def open_tensor(self, name: str, tensor: torch.Tensor) -> Iterable[Named]:
        if type(tensor) is FakeTensor:
            self.fakes.append((name, tensor))
            return ()
        return self._open_attributes(name, read_attributes(tensor))

    def _open_attributes(self, name: str, attributes: dict[str, Any]) -> Iterable[Named]:
        found = select_attributes(attributes)
        if found:
            self.note(name, TensorAttributes(attributes))
        else:
            self._bare.append(attributes)
            self._count += len(attributes)
        return found

    def open_fakes(self) -> None:
        """Find what is kept in attributes of fakes."""
        while self.fakes:
            name, fake = self.fakes.pop()
            for each in self._open_attributes(name, read_attributes(fake)):
                self.add(*each)

    def open_module(self, name: str, module: nn.Module) -> Iterable[Named]:
        is_torchs = _IS_TORCHS[type(module)]
        self.reaches_unknown |= not is_torchs
        if module in self._watched and not (is_torchs and self._opens_watched):
            return ()
        held = vars(module)
        self.note(name, held)
        found: list[Named] = []
        for key, value in held.items():
            if type(value) in CONTAINERS and not value:
                self._empty.append(value)
                self._empty_names.append(key)
            elif _OPENERS[type(value)] and key != "_compiled_call_impl":  # it only calls the module
                found.append((_name_of(key, name), value))
        for place in extra_parts(module):
            self.note(name, place)
            found += [(_name_of(key, name), each) for key, each in items(place)]
        if module._buffers:
            self.buffers.append(module._buffers)
        return found

    # ------------------------------------------------------------------------------ the comparison

    def look(self) -> dict[Any, Any]:
        """What is in the places now, for `find_change`."""
        if any(self._empty):
            known = [*zip(self._empty_names, self._empty, strict=True)]
            self._empty_names, self._empty = [], []
            for name, each in known:
                self.note(name, each)
        if self._has_new_tensor_attributes():
            bare, self._bare, self._count = self._bare, [], 0
            for held in bare:
                self._open_attributes("a tensor", held)
        return {key: read(place.value) for key, place in self._found.items()}

    def find_change(self, since: dict[Any, Any]) -> PlaceChange | None:
        """What has changed since a look; of places that were found later, since then."""
        if self._is_cut:
            return PlaceChange(f"one of more than {MOST_OBJECTS:,} objects that it reaches")
        for key, (name, value, first) in self._found.items():
            changed = find_change(value, since.get(key, first))
            if changed is not None:
                return PlaceChange(_describe(name, value, *changed), *changed)
        if any(self._empty):
            return PlaceChange(
                next(n for n, v in zip(self._empty_names, self._empty, strict=True) if v)
            )
        if self._has_new_tensor_attributes():
            for held in self._bare:
                for key, _ in select_attributes(held):
                    return PlaceChange(_describe("", TensorAttributes(held), key), key)
        return None

    def has_seen(self, value: Any) -> bool:
        """Was this object found, or might it have been?"""
        return id(value) in self._seen or len(self._seen) > MOST_OBJECTS

    def has_any(self, keys: Set[Any]) -> bool:
        """Is one of these places, by its key, among them?"""
        return not keys.isdisjoint(self._found) or not keys.isdisjoint(map(id, self._empty))

    def list_tensors(self) -> list[torch.Tensor]:
        """The tensors that were found."""
        return [each for each in self._seen.values() if isinstance(each, torch.Tensor)]

    def list_asked(self, since: dict[Any, Any]) -> Iterator[str]:
        """Yield the names of the caches of functions that were asked since a look."""
        for place in self.caches:
            key = key_of(place)
            before = since.get(key, self._found[key].content)
            now = place.read()
            if before is not None and now is not None and now.counts != before.counts:
                yield self._found[key].name

    def list_places(self) -> list[Place]:
        """What was found, in the order of the walk; no empty containers."""
        return [*self._found.values()]

    def list_changes(self, since: dict[Any, Any]) -> Iterator[tuple[Any, Place]]:
        """Yield all places that have changed since a look, with what was in them then."""
        for key, place in self._found.items():
            before = since.get(key, place.content)
            if find_change(place.value, before) is not None:
                yield key, place._replace(content=before)
        for name, value in zip(self._empty_names, self._empty, strict=True):
            if value:
                yield key_of(value), Place(name, value, [])
        if self._has_new_tensor_attributes():
            for held in self._bare:
                if select_attributes(held):
                    yield id(held), Place("a tensor", TensorAttributes(held), [])

    def _has_new_tensor_attributes(self) -> bool:
        return sum(map(len, self._bare)) != self._count


def _describe(name: str, place: Any, key: Any) -> str:
    """A change of what a place has under a key, in words."""
    if type(place) is TensorAttributes:
        return f"{key}, an attribute of a tensor"
    if type(place) is Fixed:
        return name  # which says it
    is_of_module = type(place) is NamedAttributes and key != name
    return f"{key} of {name}" if is_of_module else name


def _select_items(place: Any) -> Content:
    """What is in attributes; of a class not its methods, nor what Python itself asks for."""
    found = items(place)
    if not isinstance(place, ClassAttributes):
        return found
    return [(k, v) for k, v in found if k[:2] != "__" and type(v) not in METHODS]


def _name_of(key: Any, holder: str) -> str:
    """The name of an attribute in texts; that of its holder if it is private."""
    return key if isinstance(key, str) and key[:1] != "_" else holder


Opener = Callable[[Places, str, Any], Iterable[Named]]
_OWN: dict[type, Opener] = {
    torch.Tensor: Places.open_tensor,
    nn.Module: Places.open_module,
    FunctionType: Places.open_function,
    ModuleType: Places.open_python_module,
}


def _find_opener(cls: type) -> Opener | None:
    own = next((each for known, each in _OWN.items() if issubclass(cls, known)), None)
    return own or (None if OPENERS[cls] is None else Places.open_by_table)


_OPENERS: PerClass[Opener | None] = PerClass(__name__, "openers", _find_opener)
"""For each class: the method that opens an object of it; None: there is nothing to open."""
_IS_TORCHS = PerClass(
    __name__, "modules of torch", lambda cls: str(cls.__module__).startswith("torch.nn.modules.")
)
"""Are the functions of a module torch's own?"""
