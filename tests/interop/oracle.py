"""What torch's own reader makes of a program of ours, and our reader of what torch's serializer
writes: the truth that `to_torch` and `from_torch` are compared with.

Both go the long way, by the records that files hold, through torch's serializer.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch._export.serde import schema, serialize
from torch._subclasses.fake_tensor import FakeTensor as PeerTensor

from lostwax.fake import FakeTensor
from lostwax.fake.symbolic.node import wrap
from lostwax.interop.exchange import prepare
from lostwax.interop.graphs import AS_NUMBER
from lostwax.ir.data import ModuleCallEntry
from lostwax.ir.graph.lookup import subgraphs
from lostwax.ir.program import ExportedProgram
from lostwax.ir.ranges import Limits, limits_by_name
from lostwax.pt2 import peer
from lostwax.pt2.graph.decode import decode
from lostwax.pt2.graph.encode import encode
from lostwax.pt2.graph.metadata import OWN, type_text
from lostwax.pt2.graph.spelling import settle, settle_number
from lostwax.pt2.plain import find_lost
from lostwax.pt2.schema import UNREAD
from lostwax.sym import current, show
from lostwax.sym.text.parse import parse
from lostwax.sym.text.show import WHOLE


def read_by_torch(program: ExportedProgram, plain_names: bool = False) -> Any:
    """torch's program of one of ours, the long way. Weights without data have no such way, and
    containers and constants that torch's files have no name for."""
    assert not find_lost(program)
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


def read_by_us(theirs: Any) -> ExportedProgram:
    """Our program of one of torch's, the long way."""
    records = serialize.ExportedProgramSerializer().serialize(theirs).exported_program
    given = json.loads(serialize._to_json_bytes(records))
    made = decode(given, theirs.state_dict, theirs.constants, "a torch.export.ExportedProgram")
    made.example_inputs = theirs.example_inputs
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
        "calls": [_describe_call(entry) for entry in program.module_call_graph],
        "ranges": {
            str(s): str(limits) for s, limits in program.range_constraints.items() if s.is_Symbol
        },
        "guards": program._guards_code,
        "state": {name: id(value) for name, value in program.state_dict.items()},
        "constants": {name: id(value) for name, value in program.constants.items()},
        "verifiers": program.verifiers,
        "meta": program.graph_module.meta,
    }
    for path, part in program.graph_module.named_modules():
        if isinstance(part, torch.fx.GraphModule):
            for node in part.graph.nodes:
                if not node.name.startswith(AS_NUMBER):  # files have a truth in its place
                    parts[f"{path}:{node.name}"] = _describe_node(node)
    return parts


def describe_calls(program: Any) -> dict[str, Any]:
    """Of a program of torch's what a way through one of ours keeps as it is: not what is told of
    outputs, of nodes that read graphs and of nodes that stand in no module, and not how numbers are
    written."""
    described = describe(program)
    for name in ("meta", "guards", "ranges"):
        del described[name]
    for name, node in described.items():
        if ":" in name:
            if node["op"] in ("output", "get_attr"):
                described[name] = {key: node[key] for key in ("op", "target", "args", "kwargs")}
            else:
                described[name] = {key: _forget_form(key, node[key]) for key in node}
    return described


def _forget_form(key: str, value: Any) -> Any:
    if key == "nn_module_stack":
        return "" if "lostwax.NoModule" in value or "'" not in value else value
    if key == "val" and isinstance(value, (tuple, list)):
        if len(value) == 3 and value[0] in (torch.SymInt, torch.SymFloat, torch.SymBool):
            return value[0], value[2]
        return [_forget_form(key, each) for each in value]
    return "None" if value == "{}" else value


def _describe_call(entry: Any) -> str:
    return str(entry).replace("forward_arg_names=[]", "forward_arg_names=None")  # as files have it


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
    if isinstance(value, torch.fx.Node) and value.name.startswith(AS_NUMBER):
        return str(value.args[0])
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


def differences(
    ours: dict[str, Any], theirs: dict[str, Any], ignored: tuple[str, ...] = ()
) -> list[str]:
    """What two descriptions do not have in common, in words, the first few."""
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
    return [each for each in found if not each.startswith(ignored)][:5]


# ------------------------------------------------------------------------------------ our programs


