"""What a module reads beside its arguments and state, and a program has for good: numbers and text
in globals, attributes and variables of functions around.

We read the code of the functions that have run, and follow the names in it (`self.config.eps`,
`SCALES["x"]`). So it is what may be read: the line need not have run. What is looked up by a
computed name is not listed, nor what only torch's own modules read. Must not run anything of the
user's.
"""

from __future__ import annotations

import builtins
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, NamedTuple, TypeVar

from torch import nn

from lostwax.bytecode import Chain, closure_variables, read_chains
from lostwax.capture import threads
from lostwax.capture.heap.holders import MISSING
from lostwax.ir.text import path_text
from lostwax.location import Location, is_user_file

T = TypeVar("T")


class BakedIn(NamedTuple):
    """One value that the module reads from Python."""

    path: str
    """How the user would write it."""
    value: int | float | complex | str
    where: Location
    """The first line that reads it."""
    modules: int = 1
    """In how many modules the line reads the same."""

    def __str__(self) -> str:
        text = repr(self.value)
        text = text if len(text) <= 60 else f"{text[:60]}..."
        more = f" (and in {self.modules - 1} more modules)" if self.modules > 1 else ""
        return f"{self.path} = {text}{more} at {self.where}"


class Reads(NamedTuple):
    """What is read of Python."""

    values: list[BakedIn]
    tells: list[Location]
    """The lines that print or log."""


class ReadsWatcher:
    """Runs around the call of the module, and lists what the module reads."""

    def __init__(self) -> None:
        self.reads = Reads([], [])

    def call(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        result = function(*args, **kwargs)
        self.list_reads()
        return result

    def list_reads(self) -> None:
        python = threads.running[-1].python
        self.reads = list_reads(python.reach.functions, python.modules)


def list_reads(functions: Sequence[FunctionType], modules: Sequence[nn.Module]) -> Reads:
    """What these functions read; the modules are those of the program, the outermost first."""
    paths = {module: name for name, module in modules[0].named_modules()} if modules else {}
    own = _find_owners(modules)
    found: dict[str, BakedIn] = {}
    tells: dict[Location, None] = {}
    for function in dict.fromkeys(functions):
        for chain in read_chains(function.__code__):
            where = Location(function.__code__.co_filename, chain.line, function.__name__)
            for start, value in _find_starts(chain, function, own.get(function, ()), paths):
                if value is print or isinstance(value, logging.Logger):
                    tells[where] = None
                path, value = _follow(start, value, chain.steps)
                if type(value) in _VALUES:
                    _note(found, BakedIn(path, value, where))
    return Reads(list(found.values()), list(tells))


def _note(found: dict[str, BakedIn], new: BakedIn) -> None:
    """Values of several modules that one line reads are reported once."""
    for path, known in reversed(found.items()):
        if (known.where, repr(known.value)) != (new.where, repr(new.value)):
            break
        if known.path.rpartition(".")[2] == new.path.rpartition(".")[2]:
            if known.path != new.path:
                found[path] = known._replace(modules=known.modules + 1)
            return
    found.setdefault(new.path, new)


def _find_owners(modules: Sequence[nn.Module]) -> dict[Any, list[nn.Module]]:
    """For each function of a class: the modules whose method it is."""
    by_class: dict[type, list[nn.Module]] = {}
    for module in modules:
        by_class.setdefault(type(module), []).append(module)
    found: dict[Any, list[nn.Module]] = {}
    for cls, those in by_class.items():
        for base in cls.__mro__:
            if base is nn.Module:
                break
            for value in vars(base).values():
                if type(value) is FunctionType:
                    found.setdefault(value, []).extend(those)
    return found


def _find_starts(
    chain: Chain,
    function: FunctionType,
    owners: Sequence[nn.Module],
    paths: Mapping[nn.Module, str],
) -> Iterator[tuple[str, Any]]:
    """What a chain begins with, and its path."""
    name, known, code = chain.name, function.__globals__, function.__code__
    if name in code.co_varnames[:1] and name not in code.co_freevars:
        for module in owners:
            path = paths.get(module, "")
            yield path_text(path) if path else "self", module
    elif chain.operation == "LOAD_GLOBAL":
        value = known.get(name, MISSING)
        if value is MISSING:
            value = vars(builtins).get(name, MISSING)
        if isinstance(value, ModuleType):
            # `math.pi` stays as it is; some interpreters have math in them, and no file of it.
            is_pythons = value.__name__ in sys.builtin_module_names
            if not is_pythons and is_user_file(str(vars(value).get("__file__") or "")):
                yield name, value
        else:
            yield f"{name}, a global of {Path(code.co_filename).name}", value
    elif chain.operation == "LOAD_DEREF":
        value = dict(closure_variables(function)).get(name, MISSING)
        yield f"{name}, which {function.__qualname__} is closed over", value


def _follow(path: str, value: Any, steps: Sequence[tuple[str, Any]]) -> tuple[str, Any]:
    head, mark, said = path.partition(",")
    for kind, key in steps:
        if kind == "item":
            is_there = type(value) in (dict, list, tuple)
            value = _read_item(value, key) if is_there else MISSING
            head += f"[{key!r}]"
        else:
            value = _read_attribute(value, key)
            head += f".{key}"
    return f"{head}{mark}{said}", value


def _read_item(value: Any, key: Any) -> Any:
    try:
        return value[key]
    except (LookupError, TypeError):
        return MISSING


def _read_attribute(value: Any, name: str) -> Any:
    """An attribute of an object or of its class; no property is asked."""
    if isinstance(value, (int, float, str)) or value is MISSING:
        return MISSING
    held = getattr(value, "__dict__", None) if not isinstance(value, nn.Module) else vars(value)
    if isinstance(held, Mapping) and name in held:
        return held[name]
    if isinstance(value, nn.Module) and name in value._modules:
        return value._modules[name]
    classes = value.__mro__ if isinstance(value, type) else type(value).__mro__
    return next((vars(each)[name] for each in classes if name in vars(each)), MISSING)


_VALUES = frozenset((int, float, complex, bool, str))
