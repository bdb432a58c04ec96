"""Puts back what the user's functions keep outside of modules: in caches of `functools`, globals,
containers in globals, variables of enclosing functions, and in objects and classes that they name
(`context.last = y`). If a capture left its tensors there, eager code would find them.

We find these places by reading the code of the functions that a call may reach. Must not follow
what is known only while the code runs.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

from torch import nn

from lostwax.bytecode import closure_variables
from lostwax.cache import PerClass
from lostwax.capture.python import function_caches
from lostwax.capture.python.assignments import line_that_sets
from lostwax.capture.python.containers import (
    CLASSES,
    GONE,
    MOVING,
    NAMED,
    OBJECTS,
    ClassAttributes,
    SlotAttributes,
    items,
    key_of,
    parts,
)
from lostwax.capture.python.function_holders import CACHED
from lostwax.capture.python.iterators import Stream, describe_taken
from lostwax.capture.python.reach import Reach
from lostwax.capture.python.reachable import ReadFunction
from lostwax.capture.state.unkept_changes import note_change
from lostwax.fake.tensor import FakeTensor
from lostwax.location import Location, is_user_code, is_user_file
from lostwax.undo.undo import Undo


class WrittenGlobal(NamedTuple):
    """A global that the user's code sets, or whose content it changes."""

    names: dict[str, Any]
    """The globals of its module."""
    name: str

    @property
    def value(self) -> Any:
        return self.names.get(self.name, GONE)

    def put(self, value: Any) -> None:
        if value is GONE:
            del self.names[self.name]
        else:
            self.names[self.name] = value

    def __str__(self) -> str:
        return f"a global of {Path(self.names.get('__file__') or '<unknown>').name}"


class ClosureCell(NamedTuple):
    """A variable of an enclosing function, which a function sets."""

    cell: Any
    name: str
    function: str

    @property
    def value(self) -> Any:
        try:
            return self.cell.cell_contents
        except ValueError:  # it is not set
            return GONE

    def put(self, value: Any) -> None:
        if value is GONE:
            del self.cell.cell_contents
        else:
            self.cell.cell_contents = value

    def __str__(self) -> str:
        return f"which {self.function} is closed over"


class ArgumentDefault(NamedTuple):
    """A container that an argument has by default: one for all calls."""

    value: Any
    name: str
    function: str

    def __str__(self) -> str:
        return f"which an argument of {self.function} is by default"


Keeper = Any
"""A `WrittenGlobal`, a `ClosureCell`, an `ArgumentDefault`, or a cache of `functools.lru_cache`."""


KeptBefore = dict[Any, tuple[Keeper, Any]]
"""The places, and what was read there."""


def restore_later(reach: Reach, undo: Undo) -> KeptBefore:
    """Read what functions keep outside of modules, each before it runs, and put it back in the end.
    Returns what was read, as it comes."""
    before: KeptBefore = {}

    def look(found: ReadFunction) -> None:
        for each in _find_keepers(found):
            key = _key(each)
            if key not in before:
                before[key] = each, read_keeper(each)

    undo.add(partial(_put_back_all, before, undo))
    reach.add_look(look)
    return before


def tell_of_numbers(reach: Reach, before: KeptBefore, undo: Undo) -> None:
    """Tell of numbers that have changed: what was computed with them is baked in."""
    for each, seen in before.values():
        if isinstance(each, CACHED):
            continue
        if isinstance(seen[1], Stream):
            if seen[1].is_moved():
                undo.notes.append(describe_taken(seen[1], f"{each.name}, {each}"))
        elif not _holds_fakes(each.value):
            changed = _describe_change(each.name, str(each), each.value, *seen)
            if changed is not None:
                line = line_that_sets(each.name, reach.functions)
                undo.notes.append(_describe_setting(changed, line))


def _put_back_all(before: KeptBefore, undo: Undo) -> None:
    for each, seen in before.values():
        _put_back(each, seen, undo)


def read_keeper(keeper: Keeper) -> Any:
    if isinstance(keeper, CACHED):
        return keeper.cache_info().misses, function_caches.cached_results(keeper)
    value = keeper.value
    if MOVING[type(value)]:
        return value, Stream(value)
    return value, items(value) if type(value) in _CONTAINERS else None


def _put_back(keeper: Keeper, before: Any, undo: Undo) -> None:
    if isinstance(keeper, CACHED):
        misses, results = before
        if keeper.cache_info().misses != misses and not function_caches.is_plain_since(
            results, keeper
        ):
            keeper.cache_clear()  # the capture's results have no data
            note_change(f"{keeper.__name__}, which has a cache, keeps a tensor or an object in it")
        return
    value, content = before
    if isinstance(content, Stream):
        content.put_back()
        content = None
    now = keeper.value
    if now is not value:
        keeper.put(value)
    elif content is None or _are_same(items(now), content):
        return
    keeps_tensors = _holds_fakes(now)
    if content is not None and now is value:
        _fill(now, content)
    text = (
        f"the module keeps a tensor in {keeper.name}, {keeper}; a program leaves nothing "
        f"there, and {keeper.name} is as it was before the export."
    )
    if not keeps_tensors:  # numbers are told of (`tell_of_numbers`)
        note_change(f"the module changes {keeper.name}, {keeper}")
    elif not note_change(text):
        undo.notes.append(text)


