"""Control flow: `If`, `Loop` and `Scan`. Bodies see the values of the graphs around them, so that
only what changes from turn to turn is handed over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import onnx_ir as ir
import torch
from torch.fx import GraphModule

from lostwax.fake.tensor import FakeTensor
from lostwax.onnx.operators.numbers import number
from lostwax.onnx.table import translation
from lostwax.onnx.translate import write_graph
from lostwax.onnx.values import DTYPES, OnnxTensor, make_shape
from lostwax.onnx.writer import OnnxWriter, remove_unread


def write_body(
    on: OnnxWriter, name: str, inputs: Sequence[OnnxTensor], write: Callable[[], Sequence[Any]]
) -> ir.Graph:
    """A graph of its own, whose results are what `write` gives."""
    with on.open_scope() as scope:
        outputs = [_own_value(on, each, inputs) for each in write()]
        values = [x.value for x in outputs]
        nodes = remove_unread(scope.nodes, values)
    return ir.Graph([x.value for x in inputs], values, nodes=nodes, name=on.free_name(name))


def _own_value(on: OnnxWriter, result: Any, inputs: Sequence[OnnxTensor]) -> OnnxTensor:
    """A result as a value of the body itself, given once."""
    x = number(on, result)
    made: OnnxTensor = on.write("Identity", [x])
    on.scope.equal.clear()
    made.value.shape = x.value.shape
    return made


def _input_like(on: OnnxWriter, value: Any, name: str) -> OnnxTensor:
    """An input of a body that stands for such a value."""
    if isinstance(value, FakeTensor):
        dtype, shape = value.dtype, make_shape(value.fake_type.size)
    else:
        kinds = {torch.SymFloat: torch.float64, float: torch.float64, torch.SymBool: torch.bool,
                 bool: torch.bool}  # fmt: skip
        dtype, shape = kinds.get(type(value), torch.int64), ir.Shape([])
    return new_input(on, dtype, name, shape)


def new_input(
    on: OnnxWriter, dtype: torch.dtype, name: str, shape: ir.Shape | None = None
) -> OnnxTensor:
    made = ir.Value(name=on.free_name(name), type=ir.TensorType(DTYPES[dtype]), shape=shape)
    return OnnxTensor(made, dtype)


def _placeholders(body: GraphModule) -> list[Any]:
    return [node.meta["val"] for node in body.graph.nodes if node.op == "placeholder"]


@translation("higher_order::cond")
def cond(
    on: OnnxWriter, pred: Any, on_true: GraphModule, on_false: GraphModule, operands: Any
) -> Any:
    branches = [
        write_body(on, f"{on.at}_{name}", (), partial(write_graph, on, body, operands))
        for name, body in (("then", on_true), ("else", on_false))
    ]
    outputs = branches[0].outputs
    if not outputs:
        return []
    truth = on.condition(pred)
    if truth.type is not None and truth.rank:
        truth = on.Reshape(truth, on.constant(torch.empty(0, dtype=torch.int64)))
    return on.several(
        "If",
        truth,
        then_branch=branches[0],
        else_branch=branches[1],
        outputs=len(outputs),
        dtype=_of(branches[0]),
    )


_TORCH = {kind: dtype for dtype, kind in DTYPES.items()}


def _of(graph: ir.Graph) -> list[torch.dtype]:
    return [_TORCH[value.dtype] for value in graph.outputs if value.dtype is not None]


@translation("higher_order::while_loop")
def while_loop(
    on: OnnxWriter, condition: GraphModule, body: GraphModule, carried: Any, more: Any
) -> Any:
    kinds = _placeholders(body)[: len(carried)]
    first = [_as_kind(on, each, kind) for each, kind in zip(carried, kinds, strict=True)]
    (begins,) = write_graph(on, condition, [*carried, *more])
    turn, alive = _input_like(on, 0, f"{on.at}_turn"), _input_like(on, True, f"{on.at}_alive")
    inputs = [_input_like(on, kind, f"{on.at}_in_{i}") for i, kind in enumerate(kinds)]

    def write() -> list[Any]:
        made = write_graph(on, body, [*inputs, *more])
        made = [_as_kind(on, each, kind) for each, kind in zip(made, kinds, strict=True)]
        (goes_on,) = write_graph(on, condition, [*made, *more])
        return [on.condition(_drop_dims(on, goes_on)), *made]

    graph = write_body(on, f"{on.at}_body", [turn, alive, *inputs], write)
    return on.several(
        "Loop",
        None,
        on.condition(_drop_dims(on, begins)),
        *first,
        body=graph,
        outputs=len(first),
        dtype=[x.dtype for x in first],
    )


def _drop_dims(on: OnnxWriter, truth: Any) -> Any:
    """A truth value without dims."""
    if isinstance(truth, OnnxTensor) and truth.type is not None and truth.rank:
        return on.Reshape(truth, on.constant(torch.empty(0, dtype=torch.int64)))
    return truth


def _as_kind(on: OnnxWriter, given: Any, kind: Any) -> OnnxTensor:
    """What is handed over from turn to turn, as a tensor."""
    x = number(on, given)
    return on.cast(x, torch.float64) if isinstance(kind, (float, torch.SymFloat)) else x


@translation("higher_order::scan")
def scan(on: OnnxWriter, body: GraphModule, carried: Any, rows: Any, more: Any = ()) -> Any:
    return _scan(on, body, carried, rows, more)


@translation("higher_order::map_impl")
def map_rows(on: OnnxWriter, body: GraphModule, rows: Any, more: Any = ()) -> Any:
    return _scan(on, body, [], rows, more)


def _scan(on: OnnxWriter, body: GraphModule, carried: Any, rows: Any, more: Any) -> Any:
    kinds = _placeholders(body)[: len(carried) + len(rows)]
    first = [_as_kind(on, *pair) for pair in zip(carried, kinds, strict=False)]
    inputs = [_input_like(on, kind, f"{on.at}_in_{i}") for i, kind in enumerate(kinds)]
    graph = write_body(on, f"{on.at}_body", inputs, lambda: write_graph(on, body, [*inputs, *more]))
    return on.several(
        "Scan",
        *first,
        *rows,
        body=graph,
        num_scan_inputs=len(rows),
        outputs=len(graph.outputs),
        dtype=_of(graph),
    )


@translation("higher_order::associative_scan")
def associative_scan(on: OnnxWriter, body: GraphModule, rows: Any, more: Any = ()) -> Any:
    """The first row as it is, each other joined to what is before it."""
    at = on.ints(0)
    heads = [on.Slice(x, at, on.ints(1), at) for x in rows]
    tails = [on.Slice(x, on.ints(1), on.ints(2**63 - 1), at) for x in rows]
    kinds = _placeholders(body)[: 2 * len(rows)]
    inputs = [_input_like(on, kind, f"{on.at}_in_{i}") for i, kind in enumerate(kinds)]

    def write() -> list[Any]:
        made = write_graph(on, body, [*inputs, *more])
        return [*made, *made]

    graph = write_body(on, f"{on.at}_body", inputs, write)
    made = on.several(
        "Scan",
        *[on.Squeeze(x, at) for x in heads],
        *tails,
        body=graph,
        num_scan_inputs=len(rows),
        outputs=len(graph.outputs),
        dtype=_of(graph),
    )
    after = made[len(rows) :]
    return [on.Concat(*pair, axis=0) for pair in zip(heads, after, strict=True)]


@translation("higher_order::wrap_with_set_grad_enabled")
def with_grad(on: OnnxWriter, _: Any, body: GraphModule, *operands: Any) -> Any:
    return write_graph(on, body, operands)


@translation("higher_order::wrap_with_autocast")
def with_autocast(on: OnnxWriter, *given: Any) -> Any:
    return write_graph(on, given[4], given[5:])


@translation("higher_order::invoke_subgraph")
def invoke_subgraph(on: OnnxWriter, body: GraphModule, _: Any, *operands: Any) -> Any:
    return write_graph(on, body, operands)
