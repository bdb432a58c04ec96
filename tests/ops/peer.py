"""torch's own FakeTensorMode behind the `Fakes` protocol: the yardstick of our figures."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import sympy
import torch
from torch import Tensor
from torch._subclasses import fake_tensor as peer
from torch.fx.experimental.symbolic_shapes import (
    GuardOnDataDependentSymNode,
    ShapeEnv,
    free_unbacked_symbols,
)

from tests.ops.conformance import Seen


class TorchFakes:
    refusals = (
        peer.DataDependentOutputException,
        peer.DynamicOutputShapeException,
        peer.UnsupportedOperatorException,
        peer.UnsupportedFakeTensorException,
        GuardOnDataDependentSymNode,
    )

    def __init__(self) -> None:
        self.env = ShapeEnv(allow_scalar_outputs=True, allow_dynamic_output_shape_ops=True)
        self.mode = peer.FakeTensorMode(shape_env=self.env)

    def running(self) -> AbstractContextManager[Any]:
        return self.mode

    def fake(self, t: Tensor) -> Any:
        return self.mode.from_tensor(t, static_shapes=True)

    def seen(self, t: Any) -> Seen | str:
        if not isinstance(t, peer.FakeTensor):
            return f"eager a tensor, fake {type(t).__name__}"
        return Seen(
            tuple(t.shape),
            tuple(t.stride()),
            t.storage_offset(),
            t.dtype,
            t.device,
            t.layout,
            t.untyped_storage()._cdata,
        )

    def read(self, size: Any, binding: dict[Any, int], want: int) -> int | None:
        if not isinstance(size, torch.SymInt):
            return int(size)
        expr = size.node.expr
        for symbol in free_unbacked_symbols(size):
            if symbol not in binding and expr == symbol:
                bounds = self.env.bound_sympy(symbol)
                if not bounds.lower <= want <= bounds.upper:
                    return None
                binding[symbol] = want
        value = sympy.sympify(expr.xreplace(binding))
        return int(value) if value.is_number else None
