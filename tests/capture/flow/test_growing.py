"""Loops that hand on tensors which get longer or shorter, against eager."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import pytest
import torch
from torch import Tensor

import lostwax
from lostwax import Dim
from lostwax.errors import CaptureError, LoweringError

Call = tuple[Any, ...]


def append_ones(x: Tensor) -> Tensor:
    while x.sum() < 10:
        x = torch.cat([x, x.new_ones(1)])
    return x


def begin_with_nothing(x: Tensor) -> Any:
    found, count = torch.zeros(0), 0
    while x.sum() > 0:
        x = x - 1
        found = torch.cat([found, x[:2]])
        count += 1
    return found, count, found.shape[0]


def double(x: Tensor) -> Tensor:
    while x.sum() < 50 and x.abs().sum() > 0:
        x = torch.cat([x, x.abs()])
    return x


def drop_first(x: Tensor) -> Tensor:
    y = torch.cat([x, x.new_full((1,), -1)])
    while y[0] > 0:
        y = y[1:]
    return y


def keep_positive(x: Tensor) -> Any:
    turns = torch.zeros(())
    while (x > 0).any():
        x = x[x > 0] - 1
        turns = turns + x.shape[0]
    return x, turns


def two_that_change_alike(x: Tensor) -> Any:
    mask = torch.ones_like(x)
    while x.sum() < 10:
        x, mask = torch.cat([x, x.new_ones(1)]), torch.cat([mask, mask.new_zeros(1)])
        x = x + mask
    return x, mask, x * mask


def two_that_change_apart(x: Tensor) -> Any:
    y = x.clone()
    while x.sum() < 20 and y.sum() < 50:
        x = torch.cat([x, x.new_ones(1)])
        y = torch.cat([y, y.new_ones(2)])
    return x, y


def grow_in_a_side(x: Tensor) -> Tensor:
    y, step = x, 0
    while step < 4 and y.sum() < 20:
        if y.sum() > 3:
            y = torch.cat([y, y[:1]])
        step += 1
    return y


def grow_in_two_loops(x: Tensor) -> Tensor:
    y = x[:1]
    while y.sum() < 12 and x.sum() > 0:
        while y[-1] < 3:
            y = torch.cat([y, y[-1:] + 1])
        y = torch.cat([y, y.new_ones(1)])
    return y


def write_in_place(x: Tensor) -> Tensor:
    y = x.clone()
    while y.sum() < 10:
        y = torch.cat([y, y.new_ones(1)])
        y[0] += 1
    return y


PROGRAMS = [
    append_ones,
    begin_with_nothing,
    double,
    drop_first,
    keep_positive,
    two_that_change_alike,
    two_that_change_apart,
    grow_in_a_side,
    grow_in_two_loops,
    write_in_place,
]
INPUTS = [
    torch.tensor(each, dtype=torch.float32)
    for each in ([1, 1, 1], [-1, -1, -1], [1, -2, 3], [0, 0, 0], [2, 1, 3], [5, 3, 2], [9, 9, 9])
]


@pytest.mark.parametrize("function", PROGRAMS)
def test_it_does_what_eager_does(function: Any) -> None:
    sizes = ({0: Dim("n", min=2, max=100)},)
    for program in (
        lostwax.export(function, (INPUTS[0],)),
        lostwax.export(function, (INPUTS[0],), dynamic_shapes=sizes),
    ):
        program.validate()
        run = program.module()
        for each in INPUTS:
            torch.testing.assert_close(run(each), function(each))
    for each in (torch.tensor([1.0, 2.0]), torch.tensor([1.0, 0.5, -3.0, 0.25, 2.0])):
        torch.testing.assert_close(run(each), function(each))


@pytest.mark.parametrize("function", [double, begin_with_nothing, grow_in_two_loops])
def test_the_program_can_be_kept_and_changed(function: Any) -> None:
    program = lostwax.export(function, (INPUTS[0],), dynamic_shapes=({0: Dim("n", min=2)},))
    file = BytesIO()
    lostwax.save(program, file)
    file.seek(0)
    loaded = lostwax.load(file)
    file.seek(0)
    others = [
        loaded.module(),
        program.run_decompositions().module(),
        lostwax.export(program.module(), (INPUTS[0],)).module(),
        torch.export.load(file).module(),
    ]
    for each in INPUTS:
        for run in others:
            torch.testing.assert_close(run(each), function(each))


def test_gradients_go_through_it() -> None:
    run = lostwax.export(double, (INPUTS[0],)).module()
    for each in INPUTS:
        ours, theirs = each.clone().requires_grad_(), each.clone().requires_grad_()
        run(ours).square().sum().backward()
        double(theirs).square().sum().backward()
        torch.testing.assert_close(ours.grad, theirs.grad)


# -------------------------------------------------------------------------------- greedy decoding


class Decoder(torch.nn.Module):
    """Tokens one by one, with keys and values that get longer, as most decoders are written."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(11, 8)
        self.project = torch.nn.Linear(8, 24)
        self.head = torch.nn.Linear(8, 11)

    def attend(self, tokens: Tensor, past: Any) -> Any:
        q, k, v = self.project(self.embedding(tokens)).chunk(3, -1)
        if past is not None:
            k, v = torch.cat([past[0], k], 1), torch.cat([past[1], v], 1)
        k, v = k.contiguous(), v.contiguous()
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        return self.head(y[:, -1]), (k, v)

    def forward(self, tokens: Tensor) -> Any:
        scores, past = self.attend(tokens, None)
        while tokens.shape[1] < 12:
            chosen = scores.argmax(-1, keepdim=True)
            tokens = torch.cat([tokens, chosen], 1)
            if (chosen % 2 == 1).all():
                break
            scores, past = self.attend(chosen, past)
        return tokens, past[0]


