"""Puts back what the user's functions keep outside of modules: in caches of `functools`, globals,
containers in globals, variables of enclosing functions, and in objects and classes that they name
(`context.last = y`). If a capture left its tensors there, eager code would find them.

We find these places by reading the code of the functions that a call may reach. Must not follow
what is known only while the code runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

from torch import nn

from lostwax.bytecode import argument_defaults, closure_variables
from lostwax.cache import PerClass
from lostwax.capture.heap.contents import (
    Stream,
    are_same,
    describe_consumed,
    key_of,
    read,
    read_cell,
    write,
    write_item,
)
from lostwax.capture.heap.edges import CACHED, CLASSES, IS_STREAM_OR_ARRAY, OBJECTS, parts
from lostwax.capture.heap.functions import (
    CachedResults,
    ReadFunction,
    cached_results,
    is_plain_since,
)
from lostwax.capture.heap.holders import (
    CONTAINERS,
    MISSING,
    NAMED,
    ClassAttributes,
    NamedAttributes,
    items,
)
from lostwax.capture.heap.reach import Reach
from lostwax.capture.python.assignments import line_that_sets
from lostwax.capture.state.unkept_changes import note_change
from lostwax.fake.tensor import FakeTensor
from lostwax.location import Location, is_user_code, is_user_file
from lostwax.undo.undo import Undo


class Kept(NamedTuple):
    """A variable that the user's code sets, or whose content it changes; as it was."""

    variable: Any
    """A global, by its name in those of its module, or the cell of a closure. None: what an
    argument is by default, one for all calls."""
    name: str
    where: str
    """Whose it is: "a global of model.py"."""
    value: Any
    content: Any
    """What was in a container; where an iterator or random generator stood."""

    def find_value(self) -> Any:
        if self.variable is None:
            return self.value
        ((_, value),) = read(self.variable)
        return value

    def is_other(self) -> bool:
        """Is it another object now, or is something else in it?"""
        now = self.find_value()
        has_content = self.content is not None and not isinstance(self.content, Stream)
        return now is not self.value or (has_content and not are_same(items(now), self.content))


class SavedLruCache(NamedTuple):
    """A function with a cache (`functools.lru_cache`), as it was."""

    function: Any
    misses: int
    results: CachedResults | None

    def is_other(self) -> bool:
        """Is more in it than there was, and not only numbers and words?"""
        is_more = self.function.cache_info().misses != self.misses
        return is_more and not is_plain_since(self.results, self.function)


SavedVariables = dict[Any, Kept | SavedLruCache]
"""The places, and what was read there."""


def restore_later(reach: Reach, undo: Undo) -> SavedVariables:
    """Read what functions keep outside of modules, each before it runs, and put it back in the end.
    Returns what was read, as it comes."""
    before: SavedVariables = {}

    def look(found: ReadFunction) -> None:
        if isinstance(found.function, CACHED):
            before.setdefault(id(found.function), _read_cache(found.function))
        else:
            for variable, name, where in _find_variables(found):
                if key_of(variable) not in before:
                    ((_, value),) = read(variable)
                    before[key_of(variable)] = _read_variable(variable, name, where, value)
            where = f"which an argument of {found.function.__qualname__} is by default"
            for name, value in argument_defaults(found.function):
                if (type(value) in CONTAINERS or IS_STREAM_OR_ARRAY[type(value)]) and id(
                    value
                ) not in before:
                    before[id(value)] = _read_variable(None, name, where, value)

    undo.add(partial(_put_back_all, before, undo))
    reach.add_look(look)
    return before


def warn_of_changed_numbers(reach: Reach, before: SavedVariables, undo: Undo) -> None:
    """Tell of numbers that have changed: what was computed with them is baked in."""
    for each in before.values():
        if isinstance(each, SavedLruCache):
            continue
        if isinstance(each.content, Stream):
            if each.content.is_moved():
                undo.notes.append(describe_consumed(each.content, f"{each.name}, {each.where}"))
        elif not _holds_fakes(now := each.find_value()):
            changed = _describe_change(each.name, each.where, now, each.value, each.content)
            if changed is not None:
                line = line_that_sets(each.name, reach.functions)
                undo.notes.append(_describe_setting(changed, line))


def _put_back_all(before: SavedVariables, undo: Undo) -> None:
    for each in before.values():
        if isinstance(each, SavedLruCache):
            if each.is_other():
                each.function.cache_clear()  # the capture's results have no data
                name = each.function.__name__
                note_change(f"{name}, which has a cache, keeps a tensor or an object in it")
        else:
            if isinstance(each.content, Stream):
                each.content.put_back()
            if each.is_other():
                _put_back(each, undo)


def _read_variable(variable: Any, name: str, where: str, value: Any) -> Kept:
    if IS_STREAM_OR_ARRAY[type(value)]:
        return Kept(variable, name, where, value, Stream(value))
    return Kept(variable, name, where, value, items(value) if type(value) in CONTAINERS else None)


