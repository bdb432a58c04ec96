"""Recurrent layers are `LSTM`, `GRU` and `RNN` nodes; beside eager, in onnxruntime."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

import lostwax
from lostwax import Dim
from lostwax.onnx.runtime import LoadedModel
from tests.onnx.running import Session, compare


def write(module: nn.Module, *args: Tensor, opset: int = 23) -> Session:
    sizes = {0: Dim("batch", min=1), 1: Dim("length", min=2)}
    shapes = ({d: sizes[d] for d in (0, 1)}, *({1: sizes[0]} for _ in args[1:]))
    program = lostwax.export(module, args, dynamic_shapes={"args": shapes}, keep="composite")
    return Session(program, opset)


class Layer(nn.Module):
    """A layer whose batch comes first, with a first state if one is given."""

    def __init__(self, kind: Any, **options: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = kind(4, 6, batch_first=True, **options)

    def forward(self, *args: Tensor) -> Any:
        x, *state = args
        return self.layer(x, tuple(state) if len(state) > 1 else state[0] if state else None)


KINDS: dict[str, tuple[Any, dict[str, Any], str, int]] = {
    "lstm": (nn.LSTM, {}, "LSTM", 2),
    "gru": (nn.GRU, {}, "GRU", 1),
    "rnn": (nn.RNN, {}, "RNN", 1),
    "relu": (nn.RNN, {"nonlinearity": "relu"}, "RNN", 1),
}


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("opset", [18, 23])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("both", [False, True])
def test_each_layer_is_one_node(name: str, opset: int, layers: int, both: bool) -> None:
    kind, options, op, states = KINDS[name]
    module = Layer(kind, num_layers=layers, bidirectional=both, bias=layers == 2, **options).eval()
    session = write(module, torch.randn(2, 5, 4), opset=opset)
    assert session.nodes.count(op) == layers
    compare(session, module, (torch.randn(3, 7, 4),))
    compare(session, module, (torch.randn(1, 2, 4),))
    first = [torch.randn(layers * (1 + both), 3, 6) for _ in range(states)]
    session = write(module, torch.randn(3, 5, 4), *first, opset=opset)
    compare(session, module, (torch.randn(3, 7, 4), *first))


@pytest.mark.parametrize("both", [False, True])
def test_a_projected_one_is_a_scan(both: bool) -> None:
    module = Layer(nn.LSTM, proj_size=3, num_layers=2, bidirectional=both).eval()
    session = write(module, torch.randn(2, 5, 4))
    assert session.nodes.count("Scan") == 2 * (1 + both)
    compare(session, module, (torch.randn(3, 7, 4),))
    count = 2 * (1 + both)
    first = torch.randn(count, 3, 3), torch.randn(count, 3, 6)
    compare(write(module, torch.randn(3, 5, 4), *first), module, (torch.randn(3, 8, 4), *first))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_other_dtypes(kind: Any, dtype: torch.dtype) -> None:
    module = Layer(kind).to(dtype).eval()
    model = LoadedModel(write(module, torch.randn(2, 5, 4, dtype=dtype)).model, 1)
    x = torch.randn(3, 7, 4, dtype=dtype)
    with torch.no_grad():
        wanted = pytree.tree_leaves(module(x))
    torch.testing.assert_close(model(x), wanted, rtol=2e-2, atol=2e-2)


def test_weights_that_are_computed_are_put_in_order_at_run_time() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.LSTM(4, 6, batch_first=True)

        def forward(self, *args: Tensor) -> Any:
            (x,) = args
            first = x.new_zeros(1, x.shape[0], 6)
            weights = [each * 2 for each in self.layer.all_weights[0]]
            return torch.lstm(x, (first, first), weights, True, 1, 0.0, False, False, True)

    module = Scaled().eval()
    session = write(module, torch.randn(2, 5, 4))
    assert session.nodes.count("LSTM") == 1
    compare(session, module, (torch.randn(3, 7, 4),))


def test_a_layer_that_learns_is_refused_where_it_drops() -> None:
    module = Layer(nn.LSTM, num_layers=2, dropout=0.5)
    with pytest.raises(lostwax.errors.OnnxError, match="it drops outputs at random"):
        write(module.train(), torch.randn(2, 5, 4))
