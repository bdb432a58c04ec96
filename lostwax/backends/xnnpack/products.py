"""Products of matrices: fully connected layers, and batches of products.

A layer sees through views that only put dimensions together, as XNNPACK's takes any number of them.
Must not know of other families.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from lostwax.backends.xnnpack.calls import Sizes, count_dynamic, read_arguments, size_of
from lostwax.backends.xnnpack.entry import OperatorEntry, ProgramFacts
from lostwax.backends.xnnpack.payload import Clamp
from lostwax.backends.xnnpack.quantized.layers import Layer, write_rows, write_weights
from lostwax.backends.xnnpack.quantized.quantum import get_name, is_dequantize
from lostwax.backends.xnnpack.quantized.weights import find_weights
from lostwax.backends.xnnpack.schema import NO_VALUE
from lostwax.backends.xnnpack.shapes import explain_view, is_view, write_view
from lostwax.backends.xnnpack.writer import PartWriter


def write_addmm(writer: PartWriter, node: Node) -> None:
    bias, source, weight = node.args[:3]
    _write_layer(writer, node, source, Filters(writer, weight, True), writer.constants[bias])  # type: ignore[index]


def write_mm(writer: PartWriter, node: Node) -> None:
    source, weight = node.args[:2]
    _write_layer(writer, node, source, Filters(writer, weight, True), None)


def write_linear(writer: PartWriter, node: Node) -> None:
    given = read_arguments(node)
    bias = None if given.bias is None else writer.constants[given.bias]
    _write_layer(writer, node, given.input, Filters(writer, given.weight), bias)


class Filters:
    """The weights of a layer, one row for each result: as floats, and as integers if they are."""

    def __init__(self, writer: PartWriter, weight: Any, transposed: bool = False) -> None:
        self.writer, self.weight, self.transposed = writer, weight, transposed
        size = size_of(weight)
        self.rows = int(size[1] if transposed else size[0])
        found = find_weights(writer.constants.__getitem__, weight)
        if transposed:
            found = None if found is None else found.permute((1, 0))
        self.integers = found if found is not None and found.dim == 0 else None

    @property
    def are_integers(self) -> bool:
        """Can they be integers for rows of floats? XNNPACK has no such in groups."""
        return self.integers is not None and not self.integers.group

    def write(self, as_integers: bool) -> int:
        """Write them for rows of floats."""
        if self.integers is not None and as_integers:
            return self.integers.write_small(self.writer)
        floats = self.writer.constants[self.weight]
        return self.writer.add_constant(floats.t() if self.transposed else floats)


def _write_layer(
    writer: PartWriter, node: Node, source: Any, filters: Filters, bias: torch.Tensor | None
) -> None:
    source, end = _see_through_views(writer, node, source)
    wide = None if bias is None else bias.expand(filters.rows)
    layer = write_weights(writer, node, source, filters.integers, wide, end)
    layer = layer or write_rows(writer, source, filters.integers, wide, end)
    if layer is None:
        bias_id = NO_VALUE if wide is None else writer.add_constant(wide)
        as_integers = filters.are_integers and not is_dequantize(source)
        layer = Layer(source, writer.find_result(end), filters.write(as_integers), bias_id)
        if as_integers and wide is not None:
            _add_bias_apart(writer, layer, size_of(end))
            return
    given, made = writer.read(layer.source), writer.define(layer.result.node)
    if layer.more_id == NO_VALUE:
        _add_layer(writer, given, layer.filter_id, layer.bias_id, made, layer.result.clamp)
        return
    parts = [writer.new(size_of(end)) for _ in range(2)]
    _add_layer(writer, given, layer.filter_id, layer.bias_id, parts[0])
    _add_layer(writer, given, layer.more_id, NO_VALUE, parts[1])
    sides = {"input1_id": parts[0], "input2_id": parts[1]}
    writer.add("XNNAdd", layer.result.clamp, **sides, output_id=made)


def _add_bias_apart(writer: PartWriter, layer: Layer, size: Sizes) -> None:
    """Add a layer of floats with weights of integers, then its bias: the runtime would take the
    bias for one of integers, too."""
    part = writer.new(size)
    _add_layer(writer, writer.read(layer.source), layer.filter_id, NO_VALUE, part)
    sides = {"input1_id": part, "input2_id": layer.bias_id}
    made = writer.define(layer.result.node)
    writer.add("XNNAdd", layer.result.clamp, **sides, output_id=made)


def _add_layer(
    writer: PartWriter, given: int, weight: int, bias: int, made: int, clamp: Clamp | None = None
) -> None:
    fields = {"input1_id": given, "filter_id": weight, "bias_id": bias, "output_id": made}
    writer.add("XNNFullyConnected", clamp, **fields)


def _see_through_views(writer: PartWriter, node: Node, source: Node) -> tuple[Node, Node]:
    """What the layer reads, and the node that has its result, without a view before it and the one
    behind it that takes that back."""
    views = _find_layer_views(node)
    if not views or node in writer.places:
        return source, node
    before, behind = views
    return before.args[0], behind  # type: ignore[return-value]


def find_views(node: Node) -> tuple[Node, ...]:
    """The views that a layer or a product sees through."""
    if get_name(node) == "aten::bmm":
        return _find_product_views(node)
    return _find_layer_views(node)


def _find_layer_views(node: Node) -> tuple[Node, Node] | tuple[()]:
    """The view before a layer, if it only puts dimensions together, and the one behind it that
    takes that back, if nothing else reads what is between them."""
    place = _SOURCES.get(getattr(node.target, "name", str)())
    if place is None or len(node.users) != 1:
        return ()
    before: Any = node.args[place]
    (behind,) = node.users
    if not is_view(before) or not is_view(behind):
        return ()
    source: Any = before.args[0]
    wanted: Sizes = (*size_of(source)[:-1], size_of(node)[-1])
    if size_of(source)[-1:] != size_of(before)[-1:] or size_of(behind) != wanted:
        return ()
    return before, behind


def _find_product_views(node: Node) -> tuple[Node, Node, Node] | tuple[()]:
    """The views that put all dimensions before a product's matrices together, and the one behind it
    that takes that back, if nothing else reads what is between them: XNNPACK's products have any
    number of these. Where at most one size varies they are reshaped, which costs nothing."""
    first, second = node.args[:2]
    if len(node.users) != 1 or find_matrix(node) is not None:
        return ()
    (behind,) = node.users
    if not is_view(first) or not is_view(second) or not is_view(behind):
        return ()
    sources: list[Any] = [first.args[0], second.args[0]]  # type: ignore[union-attr]
    sizes = [size_of(n) for n in sources]
    if max(count_dynamic(size_of(n)) for n in (first, second, behind)) < 2:  # type: ignore[arg-type]
        return ()
    for source, view in zip(sizes, (first, second), strict=True):
        if len(source) < 3 or source[-2:] != size_of(view)[-2:]:  # type: ignore[arg-type]
            return ()
    outer = sizes[0][:-2]
    if sizes[1][:-2] != outer or size_of(behind) != (*outer, *size_of(node)[-2:]):
        return ()
    return first, second, behind  # type: ignore[return-value]


_SOURCES = {"aten::addmm": 1, "aten::mm": 0}
"""Where the layers that take matrices alone have what they read."""


def is_for_layers(node: Node, facts: ProgramFacts) -> bool:
    """Do only layers with weights of integers read a value?"""
    layers, todo = [], list(node.users)
    while todo:
        reader = todo.pop()
        near = list(reader.users) if is_view(reader) else []
        if _skip_views(reader) is not reader:
            todo += reader.users
        elif near and all(reader in find_views(n) for n in near):
            layers += near
        else:
            layers.append(reader)
    return bool(layers) and all(_has_integers(n, facts) for n in layers)


def _has_integers(node: Node, facts: ProgramFacts) -> bool:
    name = get_name(node)
    entry = PRODUCTS.get(name)
    if entry is None or entry.explain(node, facts):
        return False
    weight = find_matrix(node) if name == "aten::bmm" else node.args[_WEIGHTS.get(name, 0)]
    found = find_weights(facts.compute, weight) if facts.is_constant(weight) else None
    return found is not None and found.dim == (0 if name == "aten::linear" else 1)


_WEIGHTS = {"aten::addmm": 2, "aten::mm": 1, "aten::linear": 1}
"""Where layers have their weights."""


def explain_view_of_layer(node: Node, facts: ProgramFacts) -> str:
    """Why a view is not taken; those that layers see through may have any sizes."""
    reason = explain_view(node, facts)
    near = [*node.users, *node.all_input_nodes] if reason else []
    seen = [n for n in near if node in find_views(n) and not _explain_layer(n, facts)]
    before = bool(node.users) and all(n in seen for n in node.users)
    behind = node.args[0] in seen
    return "" if before or behind else reason


def _explain_layer(node: Node, facts: ProgramFacts) -> str:
    return PRODUCTS[get_name(node)].explain(node, facts)


def explain_addmm(node: Node, facts: ProgramFacts) -> str:
    given = read_arguments(node)
    if given.alpha != 1 or given.beta != 1:
        return "XNNPACK's fully connected layer has no factors"
    if not facts.is_constant(given.self) or len(size_of(given.self)) > 1:
        return "its bias is no constant of one dimension"
    return _explain_weight(given.mat2, facts)


def explain_mm(node: Node, facts: ProgramFacts) -> str:
    return _explain_weight(node.args[1], facts)


def explain_linear(node: Node, facts: ProgramFacts) -> str:
    given = read_arguments(node)
    if given.bias is not None and not facts.is_constant(given.bias):
        return "its bias is no constant"
    return _explain_weight(given.weight, facts)


def _explain_weight(weight: Any, facts: ProgramFacts) -> str:
    return "" if facts.is_constant(weight) else "its weight is no constant"


def write_bmm(writer: PartWriter, node: Node) -> None:
    matrix = find_matrix(node)
    if matrix is not None and matrix in writer.constants:
        source = _skip_views(node.args[0])
        _write_layer(writer, node, source, Filters(writer, matrix, True), None)
        return
    views = () if node in writer.places else _find_product_views(node)
    sources: Any = [view.args[0] for view in views[:2]] or node.args[:2]
    a, b = (writer.read(n) for n in sources)
    made = writer.define(views[2] if views else node)
    writer.add("XNNBatchMatrixMultiply", input1_id=a, input2_id=b, output_id=made)


def find_matrix(node: Node) -> Node | None:
    """The matrix that all of a batch is multiplied by, if it is one."""
    repeated: Any = _skip_views(node.args[1])
    if get_name(repeated) != "aten::expand_copy":
        return None
    matrix = _skip_views(repeated.args[0])
    return matrix if len(size_of(matrix)) == 2 else None


def _skip_views(node: Any) -> Any:
    """The value without calls that leave it as it is."""
    while get_name(node) in ("aten::expand_copy", "aten::view_copy"):
        if size_of(node) != size_of(node.args[0]):
            break
        node = node.args[0]
    return node


def explain_bmm(node: Node, facts: ProgramFacts) -> str:
    if facts.is_constant(node.args[0]):
        return "XNNPACK multiplies no constant from the left"
    return ""


PRODUCTS = {
    "aten::addmm": OperatorEntry(write_addmm, explain_addmm),
    "aten::mm": OperatorEntry(write_mm, explain_mm),
    "aten::linear": OperatorEntry(write_linear, explain_linear),
    "aten::bmm": OperatorEntry(write_bmm, explain_bmm),
    "aten::view_copy": OperatorEntry(write_view, explain_view_of_layer, lazy=True),
}
"""The operators of this family, by name."""
