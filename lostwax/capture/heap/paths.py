"""How the user would write the place of an object: `self.blocks[0].seen["n"]`.

We look for it from the module, the arguments and what functions name; it takes its time, but
they are needed only for errors. Must not call anything of the user's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from threading import local
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import nn

from lostwax.bytecode import argument_defaults, closure_variables, outline
from lostwax.capture.heap.cached import ResultCache
from lostwax.capture.heap.contents import key_of
from lostwax.capture.heap.edges import CLASSES, MOST_OBJECTS, extra_parts, open_value
from lostwax.capture.heap.hidden import Fixed, OpaqueState
from lostwax.capture.heap.holders import (
    ClassAttributes,
    NamedAttributes,
    TensorAttributes,
    has_items,
    items,
)
from lostwax.capture.heap.values import describe
from lostwax.location import is_user_file


class PathSearch:
    """The paths of objects, found when first asked for."""

    def __init__(
        self,
        modules: Sequence[nn.Module],
        arguments: Mapping[str, Any],
        functions: Sequence[FunctionType],
    ) -> None:
        self._starts = (modules, arguments, functions)
        self._left: deque[tuple[str, Any]] = deque()
        """What is to be opened next."""
        self._is_begun = False
        self._found: dict[Any, str] = {}
        self._alive: list[Any] = []
        """What was seen: no other object may get its id."""

    def find(self, holder: Any) -> str:
        """The path of a container; of attributes that of their object, with a dot behind; empty if
        it is not found."""
        if isinstance(holder, NamedAttributes) and holder.names and len(holder.names) == 1:
            file = Path(str(holder.held.get("__file__") or "<unknown>")).name
            return f"{holder.names[0]}, a global of {file}"
        held = holder.held if isinstance(holder, (NamedAttributes, TensorAttributes)) else holder
        while key_of(held) not in self._found and self._look_on():
            pass
        return self._found.get(key_of(held)) or self._find_globals(held)

    def find_holder(self, path: str) -> Any:
        """The container at a path; None if there is none."""
        while self._look_on():
            pass
        return next((each for each in self._alive if self._found[key_of(each)] == path), None)

    def _find_globals(self, held: Any) -> str:
        files = [f.__code__.co_filename for f in self._starts[2] if f.__globals__ is held]
        return f"the globals of {Path(files[0]).name}" if files else ""

    def _look_on(self) -> bool:
        """Open one more object, the nearest first; False if there is none."""
        if not self._is_begun:
            self._is_begun = True
            self._left.extend(self._list_starts())
        if not self._left or len(self._alive) >= MOST_OBJECTS:
            return False
        path, value = self._left.popleft()
        if not isinstance(value, _CONTAINERS):  # whose parts they are themselves
            self._note(value, path)
        for part, name in self._open(path, value):
            if self._note(part, name) and has_items(part):
                pairs = [(key, each) for key, each in items(part) if type(each) not in _DULL]
                self._left += [(join_path(name, key), each) for key, each in pairs]
        return True

    def _note(self, value: Any, path: str) -> bool:
        """Note the path of a value; False if it has one."""
        if key_of(value) in self._found:
            return False
        self._found[key_of(value)] = path
        self._alive.append(value)
        return True

    def _list_starts(self) -> Iterator[tuple[str, Any]]:
        modules, arguments, functions = self._starts
        yield from arguments.items()
        yield "self", modules[0]
        for module in modules:
            for cls in CLASSES[type(module)]:
                yield cls.__qualname__, cls
        for function in functions:
            known = function.__globals__
            for name in outline(function.__code__).names:
                value = known.get(name)
                if isinstance(value, ModuleType):
                    yield name, value
                elif value is not None:
                    file = Path(str(known.get("__file__") or "<unknown>")).name
                    yield f"{name}, a global of {file}", value
            for name, value in closure_variables(function):
                yield f"{name}, which {function.__qualname__} is closed over", value
            for name, value in argument_defaults(function):
                said = f"which an argument of {function.__qualname__} is by default"
                yield f"{name}, {said}", value
            yield function.__qualname__, function

    def _open(self, path: str, value: Any) -> Iterator[tuple[Any, str]]:
        """The containers that a value consists of, with their paths."""
        if isinstance(value, (nn.Module, torch.Tensor)):
            held = vars(value)
            yield held, f"{path}."
            for name in _REGISTRIES if isinstance(value, nn.Module) else ():
                yield held.get(name, {}), f"{path}."
            for place in extra_parts(value) if isinstance(value, nn.Module) else ():
                yield place, path if place is value else f"{path}."
        elif isinstance(value, ModuleType):
            if is_user_file(vars(value).get("__file__") or ""):
                yield vars(value), f"{path}."
        elif isinstance(value, FunctionType):
            _, mark, said = path.partition(",")
            yield vars(value), f"{value.__qualname__}{mark}{said}."
            cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
            for name, cell in cells:
                yield cell, f"{name}, which {value.__qualname__} is closed over"
        else:
            holders, leads, _ = open_value(value)
            for place in holders:
                _, mark, said = path.partition(",")
                is_class = isinstance(place, ClassAttributes)
                at = f"{place.owner.__qualname__}{mark}{said}" if is_class else path
                is_itself = place is value and not isinstance(value, local)
                if type(place) in (Fixed, ResultCache):
                    yield place, place.describe(path)
                else:
                    yield place, path if is_itself or type(place) is OpaqueState else f"{at}."
            for step, each in leads:
                if type(each) not in _DULL:
                    self._left.append((add_step(path, step), each))


def join_path(path: str, key: Any) -> str:
    """The path of what a container or object has under a key."""
    if path.endswith(".") and isinstance(key, str) and not key.isdigit():
        step = f".{key}"
    else:
        step = f"[{key}]" if path.endswith(".") else f"[{describe(key)}]"
    return add_step(path.removesuffix("."), step)


def add_step(path: str, step: str) -> str:
    """A path with one more step. What it says of its beginning, after a comma, stays last."""
    head, mark, said = path.partition(",")
    return f"{head}{step}{mark}{said}"


_REGISTRIES = ("_parameters", "_buffers", "_modules")
_DULL = frozenset((int, float, bool, str, bytes, type(None)))
_CONTAINERS = (list, dict, set, deque, tuple, local)
