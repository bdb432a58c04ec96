"""Calls that quantize and those that take it back. They are written when they are read: often the
call beside them has done it already.

Must not know of other families.
"""

from __future__ import annotations

from operator import getitem
from typing import Any

from torch.fx import Node

from lostwax.backends.xnnpack.calls import read_arguments, size_of
from lostwax.backends.xnnpack.entry import OperatorEntry, ProgramFacts
from lostwax.backends.xnnpack.products import is_for_layers
from lostwax.backends.xnnpack.quantized.dynamic import (
    CHOOSE,
    DEQUANTIZE_ROWS,
    QUANTIZE_ROWS,
    find_chooser,
    find_floats,
)
from lostwax.backends.xnnpack.quantized.quantum import (
    DEQUANTIZE,
    QUANTIZE,
    explain_quantum,
    find_form,
    get_name,
    is_dequantize,
    is_quantize,
    read_quantum,
)
from lostwax.backends.xnnpack.writer import LAST, PartWriter, permute


def write_quantize(writer: PartWriter, node: Node) -> None:
    """Quantize a value; nothing, if the call that computes it does so itself."""
    source: Any = node.args[0]
    if source not in writer.constants:
        writer.write(source)
    if writer.is_there(node):
        return
    last = writer.is_last(source)
    given = writer.read(source, last)
    limits = read_quantum(node).limit(None)
    if limits is not None:
        size = size_of(node)
        wide = writer.new(permute(size, LAST[len(size)]) if last else size, find_form(node))
        writer.add("XNNConvert", input_id=given, output_id=wide)
        writer.add("XNNClamp", limits, input_id=wide, output_id=writer.define(node, last))
    else:
        writer.add("XNNConvert", input_id=given, output_id=writer.define(node, last))


def explain_quantize(node: Node, facts: ProgramFacts) -> str:
    return explain_quantum(node)


def write_dequantize(writer: PartWriter, node: Node) -> None:
    source: Any = node.args[0]
    last = writer.is_last(source)
    given = writer.read(source, last)
    writer.add("XNNConvert", input_id=given, output_id=writer.define(node, last))


def explain_dequantize(node: Node, facts: ProgramFacts) -> str:
    """It reads what was quantized alike; or integers that are given, and others read alike."""
    source: Any = node.args[0]
    if reason := explain_quantum(node):
        return reason
    if facts.is_constant(source):
        return ""
    quantum = read_quantum(node)
    others = [source] if is_quantize(source) else list(source.users)
    for other in others:
        is_known = is_quantize(other) or is_dequantize(other)
        if not is_known or explain_quantum(other) or not read_quantum(other).is_same(quantum):
            return "the integers that it reads mean something else elsewhere"
    if not is_quantize(source) and str(read_arguments(node).dtype) != "torch.int8":
        return "XNNPACK is given integers of int8"
    return ""


# ------------------------------------------------------------------------------- as it runs


def write_nothing(writer: PartWriter, node: Node) -> None:
    raise AssertionError(f"{node.name} is part of a layer, and nothing else reads it")


def explain_rows(node: Node, facts: ProgramFacts) -> str:
    """Rows are quantized for layers alone, and then all that belongs to it is taken."""
    chooser = node if get_name(node) in CHOOSE else find_chooser(node)
    if chooser is None:
        return "XNNPACK quantizes by scales that are known, or that it chooses itself"
    if chooser not in facts.reasons:
        facts.reasons[chooser] = _explain_chooser(chooser, facts)
    return facts.reasons[chooser]


def _explain_chooser(chooser: Node, facts: ProgramFacts) -> str:
    readers = {n for each in chooser.users if each.target is getitem for n in each.users}
    taken = [n for n in readers if get_name(n) in DEQUANTIZE_ROWS]
    made = [n for n in readers if get_name(n) in QUANTIZE_ROWS]
    is_whole = len(taken) + len(made) == len(readers) and bool(taken)
    if not is_whole or any(n not in taken for q in made for n in q.users):
        return "what quantizes is read by something else, too"
    if any(find_floats(n) is None for n in taken):
        return "XNNPACK chooses scales of rows, with zero points, for all of eight bits"
    if not all(is_for_layers(n, facts) for n in taken):
        return "XNNPACK chooses scales for layers with symmetric weights of 8 bits, or of 4"
    return ""


_ROWS = OperatorEntry(write_nothing, explain_rows, lazy=True, any_values=True)

CONVERSIONS = {
    **dict.fromkeys((*CHOOSE, *QUANTIZE_ROWS, *DEQUANTIZE_ROWS), _ROWS),
    QUANTIZE: OperatorEntry(write_quantize, explain_quantize, lazy=True, quantized=True),
    DEQUANTIZE: OperatorEntry(write_dequantize, explain_dequantize, lazy=True, quantized=True),
}
"""The operators of this family, by name."""
