"""Strides of pointwise operators, reductions and sorting are eager's, exactly.

Random operands with permuted, sliced, expanded and channels-last layouts, sizes 0 and 1 among them,
are run eagerly and through the type rule; size, strides, dtype and error class must be the same.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from torch._ops import OpOverload

import lostwax.ops
from lostwax.ops.registry import operator
from lostwax.types import TensorType

aten = torch.ops.aten
ROUNDS = 60
DTYPES = (torch.float32, torch.float32, torch.float32, torch.int64, torch.float64, torch.bool)


class Draw(random.Random):
    """Random tensors."""

    def sizes(self) -> list[int]:
        return [self.choice((1, 1, 2, 3, 4, 5, 0)) for _ in range(self.choice((0, 1, 2, 3, 4, 5)))]

    def broadcastable(self, size: list[int]) -> list[int]:
        if self.random() < 0.4:
            return size
        out = [1 if self.random() < 0.3 else s for s in size]
        return out[self.choice((0, 0, self.randint(0, len(out)))) :]

    def dense(self, size: list[int], dtype: torch.dtype) -> torch.Tensor:
        if dtype is torch.bool:
            return torch.ones(size, dtype=dtype)
        return torch.arange(1, 1 + torch.Size(size).numel()).view(size).to(dtype)

    def tensor(self, size: list[int], dtype: torch.dtype) -> torch.Tensor:
        """A tensor of this size whose dimensions are permuted, with steps and gaps, or expanded."""
        n = len(size)
        kind = self.choice(
            ("plain", "permute", "slice", "permute slice", "expand", "permute expand")
        )
        if kind == "plain":
            t = self.dense(size, dtype)
            last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(n)
            return t.contiguous(memory_format=last) if last and self.random() < 0.5 else t
        order = self.sample(range(n), n) if "permute" in kind else list(range(n))
        steps = [self.choice((1, 1, 2)) if "slice" in kind else 1 for _ in order]
        gap = [self.choice((0, 0, 1)) if "slice" in kind else 0 for _ in order]
        wide = [size[d] * s + g for d, s, g in zip(order, steps, gap, strict=True)]
        if "expand" in kind:
            wide = [1 if self.random() < 0.4 else s for s in wide]
        t = self.dense(wide, dtype)
        for d, step in enumerate(steps):
            if step > 1 or gap[d]:
                t = t.narrow(d, 0, size[order[d]] * step)[
                    (slice(None),) * d + (slice(None, None, step),)
                ]
        return t.expand([size[d] for d in order]).permute([order.index(d) for d in range(n)])


def type_of(t: torch.Tensor) -> TensorType:
    return TensorType(tuple(t.shape), t.dtype, t.device, tuple(t.stride()), t.storage_offset())


def outcome(run: Callable[[], Any]) -> Any:
    """Results as (size, stride, dtype), or the class of the error."""
    try:
        out = run()
    except Exception as error:
        return type(error)
    out = out if isinstance(out, tuple) else (out,)
    types = [type_of(t) if isinstance(t, torch.Tensor) else t for t in out]
    return [(t.size, t.stride, t.dtype) for t in types]


def check(overload: OpOverload, *args: Any, **kwargs: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        want = outcome(lambda: overload(*args, **kwargs))
    types = pytree.tree_map_only(torch.Tensor, type_of, args)
    rule = operator(overload).rule
    assert rule is not None
    got = outcome(lambda: rule(*types, **kwargs))
    assert got == want, f"{overload}{types} {kwargs}: eager {want}, rule {got}"


def rounds(overload: object) -> Iterator[tuple[Draw, list[int], torch.dtype]]:
    draw = Draw(str(overload))
    for _ in range(ROUNDS):
        yield draw, draw.sizes(), draw.choice(DTYPES)


UNARY = "relu sin exp neg abs sigmoid isnan isinf ceil logical_not nan_to_num angle deg2rad sgn"
UNARY += " hardtanh gelu silu reciprocal bitwise_not"
BINARY = "add.Tensor sub.Tensor mul.Tensor div.Tensor pow.Tensor_Tensor eq.Tensor lt.Tensor maximum"
BINARY += (
    " atan2 logical_and rsub.Tensor xlogy.Tensor tanh_backward gelu_backward threshold_backward"
)
SCALAR = (
    "add.Scalar mul.Tensor rsub.Scalar div.Scalar gt.Scalar pow.Tensor_Scalar clamp_min fmod.Scalar"
)


def overloads(names: str) -> list[OpOverload]:
    parts = [name.partition(".") for name in names.split()]
    return [getattr(getattr(aten, a), b or "default") for a, _, b in parts]


@pytest.mark.parametrize("overload", overloads(UNARY), ids=str)
def test_unary(overload: OpOverload) -> None:
    for draw, size, dtype in rounds(overload):
        check(overload, draw.tensor(size, dtype))


@pytest.mark.parametrize("overload", overloads(SCALAR), ids=str)
def test_with_a_number(overload: OpOverload) -> None:
    for draw, size, dtype in rounds(overload):
        check(overload, draw.tensor(size, dtype), draw.choice((2, 2.5)))


@pytest.mark.parametrize("overload", overloads(BINARY), ids=str)
def test_binary(overload: OpOverload) -> None:
    more = [0.5] if overload is aten.threshold_backward.default else []
    floats = "backward" in str(overload)
    for draw, size, first in rounds(overload):
        first = torch.float32 if floats else first
        second = first if floats or draw.random() < 0.6 else draw.choice(DTYPES)
        sizes = (size, size) if floats else (draw.broadcastable(size), draw.broadcastable(size))
        if overload is aten.pow.Tensor_Tensor and first is second is torch.int64:
            continue  # the numbers overflow into a refused negative power
        check(overload, draw.tensor(sizes[0], first), draw.tensor(sizes[1], second), *more)


def test_three_operands() -> None:
    for draw, size, dtype in rounds("where"):
        a, b, c = (draw.tensor(draw.broadcastable(size), torch.float32) for _ in range(3))
        other = draw.tensor(draw.broadcastable(size), dtype)
        mask = draw.tensor(draw.broadcastable(size), torch.bool)
        check(aten.where.self, mask, a, other)
        check(aten.addcmul.default, a, b, c)
        check(aten.clamp.Tensor, a, b, other)
        check(aten.lerp.Tensor, a, b, c)
        check(aten.masked_fill.Scalar, a, mask, 1.0)


REDUCTIONS: list[tuple[OpOverload, bool]] = [
    *(
        (o, True)
        for o in overloads("sum.dim_IntList mean.dim amax any.dims var.correction logsumexp")
    ),
    *((o, False) for o in overloads("max.dim prod.dim_int argmin any.dim median.dim mode")),
]


@pytest.mark.parametrize(("overload", "many"), REDUCTIONS, ids=lambda v: str(v))
def test_reductions(overload: OpOverload, many: bool) -> None:
    for draw, size, dtype in rounds(overload):
        dim = draw.choice(range(-len(size), len(size))) if size else draw.choice((0, -1, 1))
        dims = sorted({dim, *draw.sample(range(len(size)), len(size) // 2)}) if many else dim
        x = draw.tensor(size, dtype)
        if overload is aten.var.correction:
            check(overload, x, dims, keepdim=draw.random() < 0.5)
        else:
            check(overload, x, dims, draw.random() < 0.5)


@pytest.mark.parametrize("overload", overloads("sort cumsum cummax logcumsumexp"), ids=str)
def test_along_a_dimension(overload: OpOverload) -> None:
    for draw, size, dtype in rounds(overload):
        dim = draw.randint(-1, max(len(size) - 1, 0))
        check(overload, draw.tensor(size, dtype), dim)


@pytest.mark.parametrize("overload", overloads("_softmax _log_softmax"), ids=str)
def test_softmax(overload: OpOverload) -> None:
    for draw, size, _ in rounds(overload):
        check(
            overload,
            draw.tensor(size, torch.float32),
            draw.randint(-1, max(len(size) - 1, 0)),
            False,
        )


class Found:
    """Answers of a data-dependent rule: the sizes eager found."""

    def __init__(self, *sizes: int) -> None:
        self.sizes = list(sizes)

    def size(self, upper: int | None = None, lower: int = 0) -> int:
        n = self.sizes.pop(0)
        assert lower <= n
        assert upper is None or n <= upper
        return n


def test_unique_along_a_dimension() -> None:
    """The dimension of the distinct slices comes first in memory."""
    x = torch.arange(24).view(2, 3, 4).permute(2, 0, 1)
    for dim in range(-3, 3):
        want = aten.unique_dim.default(x, dim)
        rule = operator(aten.unique_dim.default).rule
        assert rule is not None
        got = outcome(lambda: rule(Found(want[0].shape[dim]), type_of(x), dim))  # noqa: B023
        assert got == outcome(lambda: want)  # noqa: B023


assert lostwax.ops
