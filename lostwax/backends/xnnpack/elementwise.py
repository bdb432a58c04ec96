"""Elementwise operators: functions of one tensor, arithmetic on two, limits.

They follow the layout of what they read. Must not know of other families.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.fx import Node

from lostwax.backends.xnnpack.calls import find_clamp, read_arguments, size_of
from lostwax.backends.xnnpack.entry import OperatorEntry, ProgramFacts
from lostwax.backends.xnnpack.quantized.match import can_compute, is_wide, match_call, match_move
from lostwax.backends.xnnpack.quantized.quantum import read_quantum
from lostwax.backends.xnnpack.writer import LAST, PartWriter
from lostwax.pte.lowering.state import has_data

# ------------------------------------------------------------------------------- of one tensor


def write_function(kind: str, writer: PartWriter, node: Node, **fields: Any) -> None:
    source: Any = node.args[0]
    last = writer.is_last(source)
    given = writer.read(source, last)
    writer.add(kind, input_id=given, output_id=writer.define(node, last), **fields)


def write_clamp(writer: PartWriter, node: Node) -> None:
    """Limits; of integers, if what they stand for stays."""
    source: Any = node.args[0]
    clamp, made = find_clamp(node), node
    found = match_move(writer, node, [source])
    if found is not None:
        quantum = read_quantum(found[1])
        limits = quantum.limit(clamp)
        if limits is not None and is_wide(quantum, limits):
            clamp, ((source,), made) = limits, found
    last = writer.is_last(source)
    given = writer.read(source, last)
    writer.add("XNNClamp", clamp, input_id=given, output_id=writer.define(made, last))


def explain_clamp(node: Node, facts: ProgramFacts) -> str:
    limits = find_clamp(node)
    if limits is None:
        return "its limits are tensors"
    if limits[0] >= limits[1]:
        return f"its limits {limits[0]} and {limits[1]} leave nothing between them"
    return ""


def write_elu(writer: PartWriter, node: Node) -> None:
    write_function("XNNELU", writer, node, alpha=float(read_arguments(node).alpha))


def explain_elu(node: Node, facts: ProgramFacts) -> str:
    given = read_arguments(node)
    if given.scale != 1 or given.input_scale != 1:
        return "XNNPACK's elu has no scales"
    return "" if given.alpha > 0 else "XNNPACK's elu wants an alpha above 0"


def write_leaky_relu(writer: PartWriter, node: Node) -> None:
    slope = float(read_arguments(node).negative_slope)
    write_function("XNNLeakyReLU", writer, node, negative_slope=slope)


def write_gelu(writer: PartWriter, node: Node) -> None:
    """XNNPACK's own; or the approximation, x · sigmoid(x · (a + b · x²))."""
    if read_arguments(node).approximate == "none":
        write_function("XNNGelu", writer, node)
        return
    source: Any = node.args[0]
    last = writer.is_last(source)
    given = writer.read(source, last)
    size = size_of(node)
    new = [writer.new([size[i] for i in LAST[len(size)]] if last else size) for _ in range(5)]
    a = math.sqrt(8 / math.pi)
    first, second = (writer.add_constant(torch.tensor([v])) for v in (a, a * 0.044715))
    writer.add("XNNSquare", input_id=given, output_id=new[0])
    writer.add("XNNMultiply", input1_id=new[0], input2_id=second, output_id=new[1])
    writer.add("XNNAdd", input1_id=new[1], input2_id=first, output_id=new[2])
    writer.add("XNNMultiply", input1_id=new[2], input2_id=given, output_id=new[3])
    writer.add("XNNSigmoid", input_id=new[3], output_id=new[4])
    made = writer.define(node, last)
    writer.add("XNNMultiply", input1_id=new[4], input2_id=given, output_id=made)


def write_power(writer: PartWriter, node: Node) -> None:
    exponent = float(node.args[1])  # type: ignore[arg-type]
    if exponent != 3:
        write_function(_POWERS[exponent], writer, node)
        return
    source: Any = node.args[0]
    last = writer.is_last(source)
    given = writer.read(source, last)
    size = size_of(node)
    square = writer.new([size[i] for i in LAST[len(size)]] if last else size)
    writer.add("XNNSquare", input_id=given, output_id=square)
    cube = writer.define(node, last)
    writer.add("XNNMultiply", input1_id=square, input2_id=given, output_id=cube)


