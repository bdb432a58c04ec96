"""Models that are run to compare them, in little memory.

torchao's layers, and programs of them, make floats of all weights of a layer before they multiply:
those of the head of a model alone may be more than the file that is made. Here rows of a layer are
made floats some at a time, and of a table those that are looked up. Copies of caches, of which a
few tokens were written, leave out what is zero. Must not know of models.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from lostwax.classes import TENSORS

MOST = 1 << 20
"""So many weights are floats at a time."""

_LAYERS = (F.linear, torch.ops.aten.linear.default)
_TABLES = (F.embedding, torch.ops.aten.embedding.default)


class InPieces(TorchFunctionMode):
    """While it is on, large layers and tables of quantized weights are computed in pieces, and
    copies of what programs write have no pages of zeros."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "_opname", "") == "dequantize_affine" and _is_in_rows(args[0], args[1]):
            return _Floats(func, args, kwargs)
        if func in _LAYERS and _has_rows(args[1]):
            return self.run_layer(*args, **kwargs)
        if func in _TABLES:
            table, places = args[1::-1] if func is F.embedding else args[:2]
            if _has_rows(table):
                found = _take(table, places.reshape(-1))
                return found.reshape(*places.shape, found.shape[-1])
        if func is Tensor.__deepcopy__ and _is_plain(args[0]):
            return args[1].setdefault(id(args[0]), copy_sparsely(args[0]))
        if func is torch.ops.higher_order.auto_functionalized:
            return _run_on_copies(*args, **kwargs)
        args = tuple(each.compute() if isinstance(each, _Floats) else each for each in args)
        return func(*args, **kwargs)

    def run_layer(self, x: Tensor, weight: Any, bias: Tensor | None = None) -> Tensor:
        """Compute a large layer."""
        rows = _count_rows(weight)
        count = max(1, MOST // x.shape[-1])
        made = []
        for start in range(0, rows, count):
            places = slice(start, start + count)
            part = weight.take(places) if isinstance(weight, _Floats) else _cut(weight, places)
            made.append(F.linear(x, part, None if bias is None else bias[places]))
        return torch.cat(made, -1)


class ShapesAlone(InPieces):
    """The same, where nobody asks what large layers compute: it is zeros."""

    def run_layer(self, x: Tensor, weight: Any, bias: Tensor | None = None) -> Tensor:
        return x.new_zeros(*x.shape[:-1], _count_rows(weight))


class _Floats(NamedTuple):
    """Floats that a program makes of weights. They are computed when somebody reads them."""

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def compute(self) -> Tensor:
        found: Tensor = self.func(*self.args, **self.kwargs)
        return found

    def take(self, places: Any) -> Tensor:
        data, block, scale, zero, *rest = self.args
        zero = None if zero is None else zero[places]
        return self._replace(args=(data[places], block, scale[places], zero, *rest)).compute()


def _is_in_rows(data: Any, block: Any) -> bool:
    """Are these many weights, whose scales are of single rows?"""
    return bool(data.ndim == 2 and data.numel() > MOST and block[0] == 1)


def _has_rows(weight: Any) -> bool:
    if isinstance(weight, _Floats):
        return True
    block = None if type(weight) in TENSORS else getattr(weight, "block_size", None)
    return block is not None and _is_in_rows(weight, block)


def _take(weight: Any, places: Any) -> Tensor:
    """The floats of some rows: a slice, or numbers."""
    if isinstance(weight, _Floats):
        return weight.take(places)
    found: Tensor = _cut(weight, places).dequantize()
    return found


def _cut(weight: Any, places: Any) -> Any:
    names, rest = weight.__tensor_flatten__()
    parts = {name: getattr(weight, name)[places] for name in names}
    return type(weight).__tensor_unflatten__(parts, rest, None, None)


def _count_rows(weight: Any) -> int:
    data = weight.args[0] if isinstance(weight, _Floats) else weight
    count: int = data.shape[0]
    return count


# ---------------------------------------------------------------------------------------- zeros


def make_zeros(size: Any, dtype: torch.dtype) -> Tensor:
    """Zeros that take no memory before they are written."""
    count = torch.Size(size).numel() * dtype.itemsize
    return torch.from_numpy(numpy.zeros(count, numpy.uint8)).view(dtype).reshape(size)


def copy_sparsely(given: Tensor) -> Tensor:
    """A copy, of which only what is not zero takes memory."""
    made = make_zeros(given.shape, given.dtype)
    parts = (each.reshape(-1).split(_PART) for each in (made, given))
    for to, source in zip(*parts, strict=True):
        if source.any():
            to.copy_(source)
    return made


_PART = 1 << 16


def _is_plain(given: Any) -> bool:
    if type(given) is not Tensor or given.numel() <= _PART or given.requires_grad:
        return False
    return given.device.type == "cpu" and given.is_contiguous()


def _run_on_copies(op: Any, **given: Any) -> Any:
    """Call an operator that writes to its arguments on copies of these, and return them behind its
    results, as torch's own operator for it does."""
    written = [a.name for a in op._schema.arguments if a.alias_info and a.alias_info.is_write]
    if not all(_is_plain(given[name]) for name in written):
        return torch.ops.higher_order.auto_functionalized(op, **given)
    given |= {name: copy_sparsely(given[name]) for name in written}
    found = op(**given)
    results = found if isinstance(found, tuple) else (found,)
    return *results, *(given[name] for name in written)
