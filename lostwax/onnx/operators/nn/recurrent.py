"""Recurrent layers: `LSTM`, `GRU` and `RNN`, a node for each layer of both directions. An LSTM with
projections, which ONNX does not have, and layers in double precision, which onnxruntime does not
run, are a `Scan`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from lostwax.onnx.operators.control import new_input, write_body
from lostwax.onnx.patterns.fusions import find_maker, read_constant
from lostwax.onnx.table import NotWritten, translation
from lostwax.onnx.values import OnnxTensor
from lostwax.onnx.writer import OnnxWriter


class _RecurrentLayer(NamedTuple):
    op: str
    gates: tuple[int, ...]
    """Where in torch's order the gates are that ONNX has first, second, …"""
    options: dict[str, Any]
    step: Callable[..., list[OnnxTensor]]
    """A state and what a row and the state give to the gates, to the next state."""


def _step_lstm(
    on: OnnxWriter, state: Sequence[OnnxTensor], row: OnnxTensor, own: OnnxTensor
) -> list[OnnxTensor]:
    take, keep, new, show = _split(on, on.Add(own, row), 4)
    after = on.Add(on.Mul(on.Sigmoid(keep), state[1]), on.Mul(on.Sigmoid(take), on.Tanh(new)))
    return [on.Mul(on.Sigmoid(show), on.Tanh(after)), after]


def _step_gru(
    on: OnnxWriter, state: Sequence[OnnxTensor], row: OnnxTensor, own: OnnxTensor
) -> list[OnnxTensor]:
    ours, theirs = _split(on, own, 3), _split(on, row, 3)
    reset, keep = (on.Sigmoid(on.Add(ours[i], theirs[i])) for i in range(2))
    new = on.Tanh(on.Add(theirs[2], on.Mul(ours[2], reset)))
    return [on.Add(on.Mul(on.Sub(state[0], new), keep), new)]


def _split(on: OnnxWriter, x: OnnxTensor, count: int, axis: int = -1) -> list[OnnxTensor]:
    return on.several("Split", x, axis=axis, num_outputs=count, outputs=count)


_LSTM = _RecurrentLayer("LSTM", (0, 3, 1, 2), {}, _step_lstm)
_GRU = _RecurrentLayer("GRU", (1, 0, 2), {"linear_before_reset": 1}, _step_gru)
_TANH = _RecurrentLayer("RNN", (0,), {}, lambda on, _, row, own: [on.Tanh(on.Add(own, row))])
_RELU = _RecurrentLayer(
    "RNN", (0,), {"activations": ["Relu"]}, lambda on, _, row, own: [on.Relu(on.Add(own, row))]
)


@translation("lstm.input")
def lstm(
    on: OnnxWriter, input: OnnxTensor, hx: list[OnnxTensor], params: list[OnnxTensor], *how: Any
) -> list[OnnxTensor]:
    return _write_layers(on, _LSTM, input, hx, params, *how)


def _one_state(kind: _RecurrentLayer) -> Any:
    def write(
        on: OnnxWriter, input: OnnxTensor, hx: OnnxTensor, params: list[OnnxTensor], *how: Any
    ) -> list[OnnxTensor]:
        return _write_layers(on, kind, input, [hx], params, *how)

    return write


translation("gru.input")(_one_state(_GRU))
translation("rnn_tanh.input")(_one_state(_TANH))
translation("rnn_relu.input")(_one_state(_RELU))


