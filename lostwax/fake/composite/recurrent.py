"""Recurrent layers, unrolled into operators that every device has; over a length that varies, as a
loop.

This is for programs: eager hands a whole LSTM to a device's own kernel. A step takes one row of
each sequence, so none reshapes anything; what does not change between steps is computed once. Must
not compute types itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch._ops import OpOverload

from lostwax.fake.autocast import CASTABLE
from lostwax.fake.composite.composites import linear, to_dtype
from lostwax.fake.composite.dropouts import dropout
from lostwax.ops.registry import aten
from lostwax.sym import Expr

if TYPE_CHECKING:
    from lostwax.fake.mode import FakeTensorMode

_add, _mul = aten.add.Tensor, aten.mul.Tensor
_sigmoid, _tanh = aten.sigmoid.default, aten.tanh.default


def cast_arguments(mode: FakeTensorMode, func: OpOverload, args: Any) -> tuple[Any, bool]:
    """The arguments as autocast casts them, and whether it does. It casts them where eager has one
    kernel for the whole layer (cuDNN for all layers, oneDNN for an LSTM); elsewhere it casts the
    parts."""
    x = mode.adopt(args[0]).fake_type
    device = x.device.type
    if device not in (mode.casts or ()) or not _has_kernel(func, device, args):
        return args, False
    # For cuDNN's layers, torch's autocast kernel casts to float16, whatever was asked for.
    dtype = torch.float16 if device == "cuda" else torch.get_autocast_dtype(device)

    def lower(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [lower(v) for v in value]
        kind = value.dtype if isinstance(value, torch.Tensor) else None
        return to_dtype(mode, value, dtype) if kind in CASTABLE else value

    return tuple(map(lower, args)), True


def _has_kernel(func: OpOverload, device: str, args: Any) -> bool:
    if device == "cuda":
        return torch.backends.cudnn.enabled
    is_projected = func is aten.lstm.input and len({h.shape[-1] for h in args[1]}) > 1
    return func is aten.lstm.input and torch._C._get_mkldnn_enabled() and not is_projected


State = tuple[Any, ...]
Step = Callable[["FakeTensorMode", Any, State, "_LayerWeights"], State]


def lstm(mode: FakeTensorMode, input: Any, hx: Sequence[Any], *rest: Any) -> tuple[Any, Any, Any]:
    """`aten.lstm.input`: the outputs of the last layer, and the last hidden and cell states of
    every layer and direction."""
    states = list(zip(*[mode.call(aten.unbind.int, state, 0) for state in hx], strict=True))
    x, last = _run_layers(mode, _lstm_step, 4, input, states, *rest)
    hiddens, cells = zip(*last, strict=True)
    stack = aten.stack.default
    return x, mode.call(stack, hiddens, 0), mode.call(stack, cells, 0)


def _one_state_layer(step: Step, gates: int) -> Callable[..., tuple[Any, Any]]:
    """How to run layers of which the only state is the output."""

    def layer(mode: FakeTensorMode, input: Any, hx: Any, *rest: Any) -> tuple[Any, Any]:
        states = [(state,) for state in mode.call(aten.unbind.int, hx, 0)]
        x, last = _run_layers(mode, step, gates, input, states, *rest)
        return x, mode.call(aten.stack.default, [hidden for (hidden,) in last], 0)

    return layer


def _run_layers(
    mode: FakeTensorMode,
    step: Step,
    gates: int,
    input: Any,
    states: Sequence[State],
    params: Sequence[Any],
    has_biases: bool,
    num_layers: int,
    dropout_p: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
    mask: Any = None,
) -> tuple[Any, list[State]]:
    """The outputs of the last layer, and the last states of every layer and direction. `mask` says
    which steps of which sequences are computed; else a state stays as it is."""
    call = mode.call
    directions = 2 if bidirectional else 1
    count = len(params) // (num_layers * directions)
    x = call(aten.transpose.int, input, 0, 1) if batch_first else input
    last: list[State] = []
    for layer in range(num_layers):
        outputs: list[Any] = []
        for i in range(layer * directions, (layer + 1) * directions):
            weights = _LayerWeights(mode, params[i * count : (i + 1) * count], has_biases, gates)
            backwards = len(outputs) == 1
            out, state = _run_layer(mode, step, x, states[i], weights, backwards, mask)
            outputs.append(out)
            last.append(state)
        x = call(aten.cat.default, outputs, 2) if bidirectional else outputs[0]
        if dropout_p and layer < num_layers - 1:
            x = dropout(mode, x, dropout_p, train)
    return call(aten.transpose.int, x, 0, 1) if batch_first else x, last


class _LayerWeights:
    """The weights of one layer in one direction; the recurrent ones are transposed."""

    __slots__ = ("bias", "input", "input_bias", "projection", "recurrent", "width")

    def __init__(
        self, mode: FakeTensorMode, given: Sequence[Any], has_biases: bool, gates: int
    ) -> None:
        self.input: Any = given[0]
        self.input_bias: Any = given[2] if has_biases else None
        self.bias: Any = given[3] if has_biases else None
        self.width: Any = mode.adopt(given[1]).fake_type.size[0] // gates
        self.recurrent: Any = mode.call(aten.t.default, given[1])
        is_projected = len(given) % 2 == 1
        self.projection: Any = mode.call(aten.t.default, given[-1]) if is_projected else None

    def of(self, mode: FakeTensorMode, hidden: Any) -> Any:
        """What the last state contributes to the gates."""
        if self.bias is None:
            return mode.call(aten.mm.default, hidden, self.recurrent)
        return mode.call(aten.addmm.default, self.bias, hidden, self.recurrent)


def _run_layer(
    mode: FakeTensorMode,
    step: Step,
    x: Any,
    state: State,
    weights: _LayerWeights,
    backwards: bool,
    mask: Any,
) -> tuple[Any, State]:
    """Run one layer in one direction: its output at each step, and its last state."""
    gates = linear(mode, x, weights.input, weights.input_bias)
    given = [gates] if mask is None else [gates, mask]

    def take_step(state: State, gates: Any, keeps: Any = None) -> State:
        new = step(mode, gates, state, weights)
        if keeps is None:
            return new
        return tuple(
            mode.call(aten.where.self, keeps, *pair) for pair in zip(new, state, strict=True)
        )

    if isinstance(mode.adopt(gates).fake_type.size[0], Expr):
        return _scan_layer(mode, take_step, given, state, backwards)
    steps = list(zip(*[mode.call(aten.unbind.int, each, 0) for each in given], strict=True))
    outputs = []
    for rows in reversed(steps) if backwards else steps:
        state = take_step(state, *rows)
        outputs.append(state[0])
    if backwards:
        outputs.reverse()
    return mode.call(aten.stack.default, outputs, 0), state


def _scan_layer(
    mode: FakeTensorMode,
    take_step: Callable[..., State],
    given: Sequence[Any],
    state: State,
    backwards: bool,
) -> tuple[Any, State]:
    """As `_run_layer`, for a length that varies: one step is recorded, for any number of them."""

    def take_rows(*both: Any) -> list[Any]:
        after = take_step(both[: len(state)], *both[len(state) :])
        return [*after, after[0]]

    call, scan = mode.call, mode.higher_order["scan"]
    rows = [call(aten.flip.default, each, [0]) if backwards else each for each in given]
    *last, outputs = scan(mode, take_rows, state, rows)
    if backwards:
        outputs = call(aten.flip.default, outputs, [0])
    return outputs, tuple(last)


def _lstm_step(mode: FakeTensorMode, gates: Any, state: State, weights: _LayerWeights) -> State:
    call, (hidden, cell) = mode.call, state
    both = call(_add, weights.of(mode, hidden), gates)
    take, keep, new, show = call(aten.split.Tensor, both, weights.width, 1)
    kept = call(_mul, call(_sigmoid, keep), cell)
    cell = call(_add, kept, call(_mul, call(_sigmoid, take), call(_tanh, new)))
    hidden = call(_mul, call(_sigmoid, show), call(_tanh, cell))
    if weights.projection is not None:
        hidden = call(aten.mm.default, hidden, weights.projection)
    return hidden, cell


def _gru_step(mode: FakeTensorMode, gates: Any, state: State, weights: _LayerWeights) -> State:
    call, (hidden,) = mode.call, state
    ours, theirs = (
        call(aten.split.Tensor, part, weights.width, 1)
        for part in (weights.of(mode, hidden), gates)
    )
    reset, keep = (call(_sigmoid, call(_add, ours[i], theirs[i])) for i in range(2))
    new = call(_tanh, call(_add, theirs[2], call(_mul, ours[2], reset)))
    return (call(_add, call(_mul, call(aten.sub.Tensor, hidden, new), keep), new),)


def _rnn_step(function: Any) -> Step:
    def step(mode: FakeTensorMode, gates: Any, state: State, weights: _LayerWeights) -> State:
        return (mode.call(function, mode.call(_add, weights.of(mode, state[0]), gates)),)

    return step


class Packed(NamedTuple):
    """A batch of sequences, of which the longest comes first, that was packed: their steps lie one
    behind the other, the first ones first."""

    lengths: Any
    steps: Any
    """How many there were before it was packed, of each sequence."""
    positions: Any
    """Where the steps were in all of them."""

    def mask(self, steps: Any) -> Any:
        """Whether a step is one of a sequence, for so many steps of each."""
        return torch.arange(steps)[:, None] < self.lengths

    def unpack(self, data: Any, steps: Any) -> Any:
        """The steps of each sequence; after its end, any of others."""
        counts = self.mask(steps).sum(1)
        batch = self.lengths.shape[0]
        places = (counts.cumsum(0) - counts)[:, None] + torch.arange(batch)
        places = places.clamp(max=self.lengths.sum() - 1).flatten().to(data.device)
        return data.index_select(0, places).unflatten(0, (steps, batch))

    def pack(self, padded: Any) -> Any:
        return padded.flatten(0, 1).index_select(0, self.positions.to(padded.device))


def run_packed(
    mode: FakeTensorMode, func: OpOverload, packed: Packed, data: Any, hx: Any, *rest: Any
) -> tuple[Any, ...]:
    """A recurrent layer over sequences that were packed: it computes what comes after the end of
    one, too, and takes no state from there."""

    def unpack() -> tuple[Any, Any]:
        mask = packed.mask(packed.steps).unsqueeze(-1).to(data.device)
        return packed.unpack(data, packed.steps), mask

    padded, mask = mode.reenter(unpack, (), {})
    layer = LAYERS[getattr(aten, func._schema.name.removeprefix("aten::")).input]
    out, *states = layer(mode, padded, hx, *rest, False, mask)
    return mode.reenter(packed.pack, (out,), {}), *states


LAYERS: dict[Any, Callable[..., Any]] = {
    aten.lstm.input: lstm,
    aten.gru.input: _one_state_layer(_gru_step, 3),
    aten.rnn_tanh.input: _one_state_layer(_rnn_step(_tanh), 1),
    aten.rnn_relu.input: _one_state_layer(_rnn_step(aten.relu.default), 1),
}
