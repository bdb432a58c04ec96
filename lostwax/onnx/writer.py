"""Writes the nodes of a model: `on.Add(x, y)`, with constants, casts and sizes.

Equal nodes are written once. It knows no operator of torch: translations do. Must not read a
program.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias

import onnx_ir as ir
import torch

from lostwax.checkpoints.mapped import release, write_parts
from lostwax.onnx.schemas import find_formals, find_wider
from lostwax.onnx.sizes import SizeWriter
from lostwax.onnx.table import NotWritten, find_simplifications
from lostwax.onnx.values import DTYPES, OnnxTensor, make_shape
from lostwax.ops.shapes import promote
from lostwax.sym import BoolExpr, Expr, Size
from lostwax.types import TensorType

Operand: TypeAlias = "OnnxTensor | int | float | bool | Expr | BoolExpr"

BOOLEAN_RESULTS = (
    "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "And", "Or", "Xor", "Not", "IsNaN",
    "IsInf",
)  # fmt: skip
INDEX_RESULTS = ("Shape", "Size", "NonZero", "ArgMax", "ArgMin")
MIXED = ("If", "Loop", "Scan", "Cast", "CastLike", "QuantizeLinear", "DequantizeLinear")
"""Written as they are: what they take is not a matter of computing in a wider dtype."""
DRAWS = ("RandomNormalLike", "RandomUniformLike", "Bernoulli", "Dropout")
"""These have another result each time: two of them are never one."""


class GraphScope:
    """The nodes of one graph; a body of a loop or branch sees what the graphs around it have."""

    def __init__(self, parent: GraphScope | None = None) -> None:
        self.parent = parent
        self.nodes: list[ir.Node] = []
        self.equal: dict[Any, list[OnnxTensor]] = {}
        self.sizes: SizeWriter = SizeWriter(parent.sizes if parent else None)

    def find_equal(self, key: Any) -> list[OnnxTensor] | None:
        scope: GraphScope | None = self
        while scope is not None:
            found = scope.equal.get(key)
            if found is not None:
                return found
            scope = scope.parent
        return None


class Refused(NamedTuple):
    """A call that cannot be written, and where it is."""

    target: str
    place: str
    reason: NotWritten


class OnnxWriter:
    """Writes nodes. Every operator of ONNX is a method: inputs go by position (None leaves an
    optional one out), attributes by name; it returns an `OnnxTensor`, whose dtype is that of the
    first input unless `dtype=` says another. One of several results: `on.several("TopK", x, k,
    outputs=2, dtype=[...])`."""

    def __init__(self, opset: int) -> None:
        self.opset = opset
        self.scope = GraphScope()
        self.initializers: dict[str, ir.Value] = {}
        self.domains: dict[str, int] = {}
        """Sets of operators beside ONNX's own that nodes call, with their versions."""
        self.out: Any = None
        """The type, or types, of what the call gives that is being written."""
        self.at = ""
        self.meta: Mapping[str, str] = {}
        """The name of that call, and what viewers show of it."""
        self.modules: tuple[tuple[str, str, str], ...] = ()
        """The calls of modules around it."""
        self.types: dict[ir.Value, TensorType] = {}
        """Those of values that stand for values of the program."""
        self.folded: set[ir.Value] = set()
        """What is held that was computed of weights."""
        self.refused: list[Refused] = []
        """Calls that cannot be written."""
        self.traces: dict[str, str] = {}
        """The user's line as viewers show it, by the stack trace of a node."""
        self._shapes: dict[tuple[Size, ...], list[Any]] = {}
        self._names: dict[str, int] = {}
        self._constants: dict[Any, OnnxTensor] = {}

    # ---- nodes

    def __getattr__(self, op: str) -> Callable[..., OnnxTensor]:
        if not op[:1].isupper():
            raise AttributeError(op)

        def write(*inputs: OnnxTensor | None, **options: Any) -> OnnxTensor:
            return self.several(op, *inputs, **options)[0]

        setattr(self, op, write)
        return write

    def write(self, op: str, inputs: Sequence[OnnxTensor | None], **options: Any) -> OnnxTensor:
        """Write a node of one result by the name of its operator."""
        return self.several(op, *inputs, **options)[0]

    def several(
        self,
        op: str,
        *inputs: OnnxTensor | None,
        domain: str = "",
        outputs: int = 1,
        dtype: torch.dtype | Sequence[torch.dtype] | None = None,
        **attributes: Any,
    ) -> list[OnnxTensor]:
        """Write a node of several results, or find the equal one. An attribute that is None is left
        out. What the operator does not take is computed in a wider dtype."""
        given = list(inputs)
        while given and given[-1] is None:
            given.pop()
        wider = {} if domain or op in MIXED else find_wider(op, self.opset, given)
        if wider:
            return self._write_wider(op, given, wider, outputs, dtype, attributes)
        for rule in () if domain else find_simplifications(op):
            simpler = rule.function(self, given, attributes) if rule.since <= self.opset else None
            if simpler is not None:
                return [simpler]
        key = None
        if op not in DRAWS:
            values = tuple([None if x is None else x.value for x in given])
            settings = tuple([(k, _freeze(v)) for k, v in attributes.items() if v is not None])
            key = (op, domain, values, outputs, str(dtype), settings)
            found = self.scope.find_equal(key)
            if found is not None:
                return found
        made = self._append(op, domain, given, outputs, dtype, attributes)
        if key is not None:
            self.scope.equal[key] = made
        return made

    def _write_wider(
        self,
        op: str,
        given: list[OnnxTensor | None],
        wider: dict[str, torch.dtype],
        outputs: int,
        dtype: Any,
        attributes: dict[str, Any],
    ) -> list[OnnxTensor]:
        formals = find_formals(op, self.opset)
        assert formals is not None
        wanted = _list_dtypes(op, given, outputs, dtype)
        letters = [formals.letter(formals.outputs, i) for i in range(outputs)]
        kinds = [wider.get(letter, each) for letter, each in zip(letters, wanted, strict=True)]
        taken = [
            x and self.cast(x, wider.get(formals.letter(formals.inputs, i), x.dtype))
            for i, x in enumerate(given)
        ]
        made = self.several(op, *taken, outputs=outputs, dtype=kinds, **attributes)
        return [self.cast(x, each) for x, each in zip(made, wanted, strict=True)]

    def _append(
        self, op: str, domain: str, given: list[Any], outputs: int, dtype: Any, attributes: Any
    ) -> list[OnnxTensor]:
        values = [ir.Value(name=self.free_name(f"{self.at}/{op}")) for _ in range(outputs)]
        node = ir.Node(
            domain,
            op,
            [None if x is None else x.value for x in given],
            [make_attribute(k, v) for k, v in attributes.items() if v is not None],
            outputs=values,
            name=values[0].name,
            metadata_props=dict(self.meta),
        )
        node.meta["modules"] = self.modules
        self.scope.nodes.append(node)
        if domain:
            self.domains.setdefault(domain, 1)
        kinds = _list_dtypes(op, given, outputs, dtype)
        for value, each in zip(values, kinds, strict=True):
            value.type = ir.TensorType(DTYPES[each])
        return [OnnxTensor(v, d) for v, d in zip(values, kinds, strict=True)]

    def declare(self, size: tuple[Size, ...]) -> ir.Shape:
        """Sizes as the format has them; each is made a text once."""
        found = self._shapes.get(size)
        if found is None:
            found = self._shapes[size] = [*make_shape(size)]
        return ir.Shape(found)

    def free_name(self, wanted: str) -> str:
        """A name that no other value has."""
        count = self._names.get(wanted)
        self._names[wanted] = 1 if count is None else count + 1
        return wanted if count is None else self.free_name(f"{wanted}_{count}")

    @contextmanager
    def open_scope(self) -> Iterator[GraphScope]:
        """What is written inside belongs to a graph of its own."""
        self.scope = inner = GraphScope(self.scope)
        try:
            yield inner
        finally:
            assert inner.parent is not None
            self.scope = inner.parent

    # ---- constants

    def constant(self, data: Any, dtype: torch.dtype | None = None) -> OnnxTensor:
        """A number, a list of them or a tensor, held by the model; equal ones once."""
        if dtype is None or not isinstance(data, (bool, int, float)):
            made = torch.as_tensor(data)
            made = made if dtype is None else made.to(dtype)
        else:
            made = torch.tensor(data).to(dtype)
        made = made.detach().contiguous()
        key = (made.dtype, tuple(made.shape), _read_bytes(made))
        found = self._constants.get(key)
        if found is None:
            name = _name_constant(made)
            found = self._constants[key] = self.hold(self.free_name(name), made)
        return found

    def list_constants(self) -> set[ir.Value]:
        """What is held that is no weight."""
        return {each.value for each in self._constants.values()}

    def hold(self, name: str, data: torch.Tensor) -> OnnxTensor:
        """A tensor among the model's initializers, by reference."""
        value = ir.Value(
            name=name,
            type=ir.TensorType(DTYPES[data.dtype]),
            shape=ir.Shape(list(data.shape)),
            const_value=HeldTensor(data, name),
        )
        self.initializers[name] = value
        return OnnxTensor(
            value, data.dtype, TensorType(tuple(data.shape), data.dtype, data.device), data
        )

    def hold_int4(self, name: str, data: torch.Tensor) -> OnnxTensor:
        """Small numbers of int8, two in a byte."""
        value = ir.Value(
            name=name,
            type=ir.TensorType(ir.DataType.INT4),
            shape=ir.Shape(list(data.shape)),
            const_value=NarrowTensor(data, name),
        )
        self.initializers[name] = value
        return OnnxTensor(value, torch.int8)

    def ints(self, *numbers: int) -> OnnxTensor:
        """A list of numbers, as axes, pads and the like are given."""
        return self.constant(list(numbers), torch.int64)

    # ---- numbers

    def cast(self, x: OnnxTensor, dtype: torch.dtype) -> OnnxTensor:
        """The value in this dtype: itself, if it has it."""
        if x.dtype is dtype:
            return x
        if x.constant is not None and x.constant.numel() == 1:
            return self.constant(x.constant.to(dtype))
        made: OnnxTensor = self.Cast(x, to=DTYPES[dtype].value, dtype=dtype)
        made.type = None if x.type is None else x.type.replace(dtype=dtype)
        return made

    def operand(self, x: Operand, dtype: torch.dtype) -> OnnxTensor:
        """A tensor, or a number, in this dtype; a number has no dimensions."""
        if isinstance(x, OnnxTensor):
            return self.cast(x, dtype)
        if isinstance(x, Expr):
            return self.cast(self.scalar(x), dtype)
        if isinstance(x, BoolExpr):
            return self.cast(self.condition(x), dtype)
        return self.constant(x, dtype)

    def scalar(self, n: Size) -> OnnxTensor:
        """A size as a tensor without dimensions."""
        if isinstance(n, int):
            return self.constant(n, torch.int64)
        made: OnnxTensor = self.Squeeze(self.size(n), self.ints(0))
        return made

    def size(self, n: Size) -> OnnxTensor:
        """A size as a tensor of one element."""
        return self.scope.sizes.write(self, n)

    def shape(self, sizes: Sequence[Size]) -> OnnxTensor:
        """Sizes as a list."""
        return self.scope.sizes.write_list(self, tuple(sizes))

    def promote(self, *operands: Operand | None) -> torch.dtype:
        """The dtype in which torch computes these together."""
        return promote(*[_type_of(o) for o in operands])

    def condition(self, value: Any) -> OnnxTensor:
        """A truth value without dimensions."""
        if isinstance(value, BoolExpr):
            return self.scope.sizes.write_condition(self, value)
        return self.operand(value, torch.bool)


