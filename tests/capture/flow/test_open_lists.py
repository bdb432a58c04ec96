"""Lists of which data decide how long they are: added up, searched, taken from, as in eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree

import lostwax
from lostwax.errors import LostwaxError
from tests.capture.flow import open_lists

CALLS = (
    torch.tensor([1.0, 2.0, -3.0, 4.0]),
    torch.tensor([-1.0, -2.0, -3.0, -4.0]),
    torch.tensor([0.5, 0.5, 0.2, 0.1]),
    torch.tensor([5.0, -1.0, 3.0, 2.0]),
)


def run_with_gradient(run: Any, x: torch.Tensor) -> Any:
    """What a call gives, and the gradient of it; the class of what it raises."""
    x = x.clone().requires_grad_()
    try:
        found = run(x)
    except (IndexError, RuntimeError, ValueError):
        return "raises"
    leaves = [y for y in pytree.tree_leaves(found) if isinstance(y, torch.Tensor)]
    wanted = sum(y.sum() for y in leaves if y.requires_grad)
    grad = torch.autograd.grad(wanted, x) if isinstance(wanted, torch.Tensor) else ()
    return pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, (found, grad))


@pytest.mark.parametrize("function", open_lists.CAPTURED, ids=lambda each: each.__name__)
def test_each_way_equals_eager(function: Any) -> None:
    run = lostwax.export(function, (CALLS[0],)).module()
    for x in CALLS:
        got, want = run_with_gradient(run, x), run_with_gradient(function, x)
        torch.testing.assert_close(got, want, equal_nan=True) if want != "raises" else None
        assert (got == "raises") == (want == "raises")


@pytest.mark.parametrize("function", open_lists.REFUSED, ids=lambda each: each.__name__)
def test_what_cannot_be_answered_is_refused(function: Any) -> None:
    with pytest.raises(LostwaxError) as error:
        lostwax.export(function, (CALLS[0],))
    assert "open_lists.py:" in str(error.value)
    assert "instead:" in str(error.value)


def test_a_tensor_of_no_numbers_would_be_of_floats() -> None:
    def find(x: torch.Tensor) -> torch.Tensor:
        return torch.tensor([i for i, each in enumerate(x) if each > 0])

    run = lostwax.export(find, (CALLS[0],)).module()
    torch.testing.assert_close(run(CALLS[3]), find(CALLS[3]))
    with pytest.raises(RuntimeError, match=r"torch.tensor\(\[\]\) is of floats: say dtype="):
        run(CALLS[1])
