"""Packed sequences, by what they compute: lengths that are data, or known. Compared with eager,
with gradients, and as torch reads them."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import (
    PackedSequence,
    pack_padded_sequence,
    pack_sequence,
    pad_packed_sequence,
    unpack_sequence,
)

import lostwax
from lostwax import Dim, export
from lostwax.errors import CaptureError

STEPS = 5


class Layer(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], *, first: bool, ordered: bool, **how: Any) -> None:
        super().__init__()
        self.total, self.given = how.pop("total", None), how.pop("given", False)
        self.known = how.pop("known", None)
        self.layer: Any = kind(4, 3, batch_first=first, **how)  # type: ignore[call-arg]
        self.first, self.ordered = first, ordered

    def forward(self, x: Tensor, lengths: Any = None) -> Any:
        lengths = lengths if self.known is None else self.known
        packed = pack_padded_sequence(x, lengths, self.first, self.ordered)
        out, last = self.layer(packed, self.make_state(x) if self.given else None)
        changed = PackedSequence(out.data.tanh(), *out[1:])
        return *pad_packed_sequence(changed, self.first, -1.0, self.total), last

    def make_state(self, x: Tensor) -> Any:
        layer, batch = self.layer, x.shape[0 if self.first else 1]
        rows = layer.num_layers * (2 if layer.bidirectional else 1)
        h = torch.ones(rows, batch, 1) * torch.arange(batch)[:, None]
        sizes = (layer.proj_size or 3, 3) if isinstance(layer, nn.LSTM) else (3,)
        states = tuple(h.expand(-1, -1, size).contiguous() for size in sizes)
        return states if len(states) > 1 else states[0]


def call(first: bool, *lengths: int, steps: int = STEPS) -> tuple[Tensor, Tensor]:
    x = torch.randn(len(lengths), steps, 4)
    return x if first else x.transpose(0, 1).contiguous(), torch.tensor(lengths)


def check(module: nn.Module, calls: list[Any], sizes: Any = None) -> None:
    program, file = export(module, calls[0], dynamic_shapes=sizes), io.BytesIO()
    lostwax.save(program, file)
    file.seek(0)
    ours, theirs = program.module(), torch.export.load(file).module()
    for x, *rest in calls:
        got, gradients = [], []
        for each in (module, ours):
            given = x.clone().requires_grad_()
            got.append(each(given, *rest))
            got[-1][0].sin().sum().backward()
            gradients.append(given.grad)
        torch.testing.assert_close(got[1], got[0])
        torch.testing.assert_close(gradients[1], gradients[0])
        torch.testing.assert_close(theirs(x, *rest), module(x, *rest))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("ordered", [True, False])
def test_lengths_that_are_data(kind: Any, first: bool, ordered: bool) -> None:
    more = () if ordered else (call(first, 1, 4, 2), call(first, 2, 2, 5))
    calls = [call(first, 5, 3, 2), call(first, 4, 1, 1), call(first, 5, 5, 5), *more]
    check(Layer(kind, first=first, ordered=ordered), calls)


CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "a state": (nn.LSTM, {"given": True}),
    "both ways": (nn.LSTM, {"given": True, "num_layers": 2, "bidirectional": True}),
    "layers": (nn.GRU, {"num_layers": 2, "bidirectional": True}),
    "projected": (nn.LSTM, {"proj_size": 2, "given": True}),
    "no biases": (nn.RNN, {"bias": False, "nonlinearity": "relu"}),
    "total": (nn.GRU, {"total": STEPS}),
    "longer": (nn.GRU, {"total": STEPS + 2}),
}


@pytest.mark.parametrize("name", CASES)
def test_layers(name: str) -> None:
    kind, how = CASES[name]
    module = Layer(kind, first=True, ordered=False, **how)
    check(module, [call(True, 2, 5, 3), call(True, 1, 1, 1)])


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_sizes_that_vary(kind: Any) -> None:
    batch, steps = Dim("batch", min=1), Dim("steps", min=1)
    sizes = {"x": {0: batch, 1: steps}, "lengths": {0: batch}}
    module = Layer(kind, first=True, ordered=False, bidirectional=kind is nn.GRU)
    check(module, [call(True, 2, 5), call(True, 2, 8, 1, steps=9), call(True, 1, steps=1)], sizes)


@pytest.mark.parametrize("known", [[2, 5, 3], (4, 1, 2), torch.tensor([3, 3, 1])])
def test_lengths_that_are_known_make_sizes_that_are(known: Any) -> None:
    module = Layer(nn.LSTM, first=True, ordered=False, known=known)
    check(module, [call(True, 1, 1, 1)[:1]])
    if isinstance(known, Tensor):  # somebody may write to it
        return
    out = export(module, call(True, 1, 1, 1)[:1]).graph.output_node().args[0][0]  # type: ignore[index]
    assert out.meta["val"].shape == (3, int(max(known)), 3)  # type: ignore[union-attr]


def test_sequences_one_by_one() -> None:
    def forward(a: Tensor, b: Tensor) -> Any:
        packed = pack_sequence([a, b], enforce_sorted=False)
        return packed.data * 2, unpack_sequence(packed)

    check_both = (torch.randn(2, 3), torch.randn(4, 3))
    torch.testing.assert_close(
        export(forward, check_both).module()(*check_both), forward(*check_both)
    )


def test_what_eager_refuses_is_refused() -> None:
    ours = export(Layer(nn.GRU, first=True, ordered=True), call(True, 5, 3, 2)).module()
    for lengths, text in (
        ((1, 3, 2), "lengths must be sorted in decreasing order, unless enforce_sorted=False"),
        ((5, 3, 0), "the lengths of all sequences must be greater than 0"),
        ((6, 3, 2), "a sequence is longer than the tensor to pack"),
    ):
        with pytest.raises(RuntimeError, match=text):
            ours(*call(True, *lengths))
    with pytest.raises(RuntimeError, match="as many lengths as there are sequences"):
        export(Layer(nn.GRU, first=True, ordered=True), (torch.ones(3, 5, 4), torch.tensor([2])))


def test_dropout_between_layers_is_refused() -> None:
    module = Layer(nn.GRU, first=True, ordered=True, num_layers=2, dropout=0.5)
    with pytest.raises(CaptureError, match="packed sequence cannot be captured with dropout"):
        export(module, call(True, 5, 3, 2))
    check(module.eval(), [call(True, 5, 3, 2), call(True, 3, 3, 3)])