class HeldTensor(ir.Tensor[Any]):
    """A tensor of torch's that a model refers to: nothing is copied until a file is written."""

    def __init__(self, data: torch.Tensor, name: str) -> None:
        super().__init__(
            data, dtype=DTYPES[data.dtype], shape=ir.Shape(list(data.shape)), name=name
        )

    def numpy(self) -> Any:
        kind = self.dtype.numpy()
        return _as_bytes(self.raw).numpy().view(kind).reshape(tuple(self.raw.shape))

    def tobytes(self) -> bytes:
        return _as_bytes(self.raw).numpy().tobytes()

    def tofile(self, file: Any) -> None:
        for rows in _split(self.raw):
            # First as they lie: a file is read in one go, and what is dense is turned fast.
            dense = rows if rows.is_contiguous() else rows.clone()
            write_parts(file, _as_bytes(dense).numpy().data)
        memory = self.raw.untyped_storage()
        release(memory.data_ptr(), memory.nbytes())  # what was written may be a transposed copy


def _split(data: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensor itself, or, if it has to be copied to be written, its rows some at a time."""
    if data.is_contiguous() or data.dim() < 2 or data.nbytes < _MOST_COPIED:
        yield data
        return
    rows = max(1, _MOST_COPIED * data.shape[0] // data.nbytes)
    for start in range(0, data.shape[0], rows):
        yield data[start : start + rows]


_MOST_COPIED = 16 << 20


class NarrowTensor(ir.Tensor[Any]):
    """A tensor of int8 whose numbers have four bits."""

    def __init__(self, data: torch.Tensor, name: str) -> None:
        self.wide = data.detach().cpu().contiguous()
        narrow = self.wide.numpy().astype(ir.DataType.INT4.numpy())
        super().__init__(
            narrow, dtype=ir.DataType.INT4, shape=ir.Shape(list(data.shape)), name=name
        )


def _as_bytes(data: Any) -> torch.Tensor:
    flat: torch.Tensor = data.detach().cpu().contiguous().reshape(-1)
    if flat.numel() < 2:  # its stride may be any
        flat = flat.clone(memory_format=torch.contiguous_format)
    return flat.view(torch.uint8)


def _read_bytes(data: torch.Tensor) -> bytes:
    return _as_bytes(data).numpy().tobytes()


def _name_constant(data: torch.Tensor) -> str:
    """A name that tells small constants apart for those who look at the graph."""
    kind = str(data.dtype).removeprefix("torch.")
    if data.numel() > 6:
        return f"constant_{kind}_{'x'.join(map(str, data.shape))}"
    text = str(data.tolist()).replace(" ", "")
    return text if data.dtype is torch.int64 else f"{text}:{kind}"


def _type_of(operand: Any) -> Any:
    if isinstance(operand, OnnxTensor):
        return operand.type or TensorType((), operand.dtype, torch.device("cpu"))
    return 1 if isinstance(operand, Expr) else operand


def _list_dtypes(
    op: str, given: Sequence[OnnxTensor | None], outputs: int, dtype: Any
) -> list[torch.dtype]:
    """Those of the results, as the caller says them, or as is usual."""
    if isinstance(dtype, (list, tuple)):
        return list(dtype)
    return [dtype or _usual_dtype(op, given)] * outputs


def _usual_dtype(op: str, given: Sequence[OnnxTensor | None]) -> torch.dtype:
    if op in BOOLEAN_RESULTS:
        return torch.bool
    if op in INDEX_RESULTS:
        return torch.int64
    first = given[1 if op == "Where" else 0]
    assert first is not None
    return first.dtype


def _freeze(value: Any) -> Any:
    if isinstance(value, float):
        return struct.pack("d", value)
    if isinstance(value, (list, tuple)):
        return tuple(map(_freeze, value))
    return type(value), value


def make_attribute(name: str, value: Any) -> ir.Attr:
    """An attribute of a node: its kind is that of the Python value."""
    if isinstance(value, (bool, int)):
        return ir.AttrInt64(name, int(value))
    if isinstance(value, float):
        return ir.AttrFloat32(name, value)
    if isinstance(value, str):
        return ir.AttrString(name, value)
    if isinstance(value, ir.Graph):
        return ir.AttrGraph(name, value)
    if isinstance(value, torch.Tensor):
        return ir.AttrTensor(name, HeldTensor(value, name))
    if isinstance(value, (list, tuple)):
        kinds = {type(each) for each in value}
        if kinds <= {int, bool}:
            return ir.AttrInt64s(name, [int(each) for each in value])
        if kinds <= {int, float}:
            return ir.AttrFloat32s(name, [float(each) for each in value])
        if kinds == {str}:
            return ir.AttrStrings(name, value)
    raise TypeError(f"the attribute {name!r} of an ONNX node cannot be {value!r}")


def remove_unread(nodes: list[ir.Node], outputs: Sequence[ir.Value]) -> list[ir.Node]:
    """The nodes that something reads; the others no longer count as readers."""
    wanted, kept = set(outputs), []
    for node in reversed(nodes):
        if any(value.uses() or value in wanted for value in node.outputs):
            kept.append(node)
        else:
            _forget(node)
    return kept[::-1]


def _forget(node: ir.Node) -> None:
    for i in range(len(node.inputs)):
        node.replace_input_with(i, None)
    for attribute in node.attributes.values():
        if attribute.type is ir.AttributeType.GRAPH:
            for inner in attribute.as_graph():
                _forget(inner)
