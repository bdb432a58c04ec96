"""Constant folding: computes what depends on constants alone, and keeps it as a constant.

Must not fold what a program writes, what draws random numbers, or what the caller gets (it would be
the same memory at every call).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from lostwax.fake import FakeTensor
from lostwax.ir.graph.control import Body, add_operand, describe_call, find_calls
from lostwax.ir.graph.effects import has_effect, view_base, visible_nodes
from lostwax.ir.graph.lookup import find_attribute
from lostwax.ir.passes.draft import Draft
from lostwax.ir.passes.pipeline import Pass
from lostwax.ir.passes.transforms.unused import remove_dead
from lostwax.ir.signature import InputKind
from lostwax.ops.registry import operator
from lostwax.ops.traits import Trait


@dataclass(frozen=True)
class ConstantFolding(Pass):
    """Computes what depends on parameters, buffers and constants alone, none of them written by the
    program, and keeps the results as constants.

    `limit` is the largest result, in bytes, that is kept; None is no limit. `growth` is how many
    bytes a result may have more than the state that it is computed from. Without `parameters`,
    parameters are not taken as constants: what is folded cannot be trained. Views of state are left
    as they are, since computing them costs nothing.
    """

    limit: int | None = None
    growth: int = 2**20
    parameters: bool = True

    requires = ("functional",)

    def edit(self, draft: Draft) -> None:
        folder = _Folder(draft, self, draft.graph)
        folder.take_state()
        _fold(draft, folder, [])
        for module in draft.graph_modules():
            remove_dead(module, draft.program.named_by_calls)


def _fold(draft: Draft, folder: _Folder, around: list[tuple[Node, int]]) -> None:
    """Fold a graph and its sub-graphs. `around` are the calls that it is inside of, from the
    outermost on, each with the place of the body among those of the call."""
    for node, value in list(folder.results()):
        constant = draft.add(InputKind.CONSTANT_TENSOR, f"folded_{node.name}", value)
        for call, place in around:
            described = describe_call(call)
            assert described is not None
            constant = add_operand(described, constant, constant.name)[place]
        node.replace_all_uses_with(constant)
    uses = _count_uses(draft)
    for call in [c.node for c in find_calls(folder.graph)]:
        modules = [body.find_module() for body in _bodies_of(call)]
        if any(module is None or uses[module] > 1 for module in modules):
            continue  # it may be given something else elsewhere
        for place, module in enumerate(modules):
            inner = _Folder(draft, folder.options, module.graph)  # type: ignore[union-attr]
            inner.take_operands(_bodies_of(call)[place], folder)
            _fold(draft, inner, [*around, (call, place)])


def _bodies_of(node: Node) -> tuple[Body, ...]:
    call = describe_call(node)
    assert call is not None
    return call.bodies


def _count_uses(draft: Draft) -> Counter[GraphModule]:
    """How many arguments read each sub-graph."""
    found: Counter[GraphModule] = Counter()
    for module in draft.graph_modules():
        for node in module.graph.find_nodes(op="get_attr"):
            child = find_attribute(module, str(node.target))
            if isinstance(child, GraphModule):
                found[child] += sum(user.args.count(node) for user in node.users)
    return found


class _Folder:
    """Folds one graph: finds which nodes are constant, and computes their values."""

    def __init__(self, draft: Draft, options: ConstantFolding, graph: Graph) -> None:
        self.draft, self.options, self.graph = draft, options, graph
        self.values: dict[Node, Any] = {}
        self.bytes: dict[Node, int] = {}
        """For each constant node, the bytes of the state that it is computed from."""
        self.computed: dict[Node, None] = {}
        """The constant nodes that cost some work, unlike a mere view of state."""
        self.seen = visible_nodes(graph)

    def results(self) -> Iterator[tuple[Node, torch.Tensor]]:
        """The constant nodes that something else reads, with their values."""
        for node in self.graph.nodes:
            if node.op == "call_function" and self._is_constant(node):
                self._compute(node)
        for node in self.computed:
            value = self.values[node]
            read = any(user not in self.values for user in node.users)
            if read and isinstance(value, torch.Tensor):
                yield node, value

    def take_operands(self, body: Body, outer: _Folder) -> None:
        """Take the operands that are constant in the graph around, and are the same in each run."""
        inputs = self.graph.find_nodes(op="placeholder")
        for node, operand in list(zip(inputs, body.operands, strict=True))[body.fixed :]:
            if isinstance(operand, Node) and operand in outer.values:
                self.values[node] = outer.values[operand]
                self.bytes[node] = outer.bytes[operand]

    def take_state(self) -> None:
        """Take the state that the program does not write."""
        written = self.draft.written()
        for node, spec in self.draft.inputs.items():
            tensor = self.draft.tensor(node)
            is_parameter = spec.kind is InputKind.PARAMETER
            if tensor is None or node in written or (is_parameter and not self.options.parameters):
                continue
            if not tensor.is_meta and not isinstance(tensor, FakeTensor):
                self.values[node] = tensor.detach()
                self.bytes[node] = tensor.numel() * tensor.itemsize

    def _is_constant(self, node: Node) -> bool:
        target: Any = node.target
        if has_effect(target) or node in self.seen:
            return False
        if isinstance(target, OpOverload) and not _is_known(target):
            return False
        return all(n in self.values for n in node.all_input_nodes) and self._is_small(node)

    def _is_small(self, node: Node) -> bool:
        """Does the node have known sizes, and not more bytes than allowed?"""
        value, options = node.meta.get("val"), self.options
        parts = value if isinstance(value, (tuple, list)) else (value,)
        if not all(isinstance(p, FakeTensor) and not p.fake_type.is_symbolic for p in parts):
            return False
        self.bytes[node] = sum(self.bytes[n] for n in node.all_input_nodes)
        if view_base(node) is not None:
            return True
        size = sum(p.fake_type.nbytes() for p in parts)
        if options.limit is not None and size > options.limit:
            return False
        return bool(size <= self.bytes[node] + options.growth)

    def _compute(self, node: Node) -> None:
        args, kwargs = map_arg((node.args, node.kwargs), lambda n: self.values[n])
        try:
            with torch.no_grad():
                value = node.target(*args, **kwargs)  # type: ignore[operator]
        except (RuntimeError, ValueError, IndexError):
            return  # the program must raise this when it runs
        if not _is_as_recorded(value, node.meta["val"]):
            return
        self.values[node] = value
        if view_base(node) is None or any(n in self.computed for n in node.all_input_nodes):
            self.computed[node] = None


def _is_as_recorded(value: Any, recorded: Any) -> bool:
    if isinstance(recorded, (tuple, list)):
        return len(value) == len(recorded) and all(map(_is_as_recorded, value, recorded))
    t = recorded.fake_type
    real = (tuple(value.shape), value.stride(), value.dtype, value.device)
    return real == (t.size, t.stride, t.dtype, t.device)


def _is_known(target: OpOverload) -> bool:
    """Does the operator return the same each time, of a size known beforehand? Nothing says so of a
    user's own operator."""
    record = operator(target)
    if target.namespace not in ("aten", "prims") or Trait.UNINITIALIZED in record.traits:
        return False
    return not record.data_dependent and record.evaluation is None
