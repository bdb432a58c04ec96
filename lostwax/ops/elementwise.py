"""The vocabulary of pointwise rules: sets of dtypes, tables of rules, sizes and strides of results.

Must not say anything of a single operator, and must stay cheap: a model calls these functions more
often than all others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NoReturn

import torch
from torch._ops import OpOverload

from lostwax.ops.registry import Rule, aten, rule
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
    """No kernel of this operator takes this dtype."""
    raise_not_implemented(f"{name}_{device}", dtype)


def find_overloads(names: str) -> list[OpOverload]:
    """Overloads of ATen by name: "sin add.Tensor"."""
    found = []
    for name in names.split():
        packet, _, overload = name.partition(".")
        found.append(getattr(getattr(aten, packet), overload or "default"))
    return found


def register_table(make: Callable[[str, Dtypes], Rule], rows: dict[str, Dtypes]) -> None:
    """Rules of one kind: for each row, operators and the dtypes they refuse."""
    for names, refused in rows.items():
        for overload in find_overloads(names):
            name = overload._schema.name.removeprefix("aten::").removeprefix("special_")
            rule(overload)(make(name, refused))


# -------------------------------------------------------------------------------- size and strides
# Each takes the dtype of the result and, where it is another, that of the computation: on the CPU
# eager first copies an operand of a third dtype, and a copy is dense.

_SCALAR = TensorType((), torch.float32, torch.device("cpu"))


def unary(x: TensorType, dtype: torch.dtype, computed: torch.dtype | None = None) -> TensorType:
    """The result over one tensor: dense, in the order of its dimensions."""
    # A dimension of size 1 or 0 may have any stride; without one, a dense layout has one spelling.
    if 1 not in x.size and 0 not in x.size:
        if x.is_dense:
            return _with_dtype(x, dtype)
    elif x.is_contiguous:
        return TensorType(x.size, dtype, x.device)
    return elementwise((cast(x, computed or dtype),), dtype, x.device)


def with_scalar(
    x: TensorType, dtype: torch.dtype, computed: torch.dtype | None = None
) -> TensorType:
    """The result over a tensor and a number, which eager makes a 0-d tensor and broadcasts."""
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
    """The result over two operands, of which one may be a number."""
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
    """The result over any number of operands."""
    if computed is None:
        computed = dtype
    return nary_mixed([cast_operand(o, computed) for o in operands], dtype)


def nary_mixed(operands: Sequence[TensorType], dtype: torch.dtype) -> TensorType:
    """The result over operands as the kernel sees them, also of several dtypes."""
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
    """An operand as the kernel sees it; the result may still be on the device of another."""
    return cast(o, computed) if o.__class__ is TensorType else _SCALAR


def new_like(x: TensorType, dtype: torch.dtype | None = None) -> TensorType:
    """A new tensor with the layout of `x`, or of its dimensions' order: what `empty_like` gives."""
    return TensorType(x.size, dtype or x.dtype, x.device, preserved_strides(x))


def cast(x: TensorType, dtype: torch.dtype) -> TensorType:
    """An operand in the dtype of the computation: a copy, and dense, where eager makes one."""
    if x.dtype is dtype or x.is_dense or x.device.type != "cpu":
        return x
    return new_like(x, dtype)


def _is_row_major(x: TensorType) -> bool:
    """Not empty, contiguous, and the dimensions of size 1 have the strides of a new tensor."""
    if 0 in x.size or not x.is_contiguous:
        return False
    return 1 not in x.size or x.stride == contiguous_strides(x.size)


def _with_dtype(x: TensorType, dtype: torch.dtype) -> TensorType:
    """A new tensor with the strides of a dense one. Types are shared: it may be the same type."""
    if x.dtype is dtype and x.offset == 0:
        return x
    out = TensorType(x.size, dtype, x.device, x.stride)
    out._contiguous, out._dense = x.is_contiguous, True
    return out


def common_dtype(a: Operand, b: Operand) -> torch.dtype:
    """The dtype two operands are computed in."""
    if b.__class__ is TensorType:
        if a.__class__ is TensorType and a.dtype is b.dtype:
            return a.dtype
    elif a.__class__ is TensorType and (b.__class__ is float or b.__class__ is int):
        dtype: torch.dtype = a.dtype
        if dtype.is_floating_point:
            return dtype
    return promote(a, b)
