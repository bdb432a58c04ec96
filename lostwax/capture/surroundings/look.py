"""Looks at all that a capture would read beside the arguments of the call: what modules hold, what
functions close over, the globals that they name. `world.py` asks whether it is still so.

We cannot compare a value that is different at each look (an iterator): `unsure` lists these. An
object that we cannot look into (of a C extension) counts as unchanged while it is the same object.
Must not call anything of the user's.
"""

from __future__ import annotations

import functools
import os
import sys
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from itertools import chain
from operator import attrgetter
from pathlib import Path
from random import SystemRandom
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules import module as module_file
from torch.nn.parameter import is_lazy

from lostwax import bytecode as code_names
from lostwax.cache import PerClass
from lostwax.capture.heap.cached import CACHED, CachedResults, cached_results
from lostwax.capture.heap.edges import (
    CLASSES,
    GENERATORS,
    HOLDERS,
    MOST_OBJECTS,
    STREAMS,
    WRAPPERS,
    extra_parts,
    is_object,
    open_value,
)
from lostwax.capture.heap.functions import reachable_functions, unwrap
from lostwax.capture.heap.hidden import CLASS, Fixed, OpaqueState
from lostwax.capture.heap.holders import (
    CONTAINERS,
    MISSING,
    ClassAttributes,
    has_items,
    items,
)
from lostwax.capture.python.functions_run import FunctionKeys
from lostwax.capture.state.root_module import find_root_module
from lostwax.capture.surroundings.tensor_places import TYPE, data_of, tensor_content
from lostwax.capture.surroundings.world_entry import WorldEntry
from lostwax.identity import Seen


