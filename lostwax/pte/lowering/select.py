"""Which kernels compute an operator, where its own kernel is slow or missing.

Each entry is a function of the writer and the node; it returns the tensor or the tensors that the
node stands for, or None: then the operator's own kernel is called. Must not plan memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

from lostwax.dialects.edge_operators import EdgeOperator
from lostwax.errors import LoweringError
from lostwax.ir.text import source_place
from lostwax.pte.lowering.writer import CallWriter

Selection = Callable[[CallWriter, Node], Any]


def select_addmm(writer: CallWriter, node: Node) -> Any:
    """`linear` of a transposed weight, else `mm` and `add`: the runtime's `addmm` is slow."""
    if node.kwargs:
        return None
    bias, source, weight = _nodes(node)
    out = writer.new_like(node.meta["val"])
    plain = find_transposed(weight)
    shape = bias.meta["val"].fake_type.size
    if plain is not None and shape == out.size[1:]:
        args = [writer.value(a) for a in (source, plain, bias)]
        return writer.call("aten::linear.out", *args, outs=[out])
    writer.call("aten::mm.out", writer.value(source), writer.value(weight), outs=[out])
    total = writer.new_like(node.meta["val"])
    return writer.call("aten::add.out", out, writer.value(bias), 1, outs=[total])


def select_mm(writer: CallWriter, node: Node) -> Any:
    """`linear` of a transposed weight, which need not be transposed then."""
    source, weight = _nodes(node)
    plain = find_transposed(weight)
    if plain is None:
        return None
    args = [writer.value(source), writer.value(plain), None]
    return writer.call("aten::linear.out", *args, outs=[writer.new_like(node.meta["val"])])


def _nodes(node: Node) -> Any:
    return node.args


def find_transposed(node: Node) -> Node | None:
    """The matrix that this node is the transpose of."""
    target, args = node.target, _nodes(node)
    name = target.name() if isinstance(target, EdgeOperator) else ""
    if name == "aten::permute_copy" and [d % 2 for d in args[1]] != [1, 0]:
        return None
    found: Node | None = args[0] if name in ("aten::permute_copy", "aten::t_copy") else None
    return found


def select_softmax(writer: CallWriter, node: Node) -> Any:
    """Along the last dimension by the operators that it is defined by: their kernels work on
    several elements at once, and need no second memory. Of nothing there is no maximum: `amax` ends
    the process."""
    args: Any = node.args
    value = node.meta["val"]
    x, last = writer.value(args[0]), value.ndim - 1
    if last < 0 or args[1] % value.ndim != last or x.dtype is not torch.float32:
        return None
    if any(writer.listing.least(s) < 1 for s in x.size):
        return None
    row = (*x.size[:-1], 1)
    most, total = (writer.listing.new_tensor(row, x.dtype) for _ in range(2))
    shifted, powers, out = (writer.new_like(value) for _ in range(3))
    writer.call("aten::amax.out", x, [last], True, outs=[most])
    writer.call("aten::sub.out", x, most, 1, outs=[shifted])
    writer.call("aten::exp.out", shifted, outs=[powers])
    writer.call("aten::sum.IntList_out", powers, [last], True, outs=[total])
    return writer.call("aten::div.out", powers, total, outs=[out])


def select_pool_backward(writer: CallWriter, node: Node) -> Any:
    """The runtime's kernel adds to what is there, so that zeros are written first."""
    out = writer.new_like(node.meta["val"])
    size = [writer.listing.number(s) for s in out.size]
    writer.call("aten::full.out", size, 0, outs=[out])
    args = [writer.value(a) for a in node.args]
    return writer.call("aten::max_pool2d_with_indices_backward.grad_input", *args, outs=[out])


def select_fourier(writer: CallWriter, node: Node) -> Any:
    """The kernel computes the half of the spectrum that the other half follows from."""
    args: Any = node.args
    if args[3]:
        return None
    raise LoweringError.at(
        "a whole spectrum (torch.fft.fft of real numbers) has no kernel in the ExecuTorch runtime",
        source_place(node),
        why="its kernel computes one half, and none makes complex numbers of real ones",
        instead="torch.fft.rfft, or products with matrices of cosines and sines",
    )


SELECTED: dict[str, Selection] = {
    "aten::_fft_r2c": select_fourier,
    "aten::_softmax": select_softmax,
    "aten::addmm": select_addmm,
    "aten::max_pool2d_with_indices_backward": select_pool_backward,
    "aten::mm": select_mm,
}
"""The selections by the name of the operator."""
