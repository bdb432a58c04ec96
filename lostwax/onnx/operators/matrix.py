"""Products of matrices. `MatMul` broadcasts, and `Gemm` transposes: what the program spells out for
that is not computed."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from lostwax.onnx.table import translation
from lostwax.onnx.values import OnnxTensor
from lostwax.onnx.writer import OnnxWriter


@translation("mm", "bmm", "matmul", "mv", "dot", "linalg_vecdot")
def matmul(on: OnnxWriter, self: OnnxTensor, mat2: OnnxTensor) -> OnnxTensor:
    """`w.expand(n, a, b)` as one operand is `w` itself: `MatMul` broadcasts."""
    dtype = self.dtype
    if self.rank > 2 and mat2.rank > 2:
        second = _without_expand(mat2, self)
        first = _without_expand(self, mat2) if second is mat2 else self
        self, mat2 = first, second
    return on.MatMul(self, on.cast(mat2, dtype))


def _without_expand(x: OnnxTensor, other: OnnxTensor) -> OnnxTensor:
    node = x.value.producer()
    if node is None or node.op_type != "Expand" or x.source is None:
        return x
    if other.size[:-2] != x.size[:-2]:
        return x
    inner = node.inputs[0]
    assert inner is not None
    source = x.source.args[0].meta["val"].fake_type
    if source.size[-2:] != x.size[-2:]:
        return x
    return OnnxTensor(inner, x.dtype, source)


def _without_transpose(x: OnnxTensor) -> tuple[ir.Value, bool]:
    """A matrix, and whether it is to be transposed."""
    node = x.value.producer()
    if node is not None and node.op_type == "Transpose":
        perm = node.attributes["perm"].as_ints()
        if list(perm) == [1, 0] and node.inputs[0] is not None:
            return node.inputs[0], True
    return x.value, False


@translation("addmm")
def addmm(
    on: OnnxWriter,
    self: OnnxTensor,
    mat1: OnnxTensor,
    mat2: OnnxTensor,
    *,
    beta: Any = 1,
    alpha: Any = 1,
) -> OnnxTensor:
    # onnxruntime leaves `beta` out where there is nothing to multiply
    if not mat1.dtype.is_floating_point or mat1.size[1] == 0:
        made = on.MatMul(mat1, mat2)
        made = made if alpha == 1 else on.Mul(made, on.operand(alpha, mat1.dtype))
        more = self if beta == 1 else on.Mul(self, on.operand(beta, mat1.dtype))
        return on.Add(made, more)
    inner, is_turned = _without_transpose(mat2)
    return on.Gemm(
        mat1,
        OnnxTensor(inner, mat2.dtype),
        self,
        transB=1 if is_turned else None,
        alpha=float(alpha) if alpha != 1 else None,
        beta=float(beta) if beta != 1 else None,
    )


@translation("linear")
def linear(
    on: OnnxWriter, input: OnnxTensor, weight: OnnxTensor, bias: OnnxTensor | None = None
) -> OnnxTensor:
    if input.rank == 2 and weight.rank == 2 and bias is not None:
        return on.Gemm(input, weight, bias, transB=1)
    turned = on.Transpose(weight, perm=[1, 0]) if weight.rank == 2 else weight
    made = on.MatMul(input, turned)
    return made if bias is None else on.Add(made, bias)


@translation("baddbmm")
def baddbmm(
    on: OnnxWriter,
    self: OnnxTensor,
    batch1: OnnxTensor,
    batch2: OnnxTensor,
    *,
    beta: Any = 1,
    alpha: Any = 1,
) -> OnnxTensor:
    made = on.MatMul(batch1, batch2)
    made = made if alpha == 1 else on.Mul(made, on.operand(alpha, batch1.dtype))
    if beta == 0:
        return made
    more = self if beta == 1 else on.Mul(self, on.operand(beta, batch1.dtype))
    return on.Add(made, more)


@translation("_linalg_det")
def determinant(on: OnnxWriter, A: OnnxTensor) -> list[Any]:
    return [on.Det(A), None, None]
