"""Examples that require no gradient, and calls that do: a program gives eager's gradients, or says
that it was not captured for them. What it records hangs on gradients in few places alone; all other
programs take both."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lostwax
from lostwax import export
from lostwax.errors import InputValueError

INDEX, OFFSETS = torch.tensor([0, 1, 2]), torch.tensor([0, 2])


def under_no_grad(x: Tensor) -> Tensor:
    y = x * 2
    with torch.no_grad():
        y.clamp_(0)
    return y


def a_part_under_no_grad(x: Tensor) -> Tensor:
    y = x * 2
    with torch.no_grad():
        y[0] = y[1] * 3
    return y * y


def through_detach(x: Tensor) -> Tensor:
    y = x * 2
    y.detach().clamp_(0)
    return y * y


def through_data(x: Tensor) -> Tensor:
    y = x * 2
    y.data.clamp_(0)
    return y * y


def other_data(x: Tensor) -> Tensor:
    y = x * 2
    y.data = y.data.clamp(0)
    return y * y


def an_input(x: Tensor) -> Tensor:
    x.data.clamp_(0)
    return x * x


def by_cpp(x: Tensor) -> Tensor:
    return F.cosine_similarity(x, x + 1)


def a_kernel_without_backward(x: Tensor) -> Tensor:
    return F.embedding_bag(INDEX, x, OFFSETS)


def shown_beside(x: Tensor) -> Tensor:
    return (x * 2)[1].as_strided((3, 4), (4, 1), 0) * x


class _Sevenfold(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 7


def a_backward_of_its_own(x: Tensor) -> Tensor:
    return _Sevenfold.apply(x)


HANG_ON_GRADIENTS = [
    under_no_grad, a_part_under_no_grad, through_detach, through_data, other_data, an_input, by_cpp,
    a_kernel_without_backward, shown_beside, a_backward_of_its_own,
]  # fmt: skip
STRIDED = (shown_beside,)
"""With gradients it cannot be captured."""


def made_from_it(x: Tensor) -> Tensor:
    y = torch.zeros(3, 4)
    y.data.copy_(x)
    return y * x


def given_as_data(x: Tensor) -> Tensor:
    y = torch.zeros(3, 4)
    y.data = x * 2
    return y * x


def made_under_no_grad(x: Tensor) -> Tensor:
    with torch.no_grad():
        y = x * 2
        y.clamp_(0)
    return y * x


def where_autograd_sees_it(x: Tensor) -> Tensor:
    y = x * 2
    y[0] = 3
    y.mul_(x)
    return y


TAKE_BOTH = [made_from_it, given_as_data, made_under_no_grad, where_autograd_sees_it]


def gradient(f: Callable[[Tensor], Tensor]) -> Tensor:
    x = torch.linspace(-1, 1, 12).view(3, 4).requires_grad_()
    (grad,) = torch.autograd.grad(f(x * 1).sum(), x)
    return grad


def example() -> Tensor:
    return torch.linspace(-1, 1, 12).view(3, 4)


@pytest.mark.parametrize("f", HANG_ON_GRADIENTS)
def test_a_program_that_was_captured_without_gradients_says_so(f: Any) -> None:
    program = export(f, (example(),))
    file = io.BytesIO()
    lostwax.save(program, file)
    file.seek(0)
    for each in (program, program.run_decompositions(), lostwax.load(file)):
        ours = each.module()
        torch.testing.assert_close(ours(example()), f(example()))
        with pytest.raises(InputValueError, match="an example that requires gradients") as caught:
            gradient(ours)
        assert "test_new_gradients.py" in str(caught.value)
        with torch.no_grad():
            torch.testing.assert_close(ours(example().requires_grad_()), f(example()))


@pytest.mark.parametrize("f", [f for f in HANG_ON_GRADIENTS if f not in STRIDED])
def test_with_such_an_example_it_takes_both(f: Any) -> None:
    ours = export(f, (example().requires_grad_() * 1,)).module()
    torch.testing.assert_close(gradient(ours), gradient(f))
    torch.testing.assert_close(ours(example()), f(example()))


@pytest.mark.parametrize("f", TAKE_BOTH)
def test_others_take_both_and_ask_nothing(f: Any) -> None:
    program = export(f, (example(),))
    assert not program.assumptions
    for each in (program, program.run_decompositions()):
        torch.testing.assert_close(gradient(each.module()), gradient(f))


def test_statistics_ask_nothing() -> None:
    class Statistics(nn.Linear):
        def __init__(self) -> None:
            super().__init__(4, 4)
            self.register_buffer("mean", torch.zeros(4))

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
            self.mean.data.add_(x.mean(0))
            return super().forward(x) - self.mean

    module = Statistics()
    program = export(module, (example(),))
    assert not program.assumptions
    torch.testing.assert_close(gradient(program.module()), gradient(module))


def test_bags_of_what_is_computed_from_parameters() -> None:
    class Bags(nn.Linear):
        def forward(self, offsets: Tensor) -> Tensor:
            return F.embedding_bag(INDEX, self.weight * 2, offsets)

    module = Bags(4, 3)
    ours = export(module, (OFFSETS,)).module()
    (want,) = torch.autograd.grad(module(OFFSETS).sum(), module.weight)
    (found,) = torch.autograd.grad(ours(OFFSETS).sum(), ours.weight)
    torch.testing.assert_close(found, want)


def test_hooks_that_see_gradients() -> None:
    module = nn.Sequential(nn.ReLU())
    module[0].register_full_backward_hook(lambda *_: (torch.ones(3, 4) * 5,))
    ours = export(module, (example(),)).module()
    torch.testing.assert_close(ours(example()), module(example()))
    with pytest.raises(InputValueError, match="the ReLU has backward hooks"):
        gradient(ours)


@pytest.mark.parametrize("write", [Tensor.zero_, lambda y: y.fill_(2.0), lambda y: y[:2].zero_()])
def test_what_is_filled_has_a_gradient(write: Callable[[Tensor], Any]) -> None:
    def forward(x: Tensor) -> Tensor:
        y = x.clone()
        write(y)
        return y

    program = export(forward, (example(),))
    for each in (program, program.run_decompositions()):
        torch.testing.assert_close(gradient(each.module()), gradient(forward))