def _are_same(now: list[tuple[Any, Any]], before: list[tuple[Any, Any]]) -> bool:
    pairs = zip(now, before, strict=False)
    return len(now) == len(before) and all(a is c and b is d for (a, b), (c, d) in pairs)


def _describe_change(
    name: str, where: str, now: Any, was: Any, content: list[tuple[Any, Any]] | None
) -> str | None:
    """The change of a number, or of the first one that changed in a container; else None."""
    if type(was) in _NUMBERS and type(now) in _NUMBERS and was != now:
        return f"{name}, {where}, from {was!r} to {now!r}"
    if content is None or type(now) is not type(was):
        return None
    there = dict(items(now))
    inner = (_describe_change(f"{name}[{k!r}]", where, there.get(k), v, None) for k, v in content)
    return next(filter(None, inner), None)


def _describe_setting(changed: str, line: Location | None) -> str:
    return (
        f"the module sets {changed}{'' if line is None else f' ({line})'}; the program does not: "
        "every run of it computes with what it was at capture. A buffer would be kept."
    )


_NUMBERS = (int, float)


def _holds_fakes(value: Any, depth: int = 2) -> bool:
    if type(value) is FakeTensor:
        return True
    if isinstance(value, nn.Module):  # the call has made it
        state = (*value.parameters(), *value.buffers())
        return any(type(each) is FakeTensor for each in state)
    if depth == 0 or type(value) not in (*_CONTAINERS, tuple):
        return False
    return any(_holds_fakes(each, depth - 1) for _, each in items(value))


def _fill(container: Any, content: list[tuple[Any, Any]]) -> None:
    container.clear()
    if isinstance(container, (list, deque)):
        container.extend(each for _, each in content)
    else:
        container.update(content if isinstance(container, dict) else [each for _, each in content])


_CONTAINERS = frozenset((list, dict, set, OrderedDict, defaultdict, deque))


# ------------------------------------------------------------------------------- reading the code


def _key(keeper: Keeper) -> Any:
    """Several functions may write to one global."""
    if type(keeper) is WrittenGlobal:
        return id(keeper.names), keeper.name
    if type(keeper) is ArgumentDefault:
        return id(keeper.value)
    return id(keeper.cell if type(keeper) is ClosureCell else keeper)


def _find_keepers(found: ReadFunction) -> Iterator[Keeper]:
    """The places where a function keeps something."""
    function, code = found.function, found.code
    if isinstance(function, CACHED):
        yield function
        return
    for name in _find_written_globals(found):
        yield WrittenGlobal(function.__globals__, name)
    for name, value in _list_defaults(function):
        if type(value) in _CONTAINERS or MOVING[type(value)]:
            yield ArgumentDefault(value, name, function.__qualname__)
    if function.__closure__ is not None:
        stores = code.nonlocals_set()
        for name, cell in zip(function.__code__.co_freevars, function.__closure__, strict=True):
            variable = ClosureCell(cell, name, function.__qualname__)
            if name in stores or MOVING[type(variable.value)]:
                yield variable


def _list_defaults(function: Any) -> list[tuple[str, Any]]:
    """The arguments of a function that have a default, and that."""
    given, code = function.__defaults__ or (), function.__code__
    last = code.co_varnames[code.co_argcount - len(given) : code.co_argcount]
    return [*zip(last, given, strict=True), *(function.__kwdefaults__ or {}).items()]


def _find_written_globals(found: ReadFunction) -> set[str]:
    """The globals that a function sets, changes or takes a value from, as far as names tell."""
    _, code, named, classes, _ = found
    names = code.globals_set()
    if any(map(MOVING.__getitem__, classes)):
        names.update([name for name, value in named.items() if MOVING[type(value)]])
    may_change = not _CONTAINERS.isdisjoint(classes)
    if may_change and (code.sets_items() or not _CHANGING.isdisjoint(code.names)):
        names.update([name for name, value in named.items() if type(value) in _CONTAINERS])
    return names


_CHANGING = frozenset(("append", "add", "update", "setdefault", "insert", "extend", "appendleft"))


# ------------------------------------------------------------------- objects that functions name


_DEPTH = 2
"""How far we look: into an object, and into what its attributes hold."""
_PLAIN_NUMBERS = frozenset((bool, int, float))


class HeldPlace(NamedTuple):
    """The attributes of an object or class, or a container in one of these, as it was."""

    holder: Any
    label: str
    """As Python writes it."""
    where: str
    is_object: bool
    before: list[tuple[Any, Any]]

    def name_item(self, key: Any) -> str:
        return f"{self.label}.{key}" if self.is_object else f"{self.label}[{key!r}]"


