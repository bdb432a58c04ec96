"""Finds the user's functions that a module or function may call by reading code: its methods, the
functions that those name or close over, and so on.

What a capture changes for those functions, or puts back after them, is found by reading them once:
`Reach`. Must not call anything, nor follow what is known only while it runs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple, TypeVar

from torch import nn

from lostwax.cache import Cache, PerClass, cached_by_identity
from lostwax.capture.python import code_names
from lostwax.capture.python.bindings import Bindings
from lostwax.capture.python.function_holders import (
    CACHED,
    HOLDERS,
    find_held,
    open_holder,
)
from lostwax.capture.python.functions_run import FunctionKeys, function_key
from lostwax.identity import Seen
from lostwax.location import is_of_torch, is_user_code

T = TypeVar("T")


class ReadFunction(NamedTuple):
    """A function of the user's, or one with a cache, and what its code names."""

    function: Any
    code: code_names.Outline
    """With the functions that are defined in it."""
    named: dict[str, Any]
    """The globals whose names stand in the code. (Some may be names of attributes there.)"""


Look = Callable[[Sequence[ReadFunction]], Iterable[T]]
"""Finds something in functions."""
_Found = dict[Look[Any], list[Any]]


class Reach:
    """The user's functions that a call may run: what its modules' classes reach, and what the call
    and the modules hold themselves. What was found in the first is kept from call to call, as long
    as all names in it are bound to the same functions."""

    def __init__(self, call: Any, modules: Sequence[nn.Module]) -> None:
        classes, own = find_held(modules)
        if not isinstance(call, nn.Module):
            own.append(call)
        self._parts = [_read_classes(frozenset([*map(type, modules), *classes]))]
        if own:
            self._parts.append(_Part(partial(read_functions, own), {}))

    def find(self, look: Look[T]) -> list[T]:
        """What `look` finds in the functions. It may find the same thing twice."""
        return [each for part in self._parts for each in part.find(look)]


class _Part:
    """Functions that are read when someone looks for something that was not found in them yet."""

    def __init__(self, read: Callable[[], Iterable[ReadFunction]], found: _Found) -> None:
        self._read = read
        self._functions: tuple[ReadFunction, ...] | None = None
        self._found = found

    def find(self, look: Look[T]) -> list[T]:
        found = self._found.get(look)
        if found is None:
            if self._functions is None:
                self._functions = tuple(self._read())
            found = self._found[look] = list(look(self._functions))
        return found


def _read_classes(classes: frozenset[type]) -> _Part:
    bindings, found = _FOUND.table.get(classes, (None, {}))
    if bindings is not None and bindings.hold():
        return _Part(partial(read_functions, classes), found)
    bindings = Bindings()
    functions = tuple(read_functions(classes, bindings=bindings))
    _, found = _FOUND.keep(classes, (bindings.remember(), {}))
    return _Part(lambda: functions, found)


_FOUND = Cache[frozenset[type], tuple[Bindings, _Found]](__name__, "found in classes", 200)


def reachable_functions(starts: Iterable[Any], ran: FunctionKeys | None = None) -> Iterator[Any]:
    """The functions among these, in their classes and wrappers, and the ones that they name, each
    once. A function with a cache comes before the one that it caches. If `ran` is given, only
    functions in it."""
    return (each.function for each in read_functions(starts, ran))


def read_functions(
    starts: Iterable[Any], ran: FunctionKeys | None = None, bindings: Bindings | None = None
) -> Iterator[ReadFunction]:
    """As `reachable_functions`, with what they name. `bindings` get the names that led there."""
    return _Walk(starts, ran, Bindings() if bindings is None else bindings).read_all()


