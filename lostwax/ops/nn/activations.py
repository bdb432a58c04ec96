"""Activations and their backward forms: the pointwise operators of neural networks.

Layouts and promotion are those of `pointwise.py`. Most operators are rows of a table; some have a
rule of their own (`glu`, `log_sigmoid`). Must not know of dropout or of noise (`random.py`).
"""

from __future__ import annotations

import torch

from lostwax.ops.elementwise import (
    BOOL_OR_COMPLEX,
    NOT_FLOATS,
    WHOLE,
    Dtypes,
    binary,
    nary,
    new_like,
    refuse_dtype,
    register_table,
    unary,
    unary_same_rule,
)
from lostwax.ops.registry import Rule, mark, rule
from lostwax.ops.shapes import (
    Scalar,
    TensorType,
    broadcast_sizes,
    fail,
    is_met,
    promote,
    wrap_dim,
)
from lostwax.ops.spelling import raise_not_implemented, require_floating, scalar_type
from lostwax.ops.traits import Trait
from lostwax.sym import eq
from lostwax.torch_version import BOOL_ERROR


def _backward_rule(name: str, refused: Dtypes) -> Rule:
    def backward(grad: TensorType, x: TensorType, *_: object, **__: object) -> TensorType:
        dtype = grad.dtype if grad.dtype is x.dtype else promote(grad, x)
        if dtype in refused:
            refuse_dtype(name, dtype, grad.device.type)
        return binary(grad, x, dtype)

    return backward


def _backward_rule_input_first(name: str, refused: Dtypes) -> Rule:
    """This kernel takes the input first, so that its layout wins where the two differ."""
    backward = _backward_rule(name, refused)

    def swap(grad: TensorType, x: TensorType, *_: object) -> TensorType:
        return backward(x, grad)  # type: ignore[no-any-return]

    return swap


register_table(
    unary_same_rule,
    {
        "celu elu hardshrink hardsigmoid hardswish leaky_relu mish": NOT_FLOATS,
        "softplus": NOT_FLOATS,
        "silu": WHOLE,
        "threshold": BOOL_OR_COMPLEX,
    },
)
register_table(
    _backward_rule,
    {
        "gelu_backward hardsigmoid_backward hardswish_backward hardtanh_backward": NOT_FLOATS,
        "hardshrink_backward logit_backward": NOT_FLOATS,
        "softplus_backward softshrink_backward": NOT_FLOATS,
        "sigmoid_backward silu_backward tanh_backward": WHOLE,
    },
)
register_table(
    _backward_rule_input_first,
    {
        "leaky_relu_backward": NOT_FLOATS,
        "threshold_backward": BOOL_OR_COMPLEX,
    },
)


@rule("relu")
def relu(x: TensorType) -> TensorType:
    if x.dtype is torch.bool:
        fail("Boolean inputs not supported for relu", BOOL_ERROR)
    if x.dtype.is_complex:
        fail("clamp is not supported for complex types", NotImplementedError)
    return unary(x, x.dtype)


mark(Trait.WRITES_ALIKE, "threshold_")


@rule("gelu")
def gelu(x: TensorType, *, approximate: str = "none") -> TensorType:
    if x.dtype in NOT_FLOATS:
        raise_not_implemented("GeluKernelImpl", x.dtype)
    if approximate != "none" and approximate != "tanh":
        fail("approximate argument must be either none or tanh.")
    return unary(x, x.dtype)


@rule("softshrink")
def softshrink(x: TensorType, lambd: Scalar = 0.5) -> TensorType:
    require_floating(x.dtype, "softshrink_check")
    if not is_met(lambd >= 0):
        fail(
            f"lambda must be in range [0, {torch.finfo(x.dtype).max:g}] for input dtype "
            f"{scalar_type(x.dtype)}, but found {lambd}"
        )
    return unary(x, x.dtype)


