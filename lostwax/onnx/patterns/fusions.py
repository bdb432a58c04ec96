"""What is written in fewer nodes: operators that change nothing, and patterns for which ONNX has an
operator of its own.

Each rule is asked when the last node of its pattern is to be written, and looks at what is before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
import torch

from lostwax.onnx.table import simplification
from lostwax.onnx.values import OnnxTensor
from lostwax.onnx.writer import OnnxWriter
from lostwax.sym import Expr

Given = Sequence[OnnxTensor]
Attributes = dict[str, Any]


def find_maker(value: ir.Value | None, op: str) -> ir.Node | None:
    """The node of this operator that makes a value."""
    node = None if value is None else value.producer()
    return node if node is not None and node.op_type == op and not node.domain else None


def read_constant(value: ir.Value | None) -> torch.Tensor | None:
    """The data of a value that the model holds, and that does not change."""
    held: Any = None if value is None else value.const_value
    return None if held is None else held.raw


def _read_ints(value: ir.Value | None) -> list[int] | None:
    data = read_constant(value)
    return None if data is None or data.dtype is not torch.int64 else data.tolist()


def is_number(x: OnnxTensor | ir.Value | None, number: float) -> bool:
    """Is it this number, without dimensions?"""
    data = read_constant(x.value if isinstance(x, OnnxTensor) else x)
    return data is not None and data.dim() == 0 and data.item() == number


# ------------------------------------------------------------------------------- no change


@simplification("Mul")
def without_one(on: OnnxWriter, given: Given, _: Attributes) -> OnnxTensor | None:
    x, y = given
    return x if is_number(y, 1) else y if is_number(x, 1) else None


@simplification("Div")
def by_one(on: OnnxWriter, given: Given, _: Attributes) -> OnnxTensor | None:
    return given[0] if is_number(given[1], 1) else None


@simplification("Add")
def plus_nothing(on: OnnxWriter, given: Given, _: Attributes) -> OnnxTensor | None:
    """Of integers: of floats it turns -0.0 into 0.0."""
    x, y = given
    if x.dtype.is_floating_point:
        return None
    return x if is_number(y, 0) else y if is_number(x, 0) else None


@simplification("And")
def and_true(on: OnnxWriter, given: Given, _: Attributes) -> OnnxTensor | None:
    x, y = given
    return x if is_number(y, True) else y if is_number(x, True) else None


@simplification("Unsqueeze")
def unsqueeze_at_once(on: OnnxWriter, given: Given, _: Attributes) -> OnnxTensor | None:
    x, second = given[0], _read_ints(given[1].value)
    before = find_maker(x.value, "Unsqueeze")
    first = None if before is None else _read_ints(before.inputs[1])
    if before is None or first is None or second is None or min((*first, *second)) < 0:
        return None
    places = [d for d in range(64) if d not in second]  # where dims of the first result go
    inner = before.inputs[0]
    assert inner is not None
    axes = sorted([*second, *(places[d] for d in first)])
    return on.Unsqueeze(OnnxTensor(inner, x.dtype, on.types.get(inner)), on.ints(*axes))


@simplification("Reshape")
def reshape_at_once(on: OnnxWriter, given: Given, attributes: Attributes) -> OnnxTensor | None:
    """To sizes that are known, of what was reshaped before."""
    x, sizes = given[0], _read_ints(given[1].value)
    before = find_maker(x.value, "Reshape")
    inner = None if before is None else before.inputs[0]
    if inner is None or sizes is None or min(sizes, default=1) < 1:
        return None
    source = OnnxTensor(inner, x.dtype, on.types.get(inner))
    maker = find_maker(inner, "DequantizeLinear")
    held = None if maker is None or maker.inputs[0] is None else maker.inputs[0].shape
    if held is not None and list(held.numpy()) == sizes:
        return source
    return on.Reshape(source, given[1])


# ------------------------------------------------------------------------------- norms


@simplification("Mul", since=23)
def root_mean_square(on: OnnxWriter, given: Given, _: Attributes) -> OnnxTensor | None:
    """`weight * (x * rsqrt((x * x).mean(-1) + eps))`; in half precision computed in single."""
    for scale, normal in (given, given[::-1]):
        found = _find_normal(normal.value)
        if found is None or scale.type is None or scale.rank != 1:
            continue
        source, eps = found
        kind = on.types.get(source)
        if kind is not None and kind.dtype is scale.dtype and kind.size[-1:] == scale.size:
            x = OnnxTensor(source, scale.dtype, kind)
            return on.RMSNormalization(x, scale, axis=-1, epsilon=eps)
    return None


def _find_normal(value: ir.Value) -> tuple[ir.Value, float] | None:
    """What is divided by its root mean square, and what is added under the root."""
    cast = find_maker(value, "Cast")
    product = find_maker(cast.inputs[0] if cast is not None else value, "Mul")
    for x, inverse in () if product is None else _both_ways(product):
        root = find_maker(_first(find_maker(inverse, "Reciprocal")), "Sqrt")
        total = find_maker(_first(root), "Add")
        eps = None if total is None else read_constant(total.inputs[1])
        mean = find_maker(_first(total), "ReduceMean")
        square = find_maker(_first(mean), "Mul")
        if mean is None or square is None or eps is None or eps.numel() != 1:
            continue
        if list(square.inputs) != [x, x] or not _is_of_last(mean, x):
            continue
        widened = find_maker(x, "Cast")
        if cast is None:
            return x, eps.item()
        if widened is not None and x.dtype == ir.DataType.FLOAT:
            assert widened.inputs[0] is not None
            return widened.inputs[0], eps.item()
    return None


def _is_of_last(mean: ir.Node, x: ir.Value) -> bool:
    axes, rank = _read_ints(mean.inputs[1]), None if x.shape is None else len(x.shape)
    return rank is not None and axes == [rank - 1] and mean.attributes["keepdims"].as_int() == 1


def _first(node: ir.Node | None) -> ir.Value | None:
    return None if node is None else node.inputs[0]


def _both_ways(node: ir.Node) -> list[tuple[ir.Value, ir.Value]]:
    x, y = node.inputs
    assert x is not None
    assert y is not None
    return [(x, y), (y, x)]


# ------------------------------------------------------------------------------- positions


@simplification("Add", since=23)
def rotary_embedding(on: OnnxWriter, given: Given, _: Attributes) -> OnnxTensor | None:
    """`x * cos + cat((-x[..., half:], x[..., :half])) * sin`, where the halves of `cos` and `sin`
    are equal."""
    for plain, turned in (given, given[::-1]):
        first, second = (find_maker(each.value, "Mul") for each in (plain, turned))
        if first is None or second is None:
            return None
        for x, cos in _both_ways(first):
            for rotated, sin in _both_ways(second):
                kind = on.types.get(x)
                if kind is None or not _is_rotated(rotated, x, kind.size):
                    continue
                tables = [_find_half(on, each, kind.size) for each in (cos, sin)]
                if all(each is not None for each in tables):
                    return on.RotaryEmbedding(OnnxTensor(x, plain.dtype, kind), *tables)
    return None


def _is_rotated(value: ir.Value, x: ir.Value, size: Any) -> bool:
    joined = find_maker(value, "Concat")
    if joined is None or len(size) != 4 or len(joined.inputs) != 2:
        return False
    width = size[-1]
    if not isinstance(width, int) or width % 2 or joined.attributes["axis"].as_int() not in (3, -1):
        return False
    second, half = _first(find_maker(joined.inputs[0], "Neg")), width // 2
    parts = find_maker(second, "Split")
    if parts is not None and parts.inputs[0] is x:
        given = [*parts.outputs], _read_ints(parts.inputs[1]), parts.attributes["axis"].as_int()
        return given == ([joined.inputs[1], second], [half, half], 3)
    upper, lower = find_maker(second, "Slice"), find_maker(joined.inputs[1], "Slice")
    return _takes(upper, x, (half,), (width, _LAST)) and _takes(lower, x, (0,), (half,))


_LAST = 2**63 - 1


def _takes(part: ir.Node | None, x: ir.Value, starts: Any, ends: Any) -> bool:
    """Does it take these places of the last of four dims?"""
    if part is None or part.inputs[0] is not x or len(part.inputs) != 4:
        return False
    first, last, axes = (_read_ints(each) for each in part.inputs[1:4])
    if first is None or last is None or axes not in ([3], [-1]):
        return False
    return first[0] in starts and last[0] in ends


def _find_half(on: OnnxWriter, value: ir.Value, size: Any) -> OnnxTensor | None:
    """A table of batch, length and half of the width, of one that has a dim for heads and both
    halves; or of one that has length and both halves alone."""
    alone = on.types.get(value)
    if alone is not None and len(alone.size) == 2 and _is_as_long(alone.size[0], size[2]):
        if alone.size[1] != size[3] or not _has_equal_halves(value):
            return None
        ends = on.ints(0), on.ints(size[3] // 2), on.ints(1)
        half = on.Slice(OnnxTensor(value, alone.dtype, alone), *ends)
        return on.Expand(half, on.shape((size[0], alone.size[0], size[3] // 2)))
    spread = find_maker(value, "Unsqueeze")
    source = _first(spread)
    if spread is None or source is None or _read_ints(spread.inputs[1]) != [1]:
        return None
    kind = on.types.get(source)
    if kind is None or len(kind.size) != 3 or kind.size[1:] != (size[2], size[3]):
        return None
    if kind.size[0] not in (1, size[0]) or not _has_equal_halves(source):
        return None
    half = on.Slice(
        OnnxTensor(source, kind.dtype, kind), on.ints(0), on.ints(size[3] // 2), on.ints(2)
    )
    if kind.size[0] == size[0]:
        return half
    return on.Expand(half, on.shape((size[0], 1, 1)))


def _is_as_long(n: Any, length: Any) -> bool:
    """Is this the length, or, of rows that are cut off a table, at most the table's? A product with
    fewer rows than the length, but one, is none in the program either."""
    if n == length or not isinstance(n, Expr):
        return bool(n == length)
    atom = next((each for each in n.atoms() if each.expr == n and each.kind == "min"), None)
    if atom is None:
        return False
    rest = [each for each in atom.args if each != length]
    return len(rest) < len(atom.args) and all(isinstance(each, int) and each > 1 for each in rest)


def _repeats(data: torch.Tensor) -> bool:
    """Are both halves of the last dim equal?"""
    first, *rest = data.chunk(2, -1)
    return len(rest) == 1 and first.equal(rest[0])


_EACH_BY_ITSELF = ("Cos", "Sin", "Cast")


def _has_equal_halves(value: ir.Value | None) -> bool:
    """Is it made of `cat((x, x), -1)`, each element by itself?"""
    node = None if value is None else value.producer()
    if node is None:
        data = read_constant(value)
        return data is not None and data.dim() > 0 and _repeats(data)
    if node.op_type == "Slice" and len(node.inputs) > 3 and _read_ints(node.inputs[3]) == [0]:
        rank = None if value is None or value.shape is None else len(value.shape)
        return rank == 2 and _has_equal_halves(node.inputs[0])
    if node.op_type in _EACH_BY_ITSELF:
        return _has_equal_halves(node.inputs[0])
    if node.op_type == "Mul":
        data = read_constant(node.inputs[1])
        return data is not None and data.dim() == 0 and _has_equal_halves(node.inputs[0])
    return (
        node.op_type == "Concat"
        and node.inputs[0] is node.inputs[1]
        and len(node.inputs) == 2
        and (node.attributes["axis"].as_int() in (2, -1))
    )