def _read_cache(function: Any) -> SavedLruCache:
    return SavedLruCache(function, function.cache_info().misses, cached_results(function))


def _put_back(kept: Kept, undo: Undo) -> None:
    now = kept.find_value()
    keeps_tensors = _holds_fakes(now)
    if now is not kept.value:
        write(kept.variable, [(kept.name, kept.value)])
    else:
        write(now, kept.content)
    if keeps_tensors:
        _tell_of_tensor(kept.name, kept.where, undo)
    else:  # numbers are told of (`warn_of_changed_numbers`)
        note_change(f"the module changes {kept.name}, {kept.where}")


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
    if depth == 0 or type(value) not in (*CONTAINERS, tuple):
        return False
    return any(_holds_fakes(each, depth - 1) for _, each in items(value))


# ------------------------------------------------------------------------------- reading the code


def _find_variables(found: ReadFunction) -> Iterator[tuple[Any, str, str]]:
    """The variables in which a function keeps something, with their names and whose they are."""
    function, code = found.function, found.code
    for name in _find_written_globals(found):
        yield NamedAttributes(function.__globals__, (name,)), name, _describe_globals(function)
    if function.__closure__ is not None:
        stores = code.nonlocals_set()
        for name, cell in zip(function.__code__.co_freevars, function.__closure__, strict=True):
            if name in stores or IS_STREAM_OR_ARRAY[type(read_cell(cell))]:
                yield cell, name, f"which {function.__qualname__} is closed over"


def _describe_globals(function: FunctionType) -> str:
    return f"a global of {Path(str(function.__globals__.get('__file__') or '<unknown>')).name}"


def _find_written_globals(found: ReadFunction) -> set[str]:
    """The globals that a function sets, changes or takes a value from, as far as names tell."""
    _, code, named, classes, _ = found
    names = code.globals_set()
    if any(map(IS_STREAM_OR_ARRAY.__getitem__, classes)):
        names.update([name for name, value in named.items() if IS_STREAM_OR_ARRAY[type(value)]])
    may_change = not CONTAINERS.isdisjoint(classes)
    if may_change and code.may_change_containers():
        names.update([name for name, value in named.items() if type(value) in CONTAINERS])
    return names


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
    for name, value in found.named.items():
        if (may_keep := _HOLDS_USER_STATE[type(value)]) is not None and may_keep(value, sets):
            yield name, _describe_globals(function), value
    for name, value in argument_defaults(function):
        if (may_keep := _HOLDS_USER_STATE[type(value)]) is not None and may_keep(value, sets):
            yield name, f"which an argument of {function.__qualname__} is by default", value
    for name, value in closure_variables(function) if function.__closure__ else ():
        may_keep = _HOLDS_USER_STATE[type(value)] if name != "__class__" else None
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
    if issubclass(cls, (partial, CACHED)):
        return lambda value, sets: sets
    if issubclass(cls, type):
        return lambda value, sets: bool(CLASSES[value])
    is_plain = OBJECTS[cls] and not issubclass(cls, nn.Module)
    return (lambda value, sets: True) if is_plain else None


_HOLDS_USER_STATE = PerClass(__name__, "may keep", _choose_question)


def _open(
    places: dict[int, HeldPlace], label: str, where: str, value: Any, depth: int = _DEPTH
) -> None:
    is_container = type(value) in CONTAINERS
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
            if is_own and (is_plain or type(each) in CONTAINERS):
                _open(places, place.name_item(key), where, each, depth - 1)


def _find_holders(value: Any) -> list[Any]:
    if isinstance(value, type):
        return [ClassAttributes(each) for each in CLASSES[value]]
    has_attributes = isinstance(value, (FunctionType, ModuleType, partial, CACHED))
    return [vars(value)] if has_attributes else parts(value)


def _put_places_back(places: dict[int, HeldPlace], reach: Reach, undo: Undo) -> None:
    for place in places.values():
        if isinstance(place.holder, NAMED):
            _put_attributes_back(place, reach, undo)
        elif _holds_fakes(place.holder) and not are_same(items(place.holder), place.before):
            write(place.holder, place.before)
            _tell_of_tensor(place.label, place.where, undo)


def _put_attributes_back(place: HeldPlace, reach: Reach, undo: Undo) -> None:
    before = dict(place.before)
    for key, now in items(place.holder):
        was = before.get(key, MISSING)
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
        write_item(place.holder, key, was)


def _tell_of_tensor(label: str, where: str, undo: Undo) -> None:
    text = (
        f"the module keeps a tensor in {label}, {where}; a program leaves nothing there, and "
        f"{label} is as it was before the export."
    )
    if not note_change(text):
        undo.notes.append(text)
