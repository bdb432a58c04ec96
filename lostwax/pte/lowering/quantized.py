"""Quantized operators, taken apart: the runtime has kernels for them only if a library is loaded.

Each is computed as eager computes it, to the last bit: the same steps, in the same precision. What
is constant stays as integers in the file. Each entry is a selection as in `select.py`. Must not
plan memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.fx import Node

from lostwax.ops.dialect_operator import overload_of
from lostwax.pte.lowering.listing import Tensor
from lostwax.pte.lowering.writer import CallWriter, Pending
from lostwax.types import Sizes

F32 = torch.float32


class _Steps:
    """Writes the steps of one call; results have its size, and are of float32."""

    def __init__(self, writer: CallWriter, node: Node, size: Sizes) -> None:
        self.writer, self.size = writer, size
        arguments = overload_of(node.target)._schema.arguments
        given = dict(zip((a.name for a in arguments), node.args, strict=False)) | dict(node.kwargs)
        self.given = {name: writer.value(value) for name, value in given.items()}

    def __call__(
        self, kernel: str, *args: Any, size: Sizes | None = None, dtype: torch.dtype = F32
    ) -> Tensor:
        out = self.writer.listing.new_tensor(self.size if size is None else size, dtype)
        return self.writer.call(f"aten::{kernel}", *args, outs=[out])

    def number(self, value: float) -> Tensor:
        return self.writer.listing.new_constant(torch.tensor(value, dtype=F32))

    def cast(self, value: Tensor, dtype: torch.dtype = F32) -> Tensor:
        return self.writer.cast(value, dtype)

    def see(self, value: Tensor, size: Sizes) -> Tensor:
        return value if value.size == size else self.writer.listing.view(value, size)

    def along(self, name: str) -> Tensor | None:
        """The argument of this name, which has a number for each place along the axis, or for each
        row; None if it is of zeros alone, or not given."""
        value = self.given.get(name)
        if value is None or _is_zero(value):
            return None
        axis = self.given.get("axis", 0) % len(self.size)
        size = tuple(s if d == axis else 1 for d, s in enumerate(self.size))
        return self.see(value, size)

    def round(self, x: Tensor, inverse: Tensor, zero: Tensor | None) -> Tensor:
        """Quantize: the floats times the inverse of a scale, to integers of the call's range."""
        steps = self("round.out", self("mul.out", x, inverse))
        if zero is not None:
            steps = self("add.out", steps, zero)
        return self.limit(steps)

    def limit(self, x: Tensor) -> Tensor:
        low, high = self.given["quant_min"], self.given["quant_max"]
        return self.cast(self("clamp.out", x, low, high), self.given["dtype"])

    def divide(self, x: Tensor, by: float) -> Tensor:
        """Divide by a number. The kernel multiplies by the inverse, if it is given a single one."""
        return self("div.out", x, self("full_like.out", x, float(by)))

    def scale(self, x: Tensor, scale: Tensor, zero: Tensor | None) -> Tensor:
        """Take it back: the integers, less those that zero is, times a scale."""
        steps = self.cast(x)
        if zero is not None:
            steps = self("sub.out", steps, zero)
        return self("mul.out", steps, scale)


def _is_zero(value: Tensor) -> bool:
    data = value.storage.data if value.storage.is_constant else None
    return data is not None and not bool(data.any())


def _start(writer: CallWriter, node: Node) -> _Steps | None:
    """What writes the steps of a call; None if it makes no floats of single precision of integers,
    nor integers of such."""
    value = node.meta["val"]
    steps = _Steps(writer, node, value.fake_type.size)
    x = steps.given["input"]
    return steps if F32 in (x.dtype, value.dtype) else None


class _DequantizedWeights(Pending):
    """Floats of constant integers: made where they are read, so that they are there no longer than
    needed."""

    def __init__(self, node: Node, select: Callable[[CallWriter, Node], Any]) -> None:
        self.node, self.select = node, select

    def write(self, writer: CallWriter) -> Tensor:
        made: Tensor = self.select(writer, self.node)
        return made


def _make_late(select: Callable[[CallWriter, Node], Any]) -> Callable[[CallWriter, Node], Any]:
    """The selection; of constants, it waits until its result is read."""

    def choose(writer: CallWriter, node: Node) -> Any:
        steps = _start(writer, node)
        if steps is None or not steps.given["input"].storage.is_constant:
            return select(writer, node)
        return _DequantizedWeights(node, select)

    return choose


