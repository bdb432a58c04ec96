"""The vocabulary of pointwise rules: sets of dtypes, tables of rules, sizes and strides of results.

Must not know of single operators, and must stay cheap: a model calls these functions more often
than all others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NoReturn

import torch

from lostwax.ops.registry import Rule, rule
from lostwax.ops.shapes import (
    Scalar,
    TensorType,
    broadcast_sizes,
    contiguous_strides,
    elementwise,
    elementwise_strides,
    preserved_strides,
    promote,
)
from lostwax.ops.spelling import raise_not_implemented

Operand = TensorType | Scalar
Dtypes = Collection[torch.dtype]

BOOL: Dtypes = frozenset({torch.bool})
INTEGERS: Dtypes = frozenset(
    {getattr(torch, f"{u}int{n}") for u in ("", "u") for n in (8, 16, 32, 64)}
)
FLOATS: Dtypes = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
COMPLEX: Dtypes = frozenset({torch.complex32, torch.complex64, torch.complex128})
BOOL_OR_COMPLEX: Dtypes = frozenset({*BOOL, *COMPLEX})
FLOATS_OR_COMPLEX: Dtypes = frozenset({*FLOATS, *COMPLEX})
WHOLE: Dtypes = frozenset({*BOOL, *INTEGERS})
NOT_FLOATS: Dtypes = frozenset({*WHOLE, *COMPLEX})
NOT_INTEGERS: Dtypes = frozenset({*BOOL, *FLOATS, *COMPLEX})
NONE: Dtypes = frozenset()


def refuse_dtype(name: str, dtype: torch.dtype, device: str = "cpu") -> NoReturn:
    """Raise what torch raises where no kernel of an operator takes this dtype."""
    raise_not_implemented(f"{name}_{device}", dtype)


def register_table(make: Callable[[str, Dtypes], Rule], rows: dict[str, Dtypes]) -> None:
    """Register rules of one kind: a row has the names of operators and the dtypes they refuse."""
    for names, refused in rows.items():
        for name in names.split():
            operator = name.partition(".")[0].removeprefix("special_")
            rule(name)(make(operator, refused))


# -------------------------------------------------------------------------------- size and strides
# `dtype` is the result's; `computed` is the one that eager computes in, where the two differ. On
# the CPU eager first copies an operand that has neither, and a copy is dense.

_SCALAR = TensorType((), torch.float32, torch.device("cpu"))


def unary(x: TensorType, dtype: torch.dtype, computed: torch.dtype | None = None) -> TensorType:
    """The result for one tensor: dense, with dimensions in the order of the operand's."""
    # A dimension of size 1 or 0 may have any stride. If there is none, dense strides are unique.
    if 1 not in x.size and 0 not in x.size:
        if x.is_dense:
            return _with_dtype(x, dtype)
    elif x.is_contiguous:
        return TensorType(x.size, dtype, x.device)
    return elementwise((cast(x, computed or dtype),), dtype, x.device)


def unary_same_rule(name: str, refused: Dtypes) -> Rule:
    """The rule of a function of one tensor that gives its dtype."""

    def same_dtype(x: TensorType, *_: object, **__: object) -> TensorType:
        if x.dtype in refused:
            refuse_dtype(name, x.dtype, x.device.type)
        return unary(x, x.dtype)

    return same_dtype


def with_scalar(
    x: TensorType, dtype: torch.dtype, computed: torch.dtype | None = None
) -> TensorType:
    """The result for a tensor and a number, which eager turns into a 0-d tensor and broadcasts."""
    if 1 not in x.size and 0 not in x.size:
        if x.is_dense:
            return _with_dtype(x, dtype)
    elif _is_row_major(x):
        return _with_dtype(x, dtype)
    x = cast(x, computed or dtype)
    return TensorType(x.size, dtype, x.device, elementwise_strides(x.size, (x, _SCALAR)))


def binary(
    a: Operand, b: Operand, dtype: torch.dtype, computed: torch.dtype | None = None
) -> TensorType:
    """The result for two operands, of which one may be a number."""
    if b.__class__ is not TensorType:
        return with_scalar(a, dtype, computed)
    if a.__class__ is not TensorType:
        return with_scalar(b, dtype, computed)
    if a.device is b.device or a.device == b.device:
        if a.size == b.size:
            if a.is_contiguous and b.is_contiguous:
                return unary(a, dtype)
            if a.stride == b.stride and 1 not in a.size and 0 not in a.size and a.is_dense:
                return _with_dtype(a, dtype)
        elif _is_row_major(a) and _is_row_major(b):
            skipped = len(a.size) - len(b.size)
            if skipped > 0 and a.size[skipped:] == b.size:
                return _with_dtype(a, dtype)
            return TensorType(broadcast_sizes((a.size, b.size)), dtype, a.device)
    return nary((a, b), dtype, computed)


def nary(
    operands: Sequence[Operand], dtype: torch.dtype, computed: torch.dtype | None = None
) -> TensorType:
    """The result for any number of operands."""
    if computed is None:
        computed = dtype
    return nary_mixed([cast_operand(o, computed) for o in operands], dtype)


def nary_mixed(operands: Sequence[TensorType], dtype: torch.dtype) -> TensorType:
    """The result for operands that the kernel takes as they are, even if their dtypes differ."""
    first = operands[0]
    for o in operands:
        if not (o.is_contiguous and o.size == first.size and o.device == first.device):
            break
    else:
        return unary(first, dtype)
    for o in operands:
        if not _is_row_major(o) or (o.device != first.device and o is not _SCALAR):
            return elementwise(operands, dtype)
    return TensorType(broadcast_sizes([o.size for o in operands]), dtype, first.device)


def cast_operand(o: Operand, computed: torch.dtype) -> TensorType:
    """An operand as the kernel sees it. A number has no device: the result may be on any."""
    return cast(o, computed) if o.__class__ is TensorType else _SCALAR


def new_like(x: TensorType, dtype: torch.dtype | None = None) -> TensorType:
    """What `empty_like` gives: the strides of `x` if it is dense, else dense in the same order."""
    return TensorType(x.size, dtype or x.dtype, x.device, preserved_strides(x))


def cast(x: TensorType, dtype: torch.dtype) -> TensorType:
    """An operand in the dtype of the computation. Where eager copies it, the result is dense."""
    if x.dtype is dtype or x.is_dense or x.device.type != "cpu":
        return x
    return new_like(x, dtype)


def _is_row_major(x: TensorType) -> bool:
    """Is it not empty, and are its strides exactly those of a new tensor, also for sizes of 1?"""
    if 0 in x.size or not x.is_contiguous:
        return False
    return 1 not in x.size or x.stride == contiguous_strides(x.size)


def _with_dtype(x: TensorType, dtype: torch.dtype) -> TensorType:
    """A new tensor with the strides of a dense one. The type itself is returned if it fits."""
    if x.dtype is dtype and x.offset == 0:
        return x
    out = TensorType(x.size, dtype, x.device, x.stride)
    out._contiguous, out._dense = x.is_contiguous, True
    return out


def common_dtype(a: Operand, b: Operand) -> torch.dtype:
    """The dtype in which eager computes two operands."""
    if b.__class__ is TensorType:
        if a.__class__ is TensorType and a.dtype is b.dtype:
            return a.dtype
    elif a.__class__ is TensorType and (b.__class__ is float or b.__class__ is int):
        dtype: torch.dtype = a.dtype
        if dtype.is_floating_point:
            return dtype
    return promote(a, b)
