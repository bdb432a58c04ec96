"""What can be computed of weights alone, once: matrices are held as they are read, batch norms are
part of the convolution before them.

Must not know of programs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir
import torch

from lostwax.onnx.values import OnnxTensor
from lostwax.onnx.writer import OnnxWriter

TURNED, FOLDED = ".transposed", ".folded"
"""After the name of a weight that is held transposed, or scaled."""


def fold_weights(
    on: OnnxWriter,
    nodes: Sequence[ir.Node],
    inputs: Sequence[ir.Value],
    outputs: list[ir.Value],
    stays: Callable[[torch.Tensor], object],
) -> None:
    """Rewrite nodes that read weights, and the list of outputs. A weight that others read, too,
    stays as it is: it would be in the file twice; and so does one of which `stays` says it. What
    nobody reads any more stays among the nodes.
    """
    folder = _WeightFolder(on, set(inputs), outputs, stays)
    for node in nodes:
        if node.op_type == "Transpose":
            folder.transpose(node)
        elif node.op_type == "BatchNormalization":
            folder.normalize(node)


class _WeightFolder:
    def __init__(
        self,
        on: OnnxWriter,
        inputs: set[ir.Value],
        outputs: list[ir.Value],
        stays: Callable[[torch.Tensor], object],
    ) -> None:
        self.on, self.inputs, self.outputs, self.stays = on, inputs, outputs, stays

    def transpose(self, node: ir.Node) -> None:
        (source,), (made,) = node.inputs, node.outputs
        data = self._read(source)
        if data is None or source is None or not made.uses() or made in self.outputs:
            return
        turned = data.permute(*node.attributes["perm"].as_ints())
        made.replace_all_uses_with(self._hold(source, TURNED, turned).value)

    def _read(self, value: ir.Value | None) -> torch.Tensor | None:
        """The data of a weight that one node reads, and nobody replaces."""
        held: Any = None if value is None or value in self.inputs else value.const_value
        if held is None or value is None or len(value.uses()) != 1 or value in self.outputs:
            return None
        return None if self.stays(held.raw) else held.raw

    def _hold(self, source: ir.Value, ending: str, data: torch.Tensor) -> OnnxTensor:
        return self.on.hold(self.on.free_name(f"{source.name}{ending}"), data)

    def normalize(self, node: ir.Node) -> None:
        """Let the convolution before do it, too; computed in double precision, so that it is as
        near as can be."""
        x = node.inputs[0]
        before = None if x is None else x.producer()
        if x is None or before is None or before.op_type != "Conv" or before.domain:
            return
        if len(x.uses()) != 1 or x in self.outputs:
            return
        _, weight, *more = before.inputs
        bias = more[0] if more else None
        kernel = self._read(weight)
        terms = [self._read_term(each) for each in (*node.inputs[1:], bias)]
        if weight is None or kernel is None or any(each is None for each in terms[:4]):
            return
        scale, shift, mean, var, added = terms
        if scale is None or shift is None or mean is None or var is None:
            return
        if bias is not None and added is None:
            return
        factor = scale / torch.sqrt(var + node.attributes["epsilon"].as_float())
        wide = kernel.double() * factor.reshape(-1, *[1] * (kernel.dim() - 1))
        rest = shift - mean * factor + (0 if added is None else added * factor)
        self._widen_convolution(before, weight, wide.to(kernel.dtype), rest.to(kernel.dtype))
        take_place(node, x, self.outputs)

    def _read_term(self, value: ir.Value | None) -> torch.Tensor | None:
        held: Any = None if value is None or value in self.inputs else value.const_value
        return None if held is None else held.raw.detach().double()

    def _widen_convolution(
        self, before: ir.Node, weight: ir.Value, kernel: torch.Tensor, bias: torch.Tensor
    ) -> None:
        shift = self.on.hold(self.on.free_name(f"{weight.name}.bias{FOLDED}"), bias)
        before.resize_inputs(3)
        before.replace_input_with(1, self._hold(weight, FOLDED, kernel).value)
        before.replace_input_with(2, shift.value)


def take_place(node: ir.Node, made: ir.Value, outputs: list[ir.Value]) -> None:
    """Let a value be what a node gave, which nobody reads then."""
    (out,) = node.outputs
    for i in range(len(node.inputs)):
        node.replace_input_with(i, None)
    out.replace_all_uses_with(made)
    name, out.name = out.name, None
    made.name, made.shape = name, out.shape
    outputs[:] = [made if each is out else each for each in outputs]