def _write_layers(
    on: OnnxWriter,
    kind: _RecurrentLayer,
    input: OnnxTensor,
    states: Sequence[OnnxTensor],
    params: Sequence[OnnxTensor],
    has_biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> list[OnnxTensor]:
    """The outputs of the last layer, and the last states of all of them."""
    if dropout and train:
        raise NotWritten("it drops outputs at random", "export the module in evaluation, .eval()")
    directions = 2 if bidirectional else 1
    count = len(params) // (layers * directions)
    x = on.Transpose(input, perm=[1, 0, 2]) if batch_first else input
    last: list[list[OnnxTensor]] = []
    for i in range(0, layers * directions, directions):
        weights = [params[j * count : (j + 1) * count] for j in range(i, i + directions)]
        first = [_take_rows(on, each, i, directions, layers * directions) for each in states]
        write = _write_steps if count % 2 or x.dtype is torch.float64 else _write_layer
        x, *after = write(on, kind, x, first, weights)
        last.append(after)
    x = on.Transpose(x, perm=[1, 0, 2]) if batch_first else x
    ends = list(zip(*last, strict=True))
    return [x, *(each[0] if layers == 1 else on.Concat(*each, axis=0) for each in ends)]


def _take_rows(
    on: OnnxWriter, state: OnnxTensor, start: int, count: int, total: int
) -> OnnxTensor | None:
    """The first state of one layer; None if it is of zeros, as it is if nobody gives one."""
    if _is_zero(state):
        return None
    if count == total:
        return state
    return on.Slice(state, on.ints(start), on.ints(start + count), on.ints(0))


def _is_zero(x: OnnxTensor) -> bool:
    maker = find_maker(x.value, "ConstantOfShape")
    if maker is not None:
        value = maker.attributes.get("value")
        return value is None or not bool(value.as_tensor().raw.any())
    spread = find_maker(x.value, "Expand")
    data = read_constant(x.value if spread is None else spread.inputs[0])
    return data is not None and not bool(data.any())


def _write_layer(
    on: OnnxWriter,
    kind: _RecurrentLayer,
    x: OnnxTensor,
    first: Sequence[OnnxTensor | None],
    weights: Sequence[Sequence[OnnxTensor]],
) -> list[OnnxTensor]:
    inputs, recurrents = ([[each[i]] for each in weights] for i in (0, 1))
    has_biases = len(weights[0]) == 4
    width = weights[0][1].size[1]
    joined = [_join(on, kind, each) for each in (inputs, recurrents)]
    biases = _join(on, kind, [each[2:] for each in weights]) if has_biases else None
    functions = kind.options.get("activations")
    options = kind.options | ({"activations": functions * len(weights)} if functions else {})
    out, *last = on.several(
        kind.op,
        x,
        *joined,
        biases,
        None,
        *first,
        hidden_size=width,
        direction="bidirectional" if len(weights) == 2 else None,
        outputs=1 + len(first),
        **options,
    )
    if len(weights) == 1:
        return [on.Squeeze(out, on.ints(1)), *last]
    beside = on.Transpose(out, perm=[0, 2, 1, 3])
    assert isinstance(width, int)
    return [on.Reshape(beside, on.ints(0, 0, 2 * width)), *last]


def _join(
    on: OnnxWriter, kind: _RecurrentLayer, rows: Sequence[Sequence[OnnxTensor]]
) -> OnnxTensor:
    """Weights of each direction, with gates in ONNX's order; what the model holds is laid so once,
    here."""
    held = [[each.constant for each in row] for row in rows]
    if all(each is not None for row in held for each in row):
        data = torch.stack([torch.cat([_order(each, kind) for each in row]) for row in held])
        name = rows[0][0].value.name or "weight"
        return on.hold(on.free_name(f"{name}{_LAID}"), data)
    parts = [on.Unsqueeze(_join_parts(on, kind, row), on.ints(0)) for row in rows]
    return parts[0] if len(parts) == 1 else on.Concat(*parts, axis=0)


_LAID = ".gates"


def _order(data: torch.Tensor | None, kind: _RecurrentLayer) -> torch.Tensor:
    assert data is not None
    chunks = data.detach().chunk(len(kind.gates))
    return torch.cat([chunks[i] for i in kind.gates])


def _join_parts(on: OnnxWriter, kind: _RecurrentLayer, row: Sequence[OnnxTensor]) -> OnnxTensor:
    found: list[OnnxTensor] = []
    for each in row:
        count = len(kind.gates)
        parts = _split(on, each, count, 0) if count > 1 else [each]
        found += [parts[i] for i in kind.gates]
    return found[0] if len(found) == 1 else on.Concat(*found, axis=0)


# ------------------------------------------------------------------------------- step by step


def _write_steps(
    on: OnnxWriter,
    kind: _RecurrentLayer,
    x: OnnxTensor,
    first: Sequence[OnnxTensor | None],
    weights: Sequence[Sequence[OnnxTensor]],
) -> list[OnnxTensor]:
    """A layer as a `Scan` in each direction."""
    found = []
    for i, given in enumerate(weights):
        recurrent = given[1]
        widths = [recurrent.size[1], recurrent.size[0] // len(kind.gates)]
        states = [_take_state(on, x, *each, i) for each in zip(first, widths, strict=False)]
        found.append(_scan(on, kind, x, states, given, backwards=i == 1))
    *last, outs = zip(*found, strict=True)
    ends = [[on.Unsqueeze(one, on.ints(0)) for one in each] for each in last]
    joined = [each[0] if len(each) == 1 else on.Concat(*each, axis=0) for each in ends]
    return [outs[0] if len(outs) == 1 else on.Concat(*outs, axis=2), *joined]


def _take_state(
    on: OnnxWriter, x: OnnxTensor, state: OnnxTensor | None, width: Any, i: int
) -> OnnxTensor:
    if state is not None:
        return on.Gather(state, on.constant(i, torch.int64), axis=0)
    size = on.Concat(on.Shape(x, start=1, end=2), on.size(width), axis=0)
    return on.ConstantOfShape(size, value=torch.zeros(1, dtype=x.dtype), dtype=x.dtype)


def _scan(
    on: OnnxWriter,
    kind: _RecurrentLayer,
    x: OnnxTensor,
    first: Sequence[OnnxTensor],
    weights: Sequence[OnnxTensor],
    backwards: bool,
) -> list[OnnxTensor]:
    """The last states, and the outputs of all steps."""
    matrix, recurrent, *more = weights
    projection = more.pop() if len(weights) % 2 else None
    bias, own_bias = more or (None, None)
    rows = _multiply(on, x, matrix, bias)
    inputs = [new_input(on, x.dtype, f"{on.at}_in_{i}") for i in range(len(first) + 1)]

    def write() -> list[OnnxTensor]:
        *state, row = inputs
        out, *after = kind.step(on, state, row, _multiply(on, state[0], recurrent, own_bias))
        if projection is not None:
            out = _multiply(on, out, projection, None)
        return [out, *after, out]

    way = [1] if backwards else None
    return on.several(
        "Scan",
        *first,
        rows,
        body=write_body(on, f"{on.at}_body", inputs, write),
        num_scan_inputs=1,
        scan_input_directions=way,
        scan_output_directions=way,
        outputs=len(first) + 1,
        dtype=x.dtype,
    )


def _multiply(
    on: OnnxWriter, x: OnnxTensor, matrix: OnnxTensor, bias: OnnxTensor | None
) -> OnnxTensor:
    made = on.MatMul(x, on.Transpose(matrix, perm=[1, 0]))
    return made if bias is None else on.Add(made, bias)
