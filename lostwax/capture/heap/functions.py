"""The user's functions that a value may run, and those that a function may run in turn: what it
names, closes over and has as defaults, and what is in these.

Functions are in methods, properties, partials, containers, objects, classes and modules. Most
classes are what they were at the last capture, which is seen at a glance; nothing that is in a
class is kept alive, except functions and what wraps them. Must not call anything, nor follow what
is known only while it runs.
"""

from __future__ import annotations

import builtins
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from itertools import chain
from operator import attrgetter, is_
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    MappingProxyType,
    ModuleType,
    SimpleNamespace,
)
from typing import Any, NamedTuple

from torch import nn
from torch.utils import _pytree as pytree

from lostwax import bytecode as code_names
from lostwax.cache import Cache, PerClass
from lostwax.capture.heap.cached import CACHED
from lostwax.capture.heap.edges import CLASSES, METHODS, WRAPPERS, parts
from lostwax.capture.heap.holders import NAMED, PLAIN_CONTAINERS, ModuleAttributes
from lostwax.capture.python.functions_run import FunctionKeys, function_key
from lostwax.capture.python.identities import METHOD_KINDS, is_of_c
from lostwax.identity import Seen
from lostwax.location import asks_for_user, is_user_code, is_user_file, may_be_users

ITERATED: dict[type, Callable[[Any], Iterable[Any]]] = {
    # Lists: each is made at once, and other threads may change a dict that is walked.
    dict: lambda value: [*dict.keys(value), *dict.values(value)],
    **{cls: cls.__iter__ for cls in (list, tuple, deque)},
    set: lambda value: [each for each in set.__iter__(value) if not isinstance(each, type)],
    frozenset: lambda value: [
        each for each in frozenset.__iter__(value) if not isinstance(each, type)
    ],
    MappingProxyType: lambda value: value.values(),
}
"""Classes of containers, and what is in one; no method of a subclass is called. (Classes are in a
set to be found there, not to be called.)"""
_PLAIN = frozenset((*ITERATED, OrderedDict))
_MOST_OFTEN = (tuple, list, dict, OrderedDict)
"""The classes of most containers in modules; what is in one, or its keys, is iterated over."""
_TELLING = ("_abc", "dataclasses", "typing")
"""Modules whose objects say something about classes."""
_MANY = 1000
"""A container of more items holds data: the containers in it are not opened."""


def unwrap(value: Any) -> Any:
    """The function under a method, a property or a partial."""
    while attributes := WRAPPERS[type(value)]:
        value = getattr(value, attributes[0])
    return value


def wraps(value: Any) -> bool:
    """Is it a function, or a wrapper of one?"""
    return KINDS[type(value)] == FUNCTION or bool(WRAPPERS[type(value)])


def has_user_class(value: Any) -> bool:
    """Is it an object of the user's, or a module of torch's kind?"""
    return _has_attributes(type(value))


def open_holder(value: Any) -> list[Any]:
    """What a wrapper, a container or an object holds, as far as it may hold functions or is one. An
    object's class is part of that."""
    found = select([each for get in _OPENERS[type(value)] for each in get(value)])
    if len(found) > _MANY:
        return [each for each in found if type(each) not in _PLAIN]
    return found


def select(values: Sequence[Any]) -> list[Any]:
    """Those among the values that are functions, or may hold some."""
    classes = {cls for cls in {*map(type, values)} if KINDS[cls]}
    return [each for each in values if type(each) in classes] if classes else []


def find_held(attributes: ModuleAttributes) -> list[Any]:
    """What may hold functions among the attributes of modules themselves, not of their classes."""
    filled = attributes.filled
    small = [each for each in filled if type(each) in _MOST_OFTEN and len(each) <= _MANY]
    others = attributes.select(lambda cls: KINDS[cls] and cls not in PLAIN_CONTAINERS)
    if len(small) < len(filled):
        others += [e for e in filled if type(e) not in _MOST_OFTEN or len(e) > _MANY]
    dicts = [each for each in small if isinstance(each, dict)]
    values = chain.from_iterable([*small, *map(dict.values, dicts)])
    return others + select([*values])


def has_any(values: Iterable[Any], asked: Set[Any]) -> bool:
    """Is one of these among the values, or in a tuple among them? They are `type` or functions of
    C; a method of a number or list is always asked for."""
    values = [*values]
    if ASKED.isdisjoint(map(type, values)):
        return False  # nearly always
    if any(map(is_of_c, values)):
        return True
    tuples = [each for each in values if type(each) is tuple]
    of_c = [each for each in values if type(each) is BuiltinFunctionType]
    if any(each in asked for each in of_c) or (type in asked and any(v is type for v in values)):
        return True
    return any(has_any(each, asked) for each in tuples)


