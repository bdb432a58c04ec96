"""One look at what a capture would read beside the arguments of the call: what modules hold, what
functions are closed over, the globals that they name. `world.py` asks whether it is still so.

What cannot be compared, because it is another one each time it is looked at (an iterator), is said
to be so. What else cannot be looked into (an object of an extension) counts as unchanged while it
is the same object. Must not call anything of the user's.
"""

from __future__ import annotations

import functools
import gc
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from enum import Enum
from functools import partial
from itertools import chain
from operator import attrgetter
from pathlib import Path
from random import SystemRandom
from types import BuiltinFunctionType, FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.modules import module as module_file

from lostwax.capture.python import code_names
from lostwax.capture.python.containers import (
    CLASSES,
    GONE,
    HOLDERS,
    RANDOM_GENERATORS,
    STREAMS,
    is_object,
    items,
    parts,
)
from lostwax.capture.python.function_caches import CachedResults, are_still_there, cached_results
from lostwax.capture.python.functions_run import FunctionKeys
from lostwax.capture.python.per_class import PerClass
from lostwax.capture.python.reachable import CACHED, reachable_functions, unwrap
from lostwax.capture.state.root_module import find_root_module
from lostwax.capture.surroundings.tensor_places import TYPE, data_of, tensor_content
from lostwax.identity import Seen


class Entry(NamedTuple):
    """What is in one place: an object that must be that very one, or what must be equal."""

    kind: str
    held: Any
    content: Any = None

    def is_same(self, other: Entry) -> bool:
        if self.kind == other.kind == "cache":
            return self.held is other.held and are_still_there(other.content, self.content)
        if self.kind == other.kind == "order" and set(self.content) != set(other.content):
            return True  # what is new, and what is gone, is told
        if self.kind != other.kind or (self.kind in _VERY and self.held is not other.held):
            return False
        return bool(self.content == other.content)

    def told_since(self, before: Entry) -> str:
        """How it differs from what was there."""
        if self.kind == before.kind == "state":
            if self.held is None or before.held is None:
                return f"was {before}, is {self}"
            if self.content[0] != before.content[0]:
                return f"is one of the {self.content[0].strip('_')} now"
            if self.content[1] != before.content[1]:
                return f"was one tensor with {before.content[1]}, is one with {self.content[1]}"
            return "has another dtype or size now, or requires gradients otherwise"
        if self.kind == before.kind == "tensor" and self.held is before.held:
            return "was written to, or has another type or memory now"
        if self.kind == before.kind == "memory":
            return "is other memory now"
        if self.kind == before.kind == "cache":
            return "has lost something"
        if self.kind == before.kind == "order":
            return "are in another order"
        if self.kind == before.kind == "kind" and self.held is before.held:
            is_module = isinstance(self.held, nn.Module) and self.content[0] is before.content[0]
            return "has other submodules" if is_module else "is of another class now"
        if self.kind == before.kind == "kind" and type(self.held) is type(before.held):
            return "has other submodules"
        if self.kind == before.kind and self.kind in _VERY:
            return "is another object now"
        return f"was {before}, is {self}"

    def __str__(self) -> str:
        is_told = self.kind == "value" or self.held is None
        text = repr(self.held) if is_told else f"a {type(self.held).__name__}"
        return text if len(text) < 80 else f"{text[:80]}..."


_VERY = ("object", "tensor", "module")


class _Now:
    """A container that is made when it is looked into: what is another one in each thread, or in
    each context."""

    def __init__(self, get: Callable[[], Mapping[str, Any]]) -> None:
        self._get = get

    def __len__(self) -> int:
        return len(self._get())

    def __iter__(self) -> Iterator[str]:
        return iter(self._get())

    def values(self) -> Iterable[Any]:
        return self._get().values()

    def items(self) -> Iterable[tuple[str, Any]]:
        return self._get().items()