def describe_ours(program: ExportedProgram, in_file: bool = False) -> dict[str, Any]:
    """All of a program of ours that can be compared, as plain data. `in_file`: what files of torch
    have a place for. That is not the place of a node, and not the example's value of a number."""
    parts: dict[str, Any] = {
        "inputs": [str(spec) for spec in program.graph_signature.input_specs],
        "outputs": [str(spec) for spec in program.graph_signature.output_specs],
        "calls": [_describe_call(_with_peer_names(e)) for e in program.module_call_graph],
        "guards": [str(cond) for cond in _list_conditions(program)],
        "state": {name: id(value) for name, value in program.state_dict.items()},
        "constants": {name: id(value) for name, value in program.constants.items()},
        "dialect": program.dialect,
        "examples": id(program.example_inputs),
    }
    for path, part in _graphs(program.graph_module, ""):
        for place, node in enumerate(part.graph.nodes):
            if not in_file or node.op != "get_attr":
                there = {} if in_file else {"place": place}
                parts[f"{path}:{node.name}"] = {**there, **_describe_our_node(node, in_file)}
    text = str(parts)  # of symbols that no node has, nothing is told
    ranges = limits_by_name(program.range_constraints).items()
    told = {name: both for name, both in ranges if not _is_nothing_told(name, both)}
    parts["ranges"] = {name: both for name, both in told.items() if f"'{name}'" in text}
    return parts


def _list_conditions(program: ExportedProgram) -> list[Any]:
    """The guards, less those that sizes say themselves: torch has one symbol for equal sizes."""
    symbols = {s for guard in program.guards for s in guard.cond.symbols()}
    names = {symbol: f"v{i}" for i, symbol in enumerate(symbols)}
    now = {name: current(symbol.expr) for symbol, name in names.items()}
    conditions = [guard.cond for guard in program.guards]
    return [c for c in conditions if parse(show(c, names, longest=WHOLE), now) is not True]


def _is_nothing_told(name: str, limits: Limits) -> bool:
    """Is nothing told of a symbol? Ours has no range for one that another is equal to."""
    return limits == (None, None) or (name.startswith("u") and limits == (0, None))


def _with_peer_names(entry: ModuleCallEntry) -> ModuleCallEntry:
    """With the names that torch has for arguments, where it cannot have ours."""
    if entry.fqn or entry.signature is None:
        return entry
    names = peer.argument_names(entry.signature)
    return replace(entry, signature=replace(entry.signature, forward_arg_names=names))


def _graphs(module: torch.fx.GraphModule, path: str) -> Iterator[tuple[str, torch.fx.GraphModule]]:
    yield path, module
    for name, child in subgraphs(module):
        yield from _graphs(child, f"{path}.{name}")


def _describe_our_node(node: torch.fx.Node, in_file: bool) -> dict[str, Any]:
    def show(value: Any) -> Any:
        is_graph = isinstance(value, torch.fx.Node) and value.op == "get_attr"
        return (type(value), str(value.target) if is_graph else str(value))

    is_item = node.op == "call_function" and node.target.__name__ == "getitem"  # type: ignore[union-attr]
    told = {**node.meta, "source_fn_stack": _name_lost(node.meta.get("source_fn_stack") or ())}
    shown = {} if is_item else {key: str(told.get(key) or "") for key in (*_SHOWN, *OWN)}
    return {
        "op": node.op,
        "target": str(node.target),
        "args": pytree.tree_map(show, (_plain(node.args), _plain(node.kwargs))),
        "val": _describe_our_value(node.meta.get("val"), in_file),
        **shown,
    }


def _name_lost(stack: Any) -> list[tuple[str, Any]]:
    """Where nodes come from. A class that nobody finds by its name, as parametrizations make one
    for each module, is its name."""
    return [(name, type_text(f) if _is_lost(f) else f) for name, f in stack]


def _is_lost(function: Any) -> bool:
    home = sys.modules.get(getattr(function, "__module__", ""))
    return isinstance(function, type) and getattr(home, function.__name__, None) is not function


def _describe_our_value(value: Any, in_file: bool) -> Any:
    """All that is recorded of a value, in the light of what is known at the end: torch is told
    that."""
    if isinstance(value, (tuple, list)):
        return type(value), [_describe_our_value(each, in_file) for each in value]
    if isinstance(value, FakeTensor):
        t = value.fake_type
        numbers = [_forget_zero(settle(s)) for s in (*t.size, *t.stride, t.offset)]
        return numbers, t.dtype, t.device, t.layout, value.requires_grad
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        known = settle_number(value)
        if isinstance(known, (int, float)):
            return type(known), known
        given = str(known)
        text = re.sub(r"\br\d+\b", "r", given)  # names of what is computed are given anew,
        if text != given:  # after those of all data, and in that order conditions are written
            text = " and ".join(sorted(text.split(" and ")))
        if isinstance(value, torch.SymFloat) and re.fullmatch(r"[\w.() +]+", text):
            text = " + ".join(sorted(re.findall(r"[\w.]+", text)))  # sympy orders the parts of sums
        return type(wrap(known)), text, None if in_file else getattr(known, "hint", None)
    return type(value), value


def _forget_zero(size: Any) -> str:
    """A size as torch has it, to whose sympy each size is at least 1."""
    return re.sub(r"max\(1, (s\d+)\)", r"\1", re.sub(r"min\(1, s\d+\)", "1", str(size)))


def _plain(value: Any) -> Any:
    """Without the classes of torch.fx, which each way of making nodes has its own of."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return tuple(map(_plain, value)) if isinstance(value, tuple) else value
