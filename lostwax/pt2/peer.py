"""What torch's own reader makes of a program that we save.

torch loads a file by evaluating texts, and runs a program as generated Python. So names that mean
something else there are replaced in torch's part of a file, and `save` warns of what torch cannot
read at all. Must not change the program: `lostwax.load` gives back what was saved.
"""

from __future__ import annotations

import keyword
import math
import operator
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.fx import Graph, GraphModule

from lostwax import torch_version
from lostwax.ir.data import Assumption, ModuleCallSignature, Ref
from lostwax.ir.graph.delegate import held_delegates
from lostwax.ir.graph.lookup import subgraphs
from lostwax.ir.program import ExportedProgram
from lostwax.ir.pytree import Chosen, leaf_paths, mapping_keys
from lostwax.ir.run.conditions.answers import ABSENT, ATTRIBUTE, ONE, VALUE
from lostwax.ir.signature import (
    STATE_WRITES,
    ConstantArgument,
    InputKind,
    OutputKind,
    SymBoolArgument,
    TensorArgument,
)
from lostwax.ir.text import source_text, target_text
from lostwax.sym.numbers.real import MATH

_SPOKEN = frozenset((*keyword.kwlist, "self", "torch", "pytree", "fx_pytree"))
"""Names that mean something else in the code that torch generates for a call."""


def argument_names(call: ModuleCallSignature) -> list[str] | None:
    """The names of the arguments in torch's part of a file. Arguments that are given by position
    may have other names there than in the original; `original.py` keeps the original's."""
    names = call.forward_arg_names
    if names is None or _SPOKEN.isdisjoint(names):
        return names
    count = call.in_spec.child(0).num_children
    taken = {*names, *_SPOKEN}
    return [*(_free(name, taken) for name in names[:count]), *names[count:]]


def _free(name: str, taken: set[str]) -> str:
    free = name
    while free in _SPOKEN or (free != name and free in taken):
        free += "_"
    taken.add(free)
    return free


def find_unreadable(program: ExportedProgram) -> list[str]:
    """List what torch would not read, or not run, with the reasons."""
    found = [*_find_functions(program.graph_module), *_find_results(program), *_find_names(program)]
    delegates = held_delegates(program.graph_module)
    return [*found, *(f"a delegate of {d.backend_id} in a branch or a loop" for d in delegates)]


def find_unchecked(program: ExportedProgram) -> list[str]:
    """List what the program relies on and torch does not check: what was asked of tensors at
    capture, and that inputs share no memory. That nobody has put something on a tensor
    (`hasattr(x, "jax")`) is so in all calls, but for those that mean to."""
    specs = program.graph_signature.input_specs
    inputs = [s.arg.name for s in specs if s.kind is InputKind.USER_INPUT]

    def join_names(refs: Iterable[Ref]) -> str:
        return ", ".join([inputs[ref] if isinstance(ref, int) else ref for ref in refs])

    def describe(each: Assumption) -> str:
        if each.what == ONE and each.answer:
            return f"{join_names(each.of)}: they are one tensor"
        of = f"{'of what is computed from ' if each.computed else ''}{join_names(each.of)}"
        return f"{of}{': ' if of else ''}{each.what} is {each.answer}, asked at {each.where}"

    def is_unchecked(each: Assumption) -> bool:
        is_bare = each.what.startswith(ATTRIBUTE) and each.answer == ABSENT
        return each.what != VALUE and not is_bare  # (declared constants are asserted by the graph)

    assumed = [describe(a) for a in program.assumptions or () if is_unchecked(a)]
    return [*assumed, *_find_written_inputs(program)]


def _find_written_inputs(program: ExportedProgram) -> list[str]:
    """List the inputs that are written to, if there are others that might share their memory."""
    signature = program.graph_signature
    tensors = [
        s.arg.name
        for s in signature.input_specs
        if s.kind is InputKind.USER_INPUT and isinstance(s.arg, TensorArgument)
    ]
    targets = set(signature.user_inputs_to_mutate.values())
    written = [name for name in tensors if name in targets] if len(tensors) > 1 else []
    return [f"{name} is written to, and shares no memory with other inputs" for name in written]


