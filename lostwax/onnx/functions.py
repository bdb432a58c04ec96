"""Calls of modules as calls of ONNX functions, for who asks for it: equal ones share a function.

What a function reads of the model, weights too, are its inputs: functions hold none. Must not know
of programs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, TypeAlias

import onnx_ir as ir

from lostwax.errors import OnnxError
from lostwax.onnx.translate import name_class
from lostwax.onnx.writer import OnnxWriter

DOMAIN = "modules"
"""That of the functions."""

Wanted: TypeAlias = "bool | Iterable[type]"
"""Which modules become functions: all, or those of some classes."""


def make_functions(
    on: OnnxWriter, nodes: Sequence[ir.Node], outputs: list[ir.Value], wanted: Wanted
) -> tuple[list[ir.Node], list[ir.Function]]:
    """The nodes with calls in place of what modules do, and the functions. The list of outputs is
    rewritten, too."""
    if wanted is False:
        return list(nodes), []
    maker = _FunctionMaker(on, outputs, wanted)
    return maker.group(list(nodes), 1), maker.functions


def check_wanted(wanted: Any) -> Wanted:
    """What a user asks for."""
    if isinstance(wanted, bool):
        return wanted
    found = list(wanted) if isinstance(wanted, (list, tuple, set, frozenset)) else [wanted]
    if not all(isinstance(each, type) for each in found):
        raise OnnxError(
            f"functions={wanted!r} says of no modules that they become functions\n"
            "  instead: functions=True for all, or their classes, functions=[Block]"
        )
    return found


class _FunctionMaker:
    def __init__(self, on: OnnxWriter, outputs: list[ir.Value], wanted: Wanted) -> None:
        self.on, self.outputs = on, outputs
        self.wanted = None if isinstance(wanted, bool) else {*map(name_class, wanted)}
        self.functions: list[ir.Function] = []
        self._made: dict[Any, ir.Function] = {}
        self._titles: dict[str, int] = {}
        self._constants = on.list_constants()

    def group(self, nodes: list[ir.Node], depth: int) -> list[ir.Node]:
        """The nodes of a module's call, those of inner calls as calls of functions. `depth` is how
        many calls are around them."""
        found: list[ir.Node] = []
        for call, run in groupby(nodes, lambda node: _find_call(node, depth)):
            inner = list(run)
            if call is None:
                found += inner
                continue
            before, rest = _part_sizes(inner)
            found += before
            made = self.group(rest, depth + 1)
            found += [self._call(call, made)] if made and self._is_wanted(call) else made
        return found

    def _is_wanted(self, call: tuple[str, str, str]) -> bool:
        return self.wanted is None or call[2] in self.wanted

    def _call(self, call: tuple[str, str, str], nodes: list[ir.Node]) -> ir.Node:
        """A call of a function that does what these nodes do."""
        _, path, kind = call
        own = {*_walk(nodes)}
        results = [value for value in _list_made(nodes) if self._is_read(value, own)]
        body = _FunctionBody(self._constants, nodes, results)
        function = self._made.get(body.key)
        made = [ir.Value(name=value.name, type=value.type, shape=value.shape) for value in results]
        for value, new in zip(results, made, strict=True):
            for user, at in [*value.uses()]:
                if user not in own:
                    user.replace_input_with(at, new)
            self.outputs[:] = [new if each is value else each for each in self.outputs]
        if function is None:
            function = self._made[body.key] = self._make(kind, path, nodes, body)
            self.functions.append(function)
        else:
            for node in nodes:
                _forget(node)
        self.on.domains.setdefault(DOMAIN, 1)
        return ir.Node(
            DOMAIN,
            function.name,
            body.inputs,
            outputs=made,
            name=self.on.free_name(path),
            metadata_props={"namespace": "/" + path.replace(".", "/")},
        )

    def _is_read(self, value: ir.Value, own: set[ir.Node]) -> bool:
        """Does anything beside these nodes read a value?"""
        return value in self.outputs or any(user not in own for user, _ in value.uses())

    def _make(self, kind: str, path: str, nodes: list[ir.Node], body: _FunctionBody) -> ir.Function:
        names: dict[str, int] = {}
        params = {
            value: ir.Value(name=_free(names, _name_inside(value, path))) for value in body.inputs
        }
        held = [_hold_inside(value, names) for value in body.constants]
        given = params | {
            value: node.outputs[0] for value, node in zip(body.constants, held, strict=True)
        }
        for node in _walk(nodes):
            for at, value in enumerate(node.inputs):
                if value in given:
                    node.replace_input_with(at, given[value])
        for node in nodes:
            for value in node.outputs:  # an equal call may be of other sizes
                value.name = _free(names, value.name or "")
                value.shape = value.type = None
        title = _free(self._titles, re.sub(r"\W", "_", kind.rpartition(".")[2]))
        graph = ir.Graph(
            list(params.values()),
            body.results,
            nodes=[*held, *nodes],
            opset_imports={"": self.on.opset, **self.on.domains},
            name=title,
        )
        return ir.Function(DOMAIN, title, graph=graph, attributes=())


def _find_call(node: ir.Node, depth: int) -> tuple[str, str, str] | None:
    stack = node.meta.get("modules", ())
    return stack[depth] if depth < len(stack) else None


# ------------------------------------------------------------------------------- what is inside


class _FunctionBody:
    """What nodes read from outside and what of theirs is read there, and a key that is that of
    equal ones."""

    def __init__(
        self, constants: set[ir.Value], nodes: Sequence[ir.Node], results: Sequence[ir.Value]
    ) -> None:
        self.inputs: list[ir.Value] = []
        self.constants: list[ir.Value] = []
        """Small ones, which a function has for itself."""
        self.results = results
        self._known = constants
        self._numbers: dict[ir.Value, Any] = {}
        parts = [self._describe(node) for node in nodes]
        self.key = (tuple(parts), tuple(self._numbers[value] for value in results))

    def _describe(self, node: ir.Node) -> Any:
        read = tuple(None if value is None else self._number(value) for value in node.inputs)
        options = tuple(
            (name, self._describe_attribute(node.attributes[name]))
            for name in sorted(node.attributes)
        )
        self._count(node.outputs)
        return node.domain, node.op_type, read, options, len(node.outputs)

    def _count(self, values: Iterable[ir.Value]) -> None:
        for value in values:
            self._numbers[value] = len(self._numbers)

    def _number(self, value: ir.Value) -> Any:
        if value not in self._numbers:
            if value in self._known:
                self.constants.append(value)
                self._numbers[value] = value.name
            else:
                self.inputs.append(value)
                self._numbers[value] = len(self._numbers)
        return self._numbers[value]

    def _describe_attribute(self, attribute: Any) -> Any:
        if attribute.type is ir.AttributeType.GRAPH:
            graph = attribute.as_graph()
            self._count(graph.inputs)
            kinds = tuple((str(value.type), str(value.shape)) for value in graph.inputs)
            nodes = tuple(self._describe(node) for node in graph)
            return kinds, nodes, tuple(self._number(value) for value in graph.outputs)
        if attribute.type is ir.AttributeType.TENSOR:
            data = attribute.as_tensor()
            return str(data.dtype), str(data.shape), data.tobytes()
        value = attribute.value
        return tuple(value) if isinstance(value, (list, tuple)) else value


def _walk(nodes: Iterable[ir.Node]) -> Iterator[ir.Node]:
    """Nodes with those of their branches and loops."""
    for node in nodes:
        yield node
        for attribute in node.attributes.values():
            if attribute.type is ir.AttributeType.GRAPH:
                yield from _walk(attribute.as_graph())


def _list_made(nodes: Iterable[ir.Node]) -> list[ir.Value]:
    return [value for node in nodes for value in node.outputs]


def _part_sizes(nodes: list[ir.Node]) -> tuple[list[ir.Node], list[ir.Node]]:
    """First the nodes that compute sizes of what comes from outside and that others read, too:
    each is written once, where it is first needed, and is not of that module alone."""
    own = {*_walk(nodes)}
    inside, sizes = set(_list_made(nodes)), set[ir.Node]()
    for node in nodes:
        read = [each for each in node.inputs if each is not None and each.const_value is None]
        is_outside = node.op_type == "Shape" and read[0] not in inside
        if is_outside or (read and all(each.producer() in sizes for each in read)):
            sizes.add(node)
    kept: set[ir.Node] = set()
    for node in reversed(nodes):
        users = {user for value in node.outputs for user, _ in value.uses()}
        if node in sizes and any(user not in own or user in kept for user in users):
            kept.add(node)
    return [n for n in nodes if n in kept], [n for n in nodes if n not in kept]


def _hold_inside(value: ir.Value, names: dict[str, int]) -> ir.Node:
    made, data = ir.Value(name=_free(names, value.name or "constant")), value.const_value
    assert data is not None
    return ir.Node("", "Constant", [], [ir.AttrTensor("value", data)], outputs=[made])


def _name_inside(value: ir.Value, path: str) -> str:
    """As the module calls it."""
    return (value.name or "").removeprefix(f"{path}.")


def _free(names: dict[str, int], wanted: str) -> str:
    count = names.get(wanted)
    names[wanted] = 1 if count is None else count + 1
    return wanted if count is None else _free(names, f"{wanted}_{count}")


def _forget(node: ir.Node) -> None:
    for inner in _walk([node]):
        for at in range(len(inner.inputs)):
            inner.replace_input_with(at, None)