class StateLook:
    """What `subject` reads beside its arguments; with `ran`, only what those functions read."""

    def __init__(self, subject: Any, ran: FunctionKeys | None) -> None:
        self._ran = ran
        self.entries: dict[str, WorldEntry] = {}
        self.places: list[Any] = []
        """What holds something, or has a content (`heap/contents.py`)."""
        self.module_classes: dict[type, None] = {}
        self.state: list[dict[str, Any]] = []
        self.tensors: list[torch.Tensor] = []
        self._tensor_paths: list[str] = []
        self._tied: dict[int, str] = {}
        """The first path of each tensor of the state, by its id."""
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
        self.buffers: list[Any] = []
        """What shows its memory."""
        self.random: list[Any] = []
        """Random generators: the caller checks whether a call draws from them."""
        self.caches: list[tuple[Any, CachedResults]] = []
        """Functions with a cache, and its content."""
        self._left: list[tuple[str, Any]] = [("the hooks of all modules", _HOOKS_OF_ALL)]
        self.weak: list[tuple[str, Callable[[], Any]]] = []
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
        if "\0" in path:
            path = path.replace("\0", "")
        while path in self.entries:
            path += "'"
        self.entries[path] = entry

    def _is_new(self, value: Any) -> bool:
        if id(value) in self.seen:
            return False
        if len(self.seen) >= MOST_OBJECTS:
            if len(self.seen) == MOST_OBJECTS:
                self.unsure.append(f"there are more than {MOST_OBJECTS:,} things to look at")
                self.seen[-1] = None
            return False
        self.seen[id(value)] = value
        return True

    def _visit(self, path: str, value: Any) -> None:
        cls = type(value)
        if cls in _PLAIN:
            same = repr(value) if cls in (float, complex) else value
            self._add(path, WorldEntry("value", value, (cls, same)))
        elif cls in CONTAINERS and not value:
            self._visit_empty(path, value, cls)
        elif (visit := _VISITORS[cls]) is not None:
            visit(self, path, value)
        elif STREAMS[cls]:
            self._visit_stream(path, value)
        else:
            self._visit_any(path, value)

    def _visit_empty(self, path: str, value: Any, cls: type) -> None:
        self._add(path, WorldEntry("kind", value, cls))
        if self._is_new(value):
            self.places.append(value)

    def _visit_any(self, path: str, value: Any) -> None:
        """Visit what an object holds, and leads to."""
        is_made = HOLDERS[type(value)] or bool(WRAPPERS[type(value)])
        self._add(path, WorldEntry("kind" if is_made else "object", value, type(value)))
        if not self._is_new(value):
            return
        if is_object(value):
            self._visit_class(type(value))
        holders, leads, _ = open_value(value)
        if any(isinstance(each, OpaqueState) for each in holders) and not _is_of_python(value):
            holders = [each for each in holders if not isinstance(each, OpaqueState)]
            leads = ()  # what C keeps in it is the same while it is the same object
        for place in holders:
            self._watch(path, place, place is value)
        self._left += [(_join(path, step), each) for step, each in leads]
        self._visit_bytes(path, value)

    def _watch(self, path: str, place: Any, is_itself: bool = False) -> None:
        """Watch what is in a place, and visit it."""
        self.places.append(place)
        if has_items(place):
            self._add_order(path, place)
            for key, each in items(place):
                self._left.append((_join(path, f"[{key!r}]" if is_itself else f".{key}"), each))

    def _visit_tensor(self, path: str, value: torch.Tensor) -> None:
        self._add(path, WorldEntry("tensor", value, tensor_content(value)))
        if self._is_new(value):
            self.tensors.append(value)
            self._tensor_paths.append(path)

    def _visit_array(self, path: str, value: Any) -> None:
        bare = np.ndarray.view(value, np.ndarray)  # a subclass's methods may fill it
        self._add(
            path,
            WorldEntry(
                "array", None, (bare.dtype, bare.shape, bare.flags.writeable, bare.tobytes())
            ),
        )
        if self._is_new(value):
            holders, leads, _ = open_value(value)
            for place in holders:
                self._watch(path, place)
            self._left += [(_join(path, step), each) for step, each in leads]

    def _visit_python_module(self, path: str, value: ModuleType) -> None:
        self._add(path, WorldEntry("object", value))
        self._watch_whole_module(value)

    def _visit_other(self, path: str, value: Any) -> None:
        """A class, or a function with a cache."""
        self._add(path, WorldEntry("object", value))
        if isinstance(value, type):
            self._visit_class(value)
        else:
            self._starts.append(value)

    def _visit_proxy(self, path: str, value: Any) -> None:
        self._visit_weak(path, value, lambda: _proxied_object(value))
        if _proxied_object(value) is None:
            self.unsure.append(f"{path} is a weak proxy of what is gone, and raises errors")

    def _visit_reference(self, path: str, value: Any) -> None:
        self._visit_weak(path, value, partial(weakref.ref.__call__, value))

    def _visit_attributes(self, path: str, attributes: Iterable[tuple[str, Any]]) -> None:
        self._left += [(_join(path, f".{name}"), each) for name, each in attributes]

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
            self.buffers.append(value)

    def _visit_weak(self, path: str, value: Any, get: Callable[[], Any]) -> None:
        """Must not hold the object that it refers to: that would keep it alive."""
        self._add(path, WorldEntry("object", value))
        if self._is_new(value):
            self.weak.append((path, get))

    def _check_weak(self) -> None:
        """An object that nothing else holds may go at any time, also between two looks."""
        for path, get in self.weak:
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
        self.places.append(Fixed(module, CLASS))
        if type(module) not in self.module_classes:
            self.module_classes[type(module)] = None
            self._add(f"the forward of {type(module).__qualname__}",
                      WorldEntry("object", FORWARD(type(module))))  # fmt: skip
        for place in extra_parts(module):
            self._watch(path, place, place is module)
        held, (head, mark, said) = vars(module), path.partition("\0")
        self.places.append(held)
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
                self.places.append(value)
                self._visit_attributes(path, value.items())
            elif (cls := type(value)) in CONTAINERS and not value:  # hooks: there are many
                self._visit_empty(f"{head}.{name}{said}", value, cls)
            elif cls is bool:
                self._add(f"{head}.{name}{said}", WorldEntry("value", value, (cls, value)))
            else:
                self._left.append((f"{head}.{name}{mark}{said}", value))

    def _visit_function(self, path: str, value: FunctionType) -> None:
        self._add(path, WorldEntry("object", value))
        self._starts.append(value)
        if value.__code__.co_filename == functools.__file__:  # of `singledispatch`
            self._visit_attributes(path, code_names.closure_variables(value))

    def _add_order(self, path: str, names: Any) -> None:
        """Compare the order of a dict's keys: code may iterate over them."""
        if isinstance(names, dict) and len(names) > 1:
            keys = tuple([each if type(each) in _PLAIN else id(each) for each in names])
            self._add(_join(path, ", its keys,"), WorldEntry("order", tuple(names), keys))

    def _visit_class(self, cls: type) -> None:
        """Visit the attributes of the user's classes, and what their methods read."""
        found = CLASSES[cls]
        for each in (*found, *chain.from_iterable(map(_METACLASSES.__getitem__, found))):
            if self._is_new(each):
                self.places.append(ClassAttributes(each))
                for name, value in vars(each).items():
                    if name not in _OF_EVERY_CLASS:
                        self._left.append((f"{each.__qualname__}.{name}", unwrap(value)))

    # ------------------------------------------------------------------------ what functions read

    def _read_function(self, function: FunctionType) -> None:
        self.functions.append(function)
        known, name = function.__globals__, function.__qualname__
        self._add(f"the code of {name}", WorldEntry("object", function.__code__))
        for cell in function.__closure__ or ():
            if self._is_new(cell):
                self.places.append(cell)
        self.places.append(vars(function))
        if function.__kwdefaults__ is not None:
            self.places.append(function.__kwdefaults__)
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
        if found is None or len(found) > MOST_OBJECTS:
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
        self.places.append(held)
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
        value = known.get(name, MISSING)
        if value is MISSING:
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