_POWERS = {0.5: "XNNSquareRoot", -0.5: "XNNReciprocalSquareRoot", 2.0: "XNNSquare", 1.0: "XNNCopy"}


def explain_power(node: Node, facts: ProgramFacts) -> str:
    exponent: Any = node.args[1]
    if isinstance(exponent, Node) or (exponent != 3 and exponent not in _POWERS):
        return f"XNNPACK has no power of {exponent}"
    return ""


def write_prelu(writer: PartWriter, node: Node) -> None:
    source, slope = node.args[:2]
    given = writer.read(source, True)  # type: ignore[arg-type]
    weight = writer.add_constant(writer.constants[slope].reshape(-1))  # type: ignore[index]
    made = writer.define(node, True)
    writer.add("XNNPReLU", input1_id=given, input2_id=weight, output_id=made)


def explain_prelu(node: Node, facts: ProgramFacts) -> str:
    source, slope = node.args[:2]
    if not facts.is_constant(slope):
        return "its slopes are no constant"
    if len(size_of(source)) != 4:  # type: ignore[arg-type]
        return "XNNPACK's prelu takes images"
    return ""


# ------------------------------------------------------------------------------- of two tensors


def write_arithmetic(kind: str, writer: PartWriter, node: Node) -> None:
    """Two operands, of which one may be broadcast. A constant is turned to the other's layout."""
    operands, alpha = list(node.args[:2]), _find_alpha(node)
    condition = partial(can_compute, kind)
    found = match_call(writer, node, operands, condition) if alpha == 1 else None
    operands, result = found or (operands, writer.find_result(node))
    last = any(isinstance(o, Node) and writer.is_last(o) for o in operands)
    last = last and all(_can_be_last(writer, o, node) for o in operands)
    numbers = [_read_operand(writer, o, last, len(size_of(node))) for o in operands]
    if alpha != 1:
        other: Any = operands[1]
        data = writer.constants[other] if isinstance(other, Node) else torch.tensor([float(other)])
        data = data * float(alpha)
        numbers[1] = _add_constant(writer, data, last, len(size_of(node)))
    made = writer.define(result.node, last)
    writer.add(kind, result.clamp, input1_id=numbers[0], input2_id=numbers[1], output_id=made)


def _can_be_last(writer: PartWriter, operand: Any, node: Node) -> bool:
    if not isinstance(operand, Node) or operand in writer.constants:
        return True
    return len(size_of(operand)) == len(size_of(node))


def _read_operand(writer: PartWriter, operand: Any, last: bool, dims: int) -> int:
    if not isinstance(operand, Node):
        return writer.add_constant(torch.tensor([float(operand)]))
    if operand in writer.constants:
        return _add_constant(writer, writer.constants[operand], last, dims)
    return writer.read(operand, last)


def _add_constant(writer: PartWriter, data: torch.Tensor, last: bool, dims: int) -> int:
    if not last:
        return writer.add_constant(data)
    wide = data.reshape((1,) * (dims - data.ndim) + tuple(data.shape))
    return writer.add_constant(wide.permute(LAST[dims]))


def explain_arithmetic(node: Node, facts: ProgramFacts) -> str:
    alpha, other = _find_alpha(node), node.args[1]
    is_fixed = not isinstance(other, Node) or facts.is_constant(other)
    if isinstance(alpha, Node) or (alpha != 1 and not is_fixed):
        return f"XNNPACK adds and subtracts no multiple (alpha={alpha})"
    if any(isinstance(o, Node) and _is_number(o) for o in node.args[:2]):
        return "an operand is a number that is computed when the program runs"
    return ""


def _find_alpha(node: Node) -> Any:
    """What the second operand is multiplied by; with a scalar it may stand without its name."""
    return getattr(read_arguments(node), "alpha", 1)


def _is_number(node: Node) -> bool:
    return not isinstance(node.meta.get("val"), torch.Tensor)


# ------------------------------------------------------------------------------- masks