class Look:
    """One look at all that there is, or that the functions read which have run."""

    def __init__(self, subject: Any, ran: FunctionKeys | None) -> None:
        self._ran = ran
        self.entries: dict[str, Entry] = {}
        self.maps: list[Any] = []
        self.sequences: list[Any] = []
        self.sets: list[Any] = []
        self.arrays: list[Any] = []
        self.owners: list[Any] = []
        """Modules and objects, which may be given another class."""
        self.module_classes: dict[type, None] = {}
        self.state: list[dict[str, Any]] = []
        self.tensors: list[torch.Tensor] = []
        self._tensor_paths: list[str] = []
        self._tied: dict[int, str] = {}
        """The first place of each tensor of the state, by its id."""
        self.cells: list[Any] = []
        self.functions: list[FunctionType] = []
        self.named: dict[tuple[int, str], tuple[Any, str]] = {}
        """Globals that are read: the names of a module, and one of them."""
        self._searched: set[tuple[int, tuple[str, ...]]] = set()
        """Modules, which stay in their places meanwhile, and the names looked for in them."""
        self.seen: dict[int, Any] = {}
        """What was looked into, by id; and it, so that the id stays its own."""
        self.unsure: list[str] = []
        """What cannot be compared, in words."""
        self.read: list[torch.Tensor] = []
        """Tensors whose data Python may read: writes to `x.data` are not counted."""
        self._reads_data = False
        self.random: list[Any] = []
        """Random generators: it is seen if a call draws from them."""
        self.caches: list[tuple[Any, CachedResults]] = []
        """Functions with a cache, and what they have in it."""
        self._left: list[tuple[str, Any]] = [("the hooks of all modules", _HOOKS_OF_ALL)]
        self._weak: list[tuple[str, Callable[[], Any]]] = []
        """Weak references, and what gives the object."""
        self._starts: list[Any] = []
        root = find_root_module(subject)
        self._registered = Seen()
        """The modules whose parameters and buffers are the program's state."""
        for each in root.modules():
            self._registered.add(each)
        if type(root) is nn.Module and root is not subject:  # it stands in for a function
            for name, module in root._modules.items():
                self._add(f"the module {name}", Entry("module", module))
                self._left.append((name, module))
        else:
            self._left.append(("self", root))
        if subject is not root:
            self._left.append(("the function", subject))
        self._finish()

    def _finish(self) -> None:
        while (self._left or self._starts) and not self.unsure:  # then the rest is no matter
            while self._left and not self.unsure:
                self._visit(*self._left.pop())
            starts, self._starts = self._starts, []
            for function in reachable_functions(starts, self._ran):
                if not self._is_new(function):
                    continue
                if isinstance(function, FunctionType):
                    self._read(function)
                else:
                    self._read_cache(function)
        self._check_weak()
        for path, tensor in zip(self._tensor_paths, self.tensors, strict=True):
            if self._reads_data:
                self._read_data(path, tensor)

    def _read_data(self, path: str, tensor: torch.Tensor) -> None:
        if tensor.numel() * tensor.element_size() > _MOST_BYTES:
            name = path.replace("\0", "").rstrip(",")
            self.unsure.append(f"{name} is a large tensor, and its data may be read by Python")
        else:
            self.read.append(tensor)
            self._add(_at(path, ", its data,"), Entry("array", None, data_of(tensor)))

    def _add(self, path: str, entry: Entry) -> None:
        path = path.replace("\0", "")
        while path in self.entries:
            path += "'"
        self.entries[path] = entry

    def _is_new(self, value: Any) -> bool:
        if id(value) in self.seen:
            return False
        if len(self.seen) >= MOST:
            if len(self.seen) == MOST:
                self.unsure.append(f"there are more than {MOST:,} things to look at")
                self.seen[-1] = None
            return False
        self.seen[id(value)] = value
        return True

    def _visit(self, path: str, value: Any) -> None:
        cls = type(value)
        if cls in _PLAIN:
            same = repr(value) if cls in (float, complex) else value
            self._add(path, Entry("value", value, (cls, same)))
        elif cls in _PROXIES:
            self._visit_weak(path, value, lambda: _behind(value))
            if _behind(value) is None:
                self.unsure.append(f"{path} is a weak proxy of what is gone, and raises errors")
        elif STREAMS[cls]:
            self._visit_stream(path, value)
        elif isinstance(value, nn.Module):
            self._visit_module(path, value)
        elif isinstance(value, torch.Tensor):
            self._add(path, Entry("tensor", value, tensor_content(value)))
            if self._is_new(value):
                self.tensors.append(value)
                self._tensor_paths.append(path)
        elif cls in _CALLABLE:
            self._visit_callable(path, value)
        elif cls.__name__ == "ndarray":
            self._add(path, Entry("array", None, (value.dtype, value.shape, value.tobytes())))
            self.arrays.append(value)
        elif isinstance(value, (threading.local, ContextVar, MappingProxyType)):
            self._visit_now(path, value)
        elif isinstance(value, weakref.ref):
            self._visit_weak(path, value, partial(weakref.ref.__call__, value))
        elif isinstance(value, ModuleType):
            self._add(path, Entry("object", value))
            self._watch_all(value)
        elif HOLDERS[cls]:
            self._visit_holder(path, value)
        elif isinstance(value, (weakref.WeakValueDictionary, weakref.WeakKeyDictionary)):
            self._add(path, Entry("object", value))
            self._left.append((path, vars(value)["data"]))
        else:
            self._add(path, Entry("object", value))
            if isinstance(value, type):
                self._visit_class(value)
            elif isinstance(value, CACHED):
                self._starts.append(value)
            elif self._is_new(value):
                self._visit_bytes(path, value)
                self._visit_inside(path, value)

    def _visit_inside(self, path: str, value: Any) -> None:
        """What an object of C holds: a view of a dictionary, a frozenset, a method of a list."""
        if isinstance(value, Enum):
            self.maps.append(vars(value))
            self._left += [(_at(path, f".{key}"), each) for key, each in vars(value).items()]
        elif type(value).__module__.partition(".")[0] in _OF_PYTHON:
            held = [each for each in gc.get_referents(value) if not isinstance(each, _NO_DATA)]
            if held:
                self.maps.append(_Now(lambda: _numbered(gc.get_referents(value))))
                self._left += [(_at(path, f"({i})"), each) for i, each in enumerate(held)]

    def _visit_stream(self, path: str, value: Any) -> None:
        if isinstance(value, RANDOM_GENERATORS) and not isinstance(value, SystemRandom):
            self._add(path, Entry("object", value))
            if self._is_new(value):
                self.random.append(value)
        elif self._is_new(value):
            name = path.replace("\0", "").rstrip(",")
            kind = type(value).__name__
            self.unsure.append(f"{name} is a {kind}, and what it gives next cannot be seen")

    def _visit_bytes(self, path: str, value: Any) -> None:
        """Of a buffer: arrays of Python's, bytearrays, what C has."""
        if _has_bytes(value):
            self._add(_at(path, ", its bytes,"), Entry("array", None, bytes_of(value)))
            self.arrays.append(value)

    def _visit_now(self, path: str, value: Any) -> None:
        self._add(path, Entry("object", value))
        if self._is_new(value):
            content: Any = value
            if isinstance(value, threading.local):
                content = _Now(lambda: vars(value))
            elif isinstance(value, ContextVar):
                content = _Now(lambda: {"get()": value.get(GONE)})
            self.maps.append(content)
            self._left += [(_at(path, f".{key}"), each) for key, each in content.items()]

    def _visit_weak(self, path: str, value: Any, get: Callable[[], Any]) -> None:
        """What it refers to is not held: it is to go when it would."""
        self._add(path, Entry("object", value))
        if self._is_new(value):
            self.maps.append(_Now(lambda: {"is gone": get() is None}))
            self._weak.append((path, get))

    def _check_weak(self) -> None:
        """What nothing else that was looked at holds may go at any time, also between two looks."""
        for path, get in self._weak:
            found = get()
            is_held = id(found) in self.seen or id(found) in self._tied
            self._add(_at(path, ", what it refers to,"), Entry("value", None, found is None))
            if found is not None and not is_held and not isinstance(found, (type, ModuleType)):
                name = path.replace("\0", "").partition("[<weakref")[0].rstrip(",")
                kind = type(found).__name__
                self.unsure.append(f"{name} refers weakly to a {kind}, which may go at any time")

    def _visit_module(self, path: str, module: nn.Module) -> None:
        shape = type(module), tuple(module._modules)
        self._add(_at(path, ", a module,"), Entry("kind", module, shape))
        if not self._is_new(module):
            return
        self._visit_class(type(module))
        self.owners.append(module)
        if type(module) not in self.module_classes:
            self.module_classes[type(module)] = None
            self._add(f"the forward of {type(module).__qualname__}",
                      Entry("object", FORWARD(type(module))))  # fmt: skip
        held = vars(module)
        self.maps.append(held)
        for name, value in held.items():
            if name in ("_parameters", "_buffers"):
                self._add_order(_at(path, f".{name}"), value)
            if name in ("_parameters", "_buffers") and module in self._registered:
                self.state.append(value)
                for key, tensor in value.items():
                    at = _at(path, f".{key}")
                    told = first = None
                    if tensor is not None:
                        told, first = TYPE(tensor), self._tied.setdefault(id(tensor), at)
                    self._add(at, Entry("state", tensor, (name, first, told)))
            elif name in ("_parameters", "_buffers", "_modules"):
                self.maps.append(value)
                self._left += [(_at(path, f".{key}"), each) for key, each in value.items()]
            else:
                self._left.append((_at(path, f".{name}"), value))

    def _visit_callable(self, path: str, value: Any) -> None:
        if isinstance(value, partial):
            self._add(path, Entry("kind", value))
            content = {"func": value.func, "args": value.args, "keywords": value.keywords}
            self._left += [(_at(path, f".{name}"), each) for name, each in content.items()]
        elif isinstance(value, MethodType):
            self._add(path, Entry("kind", value))
            self._left += [(path, value.__func__), (_at(path, ".__self__"), value.__self__)]
        else:
            self._add(path, Entry("object", value))
            self._starts.append(value)
            if value.__code__.co_filename == functools.__file__:  # of `singledispatch`
                closure = code_names.closure_variables(value)
                self._left += [(_at(path, f".{name}"), each) for name, each in closure]

    def _visit_holder(self, path: str, value: Any) -> None:
        self._add(path, Entry("kind", value, type(value)))
        if not self._is_new(value):
            return
        if is_object(value):
            self._visit_class(type(value))
            self.owners.append(value)
            self._visit_bytes(path, value)
        for part in parts(value):
            if isinstance(part, set):
                self.sets.append(part)
            elif hasattr(part, "values"):
                self.maps.append(part)
            elif not isinstance(part, tuple):
                self.sequences.append(part)
            is_itself = part is value
            self._add_order(path, part)
            if is_itself and isinstance(part, dict):
                keys = [each for each in part if type(each) not in _PLAIN]
                self._left += [(_at(path, ", a key of it,"), each) for each in keys]
            for key, each in items(part):
                self._left.append((_at(path, f"[{key!r}]" if is_itself else f".{key}"), each))

    def _add_order(self, path: str, names: Any) -> None:
        """That of a dictionary, in which its content is gone through."""
        if isinstance(names, dict) and len(names) > 1:
            keys = tuple([each if type(each) in _PLAIN else id(each) for each in names])
            self._add(_at(path, ", its keys,"), Entry("order", None, keys))

    def _visit_class(self, cls: type) -> None:
        """What the user's classes hold, and what their methods read."""
        found = CLASSES[cls]
        for each in (*found, *chain.from_iterable(map(_METACLASSES.__getitem__, found))):
            if self._is_new(each):
                held = vars(each)
                self.maps.append(held)
                for name, value in held.items():
                    if name not in _OF_EVERY_CLASS:
                        self._left.append((f"{each.__qualname__}.{name}", unwrap(value)))

    # ------------------------------------------------------------------------ what functions read

    def _read(self, function: FunctionType) -> None:
        self.functions.append(function)
        known, name = function.__globals__, function.__qualname__
        self._add(f"the code of {name}", Entry("object", function.__code__))
        for cell in function.__closure__ or ():
            if _is_filled(cell) and self._is_new(cell):
                self.cells.append(cell)
        self.maps.append(vars(function))
        if function.__kwdefaults__ is not None:
            self.maps.append(function.__kwdefaults__)
        for key, value in vars(function).items():
            self._left.append((f"{name}.{key}", value))
        for inner, value in code_names.closure_variables(function):
            self._left.append((f"{inner}\0, in the closure of {name},", value))
        for inner, value in code_names.argument_defaults(function):
            self._left.append((f"{inner}\0, a default of {name},", value))
        for code in code_names.nested_codes(function.__code__):
            further = code_names.words(code)
            self._reads_data |= not _READING.isdisjoint(further)
            for each in code_names.globals_read(code):
                self._watch(known, each, further)
            for each in code_names.modules_imported(code, known):
                self._watch(sys.modules, each, further)
            if not _ALL_NAMES.isdisjoint(code_names.globals_read(code)):
                self._watch_module(str(known.get("__name__")))
            if not _IMPORTING.isdisjoint(further):
                for each in further:
                    self._watch_module(each)

    def _read_cache(self, function: Any) -> None:
        found, name = cached_results(function), f"the cache of {function.__qualname__}"
        if found is None or len(found) > MOST:
            self.unsure.append(f"{name} cannot be looked into")
            return
        self.caches.append((function, found))
        self._add(name, Entry("cache", function, found))
        self._left += [(f"{name}[{i}]", each) for i, (_, each) in enumerate(found.values())]

    def _watch_module(self, name: str) -> None:
        """One that is asked for by its name."""
        if isinstance(found := sys.modules.get(name), ModuleType):
            self._watch_all(found)

    def _watch_all(self, module: ModuleType) -> None:
        """A module that is not found by its name, or whose names are not in the code: what it
        makes itself, and by identity what it has of others."""
        if not self._is_new(module) or _is_known(module):
            return
        held = vars(module)
        self.maps.append(held)
        for name, value in list(held.items()):
            if name in _OF_EVERY_MODULE or isinstance(value, ModuleType):
                continue
            is_made = not isinstance(value, (FunctionType, type)) or (
                value.__module__ == module.__name__
            )
            at = f"{name}\0, a global of {module.__name__},"
            if is_made:
                self._left.append((at, value))
            else:
                self._add(at, Entry("object", value))

    def _watch(self, known: dict[str, Any], name: str, further: tuple[str, ...]) -> None:
        """A global, if there is one; of a module those names that the code has, too."""
        value = known.get(name, GONE)
        if value is GONE:
            if known is sys.modules:  # it is imported later
                self.named[id(known), name] = known, name
            return
        is_new, is_module = (id(known), name) not in self.named, isinstance(value, ModuleType)
        self.named[id(known), name] = known, name
        if is_module and (id(value), further) not in self._searched:
            self._searched.add((id(value), further))
            if not _ANY_NAME.isdisjoint(further):
                self._watch_all(value)
            for each in further:
                self._watch(vars(value), each, further)
        if not is_new:
            return
        if value is sys.modules:
            for each in further:
                self._watch_module(each)
        elif value is os.getenv or value is os.environ:
            self._left.append(("os.environ", os.environ))
        elif _is_known(value) or _is_of_known(known):  # someone may have patched it
            self._add(f"{known.get('__name__')}.{name}", Entry("object", value))
        elif not is_module:
            file = Path(str(known.get("__file__") or "<unknown>")).name
            self._left.append((f"{name}\0, a global of {file},", value))


