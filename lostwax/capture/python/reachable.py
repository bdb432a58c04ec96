"""Finds the user's functions that a module or function may call by reading code: its methods, the
functions that those name or close over, and so on.

Must not call anything, nor follow what is known only while it runs.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Iterator
from itertools import chain
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


def user_functions(mod: Any, modules: Iterable[nn.Module]) -> list[Any]:
    """The functions of the user's that a call of `mod` may reach, by reading what it, its modules
    and their classes hold now: between two captures, users define functions and methods again."""
    bases = dict.fromkeys(chain.from_iterable(cls.__mro__[:-1] for cls in {*map(type, modules)}))
    starts = [*chain.from_iterable(vars(base).values() for base in bases)]
    starts = [each if each.__class__ is FunctionType else unwrap(each) for each in starts]
    starts += _held_functions(modules)
    if not isinstance(mod, nn.Module):
        starts.append(unwrap(mod))
    return list(reachable_functions(starts))


def _held_functions(modules: Iterable[nn.Module]) -> list[Any]:
    """The functions in attributes of the modules themselves, not of their classes."""
    attributes = [*map(vars, modules)]
    if _HELD.isdisjoint(map(type, chain.from_iterable(map(dict.values, attributes)))):
        return []  # nearly always
    held = chain.from_iterable(map(dict.items, attributes))
    return [unwrap(v) for n, v in held if type(v) in _HELD and n != _COMPILED]


_HELD = frozenset((FunctionType, MethodType, functools.partial))
_COMPILED = "_compiled_call_impl"  # the capture's own, or torch.compile's


def reachable_functions(starts: Iterable[Any], ran: FunctionKeys | None = None) -> Iterator[Any]:
    """These functions and the ones that they name, each once. A function with a cache comes before
    the one that it caches. If `ran` is given, only functions in it."""
    left, seen = list(starts), Seen()
    while left:
        function = left.pop()
        is_plain = function.__class__ is FunctionType
        is_users = is_plain and is_user_code(function.__code__)
        if is_plain and not is_users and not function.__dict__:
            continue  # as most methods of torch's modules: it leads nowhere
        if not (is_plain or isinstance(function, CACHED)) or function in seen:
            continue
        seen.add(function)
        left += [v for n, v in vars(function).items() if n == "__wrapped__"]
        if not is_plain:
            yield function
        if not is_users or (ran is not None and function_key(function.__code__) not in ran):
            continue
        yield function
        left += _functions_closed_over(function)
        for part in code_names.nested_codes(function.__code__):
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