ASKED = frozenset((type, BuiltinFunctionType, tuple, *METHOD_KINDS))
"""The classes of values that a capture replaces."""


def _has_attributes(cls: type) -> bool:
    is_users = CLASSES[cls] and cls.__module__ not in _TELLING
    return bool(is_users) or issubclass(cls, (nn.Module, SimpleNamespace))


def _find_openers(cls: type) -> list[Callable[[Any], Iterable[Any]]]:
    if attributes := WRAPPERS[cls]:
        return [lambda value: [getattr(value, name) for name in attributes]]
    found = [get for each, get in ITERATED.items() if issubclass(cls, each)]
    if _has_attributes(cls):
        found += [lambda value: (type(value),), _read_attributes]
    return found


def _read_attributes(value: Any) -> list[Any]:
    """What is in the attributes and slots of an object."""
    return [
        each
        for part in parts(value)
        if isinstance(part, NAMED) and part is not value
        for each in [*part.values()]
    ]


_OPENERS = PerClass(__name__, "openers", _find_openers)
"""For each class: the functions that get at what an object of it holds."""

OTHER, FUNCTION, CLASS, MODULE, HOLDER, OF_C = range(6)


def _find_kind(cls: type) -> int:
    if issubclass(cls, (FunctionType, CACHED)):
        return FUNCTION
    if issubclass(cls, type):
        return CLASS
    if issubclass(cls, ModuleType):
        return MODULE
    if issubclass(cls, (BuiltinFunctionType, *METHOD_KINDS)):
        return OF_C
    return HOLDER if _OPENERS[cls] else OTHER


KINDS = PerClass(__name__, "kinds", _find_kind)
"""What objects of a class are, as far as functions are concerned."""


# ------------------------------------------------------------------------------- what is in a class


def read_class(cls: type) -> tuple[list[FunctionType], list[Any]]:
    """The user's functions among the attributes of the class itself, and what else of these may
    hold functions."""
    content = _CONTENTS.table.get(cls)
    if content is None or not content.is_of(cls):
        content = _CONTENTS.keep(cls, _Content(cls))
    return content.functions, [vars(cls)[name] for name in content.others]


class _Content:
    """What was in a class when it was read."""

    def __init__(self, cls: type) -> None:
        values = [*vars(cls).values()]
        self._names = [*vars(cls)]
        self._classes = [*map(type, values)]
        self._places: list[int] = []
        self._held: list[Any] = []
        self.functions: list[FunctionType] = []
        self.others: list[str] = []
        """Names of attributes, whose values are read again at each look."""
        for place, (name, value) in enumerate(vars(cls).items()):
            if not KINDS[type(value)] or (name[:2] == "__" and type(value) in ITERATED):
                continue  # notes on the class: `__annotations__`
            functions = _find_functions(value)
            if functions is None:
                self.others.append(name)
            else:
                self._places.append(place)
                self._held.append(value)
                self.functions += [each for each in functions if may_be_users(each.__code__)]

    def is_of(self, cls: type) -> bool:
        values = [*vars(cls).values()]
        if [*vars(cls)] != self._names or [*map(type, values)] != self._classes:
            return False
        if not all(map(is_, [values[place] for place in self._places], self._held)):
            return False
        return not any(map(_DICT, self.functions))


def _find_functions(value: Any) -> list[FunctionType] | None:
    """The functions of a method or property; None if there is more to it."""
    if type(value) not in METHODS:
        return None
    held = [value] if type(value) is FunctionType else open_holder(value)
    is_all = all(type(each) is FunctionType and not vars(each) for each in held)
    return held if is_all and not any(map(_is_made_elsewhere, held)) else None


def _is_made_elsewhere(function: FunctionType) -> bool:
    """Is it, like a library's decorator, closed over something that may be the user's?"""
    return bool(function.__closure__) and not is_user_code(function.__code__)


_DICT = attrgetter("__dict__")
_CONTENTS = Cache[type, _Content](__name__, "contents", 2000)


# ----------------------------------------------------------------------------------------- the walk


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
        self.skip((sys.modules, vars(builtins)))  # code that names these wants one item

    def skip(self, values: Sequence[Any]) -> None:
        """Do not open these."""
        self._others.update(values)

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
            if outline.may_read_computed_names():
                reached += modules
        if "globals" in outline.names:
            reached += known.values()
        if not self._is_wide:
            reached = [each for each in reached if wraps(each) or has_user_class(each)]
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
_LIBRARY = frozenset((*sys.stdlib_module_names, "torch", "lostwax"))
_IS_OF_LIBRARY = PerClass(
    __name__,
    "of library",
    lambda cls: (
        not issubclass(cls, nn.Module) and str(cls.__module__).partition(".")[0] in _LIBRARY
    ),
)
"""Has the class no functions of the user's? (In those of torch's modules, users put some.)"""
