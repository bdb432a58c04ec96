"""Programs whose arguments and results torch's format has no words for, as torch can read them.

torch's files have no name for the tuples of its own operators (`torch.return_types.max`) and for
named tuples that nobody has registered: there they are tuples. An argument or result that is a
dtype, a device and the like, is None there. What it was is in our own record. Must not change what
a program computes.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch.fx import Node
from torch.utils._pytree import TreeSpec

from lostwax.ir.data import ModuleCallEntry
from lostwax.ir.graph.copying import copy_module
from lostwax.ir.program import ExportedProgram
from lostwax.ir.pytree import flatten_call, unflatten_leaves
from lostwax.ir.signature import ConstantArgument, ExportGraphSignature
from lostwax.pt2.graph.treespec import is_unnamed, plain_tree

_CONSTANTS = (torch.dtype, torch.device, torch.layout, torch.memory_format, complex)


def make_plain(program: ExportedProgram) -> ExportedProgram:
    """The program as torch can read it; the program itself, if it can."""
    if not find_lost(program):
        return program
    signature = program.graph_signature
    module, _ = copy_module(program.graph_module)
    output = module.graph.output_node()
    output.args = (torch.fx.node.map_aggregate(output.args[0], _plain),)
    return replace(
        program,
        graph_module=module,
        graph_signature=ExportGraphSignature(
            [replace(spec, arg=_plain(spec.arg)) for spec in signature.input_specs],
            [replace(spec, arg=_plain(spec.arg)) for spec in signature.output_specs],
        ),
        module_call_graph=[_plain_entry(entry) for entry in program.module_call_graph],
        example_inputs=_plain_call(program),
    )


def restore_call(program: ExportedProgram, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
    """The example call as the program takes it, of one that is plain; None if it is another."""
    leaves, spec = flatten_call(args, kwargs)
    called, wanted = program.root_signature, program.call_spec.in_spec
    if called is None or wanted is None or spec not in (wanted, plain_tree(wanted)):
        return None
    pairs = zip(leaves, called.inputs, strict=True)
    whole = [arg.value if _is_lost(arg) else leaf for leaf, arg in pairs]  # type: ignore[union-attr]
    return unflatten_leaves(whole, wanted)  # type: ignore[no-any-return]


def find_lost(program: ExportedProgram) -> list[str]:
    """List what torch reads otherwise than it is."""
    called = program.root_signature
    if called is None:
        return []
    args = zip(("argument", "result"), (called.inputs, called.outputs), strict=True)
    constants = [
        f"the {what} {i}, {arg.value}, is None"
        for what, specs in args
        for i, arg in enumerate(specs)
        if isinstance(arg, ConstantArgument) and isinstance(arg.value, _CONSTANTS)
    ]
    trees = dict.fromkeys(_find_unnamed(_trees(program.module_call_graph)))
    return [*constants, *(f"a {name} is a tuple" for name in trees)]


def _trees(entries: Iterable[ModuleCallEntry]) -> Iterator[TreeSpec]:
    for entry in entries:
        if entry.signature is not None:
            yield from (entry.signature.in_spec, entry.signature.out_spec)


def _find_unnamed(trees: Iterable[TreeSpec]) -> Iterator[str]:
    for tree in trees:
        if is_unnamed(tree):
            cls = tree.context if tree.type is namedtuple else tree.type
            yield f"{cls.__module__}.{cls.__qualname__}"
        yield from _find_unnamed(tree.children())


def _is_lost(arg: Any) -> bool:
    return isinstance(arg, ConstantArgument) and isinstance(arg.value, _CONSTANTS)


def _plain(arg: Any) -> Any:
    """An argument, or what a graph returns."""
    if _is_lost(arg):
        return replace(arg, value=None)
    return None if isinstance(arg, _CONSTANTS) and not isinstance(arg, Node) else arg


def _plain_entry(entry: ModuleCallEntry) -> ModuleCallEntry:
    call = entry.signature
    if call is None:
        return entry
    return replace(
        entry,
        signature=replace(
            call,
            inputs=[_plain(arg) for arg in call.inputs],
            outputs=[_plain(arg) for arg in call.outputs],
            in_spec=plain_tree(call.in_spec),
            out_spec=plain_tree(call.out_spec),
        ),
    )


def _plain_call(program: ExportedProgram) -> Any:
    if program.example_inputs is None:
        return None
    leaves, spec = flatten_call(*program.example_inputs)
    return unflatten_leaves(map(_plain, leaves), plain_tree(spec))
