"""Normalizations: of batches, layers, groups, by root mean squares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from lostwax.onnx.operators.reductions import reduce
from lostwax.onnx.operators.shapes import reshape
from lostwax.onnx.table import translation
from lostwax.onnx.values import OnnxTensor
from lostwax.onnx.writer import OnnxWriter
from lostwax.sym import Expr, Size, known
from lostwax.types import product


def _vector(
    on: OnnxWriter, given: OnnxTensor | None, size: Any, value: float, dtype: torch.dtype
) -> OnnxTensor:
    """Weights, or what stands for those that are not there."""
    if given is not None:
        return on.cast(given, dtype)
    if not all(isinstance(n, int) for n in size):
        return on.Expand(on.constant([value], dtype), on.shape(tuple(size)))
    return on.constant(torch.full(tuple(size), value, dtype=dtype))


def _apply_statistics(
    on: OnnxWriter,
    input: OnnxTensor,
    weight: Any,
    bias: Any,
    mean: OnnxTensor,
    var: OnnxTensor,
    eps: float,
) -> OnnxTensor:
    channels, dtype = (input.size[1],), input.dtype
    return on.BatchNormalization(
        input,
        _vector(on, weight, channels, 1, dtype),
        _vector(on, bias, channels, 0, dtype),
        on.cast(mean, dtype),
        on.cast(var, dtype),
        epsilon=float(eps),
    )


@translation("_native_batch_norm_legit_no_training")
def batch_norm(
    on: OnnxWriter,
    input: OnnxTensor,
    weight: Any,
    bias: Any,
    mean: OnnxTensor,
    var: OnnxTensor,
    *rest: Any,
) -> list[Any]:
    made = _apply_statistics(on, input, weight, bias, mean, var, rest[1])
    nothing = on.constant(torch.empty(0, dtype=on.out[1].dtype))
    return [made, nothing, nothing]


@translation("_native_batch_norm_legit.no_stats")
def batch_norm_of_batch(
    on: OnnxWriter,
    input: OnnxTensor,
    weight: Any,
    bias: Any,
    training: bool,
    momentum: float,
    eps: float,
) -> list[OnnxTensor]:
    return _normalize_batch(on, input, weight, bias, eps)


@translation("_native_batch_norm_legit_functional")
def batch_norm_in_training(
    on: OnnxWriter,
    input: OnnxTensor,
    weight: Any,
    bias: Any,
    mean: OnnxTensor,
    var: OnnxTensor,
    training: bool,
    momentum: float,
    eps: float,
) -> list[OnnxTensor]:
    """The statistics of the batch, and the running ones moved towards them."""
    if not training:
        made = batch_norm(on, input, weight, bias, mean, var, momentum, eps)
        return [*made, mean, var]
    found = _normalize_batch(on, input, weight, bias, eps)
    axes = [0, *range(2, input.rank)]
    average = reduce(on, "ReduceMean", input, axes)
    apart = on.Sub(input, reduce(on, "ReduceMean", input, axes, True))
    total = reduce(on, "ReduceSum", on.Mul(apart, apart), axes)
    count = product([input.size[d] for d in axes])
    spread = on.Div(total, on.Sub(on.operand(count, total.dtype), on.constant(1, total.dtype)))
    moved = []
    for old, new in ((mean, average), (var, spread)):
        kept = on.Mul(old, on.constant(1 - momentum, old.dtype))
        more = on.Mul(on.cast(new, old.dtype), on.constant(momentum, old.dtype))
        moved.append(on.Add(kept, more))
    return [*found, *moved]


def _normalize_batch(
    on: OnnxWriter, input: OnnxTensor, weight: Any, bias: Any, eps: float
) -> list[OnnxTensor]:
    """By the mean and variance of the batch, which follow, the latter as one over its root."""
    axes = [0, *range(2, input.rank)]
    mean = reduce(on, "ReduceMean", input, axes, True)
    apart = on.Sub(input, mean)
    spread = reduce(on, "ReduceMean", on.Mul(apart, apart), axes, True)
    scale = on.Reciprocal(on.Sqrt(on.Add(spread, on.constant(eps, input.dtype))))
    made = _scale_channels(on, on.Mul(apart, scale), input.rank, weight, bias)
    kinds = [each.dtype for each in on.out[1:3]] if isinstance(on.out, list) else []
    return [
        made,
        *(
            on.cast(on.Squeeze(each, on.ints(*axes)), dtype)
            for each, dtype in zip((mean, scale), kinds, strict=False)
        ),
    ]


@translation("batch_norm")
def batch_norm_composite(
    on: OnnxWriter,
    input: OnnxTensor,
    weight: Any,
    bias: Any,
    mean: Any,
    var: Any,
    training: bool,
    momentum: float,
    eps: float,
    *_: Any,
) -> Any:
    if training or mean is None:
        return _normalize_batch(on, input, weight, bias, eps)[0]
    return _apply_statistics(on, input, weight, bias, mean, var, eps)


def _scale_channels(on: OnnxWriter, x: OnnxTensor, rank: int, weight: Any, bias: Any) -> OnnxTensor:
    """Times the weights, plus the biases, of the second dim."""
    after = on.ints(*range(1, rank - 1))
    for op, each in (("Mul", weight), ("Add", bias)):
        if each is not None:
            spread = on.Unsqueeze(each, after) if rank > 2 else each
            x = on.write(op, [x, spread])
    return x


@translation("native_layer_norm")
def native_layer_norm(
    on: OnnxWriter, input: OnnxTensor, shape: list[Size], weight: Any, bias: Any, eps: float
) -> list[OnnxTensor]:
    if not _has_some(shape):
        return _spell_layer_norm(on, input, shape, weight, bias, eps)
    scale = _vector(on, weight, shape, 1, input.dtype)
    made = on.several(
        "LayerNormalization",
        input,
        scale,
        None if bias is None else on.cast(bias, input.dtype),
        axis=-len(shape),
        epsilon=float(eps),
        outputs=3,
        dtype=[input.dtype, torch.float32, torch.float32],
    )
    return [on.cast(x, kind.dtype) for x, kind in zip(made, on.out, strict=True)]


@translation("layer_norm")
def layer_norm(
    on: OnnxWriter,
    input: OnnxTensor,
    shape: list[Size],
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
    *_: Any,
) -> OnnxTensor:
    if not _has_some(shape):
        return _spell_layer_norm(on, input, shape, weight, bias, eps)[0]
    scale = _vector(on, weight, shape, 1, input.dtype)
    return on.LayerNormalization(input, scale, bias, axis=-len(shape), epsilon=float(eps))


def _has_some(shape: Sequence[Size]) -> bool:
    """Is none of these sizes 0? Runtimes refuse to normalize nothing."""
    return all(known(n >= 1) is True if isinstance(n, Expr) else n >= 1 for n in shape)


def _spell_layer_norm(
    on: OnnxWriter, input: OnnxTensor, shape: Sequence[Size], weight: Any, bias: Any, eps: float
) -> list[OnnxTensor]:
    axes = list(range(input.rank - len(shape), input.rank))
    mean = reduce(on, "ReduceMean", input, axes, True)
    apart = on.Sub(input, mean)
    spread = reduce(on, "ReduceMean", on.Mul(apart, apart), axes, True)
    scale = on.Reciprocal(on.Sqrt(on.Add(spread, on.constant(eps, input.dtype))))
    made = on.Mul(apart, scale)
    made = made if weight is None else on.Mul(made, on.cast(weight, input.dtype))
    made = made if bias is None else on.Add(made, on.cast(bias, input.dtype))
    return [made, mean, scale]


@translation("native_group_norm")
def native_group_norm(
    on: OnnxWriter,
    input: OnnxTensor,
    weight: Any,
    bias: Any,
    n: Size,
    c: Size,
    hxw: Size,
    group: int,
    eps: float,
) -> list[Any]:
    parts = on.Reshape(input, on.shape((n, group, -1)))
    mean = reduce(on, "ReduceMean", parts, [2], True)
    apart = on.Sub(parts, mean)
    spread = reduce(on, "ReduceMean", on.Mul(apart, apart), [2], True)
    scale = on.Reciprocal(on.Sqrt(on.Add(spread, on.constant(eps, input.dtype))))
    statistics = [
        on.cast(on.Squeeze(each, on.ints(2)), kind.dtype)
        for each, kind in zip((mean, scale), on.out[1:], strict=True)
    ]
    return [_group_norm(on, input, group, weight, bias, eps), *statistics]


@translation("group_norm")
def group_norm(
    on: OnnxWriter,
    input: OnnxTensor,
    num_groups: int,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
    *_: Any,
) -> OnnxTensor:
    return _group_norm(on, input, num_groups, weight, bias, eps)


def _group_norm(
    on: OnnxWriter, input: OnnxTensor, group: int, weight: Any, bias: Any, eps: float
) -> OnnxTensor:
    dtype = input.dtype
    if on.opset >= 21 and isinstance(input.size[1], int):
        channels = (input.size[1],)
        scale, shift = (
            _vector(on, given, channels, value, dtype) for given, value in ((weight, 1), (bias, 0))
        )
        return on.GroupNormalization(input, scale, shift, num_groups=group, epsilon=float(eps))
    parts = on.Reshape(input, on.ints(0, group, -1))
    one, zero = (on.constant(torch.full((group,), v, dtype=dtype)) for v in (1.0, 0.0))
    normal = on.InstanceNormalization(parts, one, zero, epsilon=float(eps))
    back = reshape(on, normal, input.size)
    return _scale_channels(on, back, input.rank, weight, bias)


@translation("instance_norm")
def instance_norm(
    on: OnnxWriter,
    input: OnnxTensor,
    weight: Any,
    bias: Any,
    mean: Any,
    var: Any,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    *_: Any,
) -> OnnxTensor:
    if not use_input_stats:
        return _apply_statistics(on, input, weight, bias, mean, var, eps)
    channels, dtype = (input.size[1],), input.dtype
    scale, shift = _vector(on, weight, channels, 1, dtype), _vector(on, bias, channels, 0, dtype)
    return on.InstanceNormalization(input, scale, shift, epsilon=float(eps))


@translation("rms_norm", since=23)
def rms_norm(
    on: OnnxWriter,
    input: OnnxTensor,
    shape: list[Size],
    weight: Any = None,
    eps: float | None = None,
) -> OnnxTensor:
    scale = _vector(on, weight, shape, 1, input.dtype)
    least = torch.finfo(input.dtype).eps if eps is None else eps
    return on.RMSNormalization(input, scale, axis=-len(shape), epsilon=float(least))
