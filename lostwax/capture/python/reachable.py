"""Finds the user's functions that a module or function may call by reading code: its methods, the
functions that those name or close over, and so on.

What a capture changes for those functions, or puts back after them, is found by reading them once:
`Reach`. Must not call anything, nor follow what is known only while it runs.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple, TypeVar

from torch import nn

from lostwax.cache import Cache, PerClass
from lostwax.capture.python import code_names
from lostwax.capture.python.bindings import Bindings
from lostwax.capture.python.functions_run import FunctionKeys, function_key
from lostwax.location import is_user_code

T = TypeVar("T")
CACHED: Any = type(functools.cache(len))
"""The class of functions with `functools.lru_cache`."""


def methods(cls: type) -> list[Any]:
    """The functions of a class and its bases."""
    return [unwrap(each) for base in cls.__mro__ for each in vars(base).values()]


def unwrap(value: Any) -> Any:
    """The function under a method, a property or a partial."""
    if isinstance(value, (staticmethod, classmethod, MethodType)):
        return unwrap(value.__func__)
    if isinstance(value, (functools.partial, functools.cached_property)):
        return unwrap(value.func)
    return value.fget if isinstance(value, property) else value


def _held_functions(modules: Iterable[nn.Module]) -> list[Any]:
    """The functions in attributes of the modules themselves, not of their classes."""
    attributes = [*map(vars, modules)]
    if _HELD.isdisjoint(map(type, chain.from_iterable(map(dict.values, attributes)))):
        return []  # nearly always
    held = chain.from_iterable(map(dict.items, attributes))
    return [unwrap(v) for n, v in held if type(v) in _HELD and n != _COMPILED]


_HELD = frozenset((FunctionType, MethodType, functools.partial))
_COMPILED = "_compiled_call_impl"  # the capture's own, or torch.compile's


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
        own = _held_functions(modules)
        if not isinstance(call, nn.Module):
            own.append(unwrap(call))
        self._parts = [_read_classes(frozenset(map(type, modules)))]
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
        return _Part(lambda: read_functions(_methods_of(classes)), found)
    bindings = Bindings()
    for base in _bases(classes):
        bindings.watch(vars(base), vars(base))
    functions = tuple(read_functions(_methods_of(classes), bindings=bindings))
    _, found = _FOUND.keep(classes, (bindings.remember(), {}))
    return _Part(lambda: functions, found)


_FOUND = Cache[frozenset[type], tuple[Bindings, _Found]](__name__, "found in classes", 200)


def _bases(classes: Iterable[type]) -> Iterable[type]:
    return dict.fromkeys([base for cls in classes for base in cls.__mro__[:-1]])


def _methods_of(classes: Iterable[type]) -> list[Any]:
    return [unwrap(each) for base in _bases(classes) for each in vars(base).values()]


def reachable_functions(starts: Iterable[Any], ran: FunctionKeys | None = None) -> Iterator[Any]:
    """These functions and the ones that they name, each once. A function with a cache comes before
    the one that it caches. If `ran` is given, only functions in it."""
    return (each.function for each in read_functions(starts, ran))


def read_functions(
    starts: Iterable[Any], ran: FunctionKeys | None = None, bindings: Bindings | None = None
) -> Iterator[ReadFunction]:
    """As `reachable_functions`, with what they name. `bindings` get the names that led there."""
    left, seen = list(starts), set[Any]()
    while left:
        function = left.pop()
        if _KINDS[type(function)] != _FUNCTION or function in seen:
            continue
        seen.add(function)
        if "__wrapped__" in (attributes := vars(function)):
            left.append(attributes["__wrapped__"])
        if not isinstance(function, FunctionType):
            yield ReadFunction(function, code_names.EMPTY, {})
            continue
        code = function.__code__
        if not is_user_code(code) or (ran is not None and function_key(code) not in ran):
            continue
        known, outline = function.__globals__, code_names.outline(code)
        named = {name: known[name] for name in outline.names if name in known}
        yield ReadFunction(function, outline, named)
        values = [each for each in named.values() if _KINDS[type(each)]]
        if function.__closure__ or function.__defaults__ or function.__kwdefaults__:
            values += _functions_held(function)
        if outline.has_imports():
            values += _imported_modules(outline.codes, known)
        left += values
        modules = [vars(each) for each in values if _KINDS[type(each)] == _MODULE]
        for held in modules:
            found = {name: held[name] for name in outline.names if name in held}
            left += found.values()
            if bindings is not None:
                bindings.watch(held, found)
        if bindings is not None:
            bindings.watch_function(function)
            bindings.watch(known, named)


def _imported_modules(codes: Sequence[CodeType], known: dict[str, Any]) -> Iterator[ModuleType]:
    """The modules that they import when they run, if they are loaded."""
    for code in codes:
        for name in code_names.modules_imported(code, known):
            if name in sys.modules:
                yield sys.modules[name]


def _functions_held(function: FunctionType) -> Iterator[Any]:
    """The functions and modules in a function's closure and defaults; of modules of torch's kind,
    their methods."""
    held = chain(code_names.closure_variables(function), code_names.argument_defaults(function))
    for _, value in held:
        if isinstance(value, nn.Module):
            yield from _methods_of({*map(type, value.modules())})
        elif _KINDS[type(value)]:
            yield value


_FUNCTION, _MODULE = 1, 2
_KINDS = PerClass(
    __name__,
    "kinds",
    lambda cls: (
        _FUNCTION * issubclass(cls, (FunctionType, CACHED)) + _MODULE * issubclass(cls, ModuleType)
    ),
)
