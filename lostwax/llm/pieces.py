"""Models of quantized weights run without their floats: rows of a layer are made floats some at a
time, and of a table those that are looked up.

torchao's layers, and programs of them, make floats of all weights of a layer before they multiply:
those of the head of a model alone may be more than the file that is made. Must not know of models.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from lostwax.classes import TENSORS

MOST = 1 << 21
"""So many weights are floats at a time."""

_LAYERS = (F.linear, torch.ops.aten.linear.default)
_TABLES = (F.embedding, torch.ops.aten.embedding.default)


class InPieces(TorchFunctionMode):
    """While it is on, large layers and tables of quantized weights are computed in pieces."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "_opname", "") == "dequantize_affine" and _is_in_rows(args[0], args[1]):
            return _Floats(func, args, kwargs)
        if func in _LAYERS and _has_rows(args[1]):
            return _run_layer(*args, **kwargs)
        if func in _TABLES:
            table, places = args[1::-1] if func is F.embedding else args[:2]
            if _has_rows(table):
                found = _take(table, places.reshape(-1))
                return found.reshape(*places.shape, found.shape[-1])
        args = tuple(each.compute() if isinstance(each, _Floats) else each for each in args)
        return func(*args, **kwargs)


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


def _run_layer(x: Tensor, weight: Any, bias: Tensor | None = None) -> Tensor:
    data = weight.args[0] if isinstance(weight, _Floats) else weight
    rows = max(1, MOST // data.shape[1])
    made = []
    for start in range(0, data.shape[0], rows):
        places = slice(start, start + rows)
        part = weight.take(places) if isinstance(weight, _Floats) else _cut(weight, places)
        made.append(F.linear(x, part, None if bias is None else bias[places]))
    return torch.cat(made, -1)
