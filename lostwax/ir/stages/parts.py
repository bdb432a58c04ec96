"""Writes the graph of a stage.

Tensors go from stage to stage as memory in one piece, row by row: one that lies otherwise is
permuted before it is sent, and back where it is needed. Must not decide what goes where.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torch.fx import GraphModule, Node

from lostwax.errors import SplitError
from lostwax.fake import FakeTensor
from lostwax.fake.tensor import new_fake
from lostwax.ir.graph.copying import copy_module
from lostwax.ir.graph.effects import memory_chain
from lostwax.ir.graph.numbers import SeenNumbers
from lostwax.ir.graph.rewriter import GraphRewriter, argument_of
from lostwax.ir.signature import InputKind, InputSpec, OutputKind, OutputSpec
from lostwax.ir.stages.needs import Needs, find_dim, is_lazy, number_of
from lostwax.ir.text import source_place, type_text
from lostwax.ops.registry import aten
from lostwax.types import TensorType


class StageWriter(GraphRewriter):
    """Writes one stage. What it needs of others is written where it is first read."""

    def __init__(self, needs: Needs, at: int) -> None:
        super().__init__(needs.program.graph_module)
        self.needs, self.at = needs, at
        self.new = _Written(self._fetch)
        self.inputs: list[InputSpec] = []
        self.outputs: list[OutputSpec] = []
        self._seen = SeenNumbers(self._compute)
        self.note = self._seen.note
        self._sent: dict[Node, Node] = {}
        """What arrives for each tensor of an earlier stage."""
        self._for: Node = self.nodes[0]
        """The number of an earlier stage that is being computed."""

    def run(self) -> GraphModule:
        self._write_inputs()
        for node in self.nodes:
            is_own = node.op == "call_function" and self.needs.stage[node] == self.at
            if is_own and not is_lazy(node):
                self.rewrite_call(node)
        self._write_outputs()
        return self.finish()

    def rewrite_child(self, child: GraphModule) -> GraphModule:
        return copy_module(child)[0]

    # ---- what is given

    def _write_inputs(self) -> None:
        held = self.needs.held[self.at]
        for node, spec in self.needs.specs.items():
            if node in held or (self.at == 0 and spec.kind is InputKind.USER_INPUT):
                self.copy_input(node)
                self.inputs.append(spec)
        for node in self.needs.taken[self.at]:
            order = find_order(node)
            value = arriving(node.meta["val"], order)
            given = self.writer.append("placeholder", node.name, node.name, (), {})
            given.meta["val"] = value
            self._sent[node] = given
            self._seen.note(given, value)
            self.inputs.append(InputSpec(InputKind.USER_INPUT, argument_of(given), None))

    def _fetch(self, node: Node) -> Any:
        """Write what the stage reads and does not have yet."""
        if node.op == "get_attr":
            self.copy_child(node)
        elif node in self._sent:
            self._restore(node)
        elif node in self.needs.numbers[self.at]:
            self._write_number(node)
        else:
            self.copy(node)
        return self.new[node]

    def _restore(self, node: Node) -> None:
        """The tensor as it was before it was sent."""
        given, order = self._sent[node], find_order(node)
        if order is None:
            self.replace(node, given)
            return
        back = [order.index(dim) for dim in range(len(order))]
        self.replace(node, self._add_call(node, aten.permute.default, (given, back)))
        self._seen.note(self.new[node], node.meta["val"])

    def _write_number(self, node: Node) -> None:
        number, self._for = number_of(node), node
        if self._seen.is_known(number):
            self.replace(node, self._seen.node(number))
            return
        for given in self._sent.values():
            dim = find_dim(number, given)
            if dim is not None:
                self.replace(node, self._add_call(node, aten.sym_size.int, (given, dim)))
                return
        self.copy(node)

    def _compute(self, target: Any, args: tuple[Any, ...]) -> Node:
        """Write a call that computes a number."""
        return self.add(self._for, target, args, {}, None)

    def _add_call(self, node: Node, target: Any, args: tuple[Any, ...]) -> Node:
        return self.add(node, target, args, {}, node.meta["val"])

    # ---- what is returned

    def _write_outputs(self) -> None:
        results = self.needs.results[self.at]
        values = [self.new[v] if isinstance(v, Node) else v for _, v in results]
        specs = [spec for spec, _ in results]
        written = {v for spec, v in results if spec.kind is not OutputKind.USER_OUTPUT}
        if self.at + 1 < self.needs.count:
            for node in self.needs.taken[self.at + 1]:
                sent = self._send(node, written)
                values.append(sent)
                specs.append(OutputSpec(OutputKind.USER_OUTPUT, argument_of(sent), None))
        self.outputs = [
            replace(spec, arg=argument_of(value)) if isinstance(value, Node) else spec
            for spec, value in zip(specs, values, strict=True)
        ]
        self.writer.append("output", "output", "output", (tuple(values),), {})

    def _send(self, node: Node, written: set[Any]) -> Node:
        """What is handed on for a tensor. Of what the next call writes to, it is a copy."""
        if node in self._sent:
            return self._sent[node]
        made: Node = self.new[node]
        if not written.isdisjoint(memory_chain(node)):
            made = self._add_call(node, aten.clone.default, (made,))
        order = find_order(node)
        if order is not None:
            value = arriving(node.meta["val"], order)
            made = self.add(node, aten.permute.default, (made, order), {}, value)
        return made


class _Written(dict[Node, Any]):
    """What stands for each node; asked for another one, it is written."""

    def __init__(self, fetch: Callable[[Node], Any]) -> None:
        super().__init__()
        self.fetch = fetch

    def __missing__(self, node: Node) -> Any:
        return self.fetch(node)


def find_order(node: Node) -> list[int] | None:
    """The dimensions of a tensor in the order in which they lie in memory, outermost first; None if
    it is the order that they have."""
    t: TensorType = node.meta["val"].fake_type
    if t.is_contiguous:
        return None
    order = _find_dense_order(t)
    if order is None:
        raise SplitError.here(
            f"{node.name!r}, {type_text(node.meta['val'])}, is needed by a later stage, and does "
            f"not lie in memory in one piece ({source_place(node)})",
            why="processes send memory in one piece",
            instead="pass it on as x.contiguous(), or at=[...] with another module",
        )
    return order


def _find_dense_order(t: TensorType) -> list[int] | None:
    """An order of the dimensions in which the tensor is row-major."""
    left, found = list(range(t.ndim)), list[int]()
    while left:
        inner = next((d for d in reversed(left) if _is_row_major(t, [d, *found])), None)
        if inner is None:
            return None
        left.remove(inner)
        found.insert(0, inner)
    return found


def _is_row_major(t: TensorType, order: Sequence[int]) -> bool:
    size, stride = (tuple(numbers[d] for d in order) for numbers in (t.size, t.stride))
    return t.replace(size=size, stride=stride).is_contiguous


def arriving(value: FakeTensor, order: Sequence[int] | None) -> FakeTensor:
    """The fake of a tensor as it arrives: in memory of its own, with the dimensions in this
    order."""
    t = value.fake_type
    if order is None:
        return new_fake(value.fake_mode, t.replace(offset=0))
    size, stride = (tuple(numbers[d] for d in order) for numbers in (t.size, t.stride))
    return new_fake(value.fake_mode, t.replace(size=size, stride=stride, offset=0))
