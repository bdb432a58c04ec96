"""A graph of a program as nodes of a model: each call is written by its translation.

Must not know single operators, nor inputs and outputs of models.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
import torch
import torch.utils._pytree as pytree
from torch._ops import OpOverload
from torch.fx import GraphModule, Node

from lostwax.classes import SYMBOLIC
from lostwax.fake.symbolic.node import unwrap
from lostwax.fake.tensor import FakeTensor
from lostwax.ir.graph.lookup import find_attribute
from lostwax.ir.text import shorten_trace, source_place
from lostwax.onnx.sizes import SizeWriter
from lostwax.onnx.table import NotWritten, find_translation
from lostwax.onnx.values import DTYPES, OnnxTensor
from lostwax.onnx.writer import OnnxWriter, Refused
from lostwax.sym import BoolExpr, Expr
from lostwax.types import TensorType, product


def write_graph(on: OnnxWriter, module: GraphModule, given: Sequence[Any]) -> list[Any]:
    """Write the nodes of a graph into the scope that is open, on these inputs; return its results:
    tensors, numbers, None."""
    scope = on.scope
    around = scope.sizes
    scope.sizes = SizeWriter(around)  # a graph that is written twice is of other sizes each time
    try:
        return [_as_tensor(on, each) for each in _Translator(on, module).run(given)]
    finally:
        scope.sizes = around


def _as_tensor(on: OnnxWriter, result: Any) -> Any:
    """A number that is computed, as a tensor: outside, its symbols mean nothing."""
    if isinstance(result, Expr):
        return on.scalar(result)
    return on.condition(result) if isinstance(result, BoolExpr) else result


def find_needed(module: GraphModule) -> set[Node]:
    """The nodes of which results are computed. Assertions, and what they alone read, have no place
    in a model."""
    found: set[Node] = set()
    for node in reversed(module.graph.nodes):
        if node.op == "output" or node in found:
            found.update(node.all_input_nodes)
    return found


class _Translator:
    def __init__(self, on: OnnxWriter, module: GraphModule) -> None:
        self.on, self.module = on, module
        self.values: dict[Node, Any] = {}
        self.lost: set[Node] = set()
        """What is refused, and what is computed of it: the rest is looked at, too, so that all that
        is refused is told at once."""

    def run(self, given: Sequence[Any]) -> list[Any]:
        inputs, needed = iter(given), find_needed(self.module)
        for node in self.module.graph.nodes:
            if node.op == "placeholder":
                self.values[node] = note_input(self.on, node, next(inputs))
            elif node.op == "get_attr":
                self.values[node] = find_attribute(self.module, str(node.target))
            elif node.op == "call_function":
                if node in needed:
                    self.values[node] = self._call(node)
            else:
                results = self._map(node.args[0])
                return results if isinstance(results, list) else [results]
        raise AssertionError("a graph without an output")

    def _map(self, value: Any) -> Any:
        if isinstance(value, Node):
            return self.values[value]
        if isinstance(value, (list, tuple)):
            return [self._map(each) for each in value]
        return value

    def _call(self, node: Node) -> Any:
        value = node.meta.get("val")
        if isinstance(value, SYMBOLIC):
            number = unwrap(value)
            if self._is_computed(number):
                return number
        if not self.lost.isdisjoint(node.all_input_nodes):
            return self._lose(node)
        translate = find_translation(node.target, self.on.opset)
        assert translate is not None, f"{node.target} was not found to be missing"
        on = self.on
        if isinstance(value, FakeTensor) and self._is_nothing(value):
            return self._take(node, value, write_nothing(on, value.fake_type))
        around = on.at, on.out, on.meta, on.modules
        try:
            on.at, on.out, on.meta = node.name, _types_of(value), describe_node(node, on.traces)
            on.modules = name_modules(node.meta.get("nn_module_stack") or {})
            args = [self._map(each) for each in node.args]
            kwargs = {k: self._map(v) for k, v in node.kwargs.items()}
            made = self._fold(node, value, args, kwargs)
            return self._take(node, value, made or translate(on, *args, **kwargs))
        except NotWritten as error:
            on.refused.append(Refused(str(node.target), source_place(node), error))
            return self._lose(node)
        finally:
            on.at, on.out, on.meta, on.modules = around

    def _fold(self, node: Node, value: Any, args: Any, kwargs: Any) -> OnnxTensor | None:
        """What is computed of small things that the model holds is computed here."""
        if any(_is_computed_there(self.values[each]) for each in node.all_input_nodes):
            return None
        leaves = pytree.tree_leaves((args, kwargs))
        held = [each for each in leaves if isinstance(each, OnnxTensor)]
        if not held or not _is_foldable(node.target, value):
            return None
        if any(each.constant is None or each.dtype in _QUANTIZED for each in held):
            return None
        if any(isinstance(each, (Expr, BoolExpr)) for each in leaves):
            return None
        if node.target.is_view and not all(  # type: ignore[union-attr]
            each.value in self.on.folded for each in held
        ):
            return None  # a weight stays as it is
        plain_args, plain_kwargs = pytree.tree_map_only(
            OnnxTensor, lambda x: x.constant.detach(), (args, kwargs)
        )
        with torch.no_grad():
            data = node.target(*plain_args, **plain_kwargs)  # type: ignore[operator]
        data = data.contiguous()
        if data.shape != tuple(value.fake_type.size) or data.dtype is not value.dtype:
            return None  # of a number that stands for a tensor, of another dtype
        made = (
            self.on.constant(data)
            if data.numel() <= _MOST_SHARED
            else self.on.hold(self.on.free_name(node.name), data)
        )
        self.on.folded.add(made.value)
        return made

    def _is_nothing(self, value: FakeTensor) -> bool:
        """Has it no elements, whatever its other sizes are, and are these there?"""
        size = value.fake_type.size
        is_known = 0 in size and value.dtype in DTYPES
        return is_known and all(self.on.scope.sizes.knows(n) for n in size)

    def _lose(self, node: Node) -> Any:
        self.lost.add(node)
        value = node.meta.get("val")
        parts = list(value) if isinstance(value, (tuple, list)) else [value]
        made = [_stand_in(each) for each in parts]
        return self._take(node, value, made if isinstance(value, (tuple, list)) else made[0])

    def _is_computed(self, number: Any) -> bool:
        sizes = self.on.scope.sizes
        if isinstance(number, BoolExpr):
            return all(sizes.knows(symbol.expr) for symbol in number.symbols())
        return isinstance(number, (bool, int, float)) or (
            isinstance(number, Expr) and sizes.knows(number)
        )

    def _take(self, node: Node, value: Any, made: Any) -> Any:
        """What stands for a call from now on."""
        if isinstance(value, SYMBOLIC):
            return note_number(self.on, unwrap(value), made)
        if isinstance(value, FakeTensor):
            return note_tensor(self.on, made, value.fake_type, node.name, node)
        if isinstance(value, (tuple, list)):
            pairs = zip(made, value, strict=True)
            return [self._take_part(node, i, each, part) for i, (each, part) in enumerate(pairs)]
        return made

    def _take_part(self, node: Node, i: int, made: Any, value: Any) -> Any:
        if made is None or not isinstance(value, FakeTensor):
            return note_number(self.on, unwrap(value), made) if made is not None else None
        return note_tensor(self.on, made, value.fake_type, f"{node.name}_{i}", node)


def note_input(on: OnnxWriter, node: Node, given: Any) -> Any:
    """What a graph is given for a placeholder; sizes of it can be read from now on."""
    value = node.meta.get("val")
    if isinstance(value, FakeTensor) and isinstance(given, OnnxTensor):
        made = OnnxTensor(given.value, given.dtype, value.fake_type, given.constant, node)
        on.types[given.value] = value.fake_type
        on.scope.sizes.bind(made)
        return made
    number = unwrap(value) if isinstance(value, SYMBOLIC) else None
    if isinstance(number, Expr) and number is not given:
        sizes = on.scope.sizes
        outside = sizes.parent or sizes
        alone = _make_list(on, given) if isinstance(given, OnnxTensor) else outside.write(on, given)
        sizes.bind_number(number, alone)
        return number
    return given


def write_nothing(on: OnnxWriter, kind: TensorType) -> OnnxTensor:
    """A tensor without elements, whatever it is computed of: some kernels fail there."""
    blank = torch.zeros(1, dtype=kind.dtype)
    fixed = [n for n in kind.size if isinstance(n, int)]
    if len(fixed) == len(kind.size):
        return on.constant(torch.empty(fixed, dtype=kind.dtype))
    made: OnnxTensor = on.ConstantOfShape(on.shape(kind.size), value=blank, dtype=kind.dtype)
    return made


_MOST_FOLDED = 1 << 16
"""Elements of what is computed before it is written."""
_MOST_SHARED = 1024
"""Those of fewer elements are compared with each other."""
_QUANTIZED = (torch.int8, torch.uint8)
"""Weights of few bits stay as they are."""


def _is_foldable(target: Any, value: Any) -> bool:
    """Does an operator always give the same, and is it of a size that is known and small?"""
    if not isinstance(target, OpOverload) or target.namespace != "aten":
        return False
    if torch.Tag.nondeterministic_seeded in target.tags or not isinstance(value, FakeTensor):
        return False
    count = product(value.fake_type.size)
    return isinstance(count, int) and count <= _MOST_FOLDED and value.device.type == "cpu"


def _is_computed_there(value: Any) -> bool:
    """Is it a tensor that the model does not hold?"""
    return isinstance(value, OnnxTensor) and value.constant is None


def _stand_in(value: Any) -> OnnxTensor | None:
    """For a result that nobody computes."""
    if isinstance(value, FakeTensor):
        return OnnxTensor(ir.Value(name=""), value.dtype, value.fake_type)
    return OnnxTensor(ir.Value(name=""), torch.int64) if isinstance(value, SYMBOLIC) else None


def _make_list(on: OnnxWriter, number: OnnxTensor) -> OnnxTensor:
    return on.Reshape(on.cast(number, torch.int64), on.ints(1))


def note_tensor(
    on: OnnxWriter, made: OnnxTensor, kind: TensorType, name: str, node: Node
) -> OnnxTensor:
    """Give a new value the name and the type that the program has for it."""
    value = made.value
    assert made.dtype is kind.dtype, f"{name} is {made.dtype}, not {kind.dtype}"
    if value.shape is None and value.producer() is not None:
        value.name = on.free_name(name)
        value.shape = on.declare(kind.size)
    found = OnnxTensor(value, made.dtype, kind, made.constant, node)
    on.types.setdefault(value, kind)
    on.scope.sizes.note(found)
    return found


def note_number(on: OnnxWriter, number: Any, made: Any) -> Any:
    """A number that the program computes, or gets: sizes may depend on it from now on."""
    if not isinstance(number, Expr):
        return made
    if isinstance(made, OnnxTensor):
        on.scope.sizes.written.setdefault(number, _make_list(on, made))
    return number


def _types_of(value: Any) -> Any:
    if isinstance(value, FakeTensor):
        _check_dtype(value.dtype)
        return value.fake_type
    if isinstance(value, (tuple, list)):
        return [_types_of(each) for each in value]
    return None


def _check_dtype(dtype: torch.dtype) -> None:
    if dtype not in DTYPES:
        raise NotWritten(
            f"its result is {dtype}, and ONNX operators do not compute with it",
            "compute with real tensors (torch.view_as_real), or in another dtype",
        )


def describe_node(node: Node, traces: dict[str, str]) -> dict[str, str]:
    """What viewers show of a node: the modules around it, and the user's line, which is noted for
    its trace."""
    modules = list((node.meta.get("nn_module_stack") or {}).values())
    found = {"namespace": "/".join(["", *modules[-1][0].split(".")]) if modules else "/"}
    trace = str(node.meta.get("stack_trace") or "")
    line = traces.get(trace)
    if line is None:
        line = traces[trace] = " ".join(shorten_trace(trace).split())
    if line:
        found["source"] = line
    return found


def name_modules(stack: Any) -> tuple[tuple[str, str, str], ...]:
    """The calls that a node of a program stands in: a name for each call, its path, its class."""
    return tuple((str(key), path, name_class(kind)) for key, (path, kind) in stack.items())


def name_class(kind: Any) -> str:
    if isinstance(kind, type):
        return f"{kind.__module__}.{kind.__qualname__}"
    return str(kind)
