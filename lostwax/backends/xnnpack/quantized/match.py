"""Which calls are computed in eight bits: those between calls that take quantization back, and one
that quantizes their result. All others are computed in float32.

Must not know how operators are written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from torch.fx import Node

from lostwax.backends.xnnpack.calls import find_clamp
from lostwax.backends.xnnpack.payload import Clamp
from lostwax.backends.xnnpack.quantized.quantum import (
    HIGH,
    LOW,
    Quantum,
    is_dequantize,
    is_quantize,
    read_quantum,
)
from lostwax.backends.xnnpack.writer import PartWriter, Result

Condition = Callable[[Sequence[Quantum], Quantum], bool]
"""Does XNNPACK compute an operator from such integers to such?"""


def match_call(
    writer: PartWriter,
    node: Node,
    sources: Sequence[Any],
    condition: Condition,
    end: Node | None = None,
) -> tuple[list[Any], Result] | None:
    """What a call reads and makes, as integers, if it is computed from these values in eight bits;
    `end` is the node that has its result, if it is another."""
    found = _find_quantize(writer, end or node) if _are_integers(writer, sources) else None
    if found is None:
        return None
    passed, reader, clamp = found
    quantum = read_quantum(reader)
    limits = quantum.limit(clamp)
    if limits is not None and not is_wide(quantum, limits):
        return None
    if not condition([read_quantum(s) for s in sources], quantum):
        return None
    writer.written.update(passed)
    return [s.args[0] for s in sources], Result(reader, limits)


def match_move(
    writer: PartWriter, node: Node, sources: Sequence[Any]
) -> tuple[list[Any], Node] | None:
    """What a call reads and makes, as integers, if it only moves them."""
    reader = writer.find_only_reader(node)
    if not _are_integers(writer, sources) or reader is None or not is_quantize(reader):
        return None
    quantum = read_quantum(reader)
    if any(read_quantum(s) != quantum for s in sources):
        return None
    return [s.args[0] for s in sources], reader


def _are_integers(writer: PartWriter, sources: Sequence[Any]) -> bool:
    return all(is_dequantize(s) and s not in writer.constants for s in sources)


def _find_quantize(writer: PartWriter, node: Node) -> tuple[list[Node], Node, Clamp | None] | None:
    """The call that quantizes what a node computes, with the limits before it, if nothing else
    reads that; and the nodes between them."""
    passed, clamp = [], None
    reader = writer.find_only_reader(node)
    if reader is not None and (clamp := find_clamp(reader)) is not None:
        passed.append(reader)
        reader = writer.find_only_reader(reader)
    if reader is None or not is_quantize(reader):
        return None
    if clamp is None and (more := _find_limited(writer, reader)) is not None:
        nodes, clamp = more
        passed += [reader, *nodes[:-1]]
        reader = nodes[-1]
    return passed, reader, clamp


def _find_limited(writer: PartWriter, node: Node) -> tuple[list[Node], Clamp] | None:
    """Limits that alone read a quantized value, and the call that quantizes it again, alike: to
    limit first, and then quantize once, is the same."""
    nodes: list[Node] = []
    for _ in range(3):
        reader = writer.find_only_reader(nodes[-1] if nodes else node)
        if reader is None:
            return None
        nodes.append(reader)
    taken, limited, again = nodes
    clamp = find_clamp(limited)
    if clamp is None or not is_dequantize(taken) or not is_quantize(again):
        return None
    quantum = read_quantum(node)
    if read_quantum(taken) != quantum or read_quantum(again) != quantum:
        return None
    return nodes, clamp


def is_wide(quantum: Quantum, limits: Clamp) -> bool:
    """Is there more than one integer between the limits?"""
    low, high = (_place(quantum, v) for v in limits)
    return low < high


def _place(quantum: Quantum, number: float) -> int:
    if not math.isfinite(number):
        return LOW if number < 0 else HIGH
    return max(LOW, min(HIGH, round(number / quantum.scale) + quantum.zero_point))


def can_compute(kind: str, given: Sequence[Quantum], made: Quantum) -> bool:
    """For arithmetic: XNNPACK's integers hold what is between operands and results."""
    if kind in ("XNNAdd", "XNNSubtract"):
        return all(2.0**-10 <= g.scale / made.scale < 2.0**8 for g in given)
    product = math.prod(g.scale for g in given)
    return kind == "XNNMultiply" and 2.0**-16 <= product / made.scale < 2.0**8


def can_average(given: Sequence[Quantum], made: Quantum) -> bool:
    return 2.0**-8 <= given[0].scale / made.scale < 2.0**8


def is_alike(given: Sequence[Quantum], made: Quantum) -> bool:
    """For what moves elements: the integers stay."""
    return all(g.is_same(made) for g in given)