def select_quantize(writer: CallWriter, node: Node) -> Any:
    steps = _start(writer, node)
    if steps is None:
        return None
    given = steps.given
    zero = steps.number(given["zero_point"]) if given["zero_point"] else None
    return steps.round(given["input"], steps.number(1.0 / given["scale"]), zero)


def select_dequantize(writer: CallWriter, node: Node) -> Any:
    steps = _start(writer, node)
    if steps is None:
        return None
    given = steps.given
    zero = steps.number(given["zero_point"]) if given["zero_point"] else None
    return steps.scale(given["input"], steps.number(given["scale"]), zero)


# ------------------------------------------------------------------------------- by channel


def select_quantize_by_channel(writer: CallWriter, node: Node) -> Any:
    steps = _start(writer, node)
    if steps is None:
        return None
    scales, zeros = steps.along("scales"), steps.along("zero_points")
    assert scales is not None
    inverse = steps("reciprocal.out", scales, size=scales.size)
    return steps.round(steps.given["input"], inverse, None if zeros is None else steps.cast(zeros))


def select_dequantize_by_channel(writer: CallWriter, node: Node) -> Any:
    steps = _start(writer, node)
    if steps is None:
        return None
    scales, zeros = steps.along("scales"), steps.along("zero_points")
    assert scales is not None
    zeros = None if zeros is None else steps.cast(zeros)
    return steps.scale(steps.given["input"], scales, zeros)