def restore_objects_later(reach: Reach, undo: Undo) -> None:
    """Read the objects that functions name, each before it runs, and put tensors and numbers in
    them back in the end: the rest of such an object may have to stay as it is. To be called before
    what modules hold is read, so that this was put back when we look."""
    places: dict[int, HeldPlace] = {}

    def look(found: ReadFunction) -> None:
        for name, where, value in _find_named(found):
            _open(places, name, where, value)

    undo.add(partial(_put_places_back, places, reach, undo))
    reach.add_look(look)


def _find_named(found: ReadFunction) -> Iterator[tuple[str, str, Any]]:
    """What a function names and may keep something in, with its name and where it has it from."""
    function = found.function
    if type(function) is not FunctionType:
        return
    sets = found.code.sets_attributes() or "setattr" in found.code.names
    globals_file = function.__globals__.get("__file__")
    for name, value in found.named.items():
        if (may_keep := _MAY_KEEP[type(value)]) is not None and may_keep(value, sets):
            yield name, f"a global of {Path(str(globals_file or '<unknown>')).name}", value
    for name, value in _list_defaults(function):
        if (may_keep := _MAY_KEEP[type(value)]) is not None and may_keep(value, sets):
            yield name, f"which an argument of {function.__qualname__} is by default", value
    for name, value in closure_variables(function) if function.__closure__ else ():
        may_keep = _MAY_KEEP[type(value)] if name != "__class__" else None
        if may_keep is not None and may_keep(value, sets):
            yield name, f"which {function.__qualname__} is closed over", value


def _choose_question(cls: type) -> Callable[[Any, bool], bool] | None:
    """Whether a function may keep something in an object of this class hangs on the object and on
    whether it sets attributes at all: methods set those of objects and classes, but nobody else
    those of functions and modules. None: no function does."""
    if cls is FunctionType:
        return lambda value, sets: sets and is_user_code(value.__code__)
    if cls is ModuleType:
        return lambda value, sets: (
            sets and is_user_file(str(getattr(value, "__file__", "<frozen>")))
        )
    if issubclass(cls, type):
        return lambda value, sets: bool(CLASSES[value])
    is_plain = OBJECTS[cls] and not issubclass(cls, nn.Module)
    return (lambda value, sets: True) if is_plain else None


_MAY_KEEP = PerClass(__name__, "may keep", _choose_question)


def _open(
    places: dict[int, HeldPlace], label: str, where: str, value: Any, depth: int = _DEPTH
) -> None:
    is_container = type(value) in _CONTAINERS
    for holder in [value] if is_container else _find_holders(value):
        if key_of(holder) in places:
            continue
        place = HeldPlace(holder, label, where, not is_container, items(holder))
        places[key_of(holder)] = place
        if depth == 1 or isinstance(value, ModuleType):
            continue
        for key, each in place.before:
            is_own = not (isinstance(key, str) and key.startswith("__"))
            is_plain = OBJECTS[type(each)] and not isinstance(each, nn.Module)
            if is_own and (is_plain or type(each) in _CONTAINERS):
                _open(places, place.name_item(key), where, each, depth - 1)


def _find_holders(value: Any) -> list[Any]:
    if isinstance(value, type):
        return [ClassAttributes(each) for each in CLASSES[value]]
    return [vars(value)] if isinstance(value, (FunctionType, ModuleType)) else parts(value)


def _put_places_back(places: dict[int, HeldPlace], reach: Reach, undo: Undo) -> None:
    for place in places.values():
        if isinstance(place.holder, NAMED):
            _put_attributes_back(place, reach, undo)
        elif _holds_fakes(place.holder) and not _are_same(items(place.holder), place.before):
            _fill(place.holder, place.before)
            _tell_of_tensor(place.label, place.where, undo)


def _put_attributes_back(place: HeldPlace, reach: Reach, undo: Undo) -> None:
    before = dict(place.before)
    for key, now in items(place.holder):
        was = before.get(key, GONE)
        if now is was:
            continue
        label = place.name_item(key)
        if _holds_fakes(now):
            _tell_of_tensor(label, place.where, undo)
        elif type(now) in _PLAIN_NUMBERS and type(was) in _PLAIN_NUMBERS and now != was:
            line = line_that_sets(str(key), reach.functions)
            text = _describe_setting(f"{label}, {place.where}, from {was!r} to {now!r}", line)
            if not note_change(text):
                undo.notes.append(text)
        else:
            continue
        _put_item(place.holder, key, was)


def _put_item(holder: Any, key: Any, value: Any) -> None:
    if isinstance(holder, ClassAttributes):
        rest = {k: v for k, v in holder.copy().items() if k != key}
        holder.update(rest if value is GONE else {**rest, key: value})
    elif value is GONE and not isinstance(holder, SlotAttributes):
        del holder[key]
    else:
        holder[key] = value


def _tell_of_tensor(label: str, where: str, undo: Undo) -> None:
    text = (
        f"the module keeps a tensor in {label}, {where}; a program leaves nothing there, and "
        f"{label} is as it was before the export."
    )
    if not note_change(text):
        undo.notes.append(text)
