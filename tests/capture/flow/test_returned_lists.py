"""A module that returns a list to which a loop appends: the error says what makes one tensor of it,
and that is captured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import lostwax
from lostwax.errors import CaptureError

X = torch.tensor([1.0, -2.0, 3.0, 4.0])


def tensors(x: Tensor) -> list[Tensor]:
    return [each for each in x if each > 0]


def numbers(x: Tensor) -> list[int]:
    return [i for i, each in enumerate(x) if each > 0]


@pytest.mark.parametrize(
    ("function", "join"),
    [
        (tensors, torch.stack),
        (numbers, torch.tensor),
    ],
)
def test_the_error_says_what_makes_one_tensor(function: Any, join: Callable[..., Any]) -> None:
    with pytest.raises(CaptureError, match=rf"return one tensor, torch.{join.__name__}\(list\)"):
        lostwax.export(function, (X,))
    fixed = lambda x: join(function(x))  # noqa: E731
    run = lostwax.export(fixed, (X,)).module()
    for x in (X, X - 2, X + 3):
        torch.testing.assert_close(run(x), fixed(x))
