"""Numbers out of tensors, and what is asserted of them when the program runs."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from lostwax.capture import export
from lostwax.errors import DataDependentError
from tests.capture.small import X


def test_checks_on_data_are_asserted_at_run_time() -> None:
    def sized(x: torch.Tensor) -> torch.Tensor:
        n = x.sum().item()
        torch._check(n >= 2)
        torch._check(n <= 20)
        return torch.zeros(n, 3)

    program = export(sized, (torch.tensor([1, 2, 3]),))
    program.validate()
    module = program.module()
    assert module(torch.tensor([2, 2, 3])).shape == (7, 3)
    for data in ([0, 1, 0], [20, 20, 20]):
        with pytest.raises(RuntimeError, match=r"u0 .= \d+ is required at \S+/test_numbers.py"):
            module(torch.tensor(data))


NUMBERS: dict[str, Any] = {
    "a factor": lambda x, y: x * y.item(),
    "a fill": lambda x, y: torch.full((2,), y.item()) + x.clone().fill_(y.item()).sum(),
    "arithmetic": lambda x, y: x * (y.item() * 2 + 1) / (y.item() - 0.25) - y.item() ** 2,
    "an option": lambda x, y: torch.add(x, x, alpha=y.item()).clamp(-y.item(), y.item()),
    "functions": lambda x, y: x * torch._sym_sqrt(y.item()) + torch._sym_sin(-y.item()),
    "extrema": lambda x, y: x * torch.sym_max(y.item(), 3.0) + torch.sym_min(y.item(), 1.0),
    "rounded": lambda x, y: x * round(y.item()) + round(y.item(), 1) + math.floor(y.item()),
    "a size": lambda x, y: torch.ones(math.ceil(y.item())),
    "of an int": lambda x, y: x * (y.int().item() / 2) + float(x.numel()),
    "both": lambda x, y: x * (y.item() + y.int().item()),
    "a truth": lambda x, y: (x * (y > 1).item(), torch.full((2,), (y > 1).item())),
    "compared": lambda x, y: (x * (y.item() < 3), y.item() == 2.5, y.item() != 2.5),
    "chosen": lambda x, y: x * torch.sym_ite(y.item() > 1, 2, 3),
    "results": lambda x, y: (y.item(), y.item() * 2, (y > 1).item(), y.int().item()),
    "a list": lambda x, y: sum(x.tolist()) * x,
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_out_of_tensors(name: str) -> None:
    function = NUMBERS[name]
    x = torch.randn(3)
    program = export(function, (x, torch.tensor(2.5)))
    program.validate()
    assert str(program)
    for value in (2.5, 4.25, 0.75):
        y = torch.tensor(value)
        torch.testing.assert_close(program.module()(x, y), function(x, y))


def test_checks_on_floats_are_asserted_at_run_time() -> None:
    def scaled_by(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        torch._check(y.item() * 2 <= 10.0)
        return x / y.item()

    module = export(scaled_by, (X, torch.tensor(2.5))).module()
    torch.testing.assert_close(module(X, torch.tensor(4.0)), X / 4)
    with pytest.raises(RuntimeError, match=r"required at \S+/test_numbers.py:\d+ in scaled_by"):
        module(X, torch.tensor(6.0))


def test_a_float_that_python_needs_is_refused_with_the_line() -> None:
    with pytest.raises(DataDependentError, match=r"asked at \S+/test_numbers.py:\d+ in <lambda>"):
        export(lambda x, y: x * math.frexp(y.item())[0], (X, torch.tensor(2.5)))


def test_a_single_truth_is_a_mask() -> None:
    def both(x: torch.Tensor, keep: torch.Tensor) -> Any:
        y = x.clone()
        y[keep] = 7.0
        return x[keep], y

    module = export(both, (X, torch.tensor(True))).module()
    for truth in (True, False):
        keep = torch.tensor(truth)
        torch.testing.assert_close(module(X, keep), both(X, keep))


def test_a_single_integer_is_an_index() -> None:
    def at(x: torch.Tensor, i: torch.Tensor) -> Any:
        torch._assert((i < 2**40).all(), "too far")
        y = x.clone()
        y[i] = 0
        return x[i], x[:, i], x[i, torch.tensor([0, 1])], y

    module = export(at, (X, torch.tensor(1))).module()
    for number in (0, 2, -1):
        i = torch.tensor(number)
        torch.testing.assert_close(module(X, i), at(X, i))
    with pytest.raises(RuntimeError, match=r"required at tests/capture/trace/test_numbers.py"):
        module(X, torch.tensor(-9))


def test_slices_to_a_place_that_data_know() -> None:
    module = export(lambda x, i: (x[:i], x[i:]), (X, torch.tensor(1))).module()
    for number in (0, 2, 3):
        torch.testing.assert_close(module(X, torch.tensor(number)), (X[:number], X[number:]))


def test_numbers_of_what_was_given_other_data() -> None:
    """`t.data = ...`: what was known of the old data is not asked any more."""

    def forward(x: torch.Tensor) -> Any:
        t = torch.tensor([2.0, 3.0])
        first = t[0].item()
        t.data = torch.tensor([5.0, 7.0])
        n = torch.tensor(2)
        n.data = torch.tensor(4)
        u = torch.tensor(1.0)
        u.data = x.sum()
        if torch.equal(t, torch.tensor([5.0, 7.0])):
            x = x * 10
        return x * first * t[0].item() * u.item(), t.tolist(), torch.zeros(n.item()) + t[1].item()

    x = torch.ones(3)
    torch.testing.assert_close(export(forward, (x,)).module()(x), forward(x))


def test_lengths_that_turn_out_to_be_products_of_later_numbers() -> None:
    """As in VideoLLaMA 3: patches are cut by lengths, and then viewed as the grids that these are
    of. The cut comes first: it is not computed from the grids."""

    def forward(x: torch.Tensor, grids: torch.Tensor) -> list[torch.Tensor]:
        pieces = x.split(grids.prod(1).tolist())
        return [p.view(h, w, 2) + 1 for p, (h, w) in zip(pieces, grids, strict=True)]

    x = torch.randn(10, 2)
    program = export(forward, (x, torch.tensor([[2, 3], [4, 1]])))
    program.validate()
    program.run_decompositions().validate()
    for grids in (torch.tensor([[2, 3], [4, 1]]), torch.tensor([[1, 5], [1, 5]])):
        torch.testing.assert_close(program.module()(x, grids), forward(x, grids))
    with pytest.raises(RuntimeError):
        program.module()(x, torch.tensor([[2, 3], [5, 1]]))
