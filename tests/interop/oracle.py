"""What torch's own reader makes of a program of ours: the truth that `to_torch` is compared with.

It goes the long way, by the records that files hold, through torch's serializer.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._export.serde import schema, serialize
from torch._subclasses.fake_tensor import FakeTensor as PeerTensor

from lostwax.fake import FakeTensor
from lostwax.interop.exchange import prepare
from lostwax.ir.program import ExportedProgram
from lostwax.pt2.graph.encode import encode
from lostwax.pt2.schema import UNREAD


def read_by_torch(program: ExportedProgram, plain_names: bool = False) -> Any:
    """torch's program of one of ours, the long way. Weights without data have no such way."""
    program, state, constants = prepare(program)
    assert not any(isinstance(each, FakeTensor) for each in state.values())
    records = {k: v for k, v in encode(program, plain_names).items() if k != "lostwax"}
    made = serialize.ExportedProgramDeserializer().deserialize(
        serialize._dict_to_dataclass(schema.ExportedProgram, records),  # type: ignore[arg-type]
        state,
        constants,
        program.example_inputs,
    )
    for part in made.graph_module.modules():
        if isinstance(part, torch.fx.GraphModule):
            for node in part.graph.nodes:
                _restore_traced_form(part, node)
    return made


def _restore_traced_form(part: torch.fx.GraphModule, node: torch.fx.Node) -> None:
    """Undo what torch's reader makes otherwise than its tracer: it takes every result of an
    operator, also those that no node of ours reads; and lists are tuples."""
    for taken in [user for user in node.users if not user.users and _is_unread(user, node)]:
        part.graph.erase_node(taken)
    if not isinstance(node.target, torch._ops.OpOverload):
        return
    returns = node.target._schema.returns
    if len(returns) == 1 and isinstance(returns[0].type, torch.ListType):
        node.meta["val"] = list(node.meta["val"])


def _is_unread(node: torch.fx.Node, of: torch.fx.Node) -> bool:
    return node.name.startswith((of.name + UNREAD, "as_none"))


def describe(program: Any) -> dict[str, Any]:
    """All of a program of torch's that can be compared, as plain data."""
    parts: dict[str, Any] = {
        "inputs": [str(spec) for spec in program.graph_signature.input_specs],
        "outputs": [str(spec) for spec in program.graph_signature.output_specs],
        "calls": [str(entry) for entry in program.module_call_graph],
        "ranges": {str(s): str(limits) for s, limits in program.range_constraints.items()},
        "guards": program._guards_code,
        "state": {name: id(value) for name, value in program.state_dict.items()},
        "constants": {name: id(value) for name, value in program.constants.items()},
        "verifiers": program.verifiers,
        "meta": program.graph_module.meta,
    }
    for path, part in program.graph_module.named_modules():
        if isinstance(part, torch.fx.GraphModule):
            for node in part.graph.nodes:
                parts[f"{path}:{node.name}"] = _describe_node(node)
    return parts


_SHOWN = ("stack_trace", "nn_module_stack", "source_fn_stack", "torch_fn", "custom")


def _describe_node(node: torch.fx.Node) -> dict[str, Any]:
    is_item = node.op == "call_function" and node.target.__name__ == "getitem"  # type: ignore[union-attr]
    shown = {} if is_item else {key: str(node.meta.get(key)) for key in _SHOWN}  # items have others
    return {
        "op": node.op,
        "target": str(node.target),
        "args": _describe_arguments(node.args),
        "kwargs": _describe_arguments(node.kwargs),
        "val": _describe_value(node.meta.get("val")),
        "bindings": str(node.meta.get("unbacked_bindings")),
        **shown,
    }


def _describe_arguments(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_describe_arguments(each) for each in value]
    if isinstance(value, dict):
        return {key: _describe_arguments(each) for key, each in value.items()}
    return str(value)


def _describe_value(value: Any) -> Any:
    if isinstance(value, PeerTensor):
        sizes = (tuple(value.shape), tuple(value.stride()))
        shown = [[_describe_value(each) for each in part] for part in sizes]
        return shown, value.dtype, value.device, value.requires_grad, type(value)
    if isinstance(value, (list, tuple)):
        return type(value), [_describe_value(each) for each in value]
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        hint = None if isinstance(value, torch.SymBool) else value.node._hint
        return type(value), str(value.node.expr), str(hint)
    return type(value), str(value)


def _has_place(node: dict[str, Any]) -> bool:
    """Does a node stand where ours does? Where a reader puts others, is its own affair."""
    return node["op"] != "get_attr" and "built-in function" not in str(node["target"])


def differences(ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    """What two descriptions do not have in common, in words."""
    found = [f"only one has {name}" for name in sorted(ours.keys() ^ theirs.keys())]
    for name in ours.keys() & theirs.keys():
        if ours[name] != theirs[name]:
            one, other = ours[name], theirs[name]
            if isinstance(one, dict) and isinstance(other, dict):
                keys = [k for k in {**one, **other} if one.get(k) != other.get(k)]
                found += [f"{name}.{k}: {one.get(k)!s:.300} / {other.get(k)!s:.300}" for k in keys]
            else:
                found.append(f"{name}: {one!s:.300} / {other!s:.300}")
    order = [[n for n, d in each.items() if ":" in n and _has_place(d)] for each in (ours, theirs)]
    if not found and order[0] != order[1]:
        found.append(f"order: {order[0]} / {order[1]}")
    return found
