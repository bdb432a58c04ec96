"""Computing half-precision numbers in float32, as eager's kernels do."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce, wraps
from typing import Any

import torch
from torch import Tensor

from lostwax.ops.registry import aten

_WIDER = {torch.float16: torch.float32, torch.bfloat16: torch.float32}


def cast(x: Tensor, dtype: torch.dtype) -> Any:
    return x if x.dtype is dtype else aten._to_copy.default(x, dtype=dtype)


def cast_to_common(*tensors: Tensor) -> Any:
    """The tensors in the dtype that an operator computes in which takes them all: what is between
    its steps has that dtype, too, so that nothing overflows a narrower one."""
    wide = [t for t in tensors if t.dim()] or tensors  # those without dimensions decide little
    dtypes = [torch.result_type(a, b) for a in wide for b in tensors]
    dtype = reduce(torch.promote_types, dtypes)
    return [cast(t, dtype) for t in tensors]


def compute_in_float32(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a decomposition compute in float32 if its first tensor is of half precision, and round
    the result once, at the end."""

    @wraps(function)
    def compute(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        wider = _WIDER.get(self.dtype)
        if wider is None:
            return function(self, *args, **kwargs)
        rest = [cast(a, wider) if _is_low(a) else a for a in args]
        return cast(function(cast(self, wider), *rest, **kwargs), self.dtype)

    return compute


def _is_low(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype in _WIDER


def as_float(x: Tensor) -> Any:
    """Integers cast to the float dtype in which eager computes them."""
    is_whole = not x.dtype.is_floating_point and not x.dtype.is_complex
    return cast(x, torch.get_default_dtype()) if is_whole else x