def _find_functions(module: GraphModule) -> Iterator[str]:
    for node in module.graph.nodes:
        if node.op == "call_function" and node.target in _UNREAD:
            at = source_text(node)
            name = target_text(node.target)
            yield f"{node.name!r}{f', at {at}' if at else ''}: it does not know {name} of numbers"
    for _, child in subgraphs(module):
        yield from _find_functions(child)


_ROUNDED = (operator.abs, math.floor, math.ceil)
_UNREAD: frozenset[Any] = frozenset(
    (
        *(round, *(getattr(torch, f"_sym_{name}") for name in MATH if name != "sqrt")),
        *(() if torch_version.LOAD_KNOWS_ROUNDING else _ROUNDED),
    )
)


def _find_results(program: ExportedProgram) -> Iterator[str]:
    for i, spec in enumerate(program.graph_signature.output_specs):
        if isinstance(spec.arg, SymBoolArgument):
            yield f"result {i}, {spec.arg.name!r}: it has no results that are true or false"
        elif isinstance(spec.arg, ConstantArgument) and isinstance(spec.arg.value, str):
            yield f"result {i}, {spec.arg.value!r}: it has no results that are texts"
    if program.root_signature is not None and _has_chosen(program.root_signature.out_spec):
        yield (
            "a result that data make one thing or another: it knows none before "
            "`import lostwax.ir.pytree`"
        )


def _has_chosen(spec: Any) -> bool:
    return spec.type is Chosen or any(map(_has_chosen, spec.children()))


def _find_names(program: ExportedProgram) -> Iterator[str]:
    """Yield the names that torch's module of the program cannot take, or cannot hold."""
    root = program.root_signature
    if root is not None:
        for key in mapping_keys(root.in_spec.child(1)):
            if key in _SPOKEN or not str(key).isidentifier():
                yield f"the keyword {key!r}: the code that it generates cannot have that name"
        for path in leaf_paths(root.in_spec):
            if '"' in path or "\\" in path:
                yield f"the input {path.partition(']')[2]}: its guards cannot have such a key"
    held = {spec.target for spec in program.graph_signature.input_specs}
    for spec in program.graph_signature.output_specs:
        name = spec.target or ""
        if spec.kind is OutputKind.USER_INPUT_MUTATION and Graph().placeholder(name).name != name:
            yield f"the input {name!r}, which is written to: its copy of the graph has no such name"
        if spec.kind is OutputKind.USER_INPUT_MUTATION and name in held:
            yield f"the input {name!r}, which is written to: it writes to the state of that name"
    yield from _find_written_leaves(program)
    seen: dict[str, None] = {}
    for name in (*program.state_dict, *program.constants):
        first = name.partition(".")[0]
        if first == "self" or hasattr(_EMPTY, first):
            seen[first] = None
    yield from (
        f"the attribute {name!r}: its own modules have another of that name" for name in seen
    )


def _find_written_leaves(program: ExportedProgram) -> Iterator[str]:
    """Yield what the original writes to behind autograd's back (`torch.no_grad()`, `.data`)."""
    nodes = {n.name: n for n in program.graph.find_nodes(op="placeholder")}
    for spec in program.graph_signature.output_specs:
        name = spec.target or ""
        if spec.kind in STATE_WRITES:
            what, held = "parameter", program.state_dict.get(name)
        elif spec.kind is OutputKind.USER_INPUT_MUTATION:
            what, held = "input", nodes[name].meta["val"]
        else:
            continue
        if held is not None and held.requires_grad and held.is_leaf:
            yield (
                f"the {what} {name!r}, which is written to: it does so with gradients switched "
                "on, which fails; called under torch.no_grad() it runs"
            )


_EMPTY: Any = GraphModule({}, Graph())
