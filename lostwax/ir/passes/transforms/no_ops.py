"""Removes calls that change nothing: a view with the sizes and strides of its base, a copy that
nobody can tell from its original.

Must not let a caller see shared memory that was not shared before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import getitem
from typing import Any

from torch._ops import HigherOrderOperator, OpOverload
from torch.fx import Graph, Node

from lostwax.fake import FakeTensor
from lostwax.fake.asked_tensor import is_marked
from lostwax.ir.graph.effects import memory_chain, view_base, visible_nodes
from lostwax.ir.passes.draft import Draft
from lostwax.ir.passes.pipeline import Pass
from lostwax.ops.registry import aten, has_trait
from lostwax.ops.traits import Trait
from lostwax.types import TensorType


@dataclass(frozen=True)
class NoOps(Pass):
    """Removes `_to_copy`, `clone`, `expand`, `slice`, `view`, `permute`… where they change nothing.

    A view goes if its sizes, strides and offset are those of what it views; a copy if also nobody
    sees that it shares memory afterwards. `detach` stays: it stops gradients. A backward reads the
    original where it read the copy: if a caller writes to that in between, autograd raises.
    """

    requires = ("functional",)

    def edit(self, draft: Draft) -> None:
        for module in draft.graph_modules():
            remove_no_ops(module.graph)


def remove_no_ops(graph: Graph) -> int:
    """Replace calls that change nothing by their argument; return how many went."""
    count, seen = 0, visible_nodes(graph)
    for node in list(graph.nodes):
        if node.op != "call_function" or not isinstance(node.target, OpOverload):
            continue
        same = _unchanged_source(node)
        if same is None or not _may_go(node, same, graph, seen):
            continue
        node.replace_all_uses_with(same)
        graph.erase_node(node)
        if node in seen:
            seen.update(memory_chain(same))
        count += 1
    return count


def _unchanged_source(node: Node) -> Node | None:
    """The argument that the call returns unchanged; None if it changes something."""
    if view_base(node) is not None:
        source = None if has_trait(node.target, Trait.NOT_ITS_BASE) else view_base(node)
    else:
        rule = _COPIES.get(node.target)
        source = None if rule is None else rule(node)
    if source is None or _type(source) is None or _type(source) != _type(node):
        return None
    return source


def _may_go(node: Node, same: Node, graph: Graph, seen: set[Node]) -> bool:
    """Can the call go without the caller noticing?"""
    if node not in seen:
        return True
    t = _type(node)
    if t is None or t.is_symbolic:  # strides of a size that turns out to be 1 could differ
        return False
    returned = set(graph.output_node().all_input_nodes)
    if view_base(node) is not None:
        # Else one object would be returned twice, or an input returned itself.
        return node not in returned or (same.op == "call_function" and same not in returned)
    origin = memory_chain(same)[-1]
    return origin not in seen and _makes_memory(origin)


def _makes_memory(node: Node) -> bool:
    """Does the graph allocate the memory of this value at each call?"""
    if node.target is getitem and isinstance(node.args[0], Node):
        node = node.args[0]
    return node.op == "call_function" and not isinstance(node.target, HigherOrderOperator)


def _type(node: Node) -> TensorType | None:
    value = node.meta.get("val")
    return value.fake_type if isinstance(value, FakeTensor) else None


def _first_argument(node: Node) -> Node | None:
    source = node.args[0] if node.args else None
    return source if isinstance(source, Node) else None


def _conversion_source(node: Node) -> Node | None:
    return None if node.kwargs.get("pin_memory") else _first_argument(node)


def _copy_source(node: Node) -> Node | None:
    """`copy(self, src)` returns `src`, in the layout of `self`."""
    source = node.args[1] if len(node.args) > 1 else None
    return source if isinstance(source, Node) else None


def _scatter_source(node: Node) -> Node | None:
    """`slice_scatter` over the whole tensor returns its source, which then has the type of the
    whole. Not if the base has a gradient: it would become None instead of zeros."""
    step = node.args[5] if len(node.args) > 5 else node.kwargs.get("step", 1)
    base = _first_argument(node)
    if step != 1 or base is None or _has_gradient(base):
        return None
    return _copy_source(node)


def _has_gradient(node: Node) -> bool:
    """May its gradient reach an input of the program?"""
    left, seen = [node], set[Node]()
    while left:
        each = left.pop()
        if each not in seen:
            seen.add(each)
            left += each.all_input_nodes
    given = (n.meta.get("val") for n in seen if n.op == "placeholder")
    return any(isinstance(value, FakeTensor) and is_marked(value) for value in given)


def _neutral_operand(position: int, neutral: float) -> Callable[[Node], Node | None]:
    """Make a rule for `x * 1`, `x - 0` and the like: the call returns `x` if the operand at this
    position is the neutral number."""

    def rule(node: Node) -> Node | None:
        other: Any = node.args[position] if len(node.args) > position else None
        is_neutral = other.__class__ in (int, float) and other == neutral
        t = _type(node)
        if not is_neutral or node.kwargs or t is None or t.dtype.is_complex:
            return None  # for complex numbers, infinity times 1 is not infinity
        return _first_argument(node)

    return rule


def _padding_source(node: Node) -> Node | None:
    pads: Any = node.args[1]
    return _first_argument(node) if all(p.__class__ is int and p == 0 for p in pads) else None


def _repeat_source(node: Node) -> Node | None:
    times: Any = node.args[1]
    return _first_argument(node) if all(n.__class__ is int and n == 1 for n in times) else None


def _cat_source(node: Node) -> Node | None:
    parts: Any = node.args[0]
    return parts[0] if len(parts) == 1 and isinstance(parts[0], Node) else None


# Calls that make a new tensor with the elements of an argument, if types agree as well.
_COPIES: dict[Any, Callable[[Node], Node | None]] = {
    aten.clone.default: _first_argument,
    aten._to_copy.default: _conversion_source,
    aten.copy.default: _copy_source,
    aten.slice_scatter.default: _scatter_source,
    aten.mul.Tensor: _neutral_operand(1, 1),
    aten.mul.Scalar: _neutral_operand(1, 1),
    aten.div.Tensor: _neutral_operand(1, 1),
    aten.div.Scalar: _neutral_operand(1, 1),
    aten.sub.Tensor: _neutral_operand(1, 0),
    aten.pow.Tensor_Scalar: _neutral_operand(1, 1),
    aten.constant_pad_nd.default: _padding_source,
    aten.repeat.default: _repeat_source,
    aten.cat.default: _cat_source,
}
