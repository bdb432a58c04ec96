"""The dtype that a call computes in, if it takes operands of several dtypes, and numbers in it.

Must not know of Edge operators: it reads ATen graphs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Node

from lostwax.classes import SYMBOLIC
from lostwax.fake.tensor import FakeTensor
from lostwax.ops.shapes import promote

aten = torch.ops.aten

PROMOTED: dict[OpOverload, tuple[int, ...]] = {
    **dict.fromkeys(
        [
            *(aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor),
            *(aten.div.Tensor_mode, aten.minimum.default, aten.maximum.default),
            *(aten.eq.Tensor, aten.ne.Tensor, aten.lt.Tensor, aten.le.Tensor),
            *(aten.gt.Tensor, aten.ge.Tensor, aten.pow.Tensor_Tensor, aten.atan2.default),
            *(aten.fmod.Tensor, aten.remainder.Tensor, aten.bitwise_and.Tensor),
            *(aten.bitwise_or.Tensor, aten.bitwise_xor.Tensor, aten.bitwise_and.Scalar),
            *(aten.bitwise_or.Scalar, aten.bitwise_xor.Scalar, aten.add.Scalar, aten.sub.Scalar),
            *(aten.mul.Scalar, aten.div.Scalar, aten.div.Scalar_mode, aten.eq.Scalar),
            *(aten.ne.Scalar, aten.lt.Scalar, aten.le.Scalar, aten.gt.Scalar, aten.ge.Scalar),
            *(aten.fmod.Scalar, aten.remainder.Scalar, aten.pow.Tensor_Scalar, aten.pow.Scalar),
        ],
        (0, 1),
    ),
    aten.clamp.default: (0, 1, 2),
    aten.where.self: (1, 2),
    aten.clamp.Tensor: (0, 1, 2),
}
"""Operators that take operands of different dtypes, and which arguments these are: they are cast to
the dtype that the operator computes in."""

_TO_FLOATS = frozenset((aten.div.Tensor, aten.div.Scalar, aten.atan2.default))
"""Operators that compute integers as floats."""

_EXACT = frozenset(
    (
        *(aten.mul.Tensor, aten.mul.Scalar, aten.div.Tensor, aten.div.Scalar),
        *(aten.div.Tensor_mode, aten.div.Scalar_mode),
    )
)
"""Operators for which eager does not round a number, their second operand, to the half precision of
the first; for all others it does. So `mask * -1e9` is 0 where the mask is 0, and not NaN."""

FILLED = {aten.full.default: 1, aten.full_like.default: 1, aten.scalar_tensor.default: 0}
"""Operators that make tensors of a number, and which argument that is: -1e9 is infinite in half
precision, where the runtime's kernels refuse it."""

_HALVES = (torch.float16, torch.bfloat16)


def find_compute_dtype(node: Node) -> torch.dtype | None:
    """The dtype that a call computes in; None if nothing is promoted there."""
    operands = PROMOTED.get(node.target)  # type: ignore[call-overload]
    if operands is None:
        return None
    given = [node.args[i] for i in operands if i < len(node.args)]
    dtype = promote(*[_operand(a) for a in given if a is not None])
    if node.target in _TO_FLOATS:
        dtype = node.meta["val"].dtype
    if dtype in _HALVES and node.target in _EXACT:
        number = node.args[1]
        if is_number(number) and not _is_exact(number, dtype):
            return torch.float32
    return dtype


def _is_exact(number: Any, dtype: torch.dtype) -> bool:
    return not isinstance(number, Node) and bool(convert_number(number, dtype) == number)


def is_rounded(node: Node, dtype: torch.dtype) -> bool:
    """Does a call that computes in this dtype return its result in a narrower one?"""
    return dtype is torch.float32 and node.target in _EXACT and node.meta["val"].dtype in _HALVES


def is_number(value: Any) -> bool:
    """Is an argument a number, or a node that computes one?"""
    if isinstance(value, Node):
        return isinstance(value.meta.get("val"), SYMBOLIC)
    return isinstance(value, (bool, int, float, complex))


def number_dtype(value: Any) -> torch.dtype:
    """The dtype that a number has where nothing is promoted."""
    return torch.tensor(_operand(value)).dtype


def convert_number(value: Any, dtype: torch.dtype) -> Any:
    """The number as this dtype has it: rounded, or without the bits that are too high, as eager
    does it."""
    return tensor_of(value, dtype).item()


def tensor_of(value: Any, dtype: torch.dtype) -> torch.Tensor:
    """The number as a tensor without dimensions."""
    wide = torch.float64 if isinstance(value, float) else None
    return torch.tensor(value, dtype=wide).to(dtype)


def _operand(value: Any) -> Any:
    """An operand as the rules of promotion take it."""
    value = value.meta["val"] if isinstance(value, Node) else value
    if isinstance(value, FakeTensor):
        return value.fake_type
    for symbolic, example in zip(SYMBOLIC, (1, 1.0, True), strict=True):
        if isinstance(value, symbolic):
            return example
    return value
