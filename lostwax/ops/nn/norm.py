"""Type rules of normalisation: batch, layer, group and RMS norm, weight norm.

Which form of batch norm arrives (with statistics, without, updating) depends on device and mode.
All return a tensor of the input's size and memory format, and statistics of one value a channel.
For a half-precision input with float32 parameters, the statistics are float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from lostwax import torch_version
from lostwax.ops.memory_format import fresh_like, suggested_format
from lostwax.ops.registry import Rule, mark, rule, writes_silently
from lostwax.ops.shapes import fail, is_met, require, show, wrap_dim
from lostwax.ops.spelling import require_floating
from lostwax.ops.traits import Trait
from lostwax.sym import Size, eq
from lostwax.types import Sizes, TensorType

Optional = TensorType | None
Three = tuple[TensorType, TensorType, TensorType]
Masked = tuple[TensorType | None, TensorType | None, TensorType | None]
_HALF = (torch.bfloat16, torch.float16)


def _statistics_dtype(x: TensorType, *parameters: Optional) -> torch.dtype:
    """The input's dtype; float32 for a half-precision input with float32 parameters."""
    for p in parameters:
        if p is not None and p.dtype is not x.dtype:
            if x.dtype not in _HALF:
                fail("mixed dtype (CPU): all inputs must share same datatype.")
            if any(q is not None and q.dtype is not torch.float32 for q in parameters):
                fail("mixed dtype (CPU): expect parameter to have scalar type of Float")
            return torch.float32
    return x.dtype


# --------------------------------------------------------------------------------------- batch norm


def _require_channels(x: TensorType, **parameters: Optional) -> Size:
    if len(x.size) < 2:
        wrap_dim(1, len(x.size))
    c = x.size[1]
    for name, p in parameters.items():
        if p is None:
            continue
        ok = eq(p.size[0], c) if len(p.size) == 1 else False
        if ok is not True:
            have = p.size[0] if len(p.size) == 1 else show(p.size)
            if not is_met(ok):
                fail(f"{name} should contain {c} elements not {have}")
    return c


@rule("native_batch_norm", "_native_batch_norm_legit")
def native_batch_norm(
    input: TensorType,
    weight: Optional,
    bias: Optional,
    running_mean: Optional,
    running_var: Optional,
    training: bool,
    *_: object,
    **__: object,
) -> Three:
    c = _require_channels(
        input, running_mean=running_mean, running_var=running_var, weight=weight, bias=bias
    )
    dtype = input.dtype
    if weight is not None or running_mean is not None or bias is not None:
        dtype = _statistics_dtype(input, weight, bias, running_mean, running_var)
    require_floating(input.dtype, "batch_norm")
    if training:
        for s in input.size:
            ok = s >= 1
            if ok is not True and not is_met(ok):
                fail(
                    "input tensor must have at least one element, "
                    f"but got input_sizes = {show(input.size)}"
                )
    saved = input.fresh((c if training or input.device.type == "cuda" else 0,), dtype)
    return fresh_like(input, input.size), saved, saved


writes_silently(
    "training",
    "native_batch_norm batch_norm _batch_norm_impl_index cudnn_batch_norm",
    "miopen_batch_norm",
)
writes_silently("use_input_stats", "instance_norm")
mark(Trait.DECLARED_ELSEWHERE, "native_batch_norm")
mark(Trait.ONE_FOR_ONE, "batch_norm layer_norm group_norm")


@rule("_native_batch_norm_legit.no_stats")
def native_batch_norm_without_statistics(
    input: TensorType, weight: Optional, bias: Optional, training: bool, *_: object, **__: object
) -> Any:
    return native_batch_norm(input, weight, bias, None, None, training)


@rule("_native_batch_norm_legit_functional")
def native_batch_norm_functional(
    input: TensorType,
    weight: Optional,
    bias: Optional,
    running_mean: TensorType,
    running_var: TensorType,
    training: bool,
    *_: object,
    **__: object,
) -> tuple[TensorType, ...]:
    out = native_batch_norm(input, weight, bias, running_mean, running_var, training)
    return (*out, running_mean.fresh(), running_var.fresh())


def _batch_norm_rule(
    training: bool, *, has_reserve: bool = True, is_functional: bool = False
) -> Rule:
    """The rule of an overload that does not take `training`. It may also return memory for cuDNN,
    and the new statistics."""

    def batch_norm(
        input: TensorType,
        weight: Optional,
        bias: Optional,
        running_mean: Optional,
        running_var: Optional,
        *_: object,
        **__: object,
    ) -> tuple[TensorType, ...]:
        given = (running_mean, running_var)
        out = native_batch_norm(input, weight, bias, *given, training)
        reserve = [input.fresh((0,), torch.uint8)] if has_reserve else []
        updated = [each.fresh() for each in given if each is not None] if is_functional else []
        return (*out, *reserve, *updated)

    return batch_norm


