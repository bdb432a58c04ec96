"""Writes ETRecords: what each instruction of a `.pte` file is of, in the form that ExecuTorch's
Inspector reads.

A record has the Edge programs as they were before backends took parts of them, over ATen's
operators, which need nothing of ours to be read; the handles of each instruction; and for
delegates the handles of what their backends note. Must not know how programs are lowered.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import IO, Any, NamedTuple

import torch
import torch.utils._pytree as pytree
from torch.fx import Node

from lostwax.dialects.to_aten import lift_to_aten
from lostwax.ir.graph.delegate import LoweredBackendModule
from lostwax.ir.graph.handles import handles_of, join_handles
from lostwax.ir.graph.inlined import inline_delegates
from lostwax.ir.program import ExportedProgram
from lostwax.pt2.graph.encode import encode
from lostwax.pt2.lines import Lines
from lostwax.pte.file.record import DELEGATES, HANDLES, IDENTIFIER, INPUTS, PROGRAM
from lostwax.pte.lowering.listing import Call, DelegateCall, Label, Listing, list_leaves

COUNTS = "instruction_id_to_num_outs_map"


class InstructionOrigin(NamedTuple):
    """What an instruction of a method is of."""

    handles: tuple[int, ...]
    results: int
    is_value: bool = True
    """Is what the last instruction of these handles writes the value of the node, and not one in
    another form on the way there?"""
    delegate: str = ""
    """The backend that runs it."""
    events: Mapping[int | str, tuple[int, ...]] = MappingProxyType({})
    """The handles of what the backend's run time notes meanwhile."""


def list_instructions(listing: Listing) -> list[InstructionOrigin]:
    """What the instructions of a method are of, by their numbers in the file."""
    steps = [step for step in listing.steps if not isinstance(step, Label)]
    last = {handles_of(step.node): step for step in steps if isinstance(step, Call)}
    values = {handles_of(node): [*list_leaves(v)] for node, (_, v) in listing.lowered.items()}
    forms = {h for h, step in last.items() if not any(o in values.get(h, ()) for o in step.outs)}
    return [_describe(step, handles_of(step.node) not in forms) for step in steps]


def _describe(step: Any, is_value: bool) -> InstructionOrigin:
    if not isinstance(step, DelegateCall):
        results = len(step.outs) if isinstance(step, Call) else 1
        return InstructionOrigin(handles_of(step.node), results, is_value)
    assert step.delegate is not None
    nodes = {node.name: node for node in _list_calls(step.delegate)}
    events = {
        name: join_handles(nodes[n] for n in names if n in nodes)
        for name, names in step.delegate.events.items()
    }
    whole = join_handles(nodes.values())
    return InstructionOrigin(whole, len(step.outs), True, step.delegate.backend_id, events)


def _list_calls(delegate: LoweredBackendModule) -> Iterator[Node]:
    return (node for node in delegate.graph.nodes if node.op == "call_function")


def write_record(
    file: IO[bytes],
    programs: Mapping[str, ExportedProgram],
    instructions: Mapping[str, Sequence[InstructionOrigin]],
) -> None:
    """Write the record of these methods: the programs as they were, and the instructions of each.
    It has the weights, and the innermost line of each node."""
    with zipfile.ZipFile(file, "w") as archive:

        def add(name: str, content: bytes | str) -> None:  # bytes that do not depend on the time
            archive.writestr(zipfile.ZipInfo(name, (2000, 1, 1, 0, 0, 0)), content)

        add(IDENTIFIER, "")
        for name, program in programs.items():
            place, plain = f"{PROGRAM}{name}", lift_to_aten(inline_delegates(program))
            records = encode(plain, lines=Lines("lines"))
            add(place, json.dumps(_restrict(records)))
            add(f"{place}_state_dict", _pickle(plain.state_dict))
            add(f"{place}_constants", _pickle(plain.constants))
            example = plain.example_inputs
            add(f"{place}_example_inputs", b"" if example is None else _pickle(example))
        handles = {name: _number(map(_handles, listed)) for name, listed in instructions.items()}
        add(HANDLES, json.dumps(handles))
        add(DELEGATES, json.dumps({n: _delegates(listed) for n, listed in instructions.items()}))
        counts = {
            name: {at: each.results for at, each in enumerate(listed) if each.delegate}
            for name, listed in instructions.items()
        }
        add(COUNTS, json.dumps(counts))
        first = programs.get("forward")
        if first is not None and first.example_inputs is not None:
            add(INPUTS, _pickle(pytree.tree_leaves(first.example_inputs)))