def _at(path: str, step: str) -> str:
    """Further on from a path; what is said of its beginning stays at the end."""
    head, mark, said = path.partition("\0")
    return f"{head}{step}{mark}{said}"


def _numbered(values: list[Any]) -> dict[str, Any]:
    return {str(i): each for i, each in enumerate(values)}


def _behind(proxy: Any) -> Any:
    """What a weak proxy stands for; None if that is gone."""
    try:
        return proxy.__repr__.__self__
    except ReferenceError:
        return None


def _is_known(value: Any) -> bool:
    """Is it of torch or of Python itself, which do not change?"""
    if isinstance(value, BuiltinFunctionType):
        return True
    if isinstance(value, (ModuleType, FunctionType, type)):
        where = value.__name__ if isinstance(value, ModuleType) else value.__module__
        return str(where).partition(".")[0] in _KNOWN
    return False


def _has_bytes(value: Any) -> bool:
    try:
        memoryview(value)
    except TypeError:
        return False
    return True


def bytes_of(value: Any) -> bytes:
    """(NumPy has arrays, of dates, that are no buffers.)"""
    return bytes(value.tobytes() if hasattr(value, "tobytes") else memoryview(value).tobytes())


def _is_of_known(names: dict[str, Any]) -> bool:
    return str(names.get("__name__")).partition(".")[0] in _KNOWN


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


