"""Type rules of the fused recurrent cells and layers.

`nn.LSTM` on the CPU arrives as one `mkldnn_rnn_layer` for each layer and direction; `nn.LSTMCell`
and `nn.GRUCell` on accelerators arrive as fused cells. Only oneDNN knows the size of the workspace
that it keeps for the gradient: its type says empty.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lostwax.ops.registry import mark, refuse_operators, rule
from lostwax.ops.shapes import fail, is_met, require, show
from lostwax.ops.traits import OperatorRefusal, Trait
from lostwax.sym import eq
from lostwax.types import TensorType

Optional = TensorType | None
_LSTM = 2


@rule("mkldnn_rnn_layer")
def mkldnn_rnn_layer(
    input: TensorType,
    weight0: TensorType,
    weight1: TensorType,
    weight2: TensorType,
    weight3: TensorType,
    hx_: TensorType,
    cx_: TensorType,
    reverse: bool,
    batch_sizes: Sequence[int],
    mode: int,
    hidden_size: int,
    num_layers: int,
    has_biases: bool,
    bidirectional: bool,
    batch_first: bool,
    train: bool,
) -> tuple[TensorType, TensorType, TensorType, TensorType | None]:
    """The input of this kernel is time-major, whatever `batch_first` says."""
    time, batch, features = input.size
    if not is_met(eq(weight0.size[1], features)):
        fail(
            f"input.size(-1) must be equal to input_size. Expected {weight0.size[1]}, got "
            f"{features}"
        )
    out = input.fresh((time, batch, hidden_size))
    workspace = input.fresh((0,), torch.uint8) if train or torch.is_grad_enabled() else None
    cell = cx_.fresh() if mode == _LSTM else input.fresh((0,))
    return out, hx_.fresh(), cell, workspace


mark(Trait.RULE_READS_SETTINGS, "mkldnn_rnn_layer")  # it reads whether gradients are on


def _require_gates(input_gates: TensorType, hidden_gates: TensorType) -> None:
    for a, b in zip(input_gates.size, hidden_gates.size, strict=True):
        if not is_met(eq(a, b)):
            fail(f"gates disagree: {show(input_gates.size)} and {show(hidden_gates.size)}")


@rule("_thnn_fused_lstm_cell")
def fused_lstm_cell(
    input_gates: TensorType, hidden_gates: TensorType, cx: TensorType, *_: object, **__: object
) -> tuple[TensorType, TensorType, TensorType]:
    _require_gates(input_gates, hidden_gates)
    return cx.fresh(), cx.fresh(), input_gates.fresh()


@rule("_thnn_fused_lstm_cell_backward_impl")
def fused_lstm_cell_backward(
    grad_hy: Optional,
    grad_cy: Optional,
    cx: TensorType,
    cy: TensorType,
    workspace: TensorType,
    has_bias: bool,
) -> tuple[TensorType, TensorType, TensorType]:
    bias = workspace.fresh((workspace.size[1],)) if has_bias else workspace.fresh((0,))
    return workspace.fresh(), cx.fresh(), bias


@rule("_thnn_fused_gru_cell")
def fused_gru_cell(
    input_gates: TensorType, hidden_gates: TensorType, hx: TensorType, *_: object, **__: object
) -> tuple[TensorType, TensorType]:
    _require_gates(input_gates, hidden_gates)
    batch, hidden = hx.size
    return hx.fresh(), hx.fresh((batch, hidden * 5))


# ------------------------------------------------------------------------------------ whole layers
# Composite in torch. They have rules, because C++ would ask for concrete sizes to take them apart.


def _sequence(
    input: TensorType, hx: TensorType, layers: int, both: bool, batch_first: bool
) -> TensorType:
    if len(input.size) != 3:
        fail(f"input must have 3 dimensions, got {len(input.size)}")
    time, batch = (input.size[1], input.size[0]) if batch_first else input.size[:2]
    require(time >= 1, "Expected sequence length to be larger than 0 in RNN")
    directions = 2 if both else 1
    if not is_met(eq(hx.size[0], layers * directions) & eq(hx.size[1], batch)):
        fail(
            f"Expected hidden size ({layers * directions}, {batch}, {hx.size[-1]}), "
            f"got {show(hx.size)}"
        )
    out = input.fresh((time, batch, hx.size[-1] * directions))
    if not batch_first:
        return out
    (t, b, h), (st, sb, sh) = out.size, out.stride
    return out.replace(size=(b, t, h), stride=(sb, st, sh))


@rule("lstm.input")
def lstm(
    input: TensorType,
    hx: Sequence[TensorType],
    params: Sequence[TensorType],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[TensorType, TensorType, TensorType]:
    if len(hx) != 2:
        fail("lstm expects two hidden states")
    out = _sequence(input, hx[0], num_layers, bidirectional, batch_first)
    return out, hx[0].fresh(), hx[1].fresh()


@rule("gru.input rnn_tanh.input rnn_relu.input")
def recurrent(
    input: TensorType,
    hx: TensorType,
    params: Sequence[TensorType],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[TensorType, TensorType]:
    return _sequence(input, hx, num_layers, bidirectional, batch_first), hx.fresh()


mark(
    Trait.RECURRENT,
    "lstm.input gru.input rnn_tanh.input rnn_relu.input lstm.data gru.data rnn_tanh.data",
    "rnn_relu.data",
)
PACKED = OperatorRefusal(
    "{overload} works on packed sequences that come from outside, which cannot be captured",
    why="how many steps are computed of each sequence is data, and nobody says how many at most",
    instead="pass them padded, with their lengths, and pack them inside, pack_padded_sequence()",
)
refuse_operators(PACKED, "_pack_padded_sequence", "_pad_packed_sequence")
