"""Looks at all that a capture would read beside the arguments of the call: what modules hold, what
functions close over, the globals that they name. `world.py` asks whether it is still so.

We cannot compare a value that is different at each look (an iterator): `unsure` lists these. An
object that we cannot look into (of a C extension) counts as unchanged while it is the same object.
Must not call anything of the user's.
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
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as module_file
from torch.nn.parameter import is_lazy

from lostwax import bytecode as code_names
from lostwax.cache import PerClass
from lostwax.capture.python.containers import (
    CLASSES,
    GENERATORS,
    GONE,
    HOLDERS,
    STREAMS,
    is_object,
    items,
    parts,
)
from lostwax.capture.python.function_caches import CachedResults, cached_results
from lostwax.capture.python.function_holders import CACHED, unwrap
from lostwax.capture.python.functions_run import FunctionKeys
from lostwax.capture.python.reachable import reachable_functions
from lostwax.capture.state.root_module import find_root_module
from lostwax.capture.surroundings.tensor_places import TYPE, data_of, tensor_content
from lostwax.capture.surroundings.world_entry import WorldEntry
from lostwax.identity import Seen


class _LiveMap:
    """A map that is read anew at each look: another one in each thread, or in each context."""

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
    """What `subject` reads beside its arguments; with `ran`, only what those functions read."""

    def __init__(self, subject: Any, ran: FunctionKeys | None) -> None:
        self._ran = ran
        self.entries: dict[str, WorldEntry] = {}
        self.maps: list[Any] = []
        self.sequences: list[Any] = []
        self.sets: list[Any] = []
        self.arrays: list[Any] = []
        self.owners: list[Any] = []
        """Modules and objects: someone may give them another class."""
        self.module_classes: dict[type, None] = {}
        self.state: list[dict[str, Any]] = []
        self.tensors: list[torch.Tensor] = []
        self._tensor_paths: list[str] = []
        self._tied: dict[int, str] = {}
        """The first path of each tensor of the state, by its id."""
        self.cells: list[Any] = []
        self.functions: list[FunctionType] = []
        self.globals_read: dict[tuple[int, str], tuple[Any, str]] = {}
        """Globals that functions read: the dict of a module, and a name in it."""
        self._searched: set[tuple[int, tuple[str, ...]]] = set()
        """The ids of modules, and the names that we have looked for in them. (The modules stay
        alive during the look.)"""
        self.seen: dict[int, Any] = {}
        """The objects that we have looked into, by id. Holding them keeps the ids theirs."""
        self.unsure: list[str] = []
        """What we cannot compare, in words."""
        self.data_read: list[torch.Tensor] = []
        """Tensors whose data Python may read. (Their versions do not count writes to `x.data`.)"""
        self._reads_data = False
        self.random: list[Any] = []
        """Random generators: the caller checks whether a call draws from them."""
        self.caches: list[tuple[Any, CachedResults]] = []
        """Functions with a cache, and its content."""
        self._left: list[tuple[str, Any]] = [("the hooks of all modules", _HOOKS_OF_ALL)]
        self._weak: list[tuple[str, Callable[[], Any]]] = []
        """The paths of weak references, and functions that return their objects."""
        self._starts: list[Any] = []
        root = find_root_module(subject)
        self._registered = Seen()
        """The modules whose parameters and buffers are the program's state."""
        for each in root.modules():
            self._registered.add(each)
        if type(root) is nn.Module and root is not subject:  # it stands in for a function
            for name, module in root._modules.items():
                self._add(f"the module {name}", WorldEntry("module", module))
                self._left.append((name, module))
        else:
            self._left.append(("self", root))
        if subject is not root:
            self._left.append(("the function", subject))
        self._visit_all()

    def _visit_all(self) -> None:
        while (self._left or self._starts) and not self.unsure:  # else the rest does not matter
            while self._left and not self.unsure:
                self._visit(*self._left.pop())
            starts, self._starts = self._starts, []
            for function in reachable_functions(starts, self._ran):
                if not self._is_new(function):
                    continue
                if isinstance(function, FunctionType):
                    self._read_function(function)
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
            self.data_read.append(tensor)
            self._add(_join(path, ", its data,"), WorldEntry("array", None, data_of(tensor)))

    def _add(self, path: str, entry: WorldEntry) -> None:
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
            self._add(path, WorldEntry("value", value, (cls, same)))
        elif cls in _PROXIES:
            self._visit_weak(path, value, lambda: _proxied_object(value))
            if _proxied_object(value) is None:
                self.unsure.append(f"{path} is a weak proxy of what is gone, and raises errors")
        elif STREAMS[cls]:
            self._visit_stream(path, value)
        elif isinstance(value, nn.Module):
            self._visit_module(path, value)
        elif isinstance(value, torch.Tensor):
            self._add(path, WorldEntry("tensor", value, tensor_content(value)))
            if self._is_new(value):
                self.tensors.append(value)
                self._tensor_paths.append(path)
        elif cls in _CALLABLE:
            self._visit_callable(path, value)
        elif cls.__name__ == "ndarray":
            self._add(path, WorldEntry("array", None, (value.dtype, value.shape, value.tobytes())))
            self.arrays.append(value)
        elif isinstance(value, (threading.local, ContextVar, MappingProxyType)):
            self._visit_live(path, value)
        elif isinstance(value, weakref.ref):
            self._visit_weak(path, value, partial(weakref.ref.__call__, value))
        elif isinstance(value, ModuleType):
            self._add(path, WorldEntry("object", value))
            self._watch_whole_module(value)
        elif HOLDERS[cls]:
            self._visit_holder(path, value)
        elif isinstance(value, (weakref.WeakValueDictionary, weakref.WeakKeyDictionary)):
            self._add(path, WorldEntry("object", value))
            self._left.append((path, vars(value)["data"]))
        else:
            self._add(path, WorldEntry("object", value))
            if isinstance(value, type):
                self._visit_class(value)
            elif isinstance(value, CACHED):
                self._starts.append(value)
            elif self._is_new(value):
                self._visit_bytes(path, value)
                self._visit_inside(path, value)

    def _visit_attributes(self, path: str, attributes: Iterable[tuple[str, Any]]) -> None:
        self._left += [(_join(path, f".{name}"), each) for name, each in attributes]

    def _visit_inside(self, path: str, value: Any) -> None:
        """Visit what an object of C holds: a view of a dict, a frozenset, a method of a list."""
        if isinstance(value, Enum):
            self.maps.append(vars(value))
            self._visit_attributes(path, vars(value).items())
        elif str(type(value).__module__).partition(".")[0] in _OF_PYTHON:
            held = [each for each in gc.get_referents(value) if not isinstance(each, _NO_DATA)]
            if held:
                self.maps.append(_LiveMap(lambda: _number_values(gc.get_referents(value))))
                self._left += [(_join(path, f"({i})"), each) for i, each in enumerate(held)]

    def _visit_stream(self, path: str, value: Any) -> None:
        if GENERATORS[type(value)] and not isinstance(value, SystemRandom):
            self._add(path, WorldEntry("object", value))
            if self._is_new(value):
                self.random.append(value)
        elif self._is_new(value):
            name = path.replace("\0", "").rstrip(",")
            kind = type(value).__name__
            self.unsure.append(f"{name} is a {kind}, and what it gives next cannot be seen")

    def _visit_bytes(self, path: str, value: Any) -> None:
        """Compare the bytes of a buffer: Python's arrays, bytearrays, objects of C."""
        if _has_bytes(value):
            self._add(_join(path, ", its bytes,"), WorldEntry("array", None, bytes_of(value)))
            self.arrays.append(value)

    def _visit_live(self, path: str, value: Any) -> None:
        self._add(path, WorldEntry("object", value))
        if self._is_new(value):
            content: Any = value
            if isinstance(value, threading.local):
                content = _LiveMap(lambda: vars(value))
            elif isinstance(value, ContextVar):
                content = _LiveMap(lambda: {"get()": value.get(GONE)})
            self.maps.append(content)
            self._visit_attributes(path, content.items())

    def _visit_weak(self, path: str, value: Any, get: Callable[[], Any]) -> None:
        """Must not hold the object that it refers to: that would keep it alive."""
        self._add(path, WorldEntry("object", value))
        if self._is_new(value):
            self.maps.append(_LiveMap(lambda: {"is gone": get() is None}))
            self._weak.append((path, get))

    def _check_weak(self) -> None:
        """An object that nothing else holds may go at any time, also between two looks."""
        for path, get in self._weak:
            found = get()
            is_held = id(found) in self.seen or id(found) in self._tied
            self._add(_join(path, ", what it refers to,"), WorldEntry("value", None, found is None))
            if found is not None and not is_held and not isinstance(found, (type, ModuleType)):
                name = path.replace("\0", "").partition("[<weakref")[0].rstrip(",")
                kind = type(found).__name__
                self.unsure.append(f"{name} refers weakly to a {kind}, which may go at any time")

    def _visit_module(self, path: str, module: nn.Module) -> None:
        shape = type(module), tuple(module._modules)
        self._add(_join(path, ", a module,"), WorldEntry("kind", module, shape))
        if not self._is_new(module):
            return
        self._visit_class(type(module))
        self.owners.append(module)
        if type(module) not in self.module_classes:
            self.module_classes[type(module)] = None
            self._add(f"the forward of {type(module).__qualname__}",
                      WorldEntry("object", FORWARD(type(module))))  # fmt: skip
        held = vars(module)
        self.maps.append(held)
        for name, value in held.items():
            if name in ("_parameters", "_buffers"):
                self._add_order(_join(path, f".{name}"), value)
            if name in ("_parameters", "_buffers") and any(map(is_lazy, value.values())):
                at = path.replace("\0", "").rstrip(",")
                self.unsure.append(f"{at} has parameters that get a size in its first call")
            elif name in ("_parameters", "_buffers") and module in self._registered:
                self.state.append(value)
                for key, tensor in value.items():
                    at = _join(path, f".{key}")
                    kind = first = None
                    if tensor is not None:
                        kind, first = TYPE(tensor), self._tied.setdefault(id(tensor), at)
                    self._add(at, WorldEntry("state", tensor, (name, first, kind)))
            elif name in ("_parameters", "_buffers", "_modules"):
                self.maps.append(value)
                self._visit_attributes(path, value.items())
            else:
                self._left.append((_join(path, f".{name}"), value))

    def _visit_callable(self, path: str, value: Any) -> None:
        if isinstance(value, partial):
            self._add(path, WorldEntry("kind", value))
            content = {"func": value.func, "args": value.args, "keywords": value.keywords}
            self._visit_attributes(path, content.items())
        elif isinstance(value, MethodType):
            self._add(path, WorldEntry("kind", value))
            self._left.append((path, value.__func__))
            self._visit_attributes(path, [("__self__", value.__self__)])
        else:
            self._add(path, WorldEntry("object", value))
            self._starts.append(value)
            if value.__code__.co_filename == functools.__file__:  # of `singledispatch`
                closure = code_names.closure_variables(value)
                self._visit_attributes(path, closure)

    def _visit_holder(self, path: str, value: Any) -> None:
        self._add(path, WorldEntry("kind", value, type(value)))
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
                self._left += [(_join(path, ", a key of it,"), each) for each in keys]
            for key, each in items(part):
                step = f"[{key!r}]" if is_itself else f".{key}"
                self._left.append((_join(path, step), each))

    def _add_order(self, path: str, names: Any) -> None:
        """Compare the order of a dict's keys: code may iterate over them."""
        if isinstance(names, dict) and len(names) > 1:
            keys = tuple([each if type(each) in _PLAIN else id(each) for each in names])
            self._add(_join(path, ", its keys,"), WorldEntry("order", None, keys))

    def _visit_class(self, cls: type) -> None:
        """Visit the attributes of the user's classes, and what their methods read."""
        found = CLASSES[cls]
        for each in (*found, *chain.from_iterable(map(_METACLASSES.__getitem__, found))):
            if self._is_new(each):
                held = vars(each)
                self.maps.append(held)
                for name, value in held.items():
                    if name not in _OF_EVERY_CLASS:
                        self._left.append((f"{each.__qualname__}.{name}", unwrap(value)))

    # ------------------------------------------------------------------------ what functions read

    def _read_function(self, function: FunctionType) -> None:
        self.functions.append(function)
        known, name = function.__globals__, function.__qualname__
        self._add(f"the code of {name}", WorldEntry("object", function.__code__))
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
                self._watch_global(known, each, further)
            for each in code_names.modules_imported(code, known):
                self._watch_global(sys.modules, each, further)
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
        self._add(name, WorldEntry("cache", function, found))
        self._left += [(f"{name}[{i}]", each) for i, (_, each) in enumerate(found.values())]

    def _watch_module(self, name: str) -> None:
        """Watch a module that code finds by its name."""
        if isinstance(found := sys.modules.get(name), ModuleType):
            self._watch_whole_module(found)

    def _watch_whole_module(self, module: ModuleType) -> None:
        """Watch all globals of a module, since the code does not name those that it reads: visit
        those that the module defines, and compare by identity those that it imports."""
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
                self._add(at, WorldEntry("object", value))

    def _watch_global(self, known: dict[str, Any], name: str, further: tuple[str, ...]) -> None:
        """Watch a global, if there is one. If it is a module, also watch its attributes that the
        code names (`further`)."""
        value = known.get(name, GONE)
        if value is GONE:
            if known is sys.modules:  # the code will import it
                self.globals_read[id(known), name] = known, name
            return
        is_new, is_module = (
            (id(known), name) not in self.globals_read,
            isinstance(value, ModuleType),
        )
        self.globals_read[id(known), name] = known, name
        if is_module and (id(value), further) not in self._searched:
            self._searched.add((id(value), further))
            if not _ANY_NAME.isdisjoint(further):
                self._watch_whole_module(value)
            for each in further:
                self._watch_global(vars(value), each, further)
        if not is_new:
            return
        if value is sys.modules:
            for each in further:
                self._watch_module(each)
        elif value is os.getenv or value is os.environ:
            self._left.append(("os.environ", os.environ))
        elif _is_known(value) or _is_of_known(known):  # someone may have patched it
            self._add(f"{known.get('__name__')}.{name}", WorldEntry("object", value))
        elif not is_module:
            file = Path(str(known.get("__file__") or "<unknown>")).name
            self._left.append((f"{name}\0, a global of {file},", value))


