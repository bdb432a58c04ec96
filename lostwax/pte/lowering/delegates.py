"""Calls of delegates: a backend of the runtime computes them.

Must not know what is in a payload.
"""

from __future__ import annotations

from typing import Any

from torch.fx import Node

from lostwax.ir.graph.delegate import find_delegate
from lostwax.pte.lowering.listing import DelegateCall
from lostwax.pte.lowering.writer import CallWriter


def lower_delegate(writer: CallWriter, node: Node) -> Any:
    """The call, with memory for what it returns."""
    delegate = find_delegate(node)
    assert delegate is not None
    given = [writer.value(a) for a in node.args[1:]]
    outs = [writer.new_like(value) for value in node.meta["val"]]
    step = DelegateCall(delegate.backend_id, [*given, *outs], tuple(outs), node, delegate)
    writer.listing.steps.append(step)
    for out in outs:
        writer.listing.note(out)
    return outs