@rule("hardtanh")
def hardtanh(x: TensorType, min_val: Scalar = -1, max_val: Scalar = 1) -> TensorType:
    if x.dtype is torch.bool:
        fail("Bool inputs not supported for hardtanh", BOOL_ERROR)
    if x.dtype is torch.uint8 and (min_val < 0 or max_val < 0):
        fail("cannot do hardtanh on an unsigned type with negative limits")
    if x.dtype.is_complex:
        fail("clamp is not supported for complex types", NotImplementedError)
    return new_like(x)


@rule("elu_backward")
def elu_backward(
    grad: TensorType,
    alpha: Scalar,
    scale: Scalar,
    input_scale: Scalar,
    is_result: bool,
    self_or_result: TensorType,
) -> TensorType:
    if is_result and alpha < 0:
        fail(
            "In-place elu backward calculation is triggered with a negative slope "
            "which is not supported."
        )
    dtype = promote(grad, self_or_result)
    require_floating(dtype, "elu_backward_cpu")
    return binary(grad, self_or_result, dtype)


@rule("mish_backward")
def mish_backward(grad: TensorType, x: TensorType) -> TensorType:
    computed = promote(grad, x)
    require_floating(computed, "mish_backward_cpu")
    return binary(grad, x, x.dtype, computed)


@rule("log_sigmoid_forward")
def log_sigmoid_forward(x: TensorType) -> tuple[TensorType, TensorType]:
    """The second result is the kernel's buffer, which is empty except on the CPU."""
    require_floating(x.dtype, "log_sigmoid_cpu")
    out = x.fresh()
    return out, out if x.device.type == "cpu" else x.fresh((0,))


@rule("log_sigmoid_backward")
def log_sigmoid_backward(grad: TensorType, x: TensorType, buffer: TensorType) -> TensorType:
    require_floating(x.dtype, "log_sigmoid_backward_cpu")
    _require_same_dtype(x, grad)
    return new_like(grad)


def _require_same_dtype(expected: TensorType, *others: TensorType) -> None:
    for o in others:
        if o.dtype is not expected.dtype:
            fail(f"Found dtype {scalar_type(o.dtype)} but expected {scalar_type(expected.dtype)}")


@rule("_prelu_kernel")
def prelu(x: TensorType, weight: TensorType) -> TensorType:
    _require_same_dtype(x, weight)
    require_floating(x.dtype, "prelu_cpu")
    if broadcast_sizes((x.size, weight.size)) == x.size:
        return new_like(x)
    return binary(x, weight, x.dtype)


@rule("_prelu_kernel_backward")
def prelu_backward(
    grad: TensorType, x: TensorType, weight: TensorType
) -> tuple[TensorType, TensorType]:
    _require_same_dtype(x, weight, grad)
    require_floating(x.dtype, "prelu_backward_cpu")
    out = nary((x, weight, grad), x.dtype)
    return out, out


# ---------------------------------------------------------------------------------------------- glu


def _half(x: TensorType, dim: int) -> TensorType:
    """One half of `x` along a dimension, as the view that `narrow` returns."""
    if not x.size:
        fail("glu does not support 0-dimensional tensors")
    d = wrap_dim(dim, len(x.size))
    n = x.size[d]
    if not is_met(eq(n % 2, 0)):
        fail(f"Halving dimension must be even, but dimension {d} is size {n}")
    return x.replace(size=(*x.size[:d], n // 2, *x.size[d + 1 :]), stride=x.stride)


@rule("glu")
def glu(x: TensorType, dim: int = -1) -> TensorType:
    require_floating(x.dtype, "glu_cpu")
    return unary(_half(x, dim).replace(offset=0), x.dtype)


@rule("glu_backward")
def glu_backward(grad: TensorType, x: TensorType, dim: int) -> TensorType:
    _half(x, dim)
    return x.fresh()


@rule("glu_jvp")
def glu_jvp(out: TensorType, x: TensorType, dx: TensorType, dim: int) -> TensorType:
    return nary((out, _half(x, dim), _half(dx, dim)), out.dtype)