def select_dequantize_by_group(writer: CallWriter, node: Node) -> Any:
    steps = _start(writer, node)
    if steps is None or len(steps.size) != 2:
        return None
    given, (rows, length) = steps.given, steps.size
    group = min(given["group_size"], int(length))
    count = rows * (length // group)
    steps.size = (count, group)
    zeros = given["zero_points"]
    zeros = None if zeros is None or _is_zero(zeros) else steps.cast(steps.see(zeros, (count, 1)))
    made = steps.scale(
        steps.see(given["input"], steps.size), steps.see(given["scales"], (count, 1)), zeros
    )
    return steps.see(made, (rows, length))


# ------------------------------------------------------------------------------- as it runs


def select_choose(writer: CallWriter, node: Node) -> Any:
    """A scale and a zero point for a tensor, by the least and the greatest of its values."""
    scale, zero = node.meta["val"]
    steps = _Steps(writer, node, ())
    given = steps.given
    x = given["input"]
    if x.dtype is not F32:
        return None
    nothing = steps.number(0.0)
    low = steps("minimum.out", steps("min.unary_out", x), nothing)
    high = steps("maximum.out", steps("max.unary_out", x), nothing)
    width = float(given["quant_max"] - given["quant_min"])
    step = steps("div.out", steps("sub.out", high, low), steps.number(width))
    step = steps("maximum.out", step, steps.number(given["eps"]))
    place = steps("round.out", steps("div.out", low, step))
    place = steps("sub.out", steps.number(given["quant_min"]), place)
    place = steps("clamp.out", place, given["quant_min"], given["quant_max"])
    made = (steps.cast(step, scale.dtype), steps.cast(place, zero.dtype))
    return [steps.see(each, (1,)) for each in made]


def select_quantize_as_it_runs(writer: CallWriter, node: Node) -> Any:
    """The inverse of the scale is computed in double precision, as Python does."""
    steps = _start(writer, node)
    if steps is None:
        return None
    given = steps.given
    scale = given["scale"]
    inverse = steps("reciprocal.out", scale, size=scale.size, dtype=scale.dtype)
    numbers = [steps.see(steps.cast(n), ()) for n in (inverse, given["zero_point"])]
    return steps.round(given["input"], *numbers)


def select_dequantize_as_it_runs(writer: CallWriter, node: Node) -> Any:
    steps = _start(writer, node)
    if steps is None:
        return None
    given = steps.given
    numbers = [steps.see(steps.cast(given[name]), ()) for name in ("scale", "zero_point")]
    return steps.scale(given["input"], *numbers)


# ------------------------------------------------------------------------------- tables


class _QuantizedTable(NamedTuple):
    """A constant table of integers, each row of it in groups that have one scale each."""

    data: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None
    limits: tuple[int, int]


_EMBEDDINGS = {(-128, 127): (8, "byte"), (-8, 7): (4, "4bit"), (-2, 1): (2, "2bit")}
"""The bits of tables that the runtime's library has kernels for, and what they are called."""


def _read_table(writer: CallWriter, node: Any) -> _QuantizedTable | None:
    """The table that a node makes floats of; None if it is none, or none of constants."""
    pending = writer.values.get(node)
    if not isinstance(pending, _DequantizedWeights):
        return None
    steps = _start(writer, pending.node)
    assert steps is not None
    given = steps.given
    data = given["input"].storage.data
    scales, zeros = (given.get(n, given.get(f"{n}s")) for n in ("scale", "zero_point"))
    scales, zeros = (
        n.storage.data if isinstance(n, Tensor) and n.storage.is_constant else n
        for n in (scales, zeros)
    )
    rows, length = data.shape if data.ndim == 2 else (0, 0)
    block = list(given.get("block_size", [1, given.get("group_size", length)]))
    if not isinstance(scales, torch.Tensor) or not isinstance(zeros, (torch.Tensor, type(None))):
        return None
    if data.dtype is not torch.int8 or given.get("axis", 0) != 0:
        return None
    if block[0] != 1 or length % block[1] or scales.numel() * block[1] != data.numel():
        return None
    groups = length // block[1]
    zeros = zeros.reshape(rows, groups).float() if zeros is not None and zeros.any() else None
    limits: Any = given.get("quant_min"), given.get("quant_max")
    return _QuantizedTable(data, scales.reshape(rows, groups).float(), zeros, limits)


def select_embedding(writer: CallWriter, node: Node) -> Any:
    """Rows of a table of integers become floats after they were looked up, and no others."""
    table = _read_table(writer, node.args[0])
    if table is None:
        return None
    indices = writer.value(node.args[1])
    bits, name = _EMBEDDINGS.get(table.limits, (0, ""))
    kernel = f"quantized_decomposed::embedding_{name}.out"
    if kernel not in writer.kernels or table.data.shape[1] * bits % 8:
        return _look_up(writer, node, table, indices)
    constants = [_pack(table.data, bits), table.scales, table.zeros]
    given = [None if c is None else writer.listing.new_constant(c) for c in constants]
    out = writer.new_like(node.meta["val"])
    return writer.call(kernel, *given, *table.limits, indices, outs=[out])


def _pack(data: torch.Tensor, bits: int) -> torch.Tensor:
    """Several integers in one byte: of four bits the first is above the second, of two bits it is
    the lowest."""
    if bits == 8:
        return data
    shifts = (4, 0) if bits == 4 else (0, 2, 4, 6)
    parts = (data + (1 << bits - 1)).view(torch.uint8).unflatten(1, (-1, 8 // bits)).unbind(2)
    packed = torch.zeros_like(parts[0])
    for part, shift in zip(parts, shifts, strict=True):
        packed |= part << shift
    return packed


def _look_up(writer: CallWriter, node: Node, table: _QuantizedTable, indices: Tensor) -> Tensor:
    steps = _Steps(writer, node, node.meta["val"].fake_type.size)
    groups = table.scales.shape[1]

    def gather(data: torch.Tensor) -> Tensor:
        size = (*indices.size, data.shape[1])
        made = steps(
            "embedding.out",
            writer.listing.new_constant(data),
            indices,
            *(-1, False, False),
            size=size,
            dtype=data.dtype,
        )
        return steps.see(made, (*size, 1) if data is not table.data else apart)

    whole, apart = steps.size, (*indices.size, groups, table.data.shape[1] // groups)
    steps.size = apart
    zeros = None if table.zeros is None else gather(table.zeros)
    return steps.see(steps.scale(gather(table.data), gather(table.scales), zeros), whole)


# ------------------------------------------------------------------------------- torchao's


class _Blocks:
    """A tensor as blocks that have one scale each: its size with blocks apart, which dimensions of
    that are inside of blocks, and the size of its scales."""

    def __init__(self, size: Sizes, block: Any) -> None:
        apart: list[Any] = []
        self.inside: list[int] = []
        for length, part in zip(size, block, strict=True):
            if part not in (1, length):
                apart.append(length // part)
            if part != 1:
                self.inside.append(len(apart))
            apart.append(length if part == 1 else part)
        self.size = tuple(apart)
        self.scales = tuple(1 if i in self.inside else s for i, s in enumerate(apart))


def select_quantize_blocks(writer: CallWriter, node: Node) -> Any:
    steps = _start(writer, node)
    if steps is None or steps.given.get("zero_point") is None:
        return None
    given, whole = steps.given, steps.size
    blocks = _Blocks(whole, given["block_size"])
    steps.size, given["dtype"] = blocks.size, given["output_dtype"]
    given.setdefault("quant_min", torch.iinfo(given["dtype"]).min)
    given.setdefault("quant_max", torch.iinfo(given["dtype"]).max)
    scale, zero = (steps.see(given[name], blocks.scales) for name in ("scale", "zero_point"))
    inverse = steps("reciprocal.out", steps.cast(scale), size=blocks.scales)
    made = steps.round(steps.see(given["input"], blocks.size), inverse, steps.cast(zero))
    return steps.see(made, whole)


def select_dequantize_blocks(writer: CallWriter, node: Node) -> Any:
    steps = _start(writer, node)
    if steps is None:
        return None
    given, whole = steps.given, steps.size
    blocks = _Blocks(whole, given["block_size"])
    steps.size, zero = blocks.size, given.get("zero_point")
    scale = steps.cast(steps.see(given["scale"], blocks.scales))
    if zero is not None:
        zero = None if _is_zero(zero) else steps.cast(steps.see(zero, blocks.scales))
    return steps.see(steps.scale(steps.see(given["input"], blocks.size), scale, zero), whole)


def select_choose_blocks(writer: CallWriter, node: Node) -> Any:
    """A scale and a zero point for each block."""
    scale, zero = node.meta["val"]
    steps = _Steps(writer, node, ())
    given = steps.given
    x = given["input"]
    if x.dtype is not F32:
        return None
    limits = torch.iinfo(given["target_dtype"])
    least, most = (given.get(f"quant_{n}") for n in ("min", "max"))
    least, most = limits.min if least is None else least, limits.max if most is None else most
    blocks = _Blocks(x.size, given["block_size"])
    seen, nothing = steps.see(x, blocks.size), steps.number(0.0)
    steps.size = blocks.scales
    low, high = (steps(f"{name}.out", seen, blocks.inside, True) for name in ("amin", "amax"))
    low, high = steps("minimum.out", low, nothing), steps("maximum.out", high, nothing)
    kind, place = given["mapping_type"], None
    if kind == "ASYMMETRIC":
        step = steps.divide(steps("sub.out", high, low), most - least)
    elif kind == "SYMMETRIC":
        step = steps("maximum.out", steps("neg.out", low), high)
        step = steps.divide(step, (most - least) / 2)
    else:
        step = steps("maximum.out", steps.divide(low, least), steps.divide(high, most))
    eps = given.get("eps")
    step = steps("clamp.out", step, torch.finfo(F32).smallest_normal if eps is None else eps, None)
    if kind == "ASYMMETRIC":
        place = steps("round.out", steps("div.out", low, step))
        place = steps("clamp.out", steps("sub.out", steps.number(least), place), least, most)
    else:
        place = steps("full_like.out", step, float(int((most + least + 1) / 2)))
    made = ((step, scale), (place, zero))
    return [steps.see(steps.cast(v, like.dtype), like.fake_type.size) for v, like in made]


QUANTIZED = {
    "aten::embedding": select_embedding,
    "torchao::choose_qparams_affine": select_choose_blocks,
    "torchao::quantize_affine": select_quantize_blocks,
    "torchao::dequantize_affine": _make_late(select_dequantize_blocks),
} | {
    f"quantized_decomposed::{name}": select
    for name, select in {
        "quantize_per_tensor": select_quantize,
        "dequantize_per_tensor": _make_late(select_dequantize),
        "quantize_per_channel": select_quantize_by_channel,
        "dequantize_per_channel": _make_late(select_dequantize_by_channel),
        "dequantize_per_channel_group": _make_late(select_dequantize_by_group),
        "choose_qparams.tensor": select_choose,
        "quantize_per_tensor.tensor": select_quantize_as_it_runs,
        "dequantize_per_tensor.tensor": select_dequantize_as_it_runs,
    }.items()
}
"""The selections by the name of the operator."""
