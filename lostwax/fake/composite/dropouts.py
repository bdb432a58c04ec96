"""Dropout of every kind, taken apart here: C++ asks whether there is anything to drop, and this
guard would exclude size 0 for nothing.

The calls are those of C++, in the same order, so that the random numbers are eager's. Must not
compute types itself.
"""

from __future__ import annotations

from functools import partial
from math import sqrt
from typing import TYPE_CHECKING, Any

import torch

from lostwax.ops.registry import aten, composite, itself
from lostwax.ops.shapes import fail, is_zero
from lostwax.types import product

if TYPE_CHECKING:
    from lostwax.fake.mode import FakeTensorMode

_DROPS_AT_ONCE = ("cuda", "xpu")
"""Types of devices on which one kernel of C++ draws and drops, and draws other numbers."""
_ALPHA = 1.7580993408473766  # minus what SELU tends to, to the left


def dropout(
    mode: FakeTensorMode,
    input: Any,
    p: float,
    train: bool,
    *,
    in_place: bool = False,
    by_channel: bool = False,
    alpha: bool = False,
) -> Any:
    """`by_channel` drops whole channels; `alpha` keeps mean and variance."""
    if not 0 <= p <= 1:
        fail(f"dropout probability has to be between 0 and 1, but got {p}")
    t = mode.adopt(input).fake_type
    if p == 0 or not train or is_zero(product(t.size)):
        return input
    multiply = aten.mul_.Tensor if in_place else aten.mul.Tensor
    if p == 1:
        zero = mode.call(aten.zeros.default, [], dtype=t.dtype, device=t.device)
        return mode.call(multiply, input, zero)
    if t.device.type in _DROPS_AT_ONCE and not (in_place or by_channel or alpha):
        return mode.call(aten.native_dropout.default, input, p, train)[0]
    noise = _channel_noise(mode, input) if by_channel else _noise(mode, input)
    noise = mode.call(aten.bernoulli_.float, noise, 1 - p)
    if not alpha:
        return mode.call(multiply, input, mode.call(aten.div_.Scalar, noise, 1 - p))
    scale = 1.0 / sqrt((_ALPHA * _ALPHA * p + 1) * (1 - p))
    shift = mode.call(aten.add.Scalar, noise, -1)
    shift = mode.call(aten.mul_.Scalar, shift, _ALPHA * scale)
    shift = mode.call(aten.add_.Scalar, shift, _ALPHA * scale * p)
    noise = mode.call(aten.mul_.Scalar, noise, scale)
    return mode.call(aten.add_.Tensor, mode.call(multiply, input, noise), shift)


def _noise(mode: FakeTensorMode, input: Any) -> Any:
    return mode.call(aten.empty_like.default, input, memory_format=torch.preserve_format)


def _channel_noise(mode: FakeTensorMode, input: Any) -> Any:
    size = mode.adopt(input).fake_type.size
    if len(size) < 2:
        fail("Feature dropout requires at least 2 dimensions in the input")
    return mode.call(aten.new_empty.default, input, [*size[:2], *(1,) * (len(size) - 2)])


def _does_nothing(input: Any, p: float, train: bool) -> bool:
    return p == 0 or not train


_KINDS: dict[str, dict[str, Any]] = {
    "dropout": {},
    "feature_dropout": {"by_channel": True},
    "alpha_dropout": {"alpha": True},
    "feature_alpha_dropout": {"by_channel": True, "alpha": True},
}
for _name, _how in _KINDS.items():
    itself(_name)(_does_nothing)
    composite(_name)(partial(dropout, **_how))
    composite(f"{_name}_")(partial(dropout, in_place=True, **_how))
