"""Finds where the stages of a program begin: a stage begins with the first operator of a call of a
module. Must not decide what a stage consists of, nor change the program.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from torch.fx import GraphModule, Node

from lostwax.errors import SplitError, did_you_mean
from lostwax.ir.graph.lookup import all_nodes, subgraphs
from lostwax.ir.program import ExportedProgram
from lostwax.ir.text import source_place
from lostwax.ir.unflatten.call_tree import TreeCall, build_call_tree
from lostwax.ir.unflatten.split import free_numbers

Calls = Mapping[str, Sequence[Node]]
"""By the path of a module, the first node of each of its calls."""


def read_paths(at: Any) -> list[str]:
    """The modules that a caller names."""
    paths = [*at] if isinstance(at, Iterable) and not isinstance(at, str) else []
    if not paths or not all(isinstance(path, str) for path in paths):
        raise SplitError.here(
            f"at= is {at!r}, and takes a list of the modules with which stages begin",
            instead='at=["layers.4"], for two stages',
        )
    return paths


def find_starts(program: ExportedProgram, at: Sequence[str]) -> list[Node]:
    """The first node of each stage but the first, in order."""
    calls = _find_calls(program)
    starts = [_find_start(program, path, calls) for path in at]
    _check_order(program, at, starts)
    return starts


def _find_calls(program: ExportedProgram) -> dict[str, list[Node]]:
    root, owners = build_call_tree(program.graph, free_numbers(program.graph))
    firsts: dict[TreeCall, Node] = {}
    for node, call in owners.items():
        for each in call.chain():
            firsts.setdefault(each, node)
    found: dict[str, list[Node]] = {}
    for call in root.calls():
        if call is not root:
            found.setdefault(call.path, []).append(firsts[call])
    return found


def _find_start(program: ExportedProgram, path: str, calls: Calls) -> Node:
    name, mark, number = path.partition("@")
    found = calls.get(name)
    if found is None:
        raise _explain_unknown(program, name, calls)
    if not mark and len(found) > 1:
        ways = ", ".join(f'"{name}@{i}"' for i in range(len(found)))
        raise SplitError.here(
            f"the module {name!r} is called {len(found)} times",
            why="a stage begins with one of its calls",
            instead=f"say which, at=[...] with one of {ways}",
        )
    if mark and not (number.isdecimal() and int(number) < len(found)):
        raise SplitError.here(
            f"the module {name!r} has no call {number!r}; it is called {len(found)} times",
            why="calls are counted from 0",
            instead=f'"{name}@{len(found) - 1}" is the last of them',
        )
    return found[int(number or 0)]


def _explain_unknown(program: ExportedProgram, path: str, calls: Calls) -> SplitError:
    inside = next(_find_around(program.graph_module, path), None)
    if inside is not None:
        outer = [p for p, _ in (inside.meta.get("nn_module_stack") or {}).values() if p]
        instead = "at=[...] with a module before or behind"
        if outer:
            instead = f'at=["{outer[-1]}"], the module around, or one before or behind'
        return SplitError.here(
            f"the module {path!r} is called inside of {inside.name!r}, a branch or a loop "
            f"({source_place(inside)})",
            why="a branch or a loop runs as a whole, in one stage",
            instead=instead,
        )
    first = next((each for each in calls if each.startswith(f"{path}.")), None)
    if first is not None:
        return SplitError.here(
            f"the module {path!r} is not called: it holds others",
            why="a stage begins with a call of a module",
            instead=f'at=["{first}"], the first in it',
        )
    if any(entry.fqn.partition("@")[0] == path for entry in program.module_call_graph):
        return SplitError.here(
            f"the module {path!r} computes nothing in this program, so that no stage begins there",
            why="a stage begins with the first operator of a module",
            instead="at=[...] with the module that runs next",
        )
    listed = ", ".join(list(calls)[:6]) + (", ..." if len(calls) > 6 else "")
    return SplitError.here(
        f"the program has no module {path!r}{did_you_mean(path, calls)}",
        instead=f"a path as in named_modules(): {listed}",
    )


def _find_around(module: GraphModule, path: str) -> Iterator[Node]:
    """The nodes of a graph in whose sub-graphs a module is called."""
    held = {name for name, child in subgraphs(module) if _calls(child, path)}
    for node in module.graph.find_nodes(op="get_attr"):
        if str(node.target) in held:
            yield from node.users


def _calls(module: GraphModule, path: str) -> bool:
    stacks = (node.meta.get("nn_module_stack") or {} for node in all_nodes(module))
    return any(p.partition("@")[0] == path for stack in stacks for p, _ in stack.values())


def _check_order(program: ExportedProgram, at: Sequence[str], starts: Sequence[Node]) -> None:
    places = {node: i for i, node in enumerate(program.graph.nodes)}
    by_place = sorted(zip(starts, at, strict=True), key=lambda pair: places[pair[0]])
    for (one, path), (other, second) in pairwise(by_place):
        if one is other:
            raise SplitError.here(
                f"{path!r} and {second!r} begin with the same operator, {one.name!r}",
                why="the stage between them would compute nothing",
                instead=f"one of the two, at=[...{path!r}...]",
            )
    right = [path for _, path in by_place]
    if right != list(at):
        raise SplitError.here(
            f"at= is {list(at)!r}, and the modules first run in another order",
            why="stages run one after the other",
            instead=f"at={right!r}",
        )
    numbers = free_numbers(program.graph)
    before = (n for n in program.graph.nodes if n.op == "call_function" and n not in numbers)
    if next(before, None) is starts[0]:
        raise SplitError.here(
            f"{at[0]!r} is where the program begins: the stage before it would compute nothing",
            instead=f"at={list(at[1:])!r}" if at[1:] else "a module that runs later",
        )
