"""The user's functions that a module or a function may call, found by reading: its methods, what
those name, what they are closed over, and what that names in turn.

Must not call anything, nor follow what is found only while running.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from torch import nn

from lostwax.capture.python import code_names
from lostwax.capture.python.functions_run import Ran, place_of
from lostwax.identity import Seen
from lostwax.location import is_user_code

CACHED: Any = type(functools.cache(len))
"""What `functools.lru_cache` makes."""


def methods(cls: type) -> list[Any]:
    """The functions of a class and of those that it is made of."""
    return [plain(each) for base in cls.__mro__ for each in vars(base).values()]


def plain(value: Any) -> Any:
    """The function under a method, a property or a partial."""
    if isinstance(value, (staticmethod, classmethod, MethodType)):
        return plain(value.__func__)
    if isinstance(value, (functools.partial, functools.cached_property)):
        return plain(value.func)
    return value.fget if isinstance(value, property) else value


def held_functions(modules: Iterable[nn.Module]) -> list[Any]:
    """The functions in attributes of modules."""
    found: list[Any] = []
    for attributes in map(vars, modules):
        if not _HELD.isdisjoint(map(type, attributes.values())):  # rare
            found += [
                plain(v) for n, v in attributes.items() if type(v) in _HELD and n != _COMPILED
            ]
    return found


_HELD = frozenset((FunctionType, MethodType, functools.partial))
_COMPILED = "_compiled_call_impl"  # the capture's own, or torch.compile's


def reached(starts: Iterable[Any], ran: Ran | None = None) -> Iterator[Any]:
    """These functions and those that they name, each once: plain ones, and those with a cache,
    after which comes the function that they cache. With `ran` only those that have run."""
    left, seen = list(starts), Seen()
    while left:
        function = left.pop()
        if not isinstance(function, (FunctionType, CACHED)) or function in seen:
            continue
        seen.add(function)
        left += [v for n, v in vars(function).items() if n == "__wrapped__"]
        if isinstance(function, CACHED):
            yield function
        code = function.__code__ if isinstance(function, FunctionType) else None
        if code is None or code in seen or not is_user_code(code):
            continue
        if ran is not None and place_of(code) not in ran:
            continue
        seen.add(code)
        yield function
        left += _closed_over(function)
        for part in code_names.codes(code):
            left += _named(part, function.__globals__)


def _closed_over(function: FunctionType) -> Iterator[Any]:
    for _, value in code_names.closed_over(function):
        if isinstance(value, nn.Module):
            for cls in {*map(type, value.modules())}:
                yield from methods(cls)
        elif isinstance(value, (FunctionType, CACHED)):
            yield value


def _named(code: CodeType, known: dict[str, Any]) -> list[Any]:
    """The functions that a code names: globals, and those of modules among them."""
    values = [known[name] for name in code.co_names if name in known]
    values += [
        sys.modules[name] for name in code_names.imported(code, known) if name in sys.modules
    ]
    modules = [vars(v) for v in values if isinstance(v, ModuleType)]
    values += [m[name] for m in modules for name in code.co_names if name in m]
    return [v for v in values if isinstance(v, (FunctionType, CACHED))]
