"""Interpolation, taken apart here, since C++ reads plain sizes to compute those of the result.

The calls are those of C++: the kernel, with the output's size and the factors that were given. Must
not compute types itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch._ops import OpOverload

from lostwax.fake.symbolic.node import unwrap
from lostwax.ops.nn.resample import RESAMPLERS, output_sizes
from lostwax.ops.registry import Rule, aten, composite

if TYPE_CHECKING:
    from lostwax.fake.mode import FakeTensorMode


def _make_resample(kernel: OpOverload, aligned: bool) -> Rule:
    def resample(
        mode: FakeTensorMode,
        input: Any,
        output_size: Sequence[Any] | None,
        align_corners: bool,
        scale_factors: Sequence[float] | None,
    ) -> Any:
        x = mode.adopt(input)
        given = None if output_size is None else [unwrap(s) for s in output_size]
        size = output_sizes(x.fake_type.size, given, scale_factors)
        how = (align_corners,) if aligned else ()
        return mode.call(kernel, x, size, *how, *(scale_factors or ()))

    def resample_nearest(
        mode: FakeTensorMode,
        input: Any,
        output_size: Sequence[Any] | None,
        scale_factors: Sequence[float] | None,
    ) -> Any:
        return resample(mode, input, output_size, False, scale_factors)

    return resample if aligned else resample_nearest


for _name, (_, _aligned) in RESAMPLERS.items():
    _packet = getattr(aten, _name)
    composite(f"{_name}.vec")(_make_resample(_packet.default, _aligned))
