"""Finds the user's functions that a value may run, and those that a function may run in turn: what
it names, closes over and has as defaults, and what is in these.

Must not call anything, nor follow what is known only while it runs.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Iterable, Iterator, Sequence, Set
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

from torch import nn
from torch.utils import _pytree as pytree

from lostwax import bytecode as code_names
from lostwax.cache import PerClass
from lostwax.capture.python.class_functions import read_class
from lostwax.capture.python.function_holders import (
    CACHED,
    CLASS,
    FUNCTION,
    HOLDER,
    KINDS,
    MODULE,
    has_any,
    is_object,
    open_holder,
    wraps,
)
from lostwax.capture.python.functions_run import FunctionKeys, function_key
from lostwax.identity import Seen
from lostwax.location import asks_for_user, is_user_code, is_user_file, may_be_users


class ReadFunction(NamedTuple):
    """A function of the user's, or one with a cache, and what its code names."""

    function: Any
    code: code_names.Outline
    """With the functions that are defined in it."""
    named: dict[str, Any]
    """The globals whose names stand in the code. (Some may be names of attributes there.)"""
    classes: Set[type]
    """Of these globals, and of what the function closes over and has as defaults."""
    reached: list[Any]
    """What it may run, or have run: all that it names and holds."""


def reachable_functions(starts: Iterable[Any], ran: FunctionKeys | None) -> Iterator[Any]:
    """The functions among these, in their classes and wrappers, and the ones that they name, each
    once; if `ran` is given, only functions in it. A function with a cache comes before the one that
    it caches."""
    walk = Walk(is_wide=False)
    left = walk.open(starts)
    while left:
        function = left.pop()
        if isinstance(function, CACHED):
            yield function
        elif is_user_code(function.__code__) and (
            ran is None or function_key(function.__code__) in ran
        ):
            yield function
            left += walk.open(walk.read(function).reached)


class Walk:
    """Goes from values to the functions in them, and from functions to what they name."""

    def __init__(self, is_wide: bool = True) -> None:
        self._is_wide = is_wide
        """Are classes that are only named opened, too, and containers?"""
        self.asked: Set[Any] = frozenset()
        """Classes and functions of C, ..."""
        self.asking: list[Any] = []
        """... and what was opened and has one of these in it, or has it as a default."""
        self._functions = set[Any]()
        self._others = Seen()
        self.skip((sys.modules, vars(builtins)))  # who names these looks for one thing

    def skip(self, values: Iterable[Any]) -> None:
        """Do not open these."""
        for each in values:
            self._others.add(each)

    def open(self, values: Iterable[Any]) -> list[Any]:
        """The functions in these values that were not found before, of the user's or with a cache;
        the ones in the first value come first."""
        left, found, functions, others = [*values], list[Any](), self._functions, self._others
        while left:
            value = left.pop()
            kind = KINDS[type(value)]
            if kind == FUNCTION:
                if value in functions:
                    continue
                functions.add(value)
                left += vars(value).values()  # `__wrapped__`, for one
                if type(value) is CACHED or may_be_users(value.__code__):
                    found.append(value)
                else:  # it may be a decorator's
                    left += [each for _, each in code_names.closure_variables(value)]
                    if asks_for_user(value.__code__):
                        found.append(value)
            elif kind in _OPENED and value not in others:
                others.add(value)
                if kind == CLASS:
                    if (node := pytree.SUPPORTED_NODES.get(value)) is not None:
                        left += (node.flatten_fn, node.unflatten_fn)
                    for base in (*value.__mro__, type(value)):
                        if (base is value or base not in others) and not _IS_OF_LIBRARY[base]:
                            others.add(base)
                            methods, rest = read_class(base)
                            if has_any(rest, self.asked):
                                self.asking.append(base)
                            found += [each for each in methods if each not in functions]
                            functions.update(methods)
                            left += rest
                elif kind == HOLDER:
                    inside = open_holder(value)
                    if not self._is_wide:
                        inside = [each for each in inside if wraps(each) or each is type(value)]
                        inside += value.modules() if isinstance(value, nn.Module) else ()
                    elif has_any(inside, self.asked):
                        self.asking.append(value)
                    left += inside
                else:
                    left += _open_module(value)
        for each in found:
            defaults = getattr(each, "__defaults__", None), getattr(each, "__kwdefaults__", None)
            if (defaults[0] and has_any(defaults[0], self.asked)) or (
                defaults[1] and has_any(defaults[1].values(), self.asked)
            ):
                self.asking.append(each)
        found.reverse()
        return found

    def read(self, function: FunctionType) -> ReadFunction:
        known, outline = function.__globals__, code_names.outline(function.__code__)
        named = {name: known[name] for name in outline.names if name in known}
        values = [*named.values()]
        if function.__closure__:
            values += [value for _, value in code_names.closure_variables(function)]
        if function.__defaults__ or function.__kwdefaults__:
            values += [value for _, value in code_names.argument_defaults(function)]
        if outline.has_imports():
            values += _find_imported(outline.codes, known)
        reached = [each for each in values if KINDS[type(each)]]
        modules = [each for each in reached if KINDS[type(each)] == MODULE]
        if modules:
            reached = [each for each in reached if KINDS[type(each)] != MODULE]
            reached += _read_modules(modules, outline.names)
            if not _COMPUTING.isdisjoint(outline.names):
                reached += modules
        if "globals" in outline.names:
            reached += known.values()
        if not self._is_wide:
            reached = [each for each in reached if wraps(each) or is_object(each)]
        return ReadFunction(function, outline, named, frozenset(map(type, values)), reached)


def _read_modules(modules: list[ModuleType], names: tuple[str, ...]) -> list[Any]:
    """What these names are in some modules, and in modules that are named in these
    (`package.module.function()`)."""
    found, left, opened = list[Any](), [*modules], set[ModuleType]()
    while left:
        module = left.pop()
        if module not in opened:
            opened.add(module)
            held = vars(module)
            for each in [held[name] for name in names if name in held]:
                kind = KINDS[type(each)]
                if kind:
                    (left if kind == MODULE else found).append(each)
    return found


def _find_imported(codes: Sequence[CodeType], known: dict[str, Any]) -> Iterator[ModuleType]:
    """The modules that they import when they run, if they are loaded."""
    for code in codes:
        names = code_names.modules_imported(code, known)
        yield from (sys.modules[name] for name in names if name in sys.modules)


def _open_module(module: ModuleType) -> list[Any]:
    """All that is in a module of the user's but other modules. (We come here if it is an attribute
    or the like, or if names in it are computed.)"""
    if not is_user_file(vars(module).get("__file__") or ""):
        return []
    return [each for each in vars(module).values() if KINDS[type(each)] != MODULE]


_OPENED = (CLASS, MODULE, HOLDER)
_COMPUTING = frozenset(("getattr", "vars", "__dict__", "attrgetter", "methodcaller"))
"""Code with these names may ask a module for what no name in it tells."""
_LIBRARY = frozenset((*sys.stdlib_module_names, "torch", "lostwax"))
_IS_OF_LIBRARY = PerClass(
    __name__,
    "of library",
    lambda cls: (
        not issubclass(cls, nn.Module) and str(cls.__module__).partition(".")[0] in _LIBRARY
    ),
)
"""Has the class no functions of the user's? (In those of torch's modules, users put some.)"""
