"""Finds the user's functions that a module or function may call by reading code: its methods, the
functions that those name or close over, and so on.

Must not call anything, nor follow what is known only while it runs.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from torch import nn

from lostwax.capture.python import code_names
from lostwax.capture.python.functions_run import FunctionKeys, function_key
from lostwax.identity import Seen
from lostwax.location import is_user_code

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


def held_functions(modules: Iterable[nn.Module]) -> list[Any]:
    """The functions in attributes of the modules themselves, not of their classes."""
    found: list[Any] = []
    for attributes in map(vars, modules):
        if not _HELD.isdisjoint(map(type, attributes.values())):  # rare
            found += [
                unwrap(v) for n, v in attributes.items() if type(v) in _HELD and n != _COMPILED
            ]
    return found


_HELD = frozenset((FunctionType, MethodType, functools.partial))
_COMPILED = "_compiled_call_impl"  # the capture's own, or torch.compile's


def reachable_functions(starts: Iterable[Any], ran: FunctionKeys | None = None) -> Iterator[Any]:
    """These functions and the ones that they name, each once. A function with a cache comes before
    the one that it caches. If `ran` is given, only functions in it."""
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
        if ran is not None and function_key(code) not in ran:
            continue
        seen.add(code)
        yield function
        left += _functions_closed_over(function)
        for part in code_names.nested_codes(code):
            left += _functions_named(part, function.__globals__)


def _functions_closed_over(function: FunctionType) -> Iterator[Any]:
    for _, value in code_names.closure_variables(function):
        if isinstance(value, nn.Module):
            for cls in {*map(type, value.modules())}:
                yield from methods(cls)
        elif isinstance(value, (FunctionType, CACHED)):
            yield value


def _functions_named(code: CodeType, known: dict[str, Any]) -> list[Any]:
    """The functions that a code names: globals, and functions of modules that it names."""
    values = [known[name] for name in code.co_names if name in known]
    imported = code_names.modules_imported(code, known)
    values += [sys.modules[name] for name in imported if name in sys.modules]
    modules = [vars(v) for v in values if isinstance(v, ModuleType)]
    values += [m[name] for m in modules for name in code.co_names if name in m]
    return [v for v in values if isinstance(v, (FunctionType, CACHED))]
