"""What the example would decide inside of a branch, also of one that it does not take: it is
refused, or both ways are kept. What eager checks, the branch checks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch._higher_order_ops as operators

from lostwax import Dim
from lostwax.errors import CaptureError
from tests.capture.control.compare import Small, exported
from tests.capture.control.plain import plain

EXAMPLE = 6


def decided(x: Any) -> Any:
    """Python decides by the size of the example, which is no size of this branch's."""
    if x.shape[0] > 10:
        return x * 3
    return x * 5 if x.shape[0] % 2 == 0 else x * 7


def by_tensor(self: Any, x: Any) -> Any:
    return torch.cond(x.sum() > 0, lambda x: x + 1, decided, (x,))


def by_size(self: Any, x: Any) -> Any:
    return torch.cond(x.shape[0] > 8, decided, lambda x: x + 1, (x,))


def known_by_predicate(self: Any, x: Any) -> Any:
    """What follows from the predicate needs no example, which would say otherwise."""

    def true(x: Any) -> Any:
        return x * (2 if x.shape[0] > 7 else 3) + (1 if x.shape[0] == 6 else 0)

    return torch.cond(x.shape[0] > 8, true, lambda x: x + 1, (x,))


def against_predicate(self: Any, x: Any) -> Any:
    def true(x: Any) -> Any:
        rows = x.shape[0]
        return x * (2 if rows * rows > 50 else 3) * (4 if (rows - 6) * (rows - 5) == 0 else 1)

    return torch.cond(x.shape[0] > 8, true, lambda x: x + 1, (x,))


def reshaped(self: Any, x: Any) -> Any:
    """The view needs an even number of rows, and the branch alone."""

    def true(x: Any) -> Any:
        return x.view(2, -1).sum(0, keepdim=True) + x.sum()

    return torch.cond(x.shape[0] > 8, true, lambda x: x.view(1, -1) + 1, (x,))


def columns(self: Any, x: Any) -> Any:
    """The branches differ in a size, on which strides depend."""
    return torch.cond(x.shape[0] > 8, lambda x: x.T[:, 2:] * 2, lambda x: x.T + 1, (x,))


def compared(self: Any, x: Any) -> Any:
    return torch.cond(x.sum() > 0, torch.sin, lambda x: x + torch.ones(EXAMPLE, 3), (x,))


def nested(self: Any, x: Any) -> Any:
    def true(x: Any) -> Any:
        return torch.cond(x.shape[0] > 12, decided, lambda x: x * 2, (x,))

    return torch.cond(x.shape[0] > 8, true, decided, (x,))


def in_a_loop(self: Any, x: Any) -> Any:
    def body(i: Any, x: Any) -> Any:
        return i + 1, decided(x)

    return operators.while_loop(lambda i, x: (i < 2) & (x.sum() > 0), body, (torch.zeros(()), x))[1]


@pytest.mark.parametrize(
    ("program", "right"),
    [
        (by_tensor, 30), (by_size, 30), (known_by_predicate, 30), (against_predicate, 30),
        (reshaped, 22), (columns, 30), (compared, 16), (nested, 30), (in_a_loop, 30),
    ],
    ids=lambda each: getattr(each, "__name__", None),
)  # fmt: skip
def test_right_or_refused(program: Any, right: int) -> None:
    """On every size, whichever way it goes, the result is eager's or there is none; and there is
    one at least `right` times."""
    x, sizes = torch.ones(EXAMPLE, 3), [{0: Dim("rows", min=1, max=40)}]
    with torch.no_grad():
        how = {}
        if program in (by_tensor, by_size, nested, in_a_loop):
            how = {"control_flow": "sizes"}
            text = r"shape\[0\] .* is asked in a branch on data[\s\S]*in decided[\s\S]*\"sizes\""
            with pytest.raises(CaptureError, match=text):
                exported(program, (x,), sizes)
        run = exported(program, (x,), sizes, **how).module()
        found, reasons = 0, list[str]()
        for rows in range(1, 16):
            for sign in (1, -1):
                given = torch.linspace(0.1, 0.2, rows * 3).view(rows, 3) * sign
                try:
                    with plain():
                        want = Small(program)(given)
                except RuntimeError:
                    with pytest.raises(RuntimeError):
                        run(given)
                    continue
                try:
                    got = run(given)
                except RuntimeError as refused:
                    reasons.append(str(refused))
                    continue
                torch.testing.assert_close(got, want)
                found += 1
    assert all("is required" in reason for reason in reasons)
    assert found >= right


def test_branch_that_always_fails() -> None:
    def program(self: Any, x: Any) -> Any:
        ones = torch.ones(EXAMPLE, 3)
        return torch.cond(x.shape[0] > 8, lambda x: x + ones, torch.sin, (x,))

    with pytest.raises(RuntimeError, match="must match the size of tensor b"):
        exported(program, (torch.ones(EXAMPLE, 3),), [{0: Dim("rows", min=1, max=40)}])
