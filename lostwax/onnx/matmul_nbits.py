"""Products with weights of four bits as `MatMulNBits`, onnxruntime's own operator, for who asks for
it: no runtime has to find the pattern then.

Must not know of programs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import onnx_ir as ir
import torch

from lostwax.onnx.patterns.fusions import find_maker
from lostwax.onnx.values import OnnxTensor
from lostwax.onnx.weights import take_place
from lostwax.onnx.writer import NarrowTensor, OnnxWriter

_DOMAIN, _BITS = "com.microsoft", 4
_LEAST_GROUP = 16


class _BlockedMatrix(NamedTuple):
    """A matrix of int8, a row for each column of the product, and its scales and zero points, a
    column for each group."""

    name: str
    data: torch.Tensor
    scale: torch.Tensor
    zero: torch.Tensor


def use_matmul_nbits(
    on: OnnxWriter, nodes: Sequence[ir.Node], outputs: list[ir.Value]
) -> list[ir.Node]:
    """The nodes with such products; the list of outputs is rewritten, too."""
    made: list[ir.Node] = []
    on.scope.nodes = made
    for node in nodes:
        weight = _find_weight(node)
        if weight is None:
            made.append(node)
            continue
        on.at, on.meta = node.outputs[0].name or "", node.metadata_props
        on.modules = node.meta["modules"]
        take_place(node, _write(on, node, weight).value, outputs)
    return made


def _find_weight(node: ir.Node) -> _BlockedMatrix | None:
    if node.domain or node.op_type not in ("MatMul", "Gemm"):
        return None
    options = {name: value.value for name, value in node.attributes.items()}
    is_turned = bool(options.pop("transB", 0))
    if options or len(node.inputs) < 2:
        return None
    maker = find_maker(node.inputs[1], "DequantizeLinear")
    if maker is None or len(maker.inputs) != 3:
        return None
    held, scale, zero = (_read(each) for each in maker.inputs)
    if held is None or scale is None or zero is None or scale.dtype is not torch.float32:
        return None
    axis, group = (maker.attributes[name].as_int() for name in ("axis", "block_size"))
    if axis != (1 if is_turned else 0) or group < _LEAST_GROUP or group & (group - 1):
        return None
    parts = (held, scale, zero)
    name = maker.inputs[0].name if maker.inputs[0] is not None else ""
    return _BlockedMatrix(name or "weight", *(parts if is_turned else [each.t() for each in parts]))


def _read(value: ir.Value | None) -> torch.Tensor | None:
    """What the model holds; of four bits as int8."""
    held: Any = None if value is None else value.const_value
    if isinstance(held, NarrowTensor):
        return held.wide
    data = getattr(held, "raw", None)
    is_scale = isinstance(data, torch.Tensor) and data.dtype is torch.float32
    return data if is_scale else None


def _write(on: OnnxWriter, node: ir.Node, weight: _BlockedMatrix) -> OnnxTensor:
    x, bias = node.inputs[0], node.inputs[2] if len(node.inputs) > 2 else None
    assert x is not None
    columns, width = weight.data.shape
    groups = weight.scale.shape[1]
    inputs: list[OnnxTensor | None] = [OnnxTensor(x, torch.float32)]
    blocks = _pack(weight.data).reshape(columns, groups, -1)
    for name, data in (
        ("", blocks),
        (".scale", weight.scale.contiguous()),
        (".zero_point", _pack(weight.zero)),
    ):
        inputs.append(on.hold(on.free_name(f"{weight.name}.nbits{name}"), data))
    inputs += [None, None if bias is None else OnnxTensor(bias, torch.float32)]
    return on.several(
        "MatMulNBits",
        *inputs,
        domain=_DOMAIN,
        K=width,
        N=columns,
        bits=_BITS,
        block_size=width // groups,
    )[0]


def _pack(data: torch.Tensor) -> torch.Tensor:
    """Two numbers of -8 to 7 in a byte, as 0 to 15, the first one in its lower half; a row whose
    count is odd ends in a half that nobody reads."""
    wide = (data.to(torch.int16) + 8).to(torch.uint8)
    if wide.shape[1] % 2:
        wide = torch.nn.functional.pad(wide, (0, 1))
    return wide[:, ::2] | (wide[:, 1::2] << _BITS)
