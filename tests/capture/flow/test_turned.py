"""Loops that hand on a tensor which lies otherwise in memory than the one that they begin with."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import lostwax
from lostwax.errors import CaptureError

START = torch.tensor([[1.0, 2.0, 0.5], [0.0, 1.0, 3.0], [2.0, 0.0, 1.0]])


def multiplied(a: Tensor) -> Tensor:
    x = a.T
    while x.norm() < 3:
        x = x @ x.T + 1
    return x


def read_in_its_order(a: Tensor) -> tuple[Tensor, Tensor]:
    x, n = a.T, torch.zeros(())
    while x.norm() < 3:
        n = n + x.reshape(-1)[1]
        x = x @ x.T + 1
    return x.reshape(-1), n


def written_to(a: Tensor) -> tuple[Tensor, Tensor]:
    y = x = a.T
    while x.norm() < 3:
        x = x @ x.T + 1
        x.add_(1)
    return x, y


@pytest.mark.parametrize("function", [multiplied, read_in_its_order, written_to])
def test_it_equals_eager(function: Any) -> None:
    run = lostwax.export(function, (START,)).module()
    for scale in (1.0, 0.1, 5.0, 0.0, 20.0):
        torch.testing.assert_close(run(START * scale), function(START * scale))


def asks_strides(a: Tensor) -> Any:
    x = multiplied(a)
    return x, x.stride()[0]


def asks_whether_it_is_contiguous(a: Tensor) -> Tensor:
    x = multiplied(a)
    return x + 1 if x.is_contiguous() else x


def views_its_memory(a: Tensor) -> Tensor:
    return multiplied(a).as_strided((9,), (1,))


def turns_each_time(a: Tensor) -> Tensor:
    x = a.T
    while x.norm() < 3:
        x = (x + 1).T
    return x


def writes_afterwards(a: Tensor) -> tuple[Tensor, Tensor]:
    x = a.T
    while x.norm() < 3:
        x = x @ x.T + 1
    x.mul_(2)
    return a, x


REFUSED = {
    asks_strides: "asks how a tensor lies in memory",
    asks_whether_it_is_contiguous: "asks how a tensor lies in memory",
    views_its_memory: "asks how a tensor lies in memory",
    turns_each_time: "lies otherwise in memory",
    writes_afterwards: "if it does not run once",
}


@pytest.mark.parametrize("function", REFUSED, ids=lambda each: each.__name__)
def test_what_would_tell_is_refused(function: Any) -> None:
    with pytest.raises(CaptureError, match=REFUSED[function]):
        lostwax.export(function, (START,))
