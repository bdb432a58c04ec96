"""New tensors by `full`, `full_like`, `empty_strided`, `arange`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lostwax.ops.decompositions.precision import cast
from lostwax.ops.registry import aten, decomposition


def _options(**options: Any) -> dict[str, Any]:
    return {k: v for k, v in options.items() if v is not None}


def _filled(value: int, size: Any, dtype: Any, device: Any) -> Any:
    dtype = dtype or torch.get_default_dtype()
    return aten.full.default(
        size, _number(value, dtype), dtype=dtype, device=device or torch.device("cpu")
    )


def _number(value: Any, dtype: torch.dtype) -> Any:
    """The value in the kind of number that the dtype holds."""
    if dtype is torch.bool:
        return bool(value)
    return float(value) if dtype.is_floating_point else value


@decomposition(aten.zeros.default)
def zeros(
    size: Any, *, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None
) -> Any:
    return _filled(0, size, dtype, device)


@decomposition(aten.ones.default)
def ones(
    size: Any, *, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None
) -> Any:
    return _filled(1, size, dtype, device)


@decomposition(aten.new_zeros.default)
def new_zeros(
    self: Tensor,
    size: Any,
    *,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
) -> Any:
    return _filled(0, size, dtype or self.dtype, device or self.device)


@decomposition(aten.new_ones.default)
def new_ones(
    self: Tensor,
    size: Any,
    *,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
) -> Any:
    return _filled(1, size, dtype or self.dtype, device or self.device)


@decomposition(aten.new_full.default)
def new_full(
    self: Tensor,
    size: Any,
    fill_value: Any,
    *,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
) -> Any:
    return aten.full.default(
        size, fill_value, dtype=dtype or self.dtype, device=device or self.device
    )


@decomposition(aten.new_empty.default)
def new_empty(
    self: Tensor,
    size: Any,
    *,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
) -> Any:
    return aten.empty.memory_format(size, dtype=dtype or self.dtype, device=device or self.device)


@decomposition(aten.new_empty_strided.default)
def new_empty_strided(
    self: Tensor,
    size: Any,
    stride: Any,
    *,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
) -> Any:
    return aten.empty_strided.default(
        size, stride, dtype=dtype or self.dtype, device=device or self.device
    )


def _filled_like(value: int, x: Tensor, dtype: Any, device: Any, memory_format: Any) -> Any:
    number = _number(value, dtype or x.dtype)
    options = _options(dtype=dtype, device=device, memory_format=memory_format)
    return aten.full_like.default(x, number, **options)


@decomposition(aten.zeros_like.default)
def zeros_like(
    self: Tensor,
    *,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
    memory_format: Any = None,
) -> Any:
    return _filled_like(0, self, dtype, device, memory_format)


@decomposition(aten.ones_like.default)
def ones_like(
    self: Tensor,
    *,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
    memory_format: Any = None,
) -> Any:
    return _filled_like(1, self, dtype, device, memory_format)


@decomposition(aten.empty_permuted.default)
def empty_permuted(
    size: Sequence[int],
    physical_layout: Sequence[int],
    *,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
) -> Any:
    options = _options(dtype=dtype, device=device)
    made = aten.empty.memory_format([size[d] for d in physical_layout], **options)
    back = sorted(range(len(physical_layout)), key=list(physical_layout).__getitem__)
    return aten.permute.default(made, back)


def _drawn_like(draw: Any, x: Tensor, options: dict[str, Any], memory_format: Any) -> Any:
    if memory_format not in (None, torch.preserve_format) or not x.is_contiguous():
        raise NotImplementedError("numbers are drawn in the order of memory")
    return draw(x.shape, **{"dtype": x.dtype, "device": x.device, **options})


@decomposition(aten.rand_like.default)
def rand_like(
    self: Tensor,
    *,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
    memory_format: Any = None,
) -> Any:
    options = _options(dtype=dtype, device=device)
    return _drawn_like(aten.rand.default, self, options, memory_format)


@decomposition(aten.randn_like.default)
def randn_like(
    self: Tensor,
    *,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
    memory_format: Any = None,
) -> Any:
    options = _options(dtype=dtype, device=device)
    return _drawn_like(aten.randn.default, self, options, memory_format)


@decomposition(aten.arange.default)
def arange(
    end: Any, *, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None
) -> Any:
    return aten.arange.start_step(0, end, 1, **_options(dtype=dtype, device=device))


@decomposition(aten.arange.start)
def arange_from(
    start: Any,
    end: Any,
    *,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
) -> Any:
    return aten.arange.start_step(start, end, 1, **_options(dtype=dtype, device=device))


@decomposition(aten.eye.default)
def eye(
    n: int, *, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None
) -> Any:
    return eye_of(n, n, dtype=dtype, device=device)


@decomposition(aten.eye.m)
def eye_of(
    n: int,
    m: int,
    *,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
) -> Any:
    rows, columns = _places(n, device), _places(m, device)
    is_one = aten.eq.Tensor(aten.unsqueeze.default(rows, -1), columns)
    return cast(is_one, dtype or torch.get_default_dtype())


def _places(count: int, device: Any) -> Any:
    return aten.arange.start_step(0, count, 1, **_options(dtype=torch.int64, device=device))


def _below(x: Tensor, diagonal: int) -> Any:
    """For each element of a matrix: does it lie on or below this diagonal?"""
    columns = _places(x.shape[-1], x.device)
    rows = aten.unsqueeze.default(_places(x.shape[-2], x.device), -1)
    return aten.le.Tensor(columns, aten.add.Scalar(rows, diagonal) if diagonal else rows)


@decomposition(aten.tril.default)
def tril(self: Tensor, diagonal: int = 0) -> Any:
    return _chosen(_below(self, diagonal), self)


@decomposition(aten.triu.default)
def triu(self: Tensor, diagonal: int = 0) -> Any:
    return _chosen(aten.logical_not.default(_below(self, diagonal - 1)), self)


def _chosen(choice: Tensor, x: Tensor) -> Any:
    if x.dtype is torch.bool:
        return aten.logical_and.default(choice, x)
    zero = aten.full.default([], _number(0, x.dtype), dtype=x.dtype, device=x.device)
    return aten.where.self(choice, x, zero)


@decomposition(
    aten.linspace.default,
    aten.linspace.Tensor_Tensor,
    aten.linspace.Tensor_Scalar,
    aten.linspace.Scalar_Tensor,
)
def linspace(
    start: Any,
    end: Any,
    steps: int,
    *,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
) -> Any:
    """Counted from the nearer end, so that both are met exactly."""
    dtype = dtype or torch.get_default_dtype()
    if not dtype.is_floating_point or steps.__class__ is not int:
        raise NotImplementedError("rounding to integers as eager's kernel does")
    options = _options(dtype=dtype, device=device)
    first, last = (_as_tensor(x, options) for x in (start, end))
    way = aten.sub.Tensor(last, first)
    step = aten.div.Tensor(way, steps - 1) if steps > 1 else way
    places = aten.arange.start_step(0, steps, 1, **options)
    forth = aten.add.Tensor(first, aten.mul.Tensor(places, step))
    back = aten.sub.Tensor(last, aten.mul.Tensor(_turned(places, steps), step))
    return aten.where.self(aten.lt.Scalar(places, steps / 2), forth, back)


def _turned(places: Tensor, steps: int) -> Any:
    return aten.add.Scalar(aten.neg.default(places), steps - 1)


def _as_tensor(x: Any, options: dict[str, Any]) -> Any:
    if isinstance(x, Tensor):
        return cast(x, options["dtype"])
    return aten.full.default([], _number(x, options["dtype"]), **options)