def _join(path: str, step: str) -> str:
    """A path with one more step. What a path says about its beginning, after a NUL, stays last."""
    head, mark, said = path.partition("\0")
    return f"{head}{step}{mark}{said}"


def _number_values(values: list[Any]) -> dict[str, Any]:
    return {str(i): each for i, each in enumerate(values)}


def _proxied_object(proxy: Any) -> Any:
    """The object of a weak proxy; None if it is gone."""
    try:
        return proxy.__repr__.__self__
    except ReferenceError:
        return None


def _is_known(value: Any) -> bool:
    """Does it belong to torch or to Python itself, which do not change?"""
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
    """The bytes of a buffer. (NumPy's arrays of dates are no buffers, but have `tobytes`.)"""
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
"""How many objects we look into at most: an object may hold all the world."""
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
    __name__,
    "metaclasses",
    lambda cls: tuple(
        [
            each
            for each in type(cls).__mro__
            if str(each.__module__).partition(".")[0] not in _KNOWN_TYPES
        ]
    ),
)
"""The user's metaclasses of a class."""
_MOST_BYTES = 1_000_000
_READING = frozenset(("tolist", "numpy", "asarray", "__array__", "array", "equal", "tobytes"))
"""Names in code that reads the data of a tensor without an operator."""
_PROXIES = (weakref.ProxyType, weakref.CallableProxyType)
_OF_PYTHON = frozenset(("builtins", "collections", "operator", "types", "_collections_abc"))
_NO_DATA = (type, ModuleType, str, bytes, int)
_ANY_NAME = frozenset(("getattr", "vars", "__dict__", "attrgetter", "hasattr", "__getattr__"))
"""Names in code that reads attributes which it may not name."""
_ALL_NAMES = frozenset(("globals", "eval", "exec"))
"""Builtins that let code read any global."""
_IMPORTING = frozenset(("__import__", "import_module"))
_OF_EVERY_MODULE = frozenset((*vars(ModuleType("_")), "__file__", "__cached__", "__builtins__",
                              "__warningregistry__", "__annotations__"))  # fmt: skip
_CALLABLE = (FunctionType, MethodType, partial)
_OF_EVERY_CLASS = frozenset(
    (*vars(type("_", (), {})), "__annotations__", "__parameters__", "__slotnames__")
)
FORWARD = attrgetter("forward")
_HOOKS_OF_ALL = [v for name, v in vars(module_file).items() if name.startswith("_global")]
"""The hooks that torch calls for every module."""
