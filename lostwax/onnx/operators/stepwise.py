"""What ONNX has no operator for and is computed step by step: `Loop` and `Scan`."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir
import torch

from lostwax.onnx.operators.control import new_input, write_body
from lostwax.onnx.operators.shapes import broadcast
from lostwax.onnx.table import translation
from lostwax.onnx.values import OnnxTensor
from lostwax.onnx.writer import OnnxWriter


@translation("gcd")
def gcd(on: OnnxWriter, self: OnnxTensor, other: OnnxTensor) -> OnnxTensor:
    """Euclid's: until all rests are 0."""
    first = [
        on.Abs(on.cast(broadcast(on, each, on.out.size), torch.int64)) for each in (self, other)
    ]
    inputs = [new_input(on, torch.int64, f"{on.at}_in_{i}") for i in range(2)]
    turn, alive = (
        new_input(on, dtype, f"{on.at}_{name}", ir.Shape([]))
        for name, dtype in (("turn", torch.int64), ("alive", torch.bool))
    )

    def write() -> list[OnnxTensor]:
        a, b = inputs
        is_over = on.Equal(b, on.constant(0))
        rest = on.Mod(a, on.Where(is_over, on.constant(1), b))
        rest = on.Where(is_over, on.constant(0), rest)
        return [_is_some(on, rest), on.Where(is_over, a, b), rest]

    body = write_body(on, f"{on.at}_body", [turn, alive, *inputs], write)
    made = on.several(
        "Loop", None, _is_some(on, first[1]), *first, body=body, outputs=2, dtype=torch.int64
    )
    return on.cast(made[0], on.out.dtype)


def _is_some(on: OnnxWriter, x: OnnxTensor) -> OnnxTensor:
    """Is one of the numbers not 0?"""
    differs = on.cast(on.Not(on.Equal(x, on.constant(0))), torch.int64)
    return on.Greater(on.ReduceSum(differs, keepdims=0), on.constant(0))


@translation("logcumsumexp")
def logcumsumexp(on: OnnxWriter, self: OnnxTensor, dim: int) -> OnnxTensor:
    """Row by row: next to a large number, small ones before it would be lost."""
    if not self.rank:
        return self
    axis, dtype = dim % self.rank, self.dtype
    rest = [n for d, n in enumerate(self.size) if d != axis]
    least = torch.full((1,), float("-inf"), dtype=dtype)
    first = on.ConstantOfShape(on.shape(rest), value=least, dtype=dtype)
    inputs = [new_input(on, dtype, f"{on.at}_in_{i}") for i in range(2)]

    def write() -> list[OnnxTensor]:
        most = on.Max(*inputs)
        apart = on.Neg(on.Abs(on.Sub(*inputs)))
        near = on.Add(most, on.Log(on.Add(on.Exp(apart), on.constant(1, dtype))))
        made = on.Where(on.IsInf(most), most, near)
        return [made, made]

    return on.several(
        "Scan", first, self, body=write_body(on, f"{on.at}_body", inputs, write), num_scan_inputs=1,
        scan_input_axes=[axis], scan_output_axes=[axis], outputs=2, dtype=dtype,
    )[1]  # fmt: skip


def _so_far(compare: str) -> Callable[..., list[OnnxTensor]]:
    """The largest or smallest of what has been there, the last one of equals, and where it was."""

    def write(on: OnnxWriter, self: OnnxTensor, dim: int) -> list[OnnxTensor]:
        if not self.rank:
            return [self, on.constant(0, torch.int64)]
        axis, dtype = dim % self.rank, self.dtype
        rest = [n for d, n in enumerate(self.size) if d != axis]
        first = on.Gather(self, on.constant(0), axis=axis)
        none = torch.zeros(1, dtype=torch.int64)
        place = on.ConstantOfShape(on.shape(rest), value=none, dtype=torch.int64)
        places = on.Range(on.constant(0), on.scalar(self.size[axis]), on.constant(1))
        kinds = [dtype, torch.int64, dtype, torch.int64]
        inputs = [new_input(on, kind, f"{on.at}_in_{i}") for i, kind in enumerate(kinds)]

        def turn() -> list[OnnxTensor]:
            best, at, row, now = inputs
            is_new = on.write(compare, [row, best])
            if dtype.is_floating_point:
                is_new = on.Or(is_new, on.IsNaN(row))
            found = on.Where(is_new, row, best), on.Where(is_new, now, at)
            return [*found, *found]

        return on.several(
            "Scan", first, place, self, places, body=write_body(on, f"{on.at}_body", inputs, turn),
            num_scan_inputs=2, scan_input_axes=[axis, 0], scan_output_axes=[axis, axis], outputs=4,
            dtype=[dtype, torch.int64] * 2,
        )[2:]  # fmt: skip

    return write


translation("cummax")(_so_far("GreaterOrEqual"))
translation("cummin")(_so_far("LessOrEqual"))