# -------------------------------------------------------------------------- ExecuTorch's own schema

_INFINITE = (1 << 63) - 1
_SYMBOL = re.compile(r"Symbol\('([^']+)'[^()]*\)")


def _restrict(records: dict[str, Any]) -> dict[str, Any]:
    """The JSON object of a program with what ExecuTorch's schema has, an older one of torch's. It
    refuses fields that it does not know. (A version of 0 it takes for its own.)"""
    module = records["graph_module"]
    ranges = records["range_constraints"].items()
    return {
        "graph_module": {
            "graph": _restrict_graph(module["graph"]),
            "signature": module["signature"],
            "module_call_graph": [_restrict_call(call) for call in module["module_call_graph"]],
        },
        "opset_version": records["opset_version"],
        "range_constraints": {name: _restrict_range(limits) for name, limits in ranges},
        "schema_version": {"major": 0, "minor": 0},
        "verifiers": records["verifiers"],
        "dialect": "",
    }


def _restrict_graph(graph: dict[str, Any]) -> dict[str, Any]:
    nodes = []
    for node in graph["nodes"]:
        inputs = [{"name": i["name"], "arg": _restrict_argument(i["arg"])} for i in node["inputs"]]
        known = {key: node[key] for key in ("name", "target", "outputs", "metadata") if key in node}
        nodes.append({**known, "inputs": inputs})
    without = {key: value for key, value in graph.items() if key != "sym_float_values"}
    tensors = {name: _restrict_type(each) for name, each in graph["tensor_values"].items()}
    numbers = {name: _restrict_number(each) for name, each in graph["sym_int_values"].items()}
    return {**without, "nodes": nodes, "tensor_values": tensors, "sym_int_values": numbers}


def _restrict_type(tensor: dict[str, Any]) -> dict[str, Any]:
    lists = {name: [*map(_restrict_number, tensor[name])] for name in ("sizes", "strides")}
    return {**tensor, **lists, "storage_offset": _restrict_number(tensor["storage_offset"])}


def _restrict_number(number: dict[str, Any]) -> dict[str, Any]:
    """A symbol is found by its name alone."""
    told = number.get("as_expr")
    alone = _SYMBOL.fullmatch(told["expr_str"]) if told else None
    return {"as_expr": {**told, "expr_str": alone[1]}} if told and alone else number


def _restrict_argument(argument: dict[str, Any]) -> dict[str, Any]:
    if "as_graph" not in argument:
        return argument
    inner = argument["as_graph"]
    return {"as_graph": {"name": inner["name"], "graph": _restrict_graph(inner["graph"])}}


def _restrict_call(call: dict[str, Any]) -> dict[str, Any]:
    signature = call.get("signature")
    if signature is None:
        return {"fqn": call["fqn"]}
    fields = ("inputs", "outputs", "in_spec", "out_spec")
    return {"fqn": call["fqn"], "signature": {field: signature[field] for field in fields}}


def _restrict_range(limits: dict[str, Any]) -> dict[str, int]:
    low, high = limits["min_val"], limits["max_val"]
    return {
        "min_val": -_INFINITE if low is None else low,
        "max_val": _INFINITE if high is None else high,
    }


# ------------------------------------------------------------------------------------ instructions


def _number(values: Any) -> dict[int, Any]:
    return dict(enumerate(values))


def _handles(each: InstructionOrigin) -> int | list[int]:
    """The Inspector compares values where all handles are known to the program: a negative one
    beside them says that the value has another form than the node's."""
    if not each.is_value:
        return [*each.handles, *(-handle for handle in each.handles)]
    return each.handles[0] if len(each.handles) == 1 else list(each.handles)


def _delegates(listed: Sequence[InstructionOrigin]) -> dict[int, Any]:
    """For each delegate its name and its events. The Inspector looks for names that are parts of
    what was noted, and takes the last: "" is all of the delegate, and "#1" comes before "#10"."""
    return {
        at: {"name": each.delegate, "delegate_map": _events(each)}
        for at, each in enumerate(listed)
        if each.delegate
    }


def _events(each: InstructionOrigin) -> dict[int | str, list[int]]:
    named = sorted(each.events.items(), key=lambda pair: len(str(pair[0])))
    return {"": list(each.handles), **{name: list(handles) for name, handles in named}}


def _pickle(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()
