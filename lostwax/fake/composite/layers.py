"""Composite operators of layers, taken apart before C++ would do it: convolutions, pooling,
normalisation, losses.

`composites.py` says why. Must not compute types itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from lostwax.fake.composite.composites import contiguous, to_device
from lostwax.fake.fallback import run_cpp_parts
from lostwax.ops.registry import Rule, aten, composite, find_overload
from lostwax.ops.shapes import fail, hint, is_zero
from lostwax.sym import Size, decide, eq
from lostwax.types import product

if TYPE_CHECKING:
    from lostwax.fake.mode import FakeTensorMode


# ------------------------------------------------------------------------------------- convolutions


def _convolution(name: str, dimensions: int) -> Rule:
    def convolution(
        mode: FakeTensorMode,
        input: Any,
        weight: Any,
        bias: Any = None,
        stride: Sequence[Size] = (1,),
        padding: Sequence[Size] = (0,),
        dilation: Sequence[Size] = (1,),
        groups: Size = 1,
    ) -> Any:
        if mode.adopt(input).fake_type.dtype.is_complex:
            args = (input, weight, bias, stride, padding, dilation, groups)
            return run_cpp_parts(mode, find_overload(name), args, {})
        lists = [_spread(v, dimensions) for v in (stride, padding, dilation)]
        rest = (weight, bias, *lists, False, [0] * dimensions, groups)
        return _convolve(mode, input, rest, f"conv{dimensions}d", dimensions)

    return convolution


def _transposed_convolution(name: str, dimensions: int) -> Rule:
    def convolution(
        mode: FakeTensorMode,
        input: Any,
        weight: Any,
        bias: Any = None,
        stride: Sequence[Size] = (1,),
        padding: Sequence[Size] = (0,),
        output_padding: Sequence[Size] = (0,),
        groups: Size = 1,
        dilation: Sequence[Size] = (1,),
    ) -> Any:
        if mode.adopt(input).fake_type.dtype.is_complex:
            args = (input, weight, bias, stride, padding, output_padding, groups, dilation)
            return run_cpp_parts(mode, find_overload(name), args, {})
        lists = [_spread(v, dimensions) for v in (stride, padding, dilation)]
        rest = (weight, bias, *lists, True, _spread(output_padding, dimensions), groups)
        return _convolve(mode, input, rest, f"conv_transpose{dimensions}d", dimensions)

    return convolution


def _convolve(
    mode: FakeTensorMode, input: Any, rest: tuple[Any, ...], name: str, dimensions: int
) -> Any:
    """The convolution of a batch, or of a single input as a batch of one."""
    x = mode.adopt(input)
    if x.fake_type.ndim == dimensions + 2:
        return mode.call(aten.convolution.default, x, *rest)
    if x.fake_type.ndim != dimensions + 1:
        fail(
            f"Expected {dimensions + 1}D (unbatched) or {dimensions + 2}D (batched) "
            f"input to {name}, but got input of size: {list(x.fake_type.size)}"
        )
    out = mode.call(aten.convolution.default, mode.call(aten.unsqueeze.default, x, 0), *rest)
    return mode.call(aten.squeeze.dim, out, 0)


def _spread(values: Sequence[Size], count: int) -> list[Size]:
    return list(values) * count if len(values) == 1 else list(values)


for _n, _name in enumerate(("conv1d", "conv2d", "conv3d"), 1):
    composite(_name)(_convolution(_name, _n))
for _n, _name in enumerate(
    ("conv_transpose1d", "conv_transpose2d.input", "conv_transpose3d.input"), 1
):
    composite(_name)(_transposed_convolution(_name, _n))


# ------------------------------------------------------------------------------------------ pooling


@composite("max_pool2d")
def max_pool2d(mode: FakeTensorMode, *args: Any, **kwargs: Any) -> Any:
    return mode.call(aten.max_pool2d_with_indices.default, *args, **kwargs)[0]


@composite("adaptive_avg_pool2d")
def adaptive_avg_pool2d(mode: FakeTensorMode, self: Any, output_size: Sequence[Size]) -> Any:
    if len(output_size) == 2 and all(s.__class__ is int and s == 1 for s in output_size):
        x = mode.adopt(self)
        out = mode.call(aten.mean.dim, x, [-1, -2], True)
        if x.fake_type.is_channels_last:  # eager keeps the input's layout, even for sizes of 1
            out = mode.call(aten.clone.default, out, memory_format=torch.channels_last)
        return out
    return mode.call(aten._adaptive_avg_pool2d.default, self, output_size)


# ------------------------------------------------------------------------------------ normalisation


@composite("layer_norm")
def layer_norm(
    mode: FakeTensorMode,
    input: Any,
    normalized_shape: Sequence[Size],
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-05,
    cudnn_enable: bool = True,
) -> Any:
    return mode.call(aten.native_layer_norm.default, input, normalized_shape, weight, bias, eps)[0]


@composite("batch_norm")
def batch_norm(
    mode: FakeTensorMode,
    input: Any,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Any:
    if not training and (running_mean is None or running_var is None):
        fail("running_mean must be defined in evaluation mode")
    count = product(mode.adopt(input).fake_type.size)
    # In training the operator takes no empty input: the example decides whether it is empty.
    if is_zero(count) or (training and hint(count) == 0 and decide(eq(count, 0))):
        return _normalize_empty(mode, input, weight, bias)
    if mode.portable:
        return _portable_batch_norm(
            mode, input, weight, bias, running_mean, running_var, training, momentum, eps
        )
    return mode.call(
        aten.native_batch_norm.default,
        input, weight, bias, running_mean, running_var, training, momentum, eps,
    )[0]  # fmt: skip


def _normalize_empty(mode: FakeTensorMode, x: Any, weight: Any, bias: Any) -> Any:
    """As in eager, an empty batch does not change the statistics, and has gradients. The kernel's
    backward would divide by zero."""
    out = mode.call(aten.clone.default, x)
    if weight is not None:
        out = mode.call(aten.mul.Tensor, out, mode.call(aten.select.int, weight, 0, 0))
    if bias is not None:
        out = mode.call(aten.add.Tensor, out, mode.call(aten.select.int, bias, 0, 0))
    return out


def _portable_batch_norm(
    mode: FakeTensorMode,
    x: Any,
    weight: Any,
    bias: Any,
    mean: Any,
    var: Any,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    if not training:
        op = aten._native_batch_norm_legit_no_training.default
        return mode.call(op, x, weight, bias, mean, var, momentum, eps)[0]
    if mean is None or var is None:
        op = aten._native_batch_norm_legit.no_stats
        return mode.call(op, x, weight, bias, True, momentum, eps)[0]
    op = aten._native_batch_norm_legit.default
    return mode.call(op, x, weight, bias, mean, var, True, momentum, eps)[0]


@composite("group_norm")
def group_norm(
    mode: FakeTensorMode,
    input: Any,
    num_groups: int,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-05,
    cudnn_enabled: bool = True,
) -> Any:
    x = mode.adopt(input)
    t = x.fake_type
    if t.ndim < 2:
        fail(f"Expected at least 2 dimensions for input tensor but received {t.ndim}")
    is_last = t.is_channels_last and not t.is_contiguous
    x = contiguous(
        mode,
        x,
        memory_format=torch.channels_last if is_last and t.ndim == 4 else torch.contiguous_format,
    )
    n, c, pixels = t.size[0], t.size[1], product(t.size[2:])
    return mode.call(
        aten.native_group_norm.default, x, weight, bias, n, c, pixels, num_groups, eps
    )[0]


# ------------------------------------------------------------------------------------------- losses


@composite("ctc_loss.IntList")
def ctc_loss(mode: FakeTensorMode, *args: Any, **kwargs: Any) -> Any:
    # C++ writes the lengths into memory, which a fake does not have.
    return mode.reenter(_ctc_loss, args, kwargs)


@composite("ctc_loss.Tensor")
def ctc_loss_of_tensors(
    mode: FakeTensorMode,
    log_probs: Any,
    targets: Any,
    input_lengths: Any,
    target_lengths: Any,
    *rest: Any,
    **kwargs: Any,
) -> Any:
    """The lengths may be on the CPU, since eager reads them there."""
    device = mode.adopt(log_probs).fake_type.device
    others = (targets, input_lengths, target_lengths)
    moved = [to_device(mode, x, device, mode.adopt(x).fake_type.dtype) for x in others]
    return run_cpp_parts(mode, aten.ctc_loss.Tensor, (log_probs, *moved, *rest), kwargs)


def _ctc_loss(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: Sequence[int],
    target_lengths: Sequence[int],
    blank: int = 0,
    reduction: int = 1,
    zero_infinity: bool = False,
) -> torch.Tensor:
    lengths = (list(input_lengths), list(target_lengths))
    if targets.device != log_probs.device:  # cuDNN takes them on the CPU
        targets = targets.to(log_probs.device, torch.int64)
    loss: torch.Tensor = torch._ctc_loss(log_probs, targets, *lengths, blank, zero_infinity)[0]
    if zero_infinity:
        loss = torch.where(loss == float("inf"), torch.zeros_like(loss), loss)
    if reduction == 1:
        counts = torch.tensor(target_lengths, dtype=loss.dtype, device=loss.device)
        return (loss / counts.clamp_min(1)).mean()
    return loss.sum() if reduction == 2 else loss