def _is_of_python(value: Any) -> bool:
    return str(type(value).__module__).partition(".")[0] in _OF_PYTHON


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
_ANY_NAME = frozenset(("getattr", "vars", "__dict__", "attrgetter", "hasattr", "__getattr__"))
"""Names in code that reads attributes which it may not name."""
_ALL_NAMES = frozenset(("globals", "eval", "exec"))
"""Builtins that let code read any global."""
_IMPORTING = frozenset(("__import__", "import_module"))
_OF_EVERY_MODULE = frozenset((*vars(ModuleType("_")), "__file__", "__cached__", "__builtins__",
                              "__warningregistry__", "__annotations__"))  # fmt: skip
_OF_EVERY_CLASS = frozenset(
    (
        *vars(type("_", (), {})),
        "__annotations__",
        "__parameters__",
        "__slotnames__",
        "__abstractmethods__",
    )
)
FORWARD = attrgetter("forward")
_HOOKS_OF_ALL = [v for name, v in vars(module_file).items() if name.startswith("_global")]
"""The hooks that torch calls for every module."""
_VISITED: dict[Any, Callable[[StateLook, str, Any], None]] = {
    nn.Module: StateLook._visit_module,
    torch.Tensor: StateLook._visit_tensor,
    FunctionType: StateLook._visit_function,
    np.ndarray: StateLook._visit_array,
    weakref.ref: StateLook._visit_reference,
    ModuleType: StateLook._visit_python_module,
    **dict.fromkeys(_PROXIES, StateLook._visit_proxy),
    **dict.fromkeys((type, CACHED), StateLook._visit_other),
}
_VISITORS = PerClass(
    __name__,
    "visitors",
    lambda cls: next((visit for known, visit in _VISITED.items() if issubclass(cls, known)), None),
)
"""For each class: what visits an object of it, if that is more than to open it."""
