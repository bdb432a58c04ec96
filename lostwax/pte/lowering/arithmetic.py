"""Arithmetic that the runtime's kernels compute otherwise than eager: integers by way of floats,
doubles by way of single precision, NaN where eager has none.

Each entry is a selection as in `select.py`. Where an operand shows that the kernel is right, it is
called. Must not plan memory.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from lostwax.pte.file.schema import MOST_DIMS
from lostwax.pte.lowering.listing import Number, Tensor
from lostwax.pte.lowering.writer import CallWriter
from lostwax.types import Sizes, product


class _Arithmetic:
    """Writes calls whose results are all of one size."""

    def __init__(self, writer: CallWriter, size: Sizes, dtype: torch.dtype) -> None:
        self.writer, self.size, self.dtype = writer, size, dtype

    def __call__(
        self, kernel: str, *args: Any, dtype: torch.dtype | None = None, size: Sizes | None = None
    ) -> Tensor:
        made = self.size if size is None else size
        out = self.writer.listing.new_tensor(made, dtype or self.dtype)
        return self.writer.call(f"aten::{kernel}", *args, outs=[out])

    def constant(self, value: Any) -> Tensor:
        return self.writer.listing.new_constant(torch.tensor(value, dtype=self.dtype))


def _start(writer: CallWriter, node: Node) -> tuple[_Arithmetic, Tensor, Tensor]:
    """The two operands of a call as tensors, and what writes calls for its result."""
    value = node.meta["val"]
    compute = _Arithmetic(writer, value.fake_type.size, value.dtype)
    x, y = (_as_tensor(compute, writer.value(a)) for a in node.args[:2])
    return compute, x, y


def _as_tensor(compute: _Arithmetic, value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value
    if isinstance(value, Number):
        return compute("scalar_tensor.out", value, size=())
    return compute.constant(value)


def _constant_of(x: Tensor) -> torch.Tensor | None:
    return x.storage.data if x.storage.is_constant else None


def select_add(writer: CallWriter, node: Node) -> Any:
    """The kernels multiply the wrong operand by `alpha`, if the first has a single element."""
    alpha = node.kwargs.get("alpha", 1)
    if alpha == 1:
        return None
    compute, x, y = _start(writer, node)
    if x.size == y.size and not x.is_dynamic and product(x.size) != 1:
        return None
    times = compute("mul.out", y, _as_tensor(compute, writer.value(alpha)), size=y.size)
    kernel = "add.out" if "add" in str(node.target) else "sub.out"
    return compute(kernel, x, times, 1)


def select_sum(writer: CallWriter, node: Node) -> Any:
    """Over a single dimension the kernel sums in single precision; over two, in that of the
    result. So a dimension of size 1 is summed, too."""
    args: Any = node.args
    x, dims = writer.value(args[0]), args[1]
    is_single = x.dtype in _SINGLE or len(dims or ()) != 1
    if is_single or not 0 < len(x.size) < MOST_DIMS:
        return None
    dim, value = dims[0] % len(x.size), node.meta["val"]
    wider = writer.listing.view(x, (*x.size[: dim + 1], 1, *x.size[dim + 1 :]))
    size = (*x.size[:dim], *x.size[dim + 1 :])
    compute = _Arithmetic(writer, size, value.dtype)
    made = compute("sum.IntList_out", wider, [dim, dim + 1], False, node.kwargs.get("dtype"))
    return writer.listing.view(made, value.fake_type.size)


_SINGLE = (torch.float32, torch.float16, torch.bfloat16)
"""The dtypes that eager, too, sums in single precision."""


def select_rounding(writer: CallWriter, node: Node) -> Any:
    """Integers are rounded already; the kernels make floats of them."""
    is_float = node.meta["val"].dtype.is_floating_point
    return None if is_float else writer.value(node.args[0])


def select_sign(writer: CallWriter, node: Node) -> Any:
    """0 for NaN, which the kernel returns."""
    value = node.meta["val"]
    if not value.dtype.is_floating_point:
        return None
    compute = _Arithmetic(writer, value.fake_type.size, value.dtype)
    x = writer.value(node.args[0])
    is_number = compute("eq.Tensor_out", x, x, dtype=torch.bool)
    return compute("where.self_out", is_number, compute("sign.out", x), compute.constant(0))


# ------------------------------------------------------------------------------- powers


def select_power_of_number(writer: CallWriter, node: Node) -> Any:
    """A square root, a square, or products of integers: the kernel computes all as powers of
    doubles, fifty times as slow."""
    value = node.meta["val"]
    exponent: Any = node.args[1]
    if isinstance(exponent, Node):
        return None
    compute = _Arithmetic(writer, value.fake_type.size, value.dtype)
    x = writer.value(node.args[0])
    if value.dtype.is_floating_point:
        if exponent == 2 and x.dtype is value.dtype:
            return compute("mul.out", x, x)
        return compute("sqrt.out", x) if exponent == 0.5 else None
    left, power, made = int(exponent), x, None
    while left:
        if left % 2:
            made = power if made is None else compute("mul.out", made, power)
        left //= 2
        power = compute("mul.out", power, power) if left else power
    if made is not None:
        return made
    return compute("full.out", [writer.listing.number(s) for s in compute.size], 1)


def select_power(writer: CallWriter, node: Node) -> Any:
    """Integers as those of 64 bits: in narrower ones, the kernel has the largest where eager
    drops the high bits."""
    value = node.meta["val"]
    if value.dtype.is_floating_point or value.dtype is torch.int64:
        return None
    compute, x, y = _start(writer, node)
    wide = [writer.cast(t, torch.int64) for t in (x, y)]
    made = compute("pow.Tensor_Tensor_out", *wide, dtype=torch.int64)
    return writer.cast(made, value.dtype)


# ------------------------------------------------------------------------------- division


def select_division(writer: CallWriter, node: Node) -> Any:
    """Quotients that are rounded: of zeros, and of integers that doubles do not hold."""
    mode, dtype = node.kwargs.get("rounding_mode"), node.meta["val"].dtype
    if mode == "floor" and dtype.is_floating_point:
        return _divide_floats(*_start(writer, node))
    if mode == "trunc" and dtype is torch.int64:
        return _divide_to_zero(*_start(writer, node))
    return None


def _divide_floats(compute: _Arithmetic, x: Tensor, y: Tensor) -> Tensor:
    """The quotient by zero is that of plain division: 0 / 0 is NaN, which the kernel takes for
    infinity."""
    quotient = compute("div.out_mode", x, y, "floor")
    known = _constant_of(y)
    if known is not None and bool(known.all()):
        return quotient
    is_zero = compute("eq.Scalar_out", y, 0, dtype=torch.bool, size=y.size)
    return compute("where.self_out", is_zero, compute("div.out", x, y), quotient)


def _divide_to_zero(compute: _Arithmetic, x: Tensor, y: Tensor) -> Tensor:
    """The kernel computes with doubles; to the next smaller integer it does not."""
    sizes = [compute("abs.out", t, size=t.size) for t in (x, y)]
    quotient = compute("div.out_mode", *sizes, "floor")
    for operand in (x, y):
        sign = compute("sign.out", operand, size=operand.size)
        quotient = compute("mul.out", quotient, sign)
    return quotient


def select_fmod(writer: CallWriter, node: Node) -> Any:
    """The kernel computes with doubles, which do not hold every integer of 64 bits."""
    if node.meta["val"].dtype is not torch.int64:
        return None
    compute, x, y = _start(writer, node)
    multiple = compute("mul.out", _divide_to_zero(compute, x, y), y)
    return compute("sub.out", x, multiple, 1)


def select_remainder(writer: CallWriter, node: Node) -> Any:
    """The kernel computes doubles in single precision, and has C's sign for integers, not
    Python's."""
    dtype = node.meta["val"].dtype
    if dtype.is_floating_point and dtype is not torch.float64:
        return None
    compute, x, y = _start(writer, node)
    if dtype is not torch.float64:
        quotient = compute("div.out_mode", x, y, "floor")
        return compute("sub.out", x, compute("mul.out", quotient, y), 1)
    rest = compute("fmod.Tensor_out", x, y)
    below = [compute("lt.Scalar_out", t, 0, dtype=torch.bool, size=t.size) for t in (rest, y)]
    differs = compute("ne.Tensor_out", *below, dtype=torch.bool)
    is_rest = compute("ne.Scalar_out", rest, 0, dtype=torch.bool)
    moves = compute("logical_and.out", differs, is_rest, dtype=torch.bool)
    return compute("where.self_out", moves, compute("add.out", rest, y, 1), rest)


ARITHMETIC = {
    **dict.fromkeys(("aten::add.Tensor", "aten::sub.Tensor"), select_add),
    **dict.fromkeys(("aten::ceil", "aten::floor", "aten::round", "aten::trunc"), select_rounding),
    **dict.fromkeys(("aten::div.Tensor_mode", "aten::div.Scalar_mode"), select_division),
    **dict.fromkeys(("aten::fmod.Tensor", "aten::fmod.Scalar"), select_fmod),
    **dict.fromkeys(("aten::pow.Tensor_Tensor", "aten::pow.Scalar"), select_power),
    **dict.fromkeys(("aten::remainder.Tensor", "aten::remainder.Scalar"), select_remainder),
    "aten::pow.Tensor_Scalar": select_power_of_number,
    "aten::sign": select_sign,
    "aten::sum.dim_IntList": select_sum,
}
"""The selections by the name of the operator."""
