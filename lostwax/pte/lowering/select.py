"""Which kernels compute an operator, where its own kernel is slow or missing.

Each entry is a function of the writer and the node; it returns the tensor or the tensors that the
node stands for, or None: then the operator's own kernel is called. Must not plan memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch.fx import Node

from lostwax.dialects.edge_operators import EdgeOperator
from lostwax.errors import LoweringError
from lostwax.ir.text import source_place
from lostwax.pte.lowering.listing import Tensor
from lostwax.pte.lowering.writer import CallWriter

Selection = Callable[[CallWriter, Node], Any]


def select_addmm(writer: CallWriter, node: Node) -> Any:
    """`linear` of a transposed weight, else `mm` and `add`: the runtime's `addmm` is slow. A bias
    that counts 0 times is not read, as it may be NaN."""
    if node.kwargs.get("beta", 1) == 0:
        return _select_scaled_mm(writer, node)
    if node.kwargs:
        return None
    bias, source, weight = _nodes(node)
    value = node.meta["val"]
    plain = find_transposed(weight)
    shape = bias.meta["val"].fake_type.size
    is_row = shape == value.fake_type.size[1:]
    if plain is not None and is_row and not sums_nothing(writer, source):
        args = [writer.value(a) for a in (source, plain, bias)]
        return writer.call("aten::linear.out", *args, outs=[writer.new_like(value)])
    out = _new_product(writer, source, value)
    writer.call("aten::mm.out", writer.value(source), writer.value(weight), outs=[out])
    total = writer.new_like(value)
    return writer.call("aten::add.out", out, writer.value(bias), 1, outs=[total])


def _select_scaled_mm(writer: CallWriter, node: Node) -> Any:
    _, source, weight = _nodes(node)
    out = _new_product(writer, source, node.meta["val"])
    writer.call("aten::mm.out", writer.value(source), writer.value(weight), outs=[out])
    factor = node.kwargs.get("alpha", 1)
    if factor == 1:
        return out
    scaled = writer.new_like(node.meta["val"])
    return writer.call("aten::mul.Scalar_out", out, factor, outs=[scaled])


def select_mm(writer: CallWriter, node: Node) -> Any:
    """`linear` of a transposed weight, which need not be transposed then."""
    source, weight = _nodes(node)
    plain = find_transposed(weight)
    out = _new_product(writer, source, node.meta["val"])
    if plain is None:
        args = [writer.value(a) for a in (source, weight)]
        return writer.call("aten::mm.out", *args, outs=[out])
    args = [writer.value(source), writer.value(plain), None]
    return writer.call("aten::linear.out", *args, outs=[out])


def select_bmm(writer: CallWriter, node: Node) -> Any:
    source = _nodes(node)[0]
    if not sums_nothing(writer, source):
        return None
    out = _new_product(writer, source, node.meta["val"])
    return writer.call("aten::bmm.out", *[writer.value(a) for a in node.args], outs=[out])


def sums_nothing(writer: CallWriter, source: Node) -> bool:
    """Can the rows of a product's first factor be empty?"""
    return writer.listing.least(source.meta["val"].fake_type.size[-1]) == 0


def _new_product(writer: CallWriter, source: Node, value: Any) -> Tensor:
    """Memory for a product. Where rows are empty, the kernels write nothing: it is 0 before."""
    out = writer.new_like(value)
    if sums_nothing(writer, source):
        fill_with_zeros(writer, out)
    return out


def fill_with_zeros(writer: CallWriter, out: Tensor) -> None:
    writer.call("aten::full.out", [writer.listing.number(s) for s in out.size], 0, outs=[out])


def select_cat(writer: CallWriter, node: Node) -> Any:
    """The kernel leaves tensors without elements out, and their sizes with them: the result is seen
    with its own again."""
    out = writer.new_like(node.meta["val"])
    args: Any = node.args
    parts, dim = writer.value(args[0]), (args[1] if len(args) > 1 else 0) % len(out.size)
    others = [size for at, size in enumerate(out.size) if at != dim]
    if not out.is_dynamic or not any(writer.listing.least(s) == 0 for s in others):
        return writer.call("aten::cat.out", parts, dim, outs=[out])
    seen = replace(out)
    for size in out.size:
        writer.listing.number(size)  # before the kernel's own sizes could be read
    writer.call("aten::cat.out", parts, dim, outs=[out])
    writer.listing.write_view(out, seen)
    return seen


def select_pad(writer: CallWriter, node: Node) -> Any:
    """The kernel adds a border, and takes none away: that is a slice before it."""
    args: Any = node.args
    around, x = list(args[1]), writer.value(args[0])
    if not any(isinstance(n, int) and n < 0 for n in around):
        return None
    border = args[2] if len(args) > 2 else node.kwargs.get("value", 0)
    size = list(x.size)
    for k, (before, after) in enumerate(zip(around[::2], around[1::2], strict=True)):
        cut = [min(n, 0) if isinstance(n, int) else 0 for n in (before, after)]
        if any(cut):
            dim = len(size) - 1 - k
            size[dim] = size[dim] + sum(cut)
            end = cut[1] or _LAST
            out = writer.listing.new_tensor(size, x.dtype)
            x = writer.call("aten::slice_copy.Tensor_out", x, dim, -cut[0], end, 1, outs=[out])
    left = [max(n, 0) if isinstance(n, int) else writer.value(n) for n in around]
    if left == [0] * len(left):
        return x
    out = writer.new_like(node.meta["val"])
    return writer.call("aten::constant_pad_nd.out", x, left, border, outs=[out])


def select_extreme(writer: CallWriter, node: Node) -> Any:
    """The kernels end the process if there are no elements; those that also say where the extreme
    is do not."""
    args: Any = node.args
    x, value = writer.value(args[0]), node.meta["val"]
    if all(writer.listing.least(s) for s in x.size):
        return None
    dims = args[1] if len(args) > 1 else ()
    kernel = "max.dim_max" if "amax" in str(node.target) else "min.dim_min"
    for dim in sorted({d % len(x.size) for d in dims or range(len(x.size))}):
        size = (*x.size[:dim], 1, *x.size[dim + 1 :])
        outs = [writer.listing.new_tensor(size, dtype) for dtype in (x.dtype, torch.int64)]
        x = writer.call(f"aten::{kernel}", x, dim, True, outs=outs)
    return writer.listing.view(x, value.fake_type.size)


def select_grid(writer: CallWriter, node: Node) -> Any:
    """The kernel writes into what it is given, and leaves its sizes: they are set before."""
    out = writer.new_like(node.meta["val"])
    if not out.is_dynamic:
        return None
    writer.call("aten::full.out", [writer.listing.number(s) for s in out.size], 0, outs=[out])
    args = [writer.value(a) for a in node.args]
    return writer.call("aten::grid_sampler_2d.out", *args, outs=[out])


_LAST = 2**63 - 1
"""The end of a slice that has none."""


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
    "aten::amax": select_extreme,
    "aten::amin": select_extreme,
    "aten::cat": select_cat,
    "aten::constant_pad_nd": select_pad,
    "aten::grid_sampler_2d": select_grid,
    "aten::max_pool2d_with_indices_backward": select_pool_backward,
    "aten::mm": select_mm,
}
"""The selections by the name of the operator."""