def test_greedy_decoding_with_a_cache_that_gets_longer() -> None:
    torch.manual_seed(0)
    decoder = Decoder().eval()
    sizes = ({0: Dim("batch", min=1), 1: Dim("length", min=1, max=11)},)
    tokens = torch.randint(0, 11, (2, 3))
    program = lostwax.export(decoder, (tokens,), dynamic_shapes=sizes, control_flow="sizes")
    run, lengths = program.module(), set()
    for batch in (1, 2, 3):
        for length in (1, 2, 7, 11):
            tokens = torch.randint(0, 11, (batch, length))
            found = run(tokens)
            lengths.add(found[0].shape[1])
            torch.testing.assert_close(found, decoder(tokens))
    assert len(lengths) > 1


# -------------------------------------------------------------------------------------- refusals


def becomes_transposed(x: Tensor) -> Tensor:
    y = x.expand(2, -1).contiguous()
    while y.sum() < 100 and x.sum() > 0:
        y = torch.cat([y, y[:1]]).t()
    return y


def test_a_tensor_that_lies_otherwise_is_refused() -> None:
    with pytest.raises(CaptureError, match="lies otherwise in memory"):
        lostwax.export(becomes_transposed, (torch.ones(2),))


def a_view_of_what_is_written(x: Tensor) -> Any:
    x = x.clone()
    h = x[:1]
    while x.sum() < 50:
        x.add_(2)
        h = h + x[:1]
    return h, x


def test_what_is_handed_on_is_not_written_to() -> None:
    with pytest.raises(CaptureError, match="writes to a tensor that `while") as error:
        lostwax.export(a_view_of_what_is_written, (INPUTS[0],))
    assert "x.add_(2)" in str(error.value)


def test_an_executable_has_no_such_loop() -> None:
    def drop(x: Tensor) -> Tensor:
        while x.numel() > 1 and x.sum() > 3:
            x = x[1:] + 0
        return x

    program = lostwax.export(drop, (INPUTS[0],), control_flow="sizes")
    with pytest.raises(LoweringError, match="whose size changes from turn"):
        program.to_edge().to_executable()