rule("_native_batch_norm_legit_no_training")(_batch_norm_rule(False, has_reserve=False))
rule("_batch_norm_no_update")(_batch_norm_rule(False))
rule("_batch_norm_with_update")(_batch_norm_rule(True))
rule("_batch_norm_with_update_functional")(_batch_norm_rule(True, is_functional=True))


@rule("batch_norm_update_stats")
def batch_norm_update_stats(
    input: TensorType, running_mean: Optional, running_var: Optional, momentum: float
) -> tuple[TensorType, TensorType]:
    c = _require_channels(input, running_mean=running_mean, running_var=running_var)
    saved = input.fresh((c,), _statistics_dtype(input, running_mean, running_var))
    return saved, saved


@rule("batch_norm_stats")
def batch_norm_stats(input: TensorType, eps: float) -> tuple[TensorType, TensorType]:
    """For synchronised batch norm (on accelerators). Statistics are never in half precision."""
    dtype = torch.float32 if input.dtype in _HALF else input.dtype
    saved = input.fresh((_require_channels(input),), dtype)
    return saved, saved


@rule("batch_norm_elemt")
def batch_norm_elemt(input: TensorType, *_: object, **__: object) -> TensorType:
    return fresh_like(input, input.size)


def _gradients(x: TensorType, c: Size, dtype: torch.dtype, output_mask: Sequence[bool]) -> Masked:
    per_channel = x.fresh((c,), dtype)
    return (
        fresh_like(x, x.size) if output_mask[0] else None,
        per_channel if output_mask[1] else None,
        per_channel if output_mask[2] else None,
    )


@rule("native_batch_norm_backward", "batch_norm_backward")
def native_batch_norm_backward(
    grad_out: TensorType,
    input: TensorType,
    weight: Optional,
    running_mean: Optional,
    running_var: Optional,
    save_mean: Optional,
    save_invstd: Optional,
    train: bool,
    eps: float,
    output_mask: Sequence[bool],
    *_: object,
    **__: object,
) -> Masked:
    dtype = _statistics_dtype(input, weight, running_mean, running_var)
    return _gradients(input, input.size[1], dtype, output_mask)


# ------------------------------------------------------------------------------- layer and RMS norm


def _first_normalized_dim(x: TensorType, shape: Sequence[Size], **parameters: Optional) -> int:
    """The first dimension of `x` that is normalised over."""
    if not shape:
        fail(
            "Expected normalized_shape to be at least 1-dimensional, i.e., containing at least one "
            "element, but got normalized_shape = []"
        )
    for name, p in parameters.items():
        if p is not None:
            text = (
                f"Expected {name} to be of same shape as normalized_shape, but got {name} of "
                f"shape {{}} and normalized_shape = {{}}"
            )
            _require_equal(p.size, shape, text)
    at = len(x.size) - len(shape)
    text = "Given normalized_shape={}, expected input with shape {}, but got input of size{}"
    if at < 0:
        fail(text.format(show(shape), show(("*", *shape)), show(x.size)))  # type: ignore[arg-type]
    for have, want in zip(x.size[at:], shape, strict=True):
        ok = eq(have, want)
        if ok is not True:
            require(ok, text.format(show(shape), show(("*", *shape)), show(x.size)))  # type: ignore[arg-type]
    return at


def _require_equal(have: Sizes, want: Sequence[Size], text: str) -> None:
    if len(have) != len(want):
        fail(text.format(show(have), show(want)))
    for a, b in zip(have, want, strict=True):
        ok = eq(a, b)
        if ok is not True:
            require(ok, text.format(show(have), show(want)))


def _statistics_size(x: TensorType, at: int) -> Sizes:
    return (*x.size[:at], *[1] * (len(x.size) - at))


@rule("native_layer_norm")
def native_layer_norm(
    input: TensorType,
    normalized_shape: Sequence[Size],
    weight: Optional,
    bias: Optional,
    eps: float,
) -> Three:
    at = _first_normalized_dim(input, normalized_shape, weight=weight, bias=bias)
    dtype = _statistics_dtype(input, weight, bias)
    require_floating(input.dtype, "LayerNormKernelImpl")
    saved = input.fresh(_statistics_size(input, at), dtype)
    return input.fresh(), saved, saved


@rule("native_layer_norm_backward")
def native_layer_norm_backward(
    grad_out: TensorType,
    input: TensorType,
    normalized_shape: Sequence[Size],
    mean: TensorType,
    rstd: TensorType,
    weight: Optional,
    bias: Optional,
    output_mask: Sequence[bool],
) -> Masked:
    shape = tuple(normalized_shape)
    parameter = weight if weight is not None else bias
    dtype = parameter.dtype if parameter is not None else input.dtype
    return (
        input.fresh() if output_mask[0] else None,
        input.fresh(shape, dtype) if output_mask[1] else None,
        input.fresh(shape, dtype) if output_mask[2] else None,
    )


