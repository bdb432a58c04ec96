"""Memory over a program's life: what is alive at each step, and where it lies.

Of an executable, this is its plan; of any other program, what its values would need if each were
given back after its last use. Must not change a program.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.fx import Node

from lostwax.explorer.graph import KIND, ProgramWriter
from lostwax.ops.dialect_operator import overload_of
from lostwax.pte.lowering.listing import ARENA, Call, DelegateCall, Listing
from lostwax.pte.plan import find_lifetimes


def find_program_memory(writer: ProgramWriter) -> dict[str, Any]:
    """The lifetime of what each node of the main graph computes, counted in what is computed: what
    is given, as weights and inputs, is there before the first step. A view lives in the memory of
    what it shows. Sizes that vary are those of the example."""
    columns = writer.columns
    nodes = [at for at in range(len(writer.nodes)) if columns["graph"][at] == 0]
    given = [KIND[k] for k in ("input", "parameter", "buffer", "constant", "attribute")]
    steps = [at for at in nodes if columns["kind"][at] not in given]
    place = dict.fromkeys(nodes, 0) | {at: step for step, at in enumerate(steps)}
    base: dict[int, int] = {}
    last: dict[int, int] = {}
    for at in nodes:
        inputs = columns["inputs"][at]
        shows = inputs and _is_view(writer.nodes[at])
        base[at] = base[inputs[0]] if shows else at
        for used in (at, *inputs):
            last[base[used]] = place[at]
    state = (KIND["parameter"], KIND["buffer"], KIND["constant"])
    sizes = zip(columns["kind"], columns["bytes"], strict=True)
    weights = sum(max(size, 0) for kind, size in sizes if kind in state)
    blocks, unknown = [], 0
    for at in nodes:
        kind, size = columns["kind"][at], columns["bytes"][at]
        if kind not in state and base[at] == at and kind != KIND["output"] and size:
            unknown += size < 0
            if size > 0:
                blocks.append([at, place[at], last[at], -1, size])
    found = {"kind": "lifetimes", "steps": steps, "blocks": blocks, "weights": weights}
    return found | {"unknown": unknown, "arena": 0}


def _is_view(node: Node) -> bool:
    """Does a node show the memory of its first input?"""
    if node.op != "call_function":
        return False
    schema = getattr(overload_of(node.target), "_schema", None)
    if schema is None:
        return getattr(node.target, "__name__", "") == "getitem"
    returned = [r.alias_info for r in schema.returns]
    return bool(returned) and returned[0] is not None and not returned[0].is_write


def find_planned_memory(
    listing: Listing, numbers: Mapping[Node, int], weights: int
) -> dict[str, Any]:
    """The plan of a method: for each storage where it lies, and from which step to which."""
    steps = [
        numbers.get(step.node, -1) if isinstance(step, Call) and step.node is not None else -1
        for step in listing.steps
    ]
    blocks = []
    arena = 0
    for storage, life in find_lifetimes(listing).items():
        first, last = max(life.first, 0), min(life.last, len(steps) - 1)
        if storage.arena != ARENA or storage.offset < 0 or not steps:
            continue
        at = steps[first] if life.first >= 0 else -1
        blocks.append([at, first, max(first, last), storage.offset, storage.nbytes])
        arena = max(arena, storage.offset + storage.nbytes)
    found = {"kind": "plan", "steps": steps, "blocks": blocks, "weights": weights}
    return found | {"unknown": 0, "arena": arena}


def list_kernels(listing: Listing, numbers: Mapping[Node, int]) -> dict[int, list[str]]:
    """The kernels that compute each node, in order; a view may need none."""
    found: dict[int, list[str]] = {}
    for step in listing.calls():
        if step.node is not None and not isinstance(step, DelegateCall):
            found.setdefault(numbers.get(step.node, -1), []).append(step.kernel)
    found.pop(-1, None)
    return found
