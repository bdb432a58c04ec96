"""Indexing with what C++ would read as a plain value: a symbolic integer (`x[n]` becomes
`x.select(0, n)`), a 0-d integer tensor (its item is used), and a 0-d boolean tensor or a symbolic
truth (it becomes a mask of one row).

C++ reads an integer index through `__index__`, which would fix `n` to the example's value, and it
swallows our error if that is impossible. torch handles slices with symbolic bounds itself. Must not
touch other indices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from lostwax.classes import SYMBOLIC

_SymInt = torch.SymInt
_getitem: Callable[..., Any] = torch.Tensor.__getitem__
_setitem: Callable[..., Any] = torch.Tensor.__setitem__
_is_batched: Any = torch._C._functorch.is_batchedtensor
_count_modes: Any = torch._C._len_torch_function_stack
_mode_at: Any = torch._C._get_function_stack_at
_pop_mode: Any = torch._C._pop_torch_function_stack
_push_mode: Any = torch._C._push_on_torch_function_stack


class _LastMode(TorchFunctionMode):
    """Below the function modes that the user has entered: what they let through is done here."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is _getitem:
            return getitem(*args)
        return setitem(*args) if func is _setitem else func(*args, **(kwargs or {}))


_LAST = _LastMode()


def ask_modes(function: Callable[..., Any], *args: Any) -> Any:
    """Call `Tensor.__getitem__` or `__setitem__` where function modes are on: C++ shows it to
    these first."""
    modes = [_mode_at(i) for i in range(_count_modes())]
    if modes[0] is _LAST:
        return function(*args)
    _set_modes([_LAST, *modes])
    try:
        return function(*args)
    finally:
        _set_modes(modes)


def _set_modes(modes: Sequence[Any]) -> None:
    for _ in range(_count_modes()):
        _pop_mode()
    for mode in modes:
        _push_mode(mode)


class IndicesInside:
    """No tensor, and the indices in it stand in an index as those of one: an open `range`."""

    def as_tensor(self) -> torch.Tensor:
        raise NotImplementedError


def getitem(x: torch.Tensor, index: Any) -> Any:
    """`x[index]`, for a class's `__getitem__`."""
    if _count_modes():
        return ask_modes(_getitem, x, index)
    if type(index) is not int:
        index = _replace_scalars(index)
        if _is_truth(index):
            return _getitem(x.unsqueeze(0), index.unsqueeze(0))
        if not x.is_cpu or _has_open_lists(index):
            index = _replace_lists(index)
    if not has_symint(index):
        return _getitem(x, index)
    selected, rest = _select(x, index)
    return selected[rest] if rest else selected


def setitem(x: torch.Tensor, index: Any, value: Any) -> None:
    """`x[index] = value`, for a class's `__setitem__`."""
    if _count_modes():
        ask_modes(_setitem, x, index, value)
        return
    index = _replace_scalars(index)
    if not x.is_cpu or _has_open_lists(index):
        index = _replace_lists(index)
    if _is_truth(index):
        x, index = x.unsqueeze(0), index.unsqueeze(0)
    elif has_symint(index):
        x, index = _select(x, index)
        index = index or ...
    _setitem(x, index, value)


def read_places(index: Any) -> list[torch.Tensor] | None:
    """The index as tensors; None if none of it is one, or some of it is no number (a slice)."""
    parts = index if index.__class__ in (tuple, list) else (index,)
    if not any(isinstance(part, torch.Tensor) for part in parts):
        return None
    if not all(isinstance(part, torch.Tensor) or part.__class__ is int for part in parts):
        return None
    return [part if isinstance(part, torch.Tensor) else torch.tensor(part) for part in parts]


def _is_truth(index: Any) -> bool:
    return isinstance(index, torch.Tensor) and index.dtype is torch.bool and index.dim() == 0


def _replace_lists(index: Any) -> Any:
    """The index with lists of integers replaced by tensors. If `x` is not on the CPU, C++ would
    make these tensors without telling the mode; and symbolic integers it does not read there."""
    if index.__class__ is tuple:
        return tuple([_replace_lists(part) for part in index])
    is_plain = index.__class__ is list and index and all(map(_is_number, index))
    return torch.tensor(index) if is_plain else index


def _has_open_lists(index: Any) -> bool:
    """Is there a list in it with symbolic integers?"""
    parts = index if index.__class__ is tuple else (index,)
    return any(part.__class__ is list and _holds_symint(part) for part in parts)


def _holds_symint(part: Any) -> bool:
    if part.__class__ is list:
        return any(map(_holds_symint, part))
    return type(part) is _SymInt


def _is_number(value: Any) -> bool:
    return value.__class__ in (int, bool, _SymInt) or (
        value.__class__ is list and bool(value) and all(map(_is_number, value))
    )


def _replace_scalars(index: Any) -> Any:
    """The index with 0-d integer tensors replaced by their items."""
    if index.__class__ is tuple:
        return tuple([_replace_scalars(part) for part in index])
    if isinstance(index, IndicesInside):
        return index.as_tensor()
    if index.__class__ is slice:
        bounds = (index.start, index.stop, index.step)
        if any(type(b) not in _BOUNDS for b in bounds):
            return slice(*map(_replace_scalars, bounds))
        return index
    if isinstance(index, torch.Tensor) and index.dim() == 0 and index.dtype in _INTEGERS:
        return index if _is_batched(index) else index.item()  # under vmap it is many
    if type(index) is torch.SymBool:
        return torch.full((), index)  # type: ignore[call-overload]
    if type(index) not in SYMBOLIC:
        read = getattr(type(index), "__index__", None)
        return read(index) if isinstance(read, FunctionType) else index  # a class of the user's
    return index


_BOUNDS = frozenset((int, type(None), _SymInt))
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8)


def has_symint(index: Any) -> bool:
    if index.__class__ is tuple:
        for part in index:  # noqa: SIM110 — a loop costs a third of `any`
            if type(part) is _SymInt:
                return True
        return False
    return type(index) is _SymInt


def _select(x: torch.Tensor, index: Any) -> tuple[torch.Tensor, tuple[Any, ...]]:
    """`x` with the symbolic integers of the index applied, and the rest of the index.

    torch, too, selects before it gathers, so integers never count among the index tensors.
    """
    parts = index if isinstance(index, tuple) else (index,)
    dims = _dimensions(x, parts)
    rest = [part for part in parts if type(part) is not _SymInt]
    for part, dim in reversed(list(zip(parts, dims, strict=True))):
        if type(part) is _SymInt:
            x = x.select(dim, part)
    return x, tuple(rest)


def _dimensions(x: torch.Tensor, parts: Sequence[Any]) -> list[int]:
    """The dimension of `x` at which each part of the index begins."""
    taken = [_width(part) for part in parts]
    used = sum(taken)
    if used > x.dim():
        raise IndexError(f"too many indices for tensor of dimension {x.dim()}")
    dims, dim = [], 0
    for part, width in zip(parts, taken, strict=True):
        dims.append(dim)
        dim += x.dim() - used if part is ... else width
    return dims


def _width(part: Any) -> int:
    """How many dimensions a part of an index stands for."""
    if part is None or part is ... or isinstance(part, bool):
        return 0
    if isinstance(part, torch.Tensor) and part.dtype in (torch.bool, torch.uint8):
        return part.dim()
    return 1