MOST = 100_000
"""How many things are looked into: an object may hold all the world."""
_KNOWN = frozenset(
    (
        "torch", "math", "functools", "operator", "typing", "builtins", "collections", "itertools",
        "numpy", "os", "sys", "warnings", "logging", "lostwax",
    )
)  # fmt: skip
_PLAIN = frozenset((int, float, complex, bool, str, bytes, type(None), type(...), torch.dtype,
                    torch.device, torch.memory_format, torch.layout, slice, range))  # fmt: skip
_KNOWN_TYPES = frozenset(("builtins", "abc", "enum", "typing", "torch"))
_METACLASSES = PerClass(
    lambda cls: tuple(
        [
            each
            for each in type(cls).__mro__
            if each.__module__.partition(".")[0] not in _KNOWN_TYPES
        ]
    )
)
"""The user's, of a class."""
_MOST_BYTES = 1_000_000
_READING = frozenset(("tolist", "numpy", "asarray", "__array__", "array", "equal", "tobytes"))
"""What code names that reads the data of a tensor, though it is no operator's input."""
_PROXIES = (weakref.ProxyType, weakref.CallableProxyType)
_OF_PYTHON = frozenset(("builtins", "collections", "operator", "types", "_collections_abc"))
_NO_DATA = (type, ModuleType, str, bytes, int)
_ANY_NAME = frozenset(("getattr", "vars", "__dict__", "attrgetter", "hasattr", "__getattr__"))
"""By which of these a code reads names that are not in it."""
_ALL_NAMES = frozenset(("globals", "eval", "exec"))
"""By which of these, if it is Python's, a code reads any global."""
_IMPORTING = frozenset(("__import__", "import_module"))
_OF_EVERY_MODULE = frozenset((*vars(ModuleType("_")), "__file__", "__cached__", "__builtins__",
                              "__warningregistry__", "__annotations__"))  # fmt: skip
_CALLABLE = (FunctionType, MethodType, partial)
_OF_EVERY_CLASS = frozenset(
    (*vars(type("_", (), {})), "__annotations__", "__parameters__", "__slotnames__")
)
FORWARD = attrgetter("forward")
_HOOKS_OF_ALL = [v for name, v in vars(module_file).items() if name.startswith("_global")]
"""Those that torch calls for every module."""