@rule("_fused_rms_norm")
def fused_rms_norm(
    input: TensorType, normalized_shape: Sequence[Size], weight: Optional, eps: float | None
) -> tuple[TensorType, TensorType]:
    at = _first_normalized_dim(input, normalized_shape, weight=weight)
    dtype = torch.float32 if input.dtype in _HALF else input.dtype
    return input.fresh(), input.fresh(_statistics_size(input, at), dtype)


@rule("_fused_rms_norm_backward")
def fused_rms_norm_backward(
    grad_out: TensorType,
    input: TensorType,
    normalized_shape: Sequence[Size],
    rstd: TensorType,
    weight: Optional,
    output_mask: Sequence[bool],
) -> tuple[TensorType | None, TensorType | None]:
    return (
        input.fresh() if output_mask[0] else None,
        weight.fresh() if output_mask[1] and weight is not None else None,
    )


# --------------------------------------------------------------------------------------- group norm


@rule("native_group_norm")
def native_group_norm(
    input: TensorType,
    weight: Optional,
    bias: Optional,
    N: Size,
    C: Size,
    HxW: Size,
    group: int,
    eps: float,
) -> Three:
    if group < 1:
        fail(f"Expected num groups to be greater than 0, got {group}")
    if not is_met(eq(C % group, 0)):
        fail(
            "Expected number of channels in input to be divisible by num_groups, but got input of "
            f"shape {show(input.size)} and num_groups={group}"
        )
    for name, p in (("weight", weight), ("bias", bias)):
        if p is not None and not is_met(eq(p.size[0], C) if len(p.size) == 1 else False):
            fail(
                f"Expected {name} to be a vector of size equal to the number of channels in input, "
                f"but got {name} of shape {show(p.size)} and input of shape {show(input.size)}"
            )
    if torch_version.GROUP_NORM_TAKES_ANY_STRIDES:
        require(C >= 1, f"Expected number of channels to be greater than 0, got {C}")
        require(HxW >= 1, f"Expected HxW to be greater than 0, got {HxW}")
    count = eq(input.numel(), N * C * HxW)
    require(count, "Expected X.numel() == N * C * HxW to be true, but got false.")
    dtype = _statistics_dtype(input, weight, bias)
    require_floating(input.dtype, "GroupNormKernelImpl")
    if not torch_version.GROUP_NORM_TAKES_ANY_STRIDES:
        _require_dense(input)
    saved = input.fresh((N, group), dtype)
    return fresh_like(input, input.size), saved, saved


mark(Trait.READS_DENSE, "native_group_norm")


def _is_dense(x: TensorType) -> bool:
    """Is it dense in the memory format that it suggests? Strides of sizes of 1 do not matter."""
    row_major = suggested_format(x) is torch.contiguous_format
    return x.is_contiguous if row_major else x.is_channels_last


def _require_dense(x: TensorType) -> None:
    if not _is_dense(x):
        fail("Expected X.is_contiguous(memory_format) to be true, but got false.")


@rule("native_group_norm_backward")
def native_group_norm_backward(
    grad_out: TensorType,
    input: TensorType,
    mean: TensorType,
    rstd: TensorType,
    weight: Optional,
    N: Size,
    C: Size,
    HxW: Size,
    group: int,
    output_mask: Sequence[bool],
) -> Masked:
    dtype = weight.dtype if weight is not None else mean.dtype
    found = _gradients(input, C, dtype, output_mask)
    if torch_version.GROUP_NORM_TAKES_ANY_STRIDES and output_mask[0] and _is_dense(input):
        like = TensorType(input.size, input.dtype, input.device, input.stride)
        return like, *found[1:]
    return found


# -------------------------------------------------------------------------------------- weight norm


@rule("_weight_norm_interface")
def weight_norm_interface(
    v: TensorType, g: TensorType, dim: int = 0
) -> tuple[TensorType, TensorType]:
    if dim not in (0, len(v.size) - 1):
        fail("fused kernels can only be applied for first or last dim")
    require_floating(v.dtype, "weight_norm_kernel")
    # Eager does not check: its kernel would read past the end of a shorter `g`.
    require(eq(g.numel(), v.size[dim]), "weight_norm: g must have one number for each slice of v")
    return v.fresh(), g.fresh(dtype=g.dtype if g.dtype is torch.float64 else torch.float32)


mark(Trait.READS_IN_ORDER, "_weight_norm_interface")


@rule("_weight_norm_interface_backward")
def weight_norm_interface_backward(
    grad_w: TensorType, saved_v: TensorType, saved_g: TensorType, saved_norms: TensorType, dim: int
) -> tuple[TensorType, TensorType]:
    for name, x in (("saved_v", saved_v), ("saved_g", saved_g), ("saved_norms", saved_norms)):
        if not x.is_contiguous:
            fail(f"{name} must be contiguous")
    return saved_v.fresh(), saved_g.fresh()
