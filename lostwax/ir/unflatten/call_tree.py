"""Finds which nodes of a flat graph belong to which call of a submodule.

The `nn_module_stack` of the nodes says it. Here it becomes a tree: a call is an unbroken run of
nodes and of the calls inside it, so that running the tree in order runs the graph in order. Must
not build graphs or modules.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import getitem

from torch.fx import Graph, Node

from lostwax.fake import FakeTensor
from lostwax.ops.registry import has_trait
from lostwax.ops.traits import Trait

Stack = tuple[str, ...]
"""The calls that a node stands in, outermost first: "layers.0", "layers.0.norm@1"."""


@dataclass(eq=False)
class TreeCall:
    """One call of a module; the root's path is "" and it has no parent."""

    name: str
    """The path; from the second call on it has a number: "norm@1"."""
    parent: TreeCall | None = None
    items: list[Node | TreeCall] = field(default_factory=list)
    last: int = 0
    """The index in the graph of its last node."""

    @property
    def path(self) -> str:
        return self.name.partition("@")[0]

    def chain(self) -> list[TreeCall]:
        """The calls from the root to this one."""
        above = [] if self.parent is None else self.parent.chain()
        return [*above, self]

    def calls(self) -> Iterator[TreeCall]:
        """This call and all inside it, in order."""
        yield self
        for item in self.items:
            if isinstance(item, TreeCall):
                yield from item.calls()


def build_call_tree(graph: Graph, left_out: set[Node]) -> tuple[TreeCall, dict[Node, TreeCall]]:
    """Build the tree of calls; return its root, and the innermost call of each node. Inputs, the
    output and the nodes `left_out` belong to none."""
    nodes = [n for n in graph.nodes if n.op == "call_function" and n not in left_out]
    places = {n: i for i, n in enumerate(graph.nodes)}
    root = TreeCall("")
    owners: dict[Node, TreeCall] = {}
    current = root
    for node, stack in zip(nodes, _stacks(nodes), strict=True):
        current = _enter_call(current, stack)
        current.items.append(node)
        owners[node] = current
        for call in current.chain():
            call.last = places[node]
    return root, owners


def _enter_call(current: TreeCall, stack: Stack) -> TreeCall:
    """Return the call at a stack: leave the calls that are over, and enter new ones."""
    chain = current.chain()
    shared = 0
    for call, name in zip(chain[1:], stack, strict=False):
        if call.name != name:
            break
        shared += 1
    current = chain[shared]
    for name in stack[shared:]:
        call = TreeCall(name, current)
        current.items.append(call)
        current = call
    return current


# ------------------------------------------------------------------------------------------- stacks


def _said_stack(node: Node) -> Stack:
    """The stack that the node records, without the root, even if the root calls itself."""
    found = []
    for key, (path, _) in (node.meta.get("nn_module_stack") or {}).items():
        path = path.partition("@")[0]
        if path:
            number = str(key).partition("@")[2]
            found.append(f"{path}@{number}" if number else path)
    return tuple(found)


def _stacks(nodes: Sequence[Node]) -> list[Stack]:
    """Return the stack of each node, such that each call is one unbroken run.

    A size is computed where it is first needed, and a pass may put a node anywhere: such a node
    belongs to the call where it stands, not to the one that it records.
    """
    said = [_said_stack(n) for n in nodes]
    firm = [None if _is_light(n) else s for n, s in zip(nodes, said, strict=True)]
    _drop_strays(firm)
    found: list[Stack] = []
    left: Stack = ()
    for is_known, group in groupby(range(len(nodes)), lambda i: firm[i] is not None):
        places = list(group)
        if is_known:
            found += [said[i] for i in places]
            left = found[-1]
        else:
            end = places[-1] + 1
            right = said[end] if end < len(nodes) else ()
            found += _stacks_between(left, right, [said[i] for i in places])
    return found


def _stacks_between(left: Stack, right: Stack, said: Sequence[Stack]) -> Iterator[Stack]:
    """Yield stacks between two that are known: calls are first left, then entered."""
    shared = len(_shared_prefix(left, right))
    depth, entered = len(left), 0
    for own in said:
        size = len(own)
        if not entered and shared <= size <= depth and own == left[:size]:
            depth = size
        elif size > max(shared, entered) and own == right[:size]:
            entered = size
        elif not entered:
            depth = shared
        yield right[:entered] if entered else left[:depth]


def _is_light(node: Node) -> bool:
    """Is this a node that was made for others, and may record a call that is already over?"""
    return (
        not isinstance(node.meta.get("val"), (FakeTensor, tuple, list))
        or node.target is getitem
        or has_trait(node.target, Trait.DETACHES)
    )


def _drop_strays(stacks: list[Stack | None]) -> None:
    """While some call is in several pieces, drop the stacks of the smallest piece."""
    while True:
        broken = [runs for runs in _runs(stacks).values() if len(runs) > 1]
        if not broken:
            return
        least = min((run for runs in broken for run in runs), key=len)
        for i in least:
            stacks[i] = None


def _runs(stacks: Sequence[Stack | None]) -> dict[str, list[list[int]]]:
    """Return the unbroken pieces of each call."""
    runs: dict[str, list[list[int]]] = {}
    previous: Stack = ()
    for i, stack in enumerate(stacks):
        if stack is None:
            continue
        same = len(_shared_prefix(stack, previous))
        for depth, name in enumerate(stack):
            known = runs.setdefault(name, [])
            if depth < same:
                known[-1].append(i)
            else:
                known.append([i])
        previous = stack
    return runs


def _shared_prefix(a: Stack, b: Stack) -> Stack:
    count = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        count += 1
    return a[:count]
