"""What a module is made of, as a list that is equal for modules which a capture cannot tell apart:
built by the same code for two ranks, they differ in the data of parameters and buffers, and in the
place of the rank in its mesh.

Each object is numbered when it is met, so that lists are equal only if objects are the same ones
in the same places. What cannot be looked into is like nothing else. Must not call anything of the
user's, nor read a weight.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from functools import partial
from itertools import chain
from types import BuiltinFunctionType, CellType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn
from torch._ops import OpOverload, OpOverloadPacket

from lostwax.cache import PerClass
from lostwax.ir.data import SHARD
from lostwax.ir.shards import describe_mesh, is_dtensor


class Likeness:
    """What a module is made of, as it is now."""

    def __init__(self, module: nn.Module) -> None:
        self._told: list[Any] = []
        """Of builtin classes alone, and objects that are equal to themselves only."""
        self._numbers: dict[int, int] = {}
        self._held: list[Any] = []
        """All that has a number, or is told by its id: the ids stay theirs."""
        self._hooks: dict[Any, int] = {}
        self._storages: dict[int, int] = {}
        self._state = _find_state(module)
        self._left: list[Any] = [module]
        while self._left:
            self._visit(self._left.pop())

    def is_like(self, other: Likeness) -> bool:
        return self._told == other._told

    def _visit(self, value: Any) -> None:
        cls = type(value)
        if cls in _PLAIN:
            self._told.append((cls.__name__, repr(value) if cls in _INEXACT else value))
            return
        known = self._numbers.setdefault(id(value), len(self._held))
        if known < len(self._held):
            self._told.append(known)
            return
        self._held.append(value)
        self._told.append(f"{id(cls)}")
        _VISITORS[cls](self, value)

    def _visit_all(self, values: Iterable[Any]) -> None:
        found = list(values)
        self._told.append(len(found))
        self._left += found

    def _tell_same(self, value: Any) -> None:
        """Something that does not change: the same one only."""
        self._told.append(f"is {id(value)}")

    def _refuse(self, value: Any) -> None:
        self._told.append(object())

    # -------------------------------------------------------------------------------- what it holds

    def _visit_container(self, value: Any) -> None:
        parts: Any = _read_dict(value) if isinstance(value, dict) else tuple.__iter__(value)
        self._visit_all(chain(parts, _attributes(value)))

    def _visit_list(self, value: Any) -> None:
        self._visit_all(chain(list.__iter__(value), _attributes(value)))

    def _visit_set(self, value: Any) -> None:
        """Sets of plain values. The order of others is another one in each process."""
        if all(type(each) is str for each in value):
            self._visit_all(sorted(value))
        else:
            self._visit_all(chain([None], value) if not value else [object()])

    def _visit_object(self, value: Any) -> None:
        self._visit_all(_attributes(value))

    def _visit_function(self, value: FunctionType) -> None:
        self._held += (value.__code__, value.__globals__)
        self._told.append((id(value.__code__), id(value.__globals__)))
        cells, defaults = value.__closure__ or (), value.__defaults__ or ()
        self._visit_all([*cells, *defaults, value.__kwdefaults__, *_attributes(value)])
        self._told.append((len(cells), len(defaults)))

    def _visit_cell(self, value: CellType) -> None:
        try:
            self._left.append(value.cell_contents)
        except ValueError:
            self._told.append("empty")

    def _visit_method(self, value: MethodType) -> None:
        self._left += (value.__func__, value.__self__)

    def _visit_partial(self, value: Any) -> None:
        self._visit_all([value.func, value.args, value.keywords, *_attributes(value)])

    def _visit_reference(self, value: Any) -> None:
        self._left.append(weakref.ref.__call__(value))

    def _visit_builtin(self, value: BuiltinFunctionType) -> None:
        if isinstance(value.__self__, ModuleType) or value.__self__ is None:
            self._tell_same(value)
        else:
            self._refuse(value)

    # -------------------------------------------------------------------------- modules and tensors

    def _visit_module(self, module: nn.Module) -> None:
        """Hooks have a number of the process as their key."""
        found: list[Any] = []
        for name, value in vars(module).items():
            found.append(name)
            if name in _HOOKS and type(value) in (dict, OrderedDict):
                numbers = [self._hooks.setdefault(key, len(self._hooks)) for key in value]
                self._told.append((name, *numbers))
                found += value.values()
            else:
                found.append(value)
        self._visit_all(found)

    def _visit_tensor(self, tensor: torch.Tensor) -> None:
        if id(tensor) not in self._state:
            self._told.append((f"is {id(tensor)}", tensor._version))
            return
        self._told.append((*_read_marks(tensor), tuple(tensor.shape), tensor.stride()))
        held = {name: each for name, each in vars(tensor).items() if name not in _OF_DTENSORS}
        if is_dtensor(tensor):
            found: Any = tensor
            shard = found._local_tensor
            self._state[id(shard)] = shard
            self._left += found.placements
            self._left += (found.device_mesh, shard)
        elif type(tensor) in (torch.Tensor, nn.Parameter, nn.Buffer):
            storage = tensor.untyped_storage()
            self._held.append(storage)
            number = self._storages.setdefault(storage._cdata, len(self._storages))
            self._told.append((tensor.storage_offset(), number))
        else:
            self._refuse(tensor)
        self._visit_all(_read_dict(held))

    def _visit_mesh(self, mesh: Any) -> None:
        """All of it but where this rank is."""
        self._told.append(tuple(describe_mesh(mesh)._replace(coordinate=())))

    def _visit_placement(self, value: Any) -> None:
        is_plain = type(value).__name__ in ("Shard", "Replicate", "Partial")
        self._told.append(repr(value) if is_plain else object())


def _find_state(module: nn.Module) -> dict[int, torch.Tensor]:
    """The parameters and buffers, of which a program has the place and not the data."""
    inner = list(module.modules())
    tables = chain.from_iterable((vars(m)["_parameters"], vars(m)["_buffers"]) for m in inner)
    found = chain.from_iterable(map(dict.values, tables))
    return {id(each): each for each in found if each is not None}


def _read_marks(tensor: torch.Tensor) -> tuple[Any, ...]:
    own = tensor.dtype, tensor.device, tensor.layout
    kinds = tensor.requires_grad, tensor.is_leaf, tensor.is_conj(), tensor.is_neg()
    return (*map(str, own), *kinds, tensor.is_inference(), bool(tensor._backward_hooks))


def _read_dict(value: Any) -> Iterator[Any]:
    own = OrderedDict if isinstance(value, OrderedDict) else dict
    yield from chain.from_iterable(own.items(value))
    if isinstance(value, defaultdict):
        yield value.default_factory


def _attributes(value: Any) -> Iterator[Any]:
    held = getattr(value, "__dict__", None)
    if held:
        yield from _read_dict(held)


_PLAIN = frozenset((int, bool, str, bytes, type(None), type(...), float, complex))
_INEXACT = (float, complex)
_HOOKS = frozenset(
    name for name, held in vars(nn.Module()).items() if "hook" in name and held == {}
)
_OF_DTENSORS = frozenset((SHARD, "_spec"))
_SAME = (
    type, ModuleType, Enum, torch.dtype, torch.device, torch.layout, torch.memory_format,
    OpOverload, OpOverloadPacket,
)  # fmt: skip
_VISITED: dict[Any, Callable[[Likeness, Any], None]] = {
    nn.Module: Likeness._visit_module,
    torch.Tensor: Likeness._visit_tensor,
    list: Likeness._visit_list,
    **dict.fromkeys((tuple, dict), Likeness._visit_container),
    **dict.fromkeys((set, frozenset), Likeness._visit_set),
    FunctionType: Likeness._visit_function,
    CellType: Likeness._visit_cell,
    MethodType: Likeness._visit_method,
    partial: Likeness._visit_partial,
    weakref.ref: Likeness._visit_reference,
    BuiltinFunctionType: Likeness._visit_builtin,
    **dict.fromkeys(_SAME, Likeness._tell_same),
}


def _find_visitor(cls: type) -> Callable[[Likeness, Any], None]:
    if cls.__module__.startswith("torch.distributed."):
        if cls.__name__ == "DeviceMesh":
            return Likeness._visit_mesh
        if cls.__module__.endswith(".placement_types"):
            return Likeness._visit_placement
    for each in cls.__mro__:
        if each in _VISITED:
            return _VISITED[each]
    return Likeness._visit_object if _shows_all(cls) else Likeness._refuse


def _shows_all(cls: type) -> bool:
    """Have its objects attributes, and nothing else?"""
    pointers = (cls.__weakrefoffset__ > 0) + (cls.__dictoffset__ > 0)
    return cls.__basicsize__ - _POINTER * pointers == object.__basicsize__ and not cls.__itemsize__


_POINTER = 8
_VISITORS = PerClass(__name__, "visitors", _find_visitor)
