"""The user's functions that a call runs, each read as it begins.

What a capture changes for a function, or puts back after it, depends on what the function does; so
its code is read before its first line runs. The functions that a call *may* run are many times as
many: those only get code that reports their begin (`bytecode/copies.py`), and so do the ones that
a function names, when it begins in turn. Must not know what is looked for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence, Set
from functools import partial
from itertools import repeat
from operator import attrgetter, is_
from types import CodeType, FunctionType, ModuleType
from typing import Any
from weakref import ref

from lostwax.bytecode import EMPTY
from lostwax.bytecode.copies import add_call
from lostwax.cache import Cache
from lostwax.capture import threads
from lostwax.capture.heap.cached import CACHED
from lostwax.capture.heap.functions import ReadFunction, Walk, find_held, has_any
from lostwax.capture.heap.holders import ModuleAttributes
from lostwax.capture.python.identities import ask_identities, names_method
from lostwax.undo.undo import Undo

Look = Callable[[ReadFunction], None]


class Reach:
    """What a call runs, and the looks that are taken at it."""

    def __init__(
        self, call: Any, attributes: ModuleAttributes, arguments: Any, has_lists: bool = False
    ) -> None:
        """`has_lists`: lists may be ours, and their methods are to ask."""
        self._walk = Walk()
        self.has_lists = has_lists
        self._modules, self._held = attributes.modules, find_held(attributes)
        self._starts = [arguments, *dict.fromkeys(map(type, self._modules)), call]
        self._looks: list[Look] = []
        self._looks_at_holders: list[Callable[[Any], None]] = []
        self._entries: list[_FunctionEntry] = []
        self.functions: list[FunctionType] = []
        """Those that have begun, in this order."""

    def add_look(self, look: Look) -> None:
        """Have it look at each function before that runs."""
        self._looks.append(look)

    def add_look_at_holder(self, look: Callable[[Any], None], asked: Set[Any]) -> None:
        """Have it look at each container, object and class with one of these in it, and at each
        function that has one as a default, before a function runs that reaches it."""
        self._walk.asked |= asked
        self._looks_at_holders.append(look)

    def begin(self, undo: Undo) -> None:
        """From here on, what begins is read."""
        undo.add(self._forget_entries)
        undo.add(partial(_running.__delitem__, slice(len(_running), None)))
        _running.append(self)
        if has_any(self._held, self._walk.asked):
            self.follow(self._modules)  # the looks need to know where in them it is
        else:
            self._walk.skip(self._modules)
            self.follow(self._held)
        self.follow(self._starts)

    def read(self, function: FunctionType) -> None:
        found = self._walk.read(function)
        self.functions.append(function)
        for look in self._looks:
            look(found)
        if found.reached:
            self.follow(found.reached)

    def follow(self, values: Iterable[Any]) -> None:
        """Have functions in these values report when they begin."""
        functions = self._walk.open(values)
        while self._walk.asking:
            holder = self._walk.asking.pop()
            for look_at in self._looks_at_holders:
                look_at(holder)
        for each in [each for each in functions if type(each) is CACHED]:
            functions.remove(each)
            for look in self._looks:
                look(ReadFunction(each, EMPTY, {}, frozenset(), []))
        if not functions:
            return
        entries = _find_entries(functions, _ENTRIES[self.has_lists])
        self._entries += entries
        _set_codes(entries, map(_REPORTING, entries))

    def _forget_entries(self) -> None:
        _set_codes(self._entries, map(_PLAIN, self._entries))


_running: list[Reach] = []
"""Of the captures that run, one within the other."""


def follow(modules: Iterable[ModuleType]) -> None:
    """Have functions report that are in modules no name led to: not loaded yet, or their names
    are computed."""
    for reach in _running:
        reach.follow(modules)


def read_text(code: CodeType, known: dict[str, Any]) -> CodeType:
    """Code for `exec` or `eval`, which asks, and what it names is found."""
    if not code.co_freevars and type(known) is dict:
        for reach in _running:
            reach.read(FunctionType(code, known))
    return ask_identities(code, has_lists=any(reach.has_lists for reach in _running))


class _Begin:
    """What a function's code calls first. It does not hold the function: the
    garbage collector does not look into code, and would not find the cycle."""

    __slots__ = ("_entry",)

    def __init__(self, entry: ref[_FunctionEntry]) -> None:
        self._entry = entry

    def __call__(self) -> None:
        entry = self._entry()
        if entry is not None:
            entry.report()


class _FunctionEntry:
    """The begin of a function."""

    __slots__ = ("__weakref__", "asking", "function", "plain", "reporting")

    def __init__(self, function: FunctionType, has_lists: bool) -> None:
        self.function = function
        self.plain: CodeType = function.__code__
        named = map(function.__globals__.get, self.plain.co_names)
        finds = any(names_method(each, has_lists) for each in named)
        self.asking = ask_identities(self.plain, finds, has_lists)
        self.reporting = add_call(self.asking, _Begin(ref(self)))

    def report(self) -> None:
        if threads.is_capturing():
            self.function.__code__ = self.asking
            for reach in _running:
                reach.read(self.function)


def _set_codes(entries: Sequence[_FunctionEntry], codes: Iterable[CodeType]) -> None:
    """In one step of Python: no interrupt comes in between."""
    deque(map(setattr, map(_FUNCTION, entries), repeat("__code__"), codes), maxlen=0)


_FUNCTION, _PLAIN, _REPORTING, _CODE = map(
    attrgetter, ("function", "plain", "reporting", "__code__")
)


_Entries = Cache[FunctionType, _FunctionEntry]


def _find_entries(functions: list[FunctionType], entries: _Entries) -> list[_FunctionEntry]:
    """Of those functions that do not report when they begin, as another capture's may."""
    found: list[Any] = [*map(entries.table.get, functions)]
    if None not in found and all(map(is_, map(_CODE, functions), map(_PLAIN, found))):
        return found  # nearly always
    return [_find_entry(each, entries) for each in functions if not _is_instrumented(each.__code__)]


def _find_entry(function: FunctionType, entries: _Entries) -> _FunctionEntry:
    found = entries.table.get(function)
    if found is None or found.plain is not function.__code__:
        found = _FunctionEntry(function, entries is _ENTRIES[True])
        if function.__closure__ is None or "<locals>" not in function.__qualname__:
            entries.keep(function, found)  # others may hold a model
    return found


def _is_instrumented(code: CodeType) -> bool:
    return bool(code.co_consts) and type(code.co_consts[-1]) is _Begin


_ENTRIES = (_Entries(__name__, "entries", 10_000), _Entries(__name__, "entries_of_lists", 10_000))
"""Those of captures in which no list is ours, and of others."""
