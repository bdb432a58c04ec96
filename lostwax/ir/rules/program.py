"""The rules of a whole program: its signature fits its graph, its state, and how it is called.

They have the form of those in `graph.py`, which hold when these are checked. Must not change the
program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Node

from lostwax.fake import FakeTensor
from lostwax.fake.symbolic.node import unwrap
from lostwax.ir.data import Program
from lostwax.ir.ranges import limits_by_name
from lostwax.ir.rules.graph import Found, have_same_type, value_text
from lostwax.ir.signature import (
    INPUT_ORDER,
    STATE_WRITES,
    ArgumentSpec,
    ConstantArgument,
    CustomObjArgument,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    SymBoolArgument,
    SymFloatArgument,
    SymIntArgument,
    TensorArgument,
    TokenArgument,
    same_constant,
    strip_class,
)
from lostwax.ir.text import type_text
from lostwax.sym import Expr, current


def _placeholders(program: Program) -> list[Node]:
    return [n for n in program.graph.nodes if n.op == "placeholder"]


def _results(program: Program) -> Sequence[Any]:
    return program.graph.output_node().args[0]  # type: ignore[return-value]


def _inputs_match(program: Program) -> Found:
    nodes, specs = _placeholders(program), program.graph_signature.input_specs
    if len(nodes) != len(specs):
        yield None, f"the graph has {len(nodes)} placeholders, the signature {len(specs)} inputs"
        return
    for node, spec in zip(nodes, specs, strict=True):
        if node.name != spec.arg.name:
            yield node, f"the signature calls this input {spec.arg.name!r}"
        elif not _is_of_kind(node.meta["val"], spec.arg):
            yield node, f"it is {value_text(node.meta['val'])}, the signature says {spec.arg}"


def _outputs_match(program: Program) -> Found:
    if isinstance(_results(program), Node):
        yield "output", "it does not return a tuple"
        return
    values, specs = _results(program), program.graph_signature.output_specs
    if len(values) != len(specs):
        yield "output", f"it returns {len(values)} values, the signature has {len(specs)} outputs"
        return
    for i, (value, spec) in enumerate(zip(values, specs, strict=True)):
        if isinstance(spec.arg, ConstantArgument) and not isinstance(value, Node):
            if not same_constant(value, strip_class(spec.arg.value)):
                yield "output", f"output {i} is {value!r}, the signature says {spec.arg.value!r}"
        elif not isinstance(value, Node) or value.name != spec.arg.name:
            name = value.name if isinstance(value, Node) else value
            yield "output", f"output {i} is {name!r}, the signature calls it {spec.arg.name!r}"
        elif not _is_of_kind(value.meta.get("val"), spec.arg):
            yield value, f"it is {value_text(value.meta.get('val'))}, the signature says {spec.arg}"


def _is_of_kind(value: Any, arg: ArgumentSpec) -> bool:
    match arg:
        case TensorArgument():
            return isinstance(value, FakeTensor)
        case SymIntArgument():
            return isinstance(value, (torch.SymInt, int))
        case SymFloatArgument():
            return isinstance(value, (torch.SymFloat, float))
        case SymBoolArgument():
            return isinstance(value, (torch.SymBool, bool))
        case ConstantArgument():
            return same_constant(value, arg.value)
        case CustomObjArgument() | TokenArgument():
            return True


_OUTPUT_ORDER = [
    {OutputKind.TOKEN},
    set(STATE_WRITES),
    {OutputKind.USER_INPUT_MUTATION},
    {OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT},
    {OutputKind.GRADIENT_TO_PARAMETER, OutputKind.GRADIENT_TO_USER_INPUT},
]


def _kinds_in_order(program: Program) -> Found:
    signature = program.graph_signature
    last = 0
    for i in signature.input_specs:
        height = INPUT_ORDER.index(i.kind)
        if height < last:
            yield i.arg.name, f"a {i.kind.name} stands after a {INPUT_ORDER[last].name}"
        last = max(last, height)
    last = 0
    for o in signature.output_specs:
        height = next(h for h, kinds in enumerate(_OUTPUT_ORDER) if o.kind in kinds)
        if height < last:
            after = " or ".join(sorted(kind.name for kind in _OUTPUT_ORDER[last]))
            yield o.arg.name, f"a {o.kind.name} stands after a {after}"
        last = max(last, height)


def _state(program: Program) -> Found:
    seen: set[str] = set()
    for spec in program.graph_signature.input_specs:
        name = spec.arg.name
        if spec.kind in (InputKind.USER_INPUT, InputKind.TOKEN):
            if spec.target is not None:
                yield name, f"a {spec.kind.name} has the target {spec.target!r}"
        elif spec.target is None:
            yield name, f"a {spec.kind.name} has no target"
        elif spec.target in seen:
            yield name, f"another input has the target {spec.target!r}"
        else:
            seen.add(spec.target)
            yield from _check_stored(program, spec, spec.target)


def _check_stored(program: Program, spec: InputSpec, target: str) -> Found:
    name = spec.arg.name
    if spec.kind is InputKind.BUFFER and spec.persistent is None:
        yield name, "it is not said whether this buffer is persistent"
        return
    in_state = spec.kind is InputKind.PARAMETER or spec.persistent is True
    store, where = (
        (program.state_dict, "state_dict") if in_state else (program.constants, "constants")
    )
    if target not in store:
        yield name, f"its target {target!r} is not in {where}"
    elif spec.kind is InputKind.PARAMETER and not isinstance(store[target], torch.nn.Parameter):
        yield name, f"{where}[{target!r}] is not an nn.Parameter"
    elif spec.kind is not InputKind.CUSTOM_OBJ and not isinstance(store[target], torch.Tensor):
        yield name, f"{where}[{target!r}] is not a tensor"


def _state_types(program: Program) -> Found:
    stores = {**program.constants, **program.state_dict}
    specs = program.graph_signature.input_specs
    for node, spec in zip(_placeholders(program), specs, strict=True):
        value, fake = stores.get(spec.target or ""), node.meta["val"]
        both = isinstance(value, torch.Tensor) and isinstance(fake, FakeTensor)
        if both and type_text(value) != type_text(fake):
            yield node, f"it is {type_text(fake)}, {spec.target!r} is {type_text(value)}"


def _writes(program: Program) -> Found:
    signature = program.graph_signature
    written: set[tuple[OutputKind, str | None]] = set()
    nodes = {n.name: n for n in program.graph.nodes}
    for spec in signature.output_specs:
        if spec.kind in _TARGETS:
            key = (spec.kind, spec.target)
            source = _source_of(signature.input_specs, spec)
            if source is None:
                yield (
                    spec.arg.name,
                    f"{spec.kind.name}: there is no {spec.target!r} among the inputs",
                )
            elif "MUTATION" in spec.kind.name:
                if key in written:
                    yield spec.arg.name, f"{spec.target!r} is written twice"
                yield from _check_same_type(nodes[spec.arg.name], nodes[source.arg.name])
            written.add(key)
        elif spec.target is not None:
            yield spec.arg.name, f"a {spec.kind.name} has the target {spec.target!r}"


_TARGETS = {
    OutputKind.BUFFER_MUTATION: InputKind.BUFFER,
    OutputKind.PARAMETER_MUTATION: InputKind.PARAMETER,
    OutputKind.USER_INPUT_MUTATION: InputKind.USER_INPUT,
    OutputKind.GRADIENT_TO_PARAMETER: InputKind.PARAMETER,
    OutputKind.GRADIENT_TO_USER_INPUT: InputKind.USER_INPUT,
}


def _source_of(inputs: Sequence[InputSpec], spec: OutputSpec) -> InputSpec | None:
    kind = _TARGETS[spec.kind]
    for given in inputs:
        name = given.arg.name if kind is InputKind.USER_INPUT else given.target
        if given.kind is kind and name == spec.target:
            return given
    return None


def _check_same_type(new: Node, old: Node) -> Found:
    a, b = new.meta["val"], old.meta["val"]
    tensors = isinstance(a, FakeTensor) and isinstance(b, FakeTensor)
    if not (
        have_same_type(a.fake_type, b.fake_type) if tensors else value_text(a) == value_text(b)
    ):
        yield (
            new,
            f"it is {value_text(new.meta['val'])} and is written to {old.name!r}, "
            f"which is {value_text(old.meta['val'])}",
        )


def _calling(program: Program) -> Found:
    signature, root = program.graph_signature, program.root_signature
    first = program.module_call_graph[0] if program.module_call_graph else None
    if root is None or first is None or first.fqn != "":
        yield None, "module_call_graph does not begin with the root and its signature"
        return
    spec = root.in_spec
    if spec.type is not tuple or [c.type for c in spec.children()] != [tuple, dict]:
        yield None, "in_spec is not a tuple of arguments and a dict of keyword arguments"
    if spec.num_leaves != len(signature.user_inputs):
        yield (
            None,
            f"in_spec has {spec.num_leaves} leaves, the signature "
            f"{len(signature.user_inputs)} user inputs",
        )
    if root.out_spec.num_leaves != len(signature.user_outputs):
        yield (
            None,
            f"out_spec has {root.out_spec.num_leaves} leaves, the signature "
            f"{len(signature.user_outputs)} user outputs",
        )
    names = {n.name for n in program.graph.nodes}
    for entry in program.module_call_graph:
        for arg in (*entry.signature.inputs, *entry.signature.outputs) if entry.signature else ():
            if not isinstance(arg, ConstantArgument) and arg.name not in names:
                yield (
                    arg.name,
                    f"the call of {entry.fqn!r} speaks of it, the graph does not have it",
                )


def _ranges(program: Program) -> Found:
    known = limits_by_name(program.range_constraints)
    for name, (lo, hi) in known.items():
        if lo is not None and hi is not None and lo > hi:
            yield None, f"the range of {name} is empty: {lo} to {hi}"
    for node in _placeholders(program):
        value = node.meta["val"]
        is_tensor = isinstance(value, FakeTensor)
        sizes = map(current, value.fake_type.size) if is_tensor else (unwrap(value),)
        for size in sizes:
            for symbol in size.symbols() if isinstance(size, Expr) else ():
                if symbol.name not in known:
                    yield node, f"its symbol {symbol.name} has no range"


INPUT_RULE = ("inputs", "the signature's inputs are the placeholders", _inputs_match)
PROGRAM_RULES: tuple[tuple[str, str, Callable[[Program], Found]], ...] = (
    ("outputs", "the signature's outputs are what is returned", _outputs_match),
    ("signature order", "state before user inputs, writes before results", _kinds_in_order),
    ("state", "each parameter, buffer and constant is there, under its name", _state),
    ("state types", "state has the size and dtype of its placeholder", _state_types),
    ("writes", "what is written is an input of that kind and type, once", _writes),
    ("calling convention", "structures have as many leaves as inputs, outputs", _calling),
    ("ranges", "each symbol of an input has a range, and no range is empty", _ranges),
)
