"""Recurrent layers over a length that varies: a `scan`, beside eager at several lengths."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import nn

from lostwax import Dim
from lostwax.capture import export
from tests.capture.small import targets

LAYERS: dict[str, Any] = {
    "lstm": lambda: nn.LSTM(3, 4),
    "lstm of two layers": lambda: nn.LSTM(3, 4, num_layers=2),
    "lstm, both ways": lambda: nn.LSTM(3, 4, num_layers=2, bidirectional=True),
    "lstm, batch first": lambda: nn.LSTM(3, 4, batch_first=True, bidirectional=True),
    "lstm, projected": lambda: nn.LSTM(3, 4, proj_size=2, num_layers=2, bidirectional=True),
    "lstm without biases": lambda: nn.LSTM(3, 4, bias=False),
    "lstm with dropout, eval": lambda: nn.LSTM(3, 4, num_layers=2, dropout=0.5).eval(),
    "gru": lambda: nn.GRU(3, 4),
    "gru, all at once": lambda: nn.GRU(3, 4, 2, batch_first=True, bidirectional=True),
    "rnn": lambda: nn.RNN(3, 4),
    "rnn of relu": lambda: nn.RNN(3, 4, 2, nonlinearity="relu", bidirectional=True),
}


def _input(layer: Any, length: int, batch: int = 2) -> torch.Tensor:
    size = (batch, length, 3) if layer.batch_first else (length, batch, 3)
    return torch.sin(torch.arange(float(length * batch * 3))).view(size)


@pytest.mark.parametrize("name", LAYERS)
def test_as_eager_at_every_length(name: str) -> None:
    torch.manual_seed(0)
    layer = LAYERS[name]()
    where = 1 if layer.batch_first else 0
    sizes = {where: Dim("length", min=1), 1 - where: Dim("batch", min=1)}
    program = export(layer, (_input(layer, 5),), dynamic_shapes=(sizes,))
    program.validate()
    assert not program.guards
    assert "scan" in targets(program)
    assert not any(t in ("aten.lstm.input", "aten.gru.input") for t in targets(program))
    ours, eager = program.module(), deepcopy(layer)
    for length, batch in ((1, 1), (5, 2), (9, 3)):
        x = _input(layer, length, batch)
        mine, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
        got, want = ours(mine), eager(theirs)
        torch.testing.assert_close(got, want)
        ours.zero_grad()
        eager.zero_grad()
        got[0].square().sum().backward()
        want[0].square().sum().backward()
        torch.testing.assert_close(mine.grad, theirs.grad)
        for p, q in zip(ours.parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad)


def test_with_a_state_that_is_given() -> None:
    layer = nn.LSTM(3, 4, num_layers=2)
    state = (torch.randn(2, 2, 4), torch.randn(2, 2, 4))
    sizes = ({0: Dim("length", min=1)}, (None, None))
    ours = export(layer, (_input(layer, 5), state), dynamic_shapes=sizes).module()
    for length in (1, 3, 8):
        x = _input(layer, length)
        torch.testing.assert_close(ours(x, state), layer(x, state))


def test_a_fixed_length_is_written_out() -> None:
    program = export(nn.GRU(3, 4), (torch.randn(3, 2, 3),), dynamic_shapes=({1: Dim("batch")},))
    assert "scan" not in targets(program)


def test_dropout_between_layers_of_varying_length() -> None:
    layer = nn.GRU(3, 4, num_layers=2, dropout=0.5)
    program = export(layer, (_input(layer, 5),), dynamic_shapes=({0: Dim("length", min=1)},))
    ours, x = program.module(), _input(layer, 7)
    torch.manual_seed(3)
    first = ours(x)[0]
    torch.manual_seed(3)
    torch.testing.assert_close(first, ours(x)[0])
    torch.manual_seed(4)
    assert not torch.equal(first, ours(x)[0])


def test_two_recurrent_layers_in_a_branch() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = nn.GRU(3, 4), nn.RNN(3, 4)

        def forward(self, x: Any) -> Any:
            return torch.cond(
                x.sum() > 0, lambda x: self.one(x)[0], lambda x: self.other(x)[0], (x,)
            )

    model = Model()
    x = torch.rand(5, 2, 3)
    ours = export(model, (x,), dynamic_shapes=({0: Dim("length", min=1)},)).module()
    for length in (1, 4):
        y = torch.rand(length, 2, 3)
        torch.testing.assert_close(ours(y), model.one(y)[0])
        torch.testing.assert_close(ours(-y), model.other(-y)[0])