class _Walk:
    """Goes from values to the functions in them, to what these name, and so on."""

    def __init__(self, starts: Iterable[Any], ran: FunctionKeys | None, bindings: Bindings) -> None:
        self._left = [*starts]
        self._functions = set[Any]()
        self._others = Seen()
        self._ran = ran
        self._bindings = bindings

    def read_all(self) -> Iterator[ReadFunction]:
        left, seen = self._left, self._functions
        while left:
            value = left.pop()
            kind = _KINDS[type(value)]
            if kind == _FUNCTION:
                if value in seen:
                    continue
                seen.add(value)
                left += vars(value).values()  # `__wrapped__`, for one
                if not isinstance(value, FunctionType):
                    yield ReadFunction(value, code_names.EMPTY, {})
                elif self._may_run(value.__code__):
                    yield self._read(value)
            elif kind in _OPENED and value not in self._others:
                self._others.add(value)
                if kind == _HOLDER:
                    left += open_holder(value)
                else:
                    self._open_class(value)

    def _may_run(self, code: CodeType) -> bool:
        return is_user_code(code) and (self._ran is None or function_key(code) in self._ran)

    def _open_class(self, cls: type) -> None:
        for base in cls.__mro__[:-1]:
            if base is cls or base not in self._others:
                self._others.add(base)
                self._bindings.watch_class(base)
                self._left += [each for each in vars(base).values() if _KINDS[type(each)] in _RUN]

    def _read(self, function: FunctionType) -> ReadFunction:
        known, outline = function.__globals__, code_names.outline(function.__code__)
        named = {name: known[name] for name in outline.names if name in known}
        values = [each for each in named.values() if _KINDS[type(each)]]
        if function.__closure__ or function.__defaults__ or function.__kwdefaults__:
            values += [value for _, value in code_names.closure_variables(function)]
            values += [value for _, value in code_names.argument_defaults(function)]
        if outline.has_imports():
            values += self._find_imported(outline.codes, known)
        modules = [each for each in values if _KINDS[type(each)] == _MODULE]
        if modules:
            values += self._read_modules(modules, outline.names)
        self._bindings.watch_function(function)
        self._bindings.watch(known, outline.names)
        self._left += [each for each in values if _KINDS[type(each)] in _RUN]
        return ReadFunction(function, outline, named)

    def _read_modules(self, modules: list[ModuleType], names: tuple[str, ...]) -> list[Any]:
        """What these names are in some modules, and in modules that are named in these
        (`package.module.function()`)."""
        found, opened = list[Any](), set[ModuleType]()
        while modules:
            module = modules.pop()
            if module in opened:
                continue
            opened.add(module)
            held = vars(module)
            there = {name: held[name] for name in names if name in held}
            self._bindings.watch(held, there if _is_of_torch(module) else names)
            values = [each for each in there.values() if _KINDS[type(each)]]
            found += values
            modules += [each for each in values if _KINDS[type(each)] == _MODULE]
        return found

    def _find_imported(
        self, codes: Sequence[CodeType], known: dict[str, Any]
    ) -> Iterator[ModuleType]:
        """The modules that they import when they run, if they are loaded."""
        for code in codes:
            names = code_names.modules_imported(code, known)
            self._bindings.watch(sys.modules, names)
            yield from (sys.modules[name] for name in names if name in sys.modules)


@cached_by_identity(1000)
def _is_of_torch(module: ModuleType) -> bool:
    return is_of_torch(vars(module).get("__file__") or "")


_OTHER, _FUNCTION, _MODULE, _HOLDER, _CLASS = range(5)
_OPENED = (_HOLDER, _CLASS)
_RUN = (_FUNCTION, _HOLDER)
"""What is read where its name is. (Of classes, only the modules' own are.)"""


def _find_kind(cls: type) -> int:
    if issubclass(cls, (FunctionType, CACHED)):
        return _FUNCTION
    if issubclass(cls, type):
        return _CLASS
    return _HOLDER if HOLDERS[cls] else _MODULE * issubclass(cls, ModuleType)


_KINDS = PerClass(__name__, "kinds", _find_kind)
