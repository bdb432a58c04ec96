"""New tensors by `full`, `full_like`, `empty_strided`, `arange`.

`given` holds the keyword arguments of a factory: dtype, layout, device, pin_memory, memory_format.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lostwax.ops.decompositions.precision import cast
from lostwax.ops.registry import aten, decomposition


def _options(given: dict[str, Any], *names: str) -> dict[str, Any]:
    """The keywords with these names that are not None."""
    return {k: given[k] for k in names if given.get(k) is not None}


def _options_like(given: dict[str, Any], x: Tensor) -> dict[str, Any]:
    """The dtype and the device that are given, or else those of `x`."""
    return {"dtype": x.dtype, "device": x.device, **_options(given, "dtype", "device")}


def _full(value: int, size: Any, dtype: Any = None, device: Any = None) -> Any:
    dtype = dtype or torch.get_default_dtype()
    return aten.full.default(
        size, _number(value, dtype), dtype=dtype, device=device or torch.device("cpu")
    )


def _number(value: Any, dtype: torch.dtype) -> Any:
    """The value as the kind of Python number that the dtype holds."""
    if dtype is torch.bool:
        return bool(value)
    return float(value) if dtype.is_floating_point else value


@decomposition("zeros")
def zeros(size: Any, **given: Any) -> Any:
    return _full(0, size, **_options(given, "dtype", "device"))


@decomposition("ones")
def ones(size: Any, **given: Any) -> Any:
    return _full(1, size, **_options(given, "dtype", "device"))


@decomposition("new_zeros")
def new_zeros(self: Tensor, size: Any, **given: Any) -> Any:
    return _full(0, size, **_options_like(given, self))


@decomposition("new_ones")
def new_ones(self: Tensor, size: Any, **given: Any) -> Any:
    return _full(1, size, **_options_like(given, self))


@decomposition("new_full")
def new_full(self: Tensor, size: Any, fill_value: Any, **given: Any) -> Any:
    return aten.full.default(size, fill_value, **_options_like(given, self))


@decomposition("new_empty")
def new_empty(self: Tensor, size: Any, **given: Any) -> Any:
    return aten.empty.memory_format(size, **_options_like(given, self))


@decomposition("new_empty_strided")
def new_empty_strided(self: Tensor, size: Any, stride: Any, **given: Any) -> Any:
    return aten.empty_strided.default(size, stride, **_options_like(given, self))


def _full_like(value: int, x: Tensor, given: dict[str, Any]) -> Any:
    number = _number(value, given.get("dtype") or x.dtype)
    return aten.full_like.default(x, number, **_options(given, "dtype", "device", "memory_format"))


@decomposition("zeros_like")
def zeros_like(self: Tensor, **given: Any) -> Any:
    return _full_like(0, self, given)


@decomposition("ones_like")
def ones_like(self: Tensor, **given: Any) -> Any:
    return _full_like(1, self, given)


@decomposition("empty_like")
def empty_like(self: Tensor, **given: Any) -> Any:
    wanted = given.get("memory_format") or torch.preserve_format
    if wanted is not torch.preserve_format:
        return aten.empty.memory_format(
            self.shape, **_options_like(given, self), memory_format=wanted
        )
    if self.is_contiguous():
        return aten.empty.memory_format(self.shape, **_options_like(given, self))
    strides = self.stride()
    outermost_first = sorted(range(self.dim()), key=lambda d: (-strides[d], d))
    return empty_permuted(self.shape, outermost_first, **_options_like(given, self))


@decomposition("empty_permuted")
def empty_permuted(size: Sequence[int], physical_layout: Sequence[int], **given: Any) -> Any:
    options = _options(given, "dtype", "device")
    made = aten.empty.memory_format([size[d] for d in physical_layout], **options)
    back = sorted(range(len(physical_layout)), key=list(physical_layout).__getitem__)
    return aten.permute.default(made, back)


def _draw_like(draw: Any, x: Tensor, given: dict[str, Any]) -> Any:
    kept = given.get("memory_format") in (None, torch.preserve_format)
    if not kept or not x.is_contiguous():
        raise NotImplementedError("numbers are drawn in the order of memory")
    return draw(x.shape, **_options_like(given, x))


@decomposition("rand_like")
def rand_like(self: Tensor, **given: Any) -> Any:
    return _draw_like(aten.rand.default, self, given)


@decomposition("randn_like")
def randn_like(self: Tensor, **given: Any) -> Any:
    return _draw_like(aten.randn.default, self, given)


@decomposition("arange")
def arange(end: Any, **given: Any) -> Any:
    return arange_from(0, end, **given)


@decomposition("arange.start")
def arange_from(start: Any, end: Any, **given: Any) -> Any:
    return aten.arange.start_step(start, end, 1, **_options(given, "dtype", "device"))


@decomposition("eye")
def eye(n: int, **given: Any) -> Any:
    return eye_of(n, n, **given)


@decomposition("eye.m")
def eye_of(n: int, m: int, **given: Any) -> Any:
    rows, columns = (_places(count, given.get("device")) for count in (n, m))
    is_one = aten.eq.Tensor(aten.unsqueeze.default(rows, -1), columns)
    return cast(is_one, given.get("dtype") or torch.get_default_dtype())


def _places(count: int, device: Any) -> Any:
    return arange_from(0, count, dtype=torch.int64, device=device)


def _is_below(x: Tensor, diagonal: int) -> Any:
    """For each element of a matrix: does it lie on or below this diagonal?"""
    columns = _places(x.shape[-1], x.device)
    rows = aten.unsqueeze.default(_places(x.shape[-2], x.device), -1)
    return aten.le.Tensor(columns, aten.add.Scalar(rows, diagonal) if diagonal else rows)


@decomposition("tril")
def tril(self: Tensor, diagonal: int = 0) -> Any:
    return _keep_where(_is_below(self, diagonal), self)


@decomposition("triu")
def triu(self: Tensor, diagonal: int = 0) -> Any:
    return _keep_where(aten.logical_not.default(_is_below(self, diagonal - 1)), self)


def _keep_where(choice: Tensor, x: Tensor) -> Any:
    if x.dtype is torch.bool:
        return aten.logical_and.default(choice, x)
    zero = aten.full.default([], _number(0, x.dtype), dtype=x.dtype, device=x.device)
    return aten.where.self(choice, x, zero)


@decomposition(
    "linspace linspace.Tensor_Tensor linspace.Tensor_Scalar linspace.Scalar_Tensor",
)
def linspace(start: Any, end: Any, steps: int, **given: Any) -> Any:
    """It counts from the nearer end, so that both ends are exact."""
    dtype = given.get("dtype") or torch.get_default_dtype()
    if not dtype.is_floating_point or steps.__class__ is not int:
        raise NotImplementedError("rounding to integers as eager's kernel does")
    options = {"dtype": dtype, **_options(given, "device")}
    first, last = (_as_tensor(x, options) for x in (start, end))
    way = aten.sub.Tensor(last, first)
    step = aten.div.Tensor(way, steps - 1) if steps > 1 else way
    places = aten.arange.start_step(0, steps, 1, **options)
    forth = aten.add.Tensor(first, aten.mul.Tensor(places, step))
    back = aten.sub.Tensor(last, aten.mul.Tensor(_reverse(places, steps), step))
    return aten.where.self(aten.lt.Scalar(places, steps / 2), forth, back)


def _reverse(places: Tensor, steps: int) -> Any:
    return aten.add.Scalar(aten.neg.default(places), steps - 1)


def _as_tensor(x: Any, options: dict[str, Any]) -> Any:
    if isinstance(x, Tensor):
        return cast(x, options["dtype"])
    return aten.full.default([], _number(x, options["dtype"]), **options)
