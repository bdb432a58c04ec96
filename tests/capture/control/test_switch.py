"""`torch.switch` of torch 2.15: the handler is here in every version, the operator in that one."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lostwax import Dim
from lostwax.capture import threads
from lostwax.capture.control.switch import record_switch
from tests.capture.control.compare import Small, exported

X = torch.arange(12.0).view(4, 3) / 7 + 0.1


def _choose(self: Any, index: Any, x: Any) -> Any:
    branches = (lambda x: x.sin(), lambda x: self.linear(x), lambda x: x * 2 + self.total)
    if hasattr(torch, "switch"):
        return torch.switch(index, branches, (x,))
    return record_switch(threads.running[-1], index, branches, (x,))


def by_tensor(self: Any, x: Any, index: Any) -> Any:
    return _choose(self, index, x)


def by_size(self: Any, x: Any) -> Any:
    return _choose(self, x.shape[0] - 2, x)


def _want(module: Small, index: int, x: Any) -> Any:
    with torch.no_grad():
        return (x.sin(), module.linear(x), x * 2 + module.total)[min(max(index, 0), 2)]


@pytest.mark.parametrize("form", [torch.tensor(1), torch.tensor([1])])
def test_by_a_tensor(form: Any) -> None:
    module, eager = exported(by_tensor, (X, form)).module(), Small(by_tensor)
    for index in (-3, 0, 1, 2, 7):
        got = module(X, torch.full_like(form, index))
        torch.testing.assert_close(got, _want(eager, index, X))
        assert not got.requires_grad


def test_by_a_size() -> None:
    module, eager = exported(by_size, (X,), [{0: Dim("rows")}]).module(), Small(by_size)
    for rows in (1, 2, 3, 4, 9):
        x = torch.randn(rows, 3)
        torch.testing.assert_close(module(x), _want(eager, rows - 2, x))