HIDDEN = -1e4
"""What hides values from a softmax is below this. Other choices are not written as limits: a value
that is not chosen may be NaN, and limits of NaN are NaN."""


def write_mask(writer: PartWriter, node: Node) -> None:
    """Values that a constant hides, within limits: both are that constant where it hides them, and
    infinite elsewhere."""
    condition, first, second = (writer.constants.get(n) for n in node.args)
    assert condition is not None
    hides = condition if first is not None else ~condition
    hidden = first if first is not None else second
    assert hidden is not None
    current = writer.read(node.args[2] if first is not None else node.args[1])  # type: ignore[arg-type]
    if not bool((hidden == -math.inf).all()):
        above = writer.new(size_of(node))
        low = writer.add_constant(torch.where(hides, hidden, torch.tensor(-math.inf)))
        writer.add("XNNMaximum", input1_id=current, input2_id=low, output_id=above)
        current = above
    high = writer.add_constant(torch.where(hides, hidden, torch.tensor(math.inf)))
    made = writer.define(node)
    writer.add("XNNMinimum", input1_id=current, input2_id=high, output_id=made)


def explain_mask(node: Node, facts: ProgramFacts) -> str:
    _, first, second = node.args
    if facts.is_constant(first) == facts.is_constant(second):
        return "XNNPACK chooses not between two values that are computed"
    hidden = first if facts.is_constant(first) else second
    value = facts.compute(hidden)  # type: ignore[arg-type]
    is_hiding = has_data(value) and bool((value < HIDDEN).all())
    return "" if is_hiding else "XNNPACK only hides values, by such as are very small"


# ------------------------------------------------------------------------------- the table


def _function(
    kind: str, explain: Callable[[Node, ProgramFacts], str] | None = None
) -> OperatorEntry:
    write = partial(write_function, kind)
    return OperatorEntry(write) if explain is None else OperatorEntry(write, explain)


def _arithmetic(kind: str) -> OperatorEntry:
    return OperatorEntry(partial(write_arithmetic, kind), explain_arithmetic)


_CLAMP = OperatorEntry(write_clamp, explain_clamp)

ELEMENTWISE = {
    "aten::abs": _function("XNNAbs"),
    "aten::ceil": _function("XNNCeiling"),
    "aten::cos": _function("XNNCos"),
    "aten::exp": _function("XNNExp"),
    "aten::floor": _function("XNNFloor"),
    "aten::gelu": OperatorEntry(write_gelu),
    "aten::where.self": OperatorEntry(write_mask, explain_mask, any_constants=True),
    "aten::hardswish": _function("XNNHardswish"),
    "aten::log": _function("XNNLog"),
    "aten::neg": _function("XNNNegate"),
    "aten::rsqrt": _function("XNNReciprocalSquareRoot"),
    "aten::sigmoid": _function("XNNSigmoid"),
    "aten::sin": _function("XNNSin"),
    "aten::sqrt": _function("XNNSquareRoot"),
    "aten::tanh": _function("XNNTanh"),
    "aten::clamp": _CLAMP,
    "aten::hardtanh": _CLAMP,
    "aten::relu": _CLAMP,
    "aten::elu": OperatorEntry(write_elu, explain_elu),
    "aten::leaky_relu": OperatorEntry(write_leaky_relu),
    "aten::pow.Tensor_Scalar": OperatorEntry(write_power, explain_power),
    "aten::_prelu_kernel": OperatorEntry(write_prelu, explain_prelu),
    "aten::add.Tensor": _arithmetic("XNNAdd"),
    "aten::add.Scalar": _arithmetic("XNNAdd"),
    "aten::sub.Tensor": _arithmetic("XNNSubtract"),
    "aten::sub.Scalar": _arithmetic("XNNSubtract"),
    "aten::mul.Tensor": _arithmetic("XNNMultiply"),
    "aten::mul.Scalar": _arithmetic("XNNMultiply"),
    "aten::div.Tensor": _arithmetic("XNNDiv"),
    "aten::div.Scalar": _arithmetic("XNNDiv"),
    "aten::minimum": _arithmetic("XNNMinimum"),
    "aten::maximum": _arithmetic("XNNMaximum"),
}
"""The operators of this family, by name."""
