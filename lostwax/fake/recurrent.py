"""Recurrent layers, unrolled into operators that every device has.

For programs: eager hands a whole LSTM to a device's own kernel. One step is one row of each batch,
so no step reshapes anything; what does not change from step to step is computed once. Must not
compute types itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lostwax.fake.composite import dropout, linear
from lostwax.ops.registry import aten

if TYPE_CHECKING:
    from lostwax.fake.mode import FakeTensorMode

_add, _mul = aten.add.Tensor, aten.mul.Tensor
_sigmoid, _tanh = aten.sigmoid.default, aten.tanh.default


def lstm(
    mode: FakeTensorMode,
    input: Any,
    hx: Sequence[Any],
    params: Sequence[Any],
    has_biases: bool,
    num_layers: int,
    dropout_p: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Any, Any, Any]:
    """`aten.lstm.input`: the outputs of the last layer, and the last hidden and cell states of
    every layer and direction."""
    call = mode.call
    directions = 2 if bidirectional else 1
    count = len(params) // (num_layers * directions)
    x = call(aten.transpose.int, input, 0, 1) if batch_first else input
    states = list(zip(*[call(aten.unbind.int, state, 0) for state in hx], strict=True))
    last: list[tuple[Any, Any]] = []
    for layer in range(num_layers):
        outputs: list[Any] = []
        for i in range(layer * directions, (layer + 1) * directions):
            weights = _Weights(mode, params[i * count : (i + 1) * count], has_biases)
            out, hidden, cell = _run(mode, x, states[i], weights, backwards=len(outputs) == 1)
            outputs.append(out)
            last.append((hidden, cell))
        x = call(aten.cat.default, outputs, 2) if bidirectional else outputs[0]
        if dropout_p and layer < num_layers - 1:
            x = dropout(mode, x, dropout_p, train)
    if batch_first:
        x = call(aten.transpose.int, x, 0, 1)
    hiddens, cells = zip(*last, strict=True)
    return x, call(aten.stack.default, hiddens, 0), call(aten.stack.default, cells, 0)


class _Weights:
    """Of one layer in one direction; the recurrent ones turned for multiplication."""

    __slots__ = ("bias", "input", "input_bias", "projection", "recurrent", "width")

    def __init__(self, mode: FakeTensorMode, given: Sequence[Any], has_biases: bool) -> None:
        self.input: Any = given[0]
        self.input_bias: Any = given[2] if has_biases else None
        self.bias: Any = given[3] if has_biases else None
        self.width: Any = mode.adopt(given[1]).fake_type.size[0] // 4
        self.recurrent: Any = mode.call(aten.t.default, given[1])
        is_projected = len(given) % 2 == 1
        self.projection: Any = mode.call(aten.t.default, given[-1]) if is_projected else None


def _run(
    mode: FakeTensorMode, x: Any, state: Sequence[Any], weights: _Weights, backwards: bool
) -> tuple[Any, Any, Any]:
    """One layer in one direction: what it puts out at each step, and its last states."""
    hidden, cell = state
    steps = mode.call(aten.unbind.int, linear(mode, x, weights.input, weights.input_bias), 0)
    outputs = []
    for gates in reversed(steps) if backwards else steps:
        hidden, cell = _step(mode, gates, hidden, cell, weights)
        outputs.append(hidden)
    if backwards:
        outputs.reverse()
    return mode.call(aten.stack.default, outputs, 0), hidden, cell


def _step(
    mode: FakeTensorMode, gates: Any, hidden: Any, cell: Any, weights: _Weights
) -> tuple[Any, Any]:
    call = mode.call
    if weights.bias is None:
        recurrent = call(aten.mm.default, hidden, weights.recurrent)
    else:
        recurrent = call(aten.addmm.default, weights.bias, hidden, weights.recurrent)
    parts = call(aten.split.Tensor, call(_add, recurrent, gates), weights.width, 1)
    take, keep, new, show = parts
    kept = call(_mul, call(_sigmoid, keep), cell)
    cell = call(_add, kept, call(_mul, call(_sigmoid, take), call(_tanh, new)))
    hidden = call(_mul, call(_sigmoid, show), call(_tanh, cell))
    if weights.projection is not None:
        hidden = call(aten.mm.default, hidden, weights.projection)
    return hidden, cell
